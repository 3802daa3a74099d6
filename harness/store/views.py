"""The views that reports and people read.

Percentiles are by nearest rank, as in harness.stats: the smallest value with at least p % of the
observations at or below it. Tokens a second of a reply with no duration are NULL, never infinite.
"""

from __future__ import annotations

FIRST_VIEWS = """
CREATE VIEW v_trial AS
SELECT
    t.run_id, t.trial_id, t.block, t.order_in_block, t.status, t.reason,
    m.name AS model, w.name AS workload, c.name AS cell, c.baseline,
    c.kind, c.lane, c.max_rows, t.tokens, t.lane_taken,
    t.peak_mlx_bytes, t.peak_rss_bytes,
    CASE WHEN t.aggregate_s > 0 AND t.aggregate_tokens > 0
        THEN t.aggregate_tokens / t.aggregate_s END AS aggregate_tok_s,
    CASE WHEN t.wall_s > 0 AND t.tokens > 0 THEN t.tokens / t.wall_s END AS e2e_tok_s,
    CASE WHEN t.replay_plain_s > 0 AND t.replay_masked_s > 0
        THEN 100.0 * (t.replay_masked_s / t.replay_plain_s - 1) END AS grammar_overhead_pct,
    CASE WHEN t.replay_tokens > 0 AND t.replay_mask_s >= 0
        THEN 1e6 * t.replay_mask_s / t.replay_tokens END AS mask_us_per_token
FROM trials AS t
JOIN models AS m ON m.key = t.model
JOIN workloads AS w ON w.content_hash = t.workload
JOIN cells AS c ON c.content_hash = t.cell;

CREATE VIEW v_request AS
SELECT
    t.run_id, t.model, t.workload, t.cell, t.block, t.kind, r.*,
    CASE WHEN r.completion_tokens >= 2 AND r.last_token_s > r.ttft_s
        THEN (r.completion_tokens - 1) / (r.last_token_s - r.ttft_s) END AS per_stream_tok_s
FROM requests AS r
JOIN v_trial AS t ON t.trial_id = r.trial_id
WHERE r.phase = 'measured' AND t.status = 'done';

CREATE VIEW v_figure AS
WITH observed AS (
    SELECT run_id, model, workload, cell, 'aggregate' AS figure, aggregate_tok_s AS value
    FROM v_trial WHERE status = 'done'
    UNION ALL
    SELECT run_id, model, workload, cell, 'e2e', e2e_tok_s FROM v_trial WHERE status = 'done'
    UNION ALL
    SELECT run_id, model, workload, cell, 'grammar_overhead', grammar_overhead_pct
    FROM v_trial WHERE status = 'done'
    UNION ALL
    SELECT run_id, model, workload, cell, 'mask_us', mask_us_per_token
    FROM v_trial WHERE status = 'done'
    UNION ALL
    SELECT run_id, model, workload, cell, 'per_stream', per_stream_tok_s
    FROM v_request WHERE status = 'ok'
    UNION ALL
    SELECT run_id, model, workload, cell, 'ttft', ttft_s FROM v_request WHERE status = 'ok'
    UNION ALL
    SELECT run_id, model, workload, cell, 'ttft_visible', ttft_visible_s
    FROM v_request WHERE status = 'ok'
), ranked AS (
    SELECT *,
        ROW_NUMBER() OVER (same ORDER BY value) AS place,
        COUNT(*) OVER same AS n
    FROM observed WHERE value IS NOT NULL
    WINDOW same AS (PARTITION BY run_id, model, workload, cell, figure)
)
SELECT run_id, model, workload, cell, figure, n,
    MIN(value) AS low,
    MAX(CASE WHEN place = (n * 50 + 99) / 100 THEN value END) AS p50,
    MAX(CASE WHEN place = (n * 95 + 99) / 100 THEN value END) AS p95,
    MAX(value) AS high
FROM ranked
GROUP BY run_id, model, workload, cell, figure, n;

CREATE VIEW v_cell AS
WITH planned AS (
    SELECT run_id, model, workload, cell, baseline, kind, lane, max_rows,
        COUNT(*) AS planned,
        SUM(status = 'done') AS done,
        SUM(status = 'failed') AS failed,
        SUM(status = 'skipped') AS skipped,
        SUM(status = 'pending') AS pending,
        MAX(peak_mlx_bytes) AS peak_mlx_bytes,
        MAX(peak_rss_bytes) AS peak_rss_bytes
    FROM v_trial GROUP BY run_id, model, workload, cell
), answered AS (
    SELECT run_id, model, workload, cell,
        COUNT(*) AS requests,
        SUM(status <> 'ok') AS failed_requests,
        SUM(status = 'ok' AND completion_tokens = 0) AS empty_replies,
        SUM(status = 'ok' AND completion_tokens = 1) AS one_token_replies,
        SUM(completion_tokens) AS tokens,
        SUM(drafted) AS drafted,
        SUM(accepted) AS accepted,
        SUM(CASE WHEN drafted IS NOT NULL THEN target_calls END) AS target_calls,
        SUM(illegal_drafts) AS illegal_drafts,
        COUNT(conformance) AS graded,
        SUM(conformance = 'ok') AS conforming,
        AVG(field_accuracy) AS field_accuracy
    FROM v_request GROUP BY run_id, model, workload, cell
)
SELECT p.*,
    COALESCE(a.requests, 0) AS requests,
    COALESCE(a.failed_requests, 0) AS failed_requests,
    COALESCE(a.empty_replies, 0) AS empty_replies,
    COALESCE(a.one_token_replies, 0) AS one_token_replies,
    COALESCE(a.tokens, 0) AS tokens,
    a.drafted, a.accepted, a.target_calls, a.illegal_drafts,
    COALESCE(a.graded, 0) AS graded,
    COALESCE(a.conforming, 0) AS conforming,
    a.field_accuracy
FROM planned AS p
LEFT JOIN answered AS a
    ON a.run_id = p.run_id AND a.model = p.model AND a.workload = p.workload AND a.cell = p.cell;

CREATE VIEW v_composition AS
SELECT t.run_id, t.model, t.workload, t.cell, t.block, t.trial_id,
    t.aggregate_tok_s, t.e2e_tok_s, t.baseline,
    b.aggregate_tok_s AS baseline_tok_s,
    t.aggregate_tok_s / b.aggregate_tok_s AS ratio,
    (SELECT COUNT(*) FROM requests AS r WHERE r.trial_id = t.trial_id
        AND r.phase = 'measured' AND r.count_source = 'estimated') AS estimated,
    (SELECT COUNT(*) FROM requests AS r WHERE r.trial_id = t.trial_id
        AND r.phase = 'measured' AND r.status <> 'ok') AS failed,
    (SELECT COALESCE(SUM(r.cached_tokens), 0) FROM requests AS r WHERE r.trial_id = t.trial_id
        AND r.phase = 'measured') AS cached_tokens
FROM v_trial AS t
LEFT JOIN v_trial AS b
    ON b.run_id = t.run_id AND b.model = t.model AND b.workload = t.workload
    AND b.block = t.block AND b.cell = t.baseline AND b.status = 'done'
WHERE t.status = 'done';

CREATE VIEW v_accept_curve AS
SELECT t.run_id, t.model, t.workload, t.cell, a.pos,
    SUM(a.drafted) AS drafted,
    SUM(a.accepted) AS accepted,
    CASE WHEN SUM(a.drafted) > 0 THEN 1.0 * SUM(a.accepted) / SUM(a.drafted) END AS rate
FROM accept_pos AS a
JOIN v_trial AS t ON t.trial_id = a.trial_id
WHERE t.status = 'done'
GROUP BY t.run_id, t.model, t.workload, t.cell, a.pos;

CREATE VIEW v_history AS
SELECT r.created_at, r.run_id, r.tag, r.preset, r.status, r.exit_code, r.quotable,
    r.git_sha, r.git_dirty, r.plan_hash, r.environment,
    v.model, v.workload, v.cell, f.n AS n_blocks,
    f.p50 AS aggregate_tok_s,
    t.p50 AS ttft_p50_s,
    c.baseline, c.estimate AS ratio, c.low AS ratio_low, c.high AS ratio_high, c.verdict
FROM runs AS r
JOIN v_cell AS v ON v.run_id = r.run_id AND v.done > 0
LEFT JOIN v_figure AS f
    ON f.run_id = v.run_id AND f.model = v.model AND f.workload = v.workload
    AND f.cell = v.cell AND f.figure = 'aggregate'
LEFT JOIN v_figure AS t
    ON t.run_id = v.run_id AND t.model = v.model AND t.workload = v.workload
    AND t.cell = v.cell AND t.figure = 'ttft'
LEFT JOIN comparisons AS c
    ON c.run_id = v.run_id AND c.model = v.model AND c.workload = v.workload
    AND c.cell = v.cell AND c.baseline = v.baseline AND c.metric = 'aggregate'
ORDER BY r.created_at DESC, v.model, v.workload, v.cell;
"""

REPORT_INDEXES = """
CREATE INDEX requests_figures ON requests (
    trial_id, phase, status, prompt_tokens, completion_tokens, ttft_s, ttft_visible_s, last_token_s,
    count_source, cached_tokens, lane_taken, lane_reason, drafted, accepted, target_calls,
    illegal_drafts, conformance, field_accuracy
);

DROP VIEW v_figure;
DROP VIEW v_cell;

CREATE VIEW v_figure AS
WITH placed AS (
    SELECT v.*, (m.rowid << 40) + (w.rowid << 20) + c.rowid AS place
    FROM v_trial AS v
    JOIN trials AS t ON t.trial_id = v.trial_id
    JOIN models AS m ON m.key = t.model
    JOIN workloads AS w ON w.content_hash = t.workload
    JOIN cells AS c ON c.content_hash = t.cell
    WHERE v.status = 'done'
), answered AS (
    SELECT p.run_id, p.place, r.ttft_s, r.ttft_visible_s,
        CASE WHEN r.completion_tokens >= 2 AND r.last_token_s > r.ttft_s
            THEN (r.completion_tokens - 1) / (r.last_token_s - r.ttft_s) END AS per_stream_tok_s
    FROM placed AS p
    JOIN requests AS r ON r.trial_id = p.trial_id
    WHERE r.phase = 'measured' AND r.status = 'ok'
), observed AS (
    SELECT run_id, place, 1 AS figure, aggregate_tok_s AS value FROM placed
    UNION ALL
    SELECT run_id, place, 2, e2e_tok_s FROM placed
    UNION ALL
    SELECT run_id, place, 3, grammar_overhead_pct FROM placed
    UNION ALL
    SELECT run_id, place, 4, mask_us_per_token FROM placed
    UNION ALL
    SELECT run_id, place, 5, per_stream_tok_s FROM answered
    UNION ALL
    SELECT run_id, place, 6, ttft_s FROM answered
    UNION ALL
    SELECT run_id, place, 7, ttft_visible_s FROM answered
), ranked AS (
    SELECT *,
        CUME_DIST() OVER (PARTITION BY run_id, place, figure ORDER BY value) AS share
    FROM observed WHERE value IS NOT NULL
), summed AS (
    SELECT run_id, place, figure,
        COUNT(*) AS n,
        MIN(value) AS low,
        MIN(CASE WHEN share >= 0.5 THEN value END) AS p50,
        MIN(CASE WHEN share >= 0.95 THEN value END) AS p95,
        MAX(value) AS high
    FROM ranked GROUP BY run_id, place, figure
)
SELECT s.run_id, m.name AS model, w.name AS workload, c.name AS cell,
    CASE s.figure WHEN 1 THEN 'aggregate' WHEN 2 THEN 'e2e' WHEN 3 THEN 'grammar_overhead'
        WHEN 4 THEN 'mask_us' WHEN 5 THEN 'per_stream' WHEN 6 THEN 'ttft'
        ELSE 'ttft_visible' END AS figure,
    s.n, s.low, s.p50, s.p95, s.high
FROM summed AS s
JOIN models AS m ON m.rowid = s.place >> 40
JOIN workloads AS w ON w.rowid = (s.place >> 20) & 1048575
JOIN cells AS c ON c.rowid = s.place & 1048575;

CREATE VIEW v_cell AS
WITH counted AS (
    SELECT run_id, model, workload, cell, baseline, kind, lane, max_rows,
        1 AS planned,
        status = 'done' AS done,
        status = 'failed' AS failed,
        status = 'skipped' AS skipped,
        status = 'pending' AS pending,
        peak_mlx_bytes, peak_rss_bytes,
        0 AS requests, 0 AS failed_requests, 0 AS empty_replies, 0 AS one_token_replies,
        0 AS tokens, NULL AS drafted, NULL AS accepted, NULL AS target_calls,
        NULL AS illegal_drafts, NULL AS conformance, NULL AS field_accuracy,
        NULL AS decoded, NULL AS decoded_length
    FROM v_trial
    UNION ALL
    SELECT t.run_id, t.model, t.workload, t.cell, t.baseline, t.kind, t.lane, t.max_rows,
        0, 0, 0, 0, 0, NULL, NULL,
        1, r.status <> 'ok',
        r.status = 'ok' AND r.completion_tokens IS 0,
        r.status = 'ok' AND r.completion_tokens IS 1,
        r.completion_tokens, r.drafted, r.accepted,
        CASE WHEN r.drafted IS NOT NULL THEN r.target_calls END,
        r.illegal_drafts, r.conformance, r.field_accuracy,
        CASE WHEN r.prompt_tokens IS NOT NULL THEN r.completion_tokens END,
        r.completion_tokens * (r.prompt_tokens + r.completion_tokens / 2.0)
    FROM requests AS r
    JOIN v_trial AS t ON t.trial_id = r.trial_id
    WHERE r.phase = 'measured' AND t.status = 'done'
)
SELECT run_id, model, workload, cell,
    MAX(baseline) AS baseline, MAX(kind) AS kind, MAX(lane) AS lane, MAX(max_rows) AS max_rows,
    SUM(planned) AS planned,
    SUM(done) AS done,
    SUM(failed) AS failed,
    SUM(skipped) AS skipped,
    SUM(pending) AS pending,
    MAX(peak_mlx_bytes) AS peak_mlx_bytes,
    MAX(peak_rss_bytes) AS peak_rss_bytes,
    SUM(requests) AS requests,
    SUM(failed_requests) AS failed_requests,
    SUM(empty_replies) AS empty_replies,
    SUM(one_token_replies) AS one_token_replies,
    COALESCE(SUM(tokens), 0) AS tokens,
    SUM(drafted) AS drafted,
    SUM(accepted) AS accepted,
    SUM(target_calls) AS target_calls,
    SUM(illegal_drafts) AS illegal_drafts,
    COUNT(conformance) AS graded,
    COALESCE(SUM(conformance = 'ok'), 0) AS conforming,
    ROUND(AVG(field_accuracy), 12) AS field_accuracy,
    CASE WHEN SUM(decoded) > 0 THEN SUM(decoded_length) / SUM(decoded) END AS mean_length
FROM counted GROUP BY run_id, model, workload, cell;

CREATE VIEW v_replies AS
SELECT t.run_id, t.model, t.workload, t.cell,
    r.status, r.lane_taken, r.lane_reason, r.conformance,
    COUNT(*) AS n
FROM requests AS r
JOIN v_trial AS t ON t.trial_id = r.trial_id
WHERE r.phase = 'measured'
GROUP BY t.run_id, t.model, t.workload, t.cell,
    r.status, r.lane_taken, r.lane_reason, r.conformance;

CREATE VIEW v_failed_reply AS
SELECT t.run_id, t.model, t.workload, t.cell, t.block,
    r.trial_id, r.position, r.prompt_id, r.status, r.conformance, r.conformance_detail,
    r.error, r.text
FROM requests AS r
JOIN trials AS p ON p.trial_id = r.trial_id
JOIN cells AS c ON c.content_hash = p.cell
JOIN v_trial AS t ON t.trial_id = r.trial_id
WHERE r.phase = 'measured' AND (
    r.status <> 'ok'
    OR (r.conformance <> 'ok' AND 'grammar' IN (SELECT value FROM json_each(c.features)))
);
"""
"""Reports of large runs: an index that holds all a figure needs, so that texts stay unread, and
views that sort numbers by numbers instead of by names. CUME_DIST is the share of observations at
or below a value, so the first value whose share reaches p % is the nearest rank. The mean accuracy
is rounded, since the last bits of a sum depend on the order of its terms.
"""

ATTEMPTS = """
ALTER TABLE trials ADD COLUMN failed_before TEXT NOT NULL DEFAULT '[]';

DROP VIEW v_composition;
DROP VIEW v_replies;

CREATE VIEW v_composition AS
SELECT t.run_id, t.model, t.workload, t.cell, t.block, t.trial_id,
    t.aggregate_tok_s, t.e2e_tok_s, t.baseline,
    b.aggregate_tok_s AS baseline_tok_s,
    CASE WHEN json_array_length(tried.failed_before) = json_array_length(tried_b.failed_before)
        THEN t.aggregate_tok_s / b.aggregate_tok_s END AS ratio,
    (SELECT COUNT(*) FROM requests AS r WHERE r.trial_id = t.trial_id
        AND r.phase = 'measured' AND r.count_source = 'estimated') AS estimated,
    (SELECT COUNT(*) FROM requests AS r WHERE r.trial_id = t.trial_id
        AND r.phase = 'measured' AND r.status <> 'ok') AS failed,
    (SELECT COALESCE(SUM(r.cached_tokens), 0) FROM requests AS r WHERE r.trial_id = t.trial_id
        AND r.phase = 'measured') AS cached_tokens
FROM v_trial AS t
JOIN trials AS tried ON tried.trial_id = t.trial_id
LEFT JOIN v_trial AS b
    ON b.run_id = t.run_id AND b.model = t.model AND b.workload = t.workload
    AND b.block = t.block AND b.cell = t.baseline AND b.status = 'done'
LEFT JOIN trials AS tried_b ON tried_b.trial_id = b.trial_id
WHERE t.status = 'done';

CREATE VIEW v_replies AS
SELECT t.run_id, t.model, t.workload, t.cell,
    r.status, r.lane_taken, r.lane_reason, r.conformance,
    COUNT(*) AS n
FROM requests AS r
JOIN v_trial AS t ON t.trial_id = r.trial_id
WHERE r.phase = 'measured' AND (t.status <> 'failed' OR r.status = 'ok')
GROUP BY t.run_id, t.model, t.workload, t.cell,
    r.status, r.lane_taken, r.lane_reason, r.conformance;
"""
"""A trial that failed may be run again. Two trials of a block that ran in different attempts ran
apart and give no ratio; requests that a failed trial lost are no replies.
"""
