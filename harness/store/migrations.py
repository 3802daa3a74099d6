"""The schema, as migrations that are appended and never edited.

A database written by an older fm is brought forward on opening; one written by a newer fm is
refused, since its rows may mean something else.
"""

from __future__ import annotations

from sqlite_utils import Database, Migrations

from harness.store.views import ATTEMPTS, FIRST_VIEWS, REPORT_INDEXES

migrations = Migrations("fm")

_FIRST_TABLES = """
CREATE TABLE environments (
    content_hash TEXT PRIMARY KEY,
    content TEXT NOT NULL
) STRICT;

CREATE TABLE models (
    key TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    digest TEXT NOT NULL,
    source TEXT NOT NULL,
    dtype TEXT NOT NULL,
    vocab_size INTEGER,
    num_layers INTEGER
) STRICT;

CREATE TABLE workloads (
    content_hash TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    num_prompts INTEGER,
    max_tokens INTEGER,
    is_constrained INTEGER NOT NULL CHECK (is_constrained IN (0, 1)),
    allows_truncation INTEGER NOT NULL CHECK (allows_truncation IN (0, 1))
) STRICT;

CREATE TABLE cells (
    content_hash TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    lane TEXT NOT NULL CHECK (lane IN ('serial', 'batch')),
    max_rows INTEGER NOT NULL CHECK (max_rows >= 1),
    features TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('perf', 'routing', 'audit', 'aa', 'peer')),
    settings TEXT NOT NULL,
    expected_lane TEXT NOT NULL,
    baseline TEXT,
    reference TEXT,
    bare TEXT
) STRICT;

CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    created_at TEXT NOT NULL,
    tag TEXT NOT NULL,
    command TEXT NOT NULL,
    preset TEXT NOT NULL,
    seed TEXT NOT NULL,
    blocks INTEGER NOT NULL,
    prompts INTEGER NOT NULL,
    max_tokens INTEGER,
    target TEXT NOT NULL,
    settings TEXT NOT NULL,
    plan_hash TEXT NOT NULL,
    git_sha TEXT NOT NULL,
    git_dirty INTEGER NOT NULL CHECK (git_dirty IN (0, 1)),
    environment TEXT NOT NULL REFERENCES environments (content_hash),
    machine_refusals TEXT NOT NULL,
    status TEXT NOT NULL
        CHECK (status IN ('pending', 'running', 'finished', 'interrupted', 'failed')),
    exit_code INTEGER,
    quotable INTEGER CHECK (quotable IN (0, 1)),
    unquotable_reasons TEXT NOT NULL,
    finished_at TEXT
) STRICT;
CREATE INDEX runs_created_at ON runs (created_at);

CREATE TABLE trials (
    trial_id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    block INTEGER NOT NULL CHECK (block >= 0),
    order_in_block INTEGER NOT NULL CHECK (order_in_block >= 0),
    model TEXT NOT NULL REFERENCES models (key),
    workload TEXT NOT NULL REFERENCES workloads (content_hash),
    cell TEXT NOT NULL REFERENCES cells (content_hash),
    status TEXT NOT NULL CHECK (status IN ('pending', 'done', 'failed', 'skipped')),
    reason TEXT NOT NULL,
    started_at TEXT,
    finished_at TEXT,
    wall_s REAL,
    tokens INTEGER,
    aggregate_tokens INTEGER,
    aggregate_s REAL,
    decode_steps INTEGER,
    step_s REAL,
    mask_s REAL,
    mask_tokens INTEGER,
    draft_s REAL,
    replay_tokens INTEGER,
    replay_plain_s REAL,
    replay_masked_s REAL,
    replay_mask_s REAL,
    peak_mlx_bytes INTEGER,
    peak_rss_bytes INTEGER,
    lane_declared TEXT NOT NULL,
    lane_taken TEXT NOT NULL,
    lane_reason TEXT NOT NULL,
    UNIQUE (run_id, block, model, workload, cell)
) STRICT;

CREATE TABLE requests (
    trial_id TEXT NOT NULL REFERENCES trials (trial_id) ON DELETE CASCADE,
    position INTEGER NOT NULL CHECK (position >= 0),
    prompt_id TEXT NOT NULL,
    phase TEXT NOT NULL CHECK (phase IN ('warmup', 'measured')),
    status TEXT NOT NULL CHECK (status IN ('ok', 'error', 'cancelled')),
    finish_reason TEXT,
    prompt_tokens INTEGER,
    completion_tokens INTEGER CHECK (completion_tokens >= 0),
    count_source TEXT NOT NULL CHECK (count_source IN ('engine', 'usage', 'estimated')),
    cached_tokens INTEGER,
    ttft_s REAL,
    ttft_visible_s REAL,
    last_token_s REAL,
    e2e_s REAL,
    text TEXT,
    token_ids TEXT,
    lane_taken TEXT NOT NULL,
    lane_reason TEXT NOT NULL,
    seed TEXT,
    sampling TEXT NOT NULL,
    drafted INTEGER,
    accepted INTEGER,
    target_calls INTEGER,
    illegal_drafts INTEGER,
    conformance TEXT,
    conformance_detail TEXT NOT NULL,
    unchecked_formats TEXT NOT NULL,
    field_accuracy REAL,
    error TEXT,
    PRIMARY KEY (trial_id, position)
) STRICT;

CREATE TABLE accept_pos (
    trial_id TEXT NOT NULL REFERENCES trials (trial_id) ON DELETE CASCADE,
    pos INTEGER NOT NULL CHECK (pos >= 0),
    drafted INTEGER NOT NULL CHECK (drafted >= 0),
    accepted INTEGER NOT NULL CHECK (accepted >= 0),
    PRIMARY KEY (trial_id, pos)
) STRICT;

CREATE TABLE divergences (
    trial_id TEXT NOT NULL REFERENCES trials (trial_id) ON DELETE CASCADE,
    prompt_id TEXT NOT NULL,
    reference TEXT NOT NULL,
    position INTEGER NOT NULL CHECK (position >= 0),
    gap REAL,
    epsilon REAL NOT NULL,
    PRIMARY KEY (trial_id, prompt_id, reference, position)
) STRICT;

CREATE TABLE conditions (
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    sampled_at TEXT NOT NULL,
    phase TEXT NOT NULL,
    trial_id TEXT REFERENCES trials (trial_id) ON DELETE CASCADE,
    load_1m REAL,
    cpu_pct REAL,
    memory_available_bytes INTEGER,
    swap_used_bytes INTEGER,
    process_rss_bytes INTEGER,
    temperature_c REAL,
    frequency_mhz REAL,
    on_battery INTEGER CHECK (on_battery IN (0, 1)),
    warnings TEXT NOT NULL,
    PRIMARY KEY (run_id, sampled_at, phase)
) STRICT;

CREATE TABLE gates (
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('pass', 'fail', 'incomplete')),
    model TEXT NOT NULL,
    workload TEXT NOT NULL,
    cell TEXT NOT NULL,
    observed REAL,
    n INTEGER NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (run_id, name, model, workload, cell)
) STRICT;

CREATE TABLE comparisons (
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    model TEXT NOT NULL,
    workload TEXT NOT NULL,
    cell TEXT NOT NULL,
    baseline TEXT NOT NULL,
    metric TEXT NOT NULL,
    n INTEGER NOT NULL,
    estimate REAL,
    low REAL,
    high REAL,
    verdict TEXT,
    PRIMARY KEY (run_id, model, workload, cell, baseline, metric)
) STRICT;

CREATE TABLE promotions (
    promotion_id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    promoted_at TEXT NOT NULL,
    quotable INTEGER NOT NULL CHECK (quotable IN (0, 1)),
    reasons TEXT NOT NULL,
    destination TEXT NOT NULL
) STRICT;
"""


_LAWS = """
CREATE TABLE laws (
    trial_id TEXT NOT NULL REFERENCES trials (trial_id) ON DELETE CASCADE,
    position INTEGER NOT NULL CHECK (position >= 0),
    draws INTEGER NOT NULL CHECK (draws >= 0),
    impossible_at INTEGER,
    evidence TEXT NOT NULL,
    PRIMARY KEY (trial_id, position)
) STRICT;
"""


_CLIENT = """
ALTER TABLE trials ADD COLUMN client_delay_s REAL;
ALTER TABLE trials ADD COLUMN client_stream_s REAL;
ALTER TABLE trials ADD COLUMN retries INTEGER;
"""


_STEP_PARTS = """
ALTER TABLE trials ADD COLUMN plan_s REAL;
ALTER TABLE trials ADD COLUMN build_s REAL;
ALTER TABLE trials ADD COLUMN launch_s REAL;
ALTER TABLE trials ADD COLUMN sample_s REAL;
ALTER TABLE trials ADD COLUMN wait_s REAL;
ALTER TABLE trials ADD COLUMN commit_s REAL;
ALTER TABLE trials ADD COLUMN weight_bytes INTEGER;
ALTER TABLE trials ADD COLUMN kv_token_bytes INTEGER;
ALTER TABLE trials ADD COLUMN kv_row_bytes INTEGER;
"""


def _run_each(db: Database, script: str) -> None:
    """Run a script inside the open transaction, which executescript would end."""
    for statement in script.split(";\n"):
        if statement.strip():
            db.execute(statement)


@migrations()
def m001_first_tables(db: Database) -> None:
    """Create every table."""
    _run_each(db, _FIRST_TABLES)


@migrations()
def m002_first_views(db: Database) -> None:
    """Create the views that reports and people read."""
    _run_each(db, FIRST_VIEWS)


@migrations()
def m003_laws(db: Database) -> None:
    """Create the table of what the draws of sampled replies say."""
    _run_each(db, _LAWS)


@migrations()
def m004_client(db: Database) -> None:
    """Add what a trial over HTTP knows of its own client."""
    _run_each(db, _CLIENT)


@migrations()
def m005_step_parts(db: Database) -> None:
    """Add where the time of decode steps went, and what a step has to read."""
    _run_each(db, _STEP_PARTS)


_COUNTERS = """
ALTER TABLE trials ADD COLUMN counters TEXT NOT NULL DEFAULT '{}';
"""


@migrations()
def m008_counters(db: Database) -> None:
    """Add what an engine counts of its own work, which no clock disturbs."""
    _run_each(db, _COUNTERS)


@migrations()
def m007_report_indexes(db: Database) -> None:
    """Make the figures of large runs quick to read."""
    _run_each(db, REPORT_INDEXES)


_CONDITIONS = """
ALTER TABLE conditions ADD COLUMN window_s REAL;
ALTER TABLE conditions ADD COLUMN cores INTEGER;
ALTER TABLE conditions ADD COLUMN ours_cores REAL;
ALTER TABLE conditions ADD COLUMN others_cores REAL;
ALTER TABLE conditions ADD COLUMN heaviest TEXT NOT NULL DEFAULT '[]';
ALTER TABLE conditions ADD COLUMN stolen_share REAL;
ALTER TABLE conditions ADD COLUMN throttled_share REAL;
ALTER TABLE conditions ADD COLUMN memory_wait_share REAL;
ALTER TABLE conditions ADD COLUMN swapped_bytes INTEGER;
ALTER TABLE conditions ADD COLUMN heat_events INTEGER;
ALTER TABLE conditions ADD COLUMN standing TEXT NOT NULL DEFAULT '{}';
"""


@migrations()
def m006_conditions(db: Database) -> None:
    """Add what the machine did between two samples."""
    _run_each(db, _CONDITIONS)


@migrations()
def m009_attempts(db: Database) -> None:
    """Add why earlier attempts at a trial failed."""
    _run_each(db, ATTEMPTS)


_TURNS = """
CREATE TABLE turns (
    trial_id TEXT NOT NULL REFERENCES trials (trial_id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL CHECK (attempt >= 0),
    turn INTEGER NOT NULL CHECK (turn >= 0),
    whereabouts TEXT NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (trial_id, attempt, turn)
) STRICT;

ALTER TABLE trials ADD COLUMN turns_s REAL;
"""


@migrations()
def m010_turns(db: Database) -> None:
    """Add what trials saw that are under way, and how long all turns of one took."""
    _run_each(db, _TURNS)
