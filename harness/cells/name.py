"""Cell names: `+`-joined words in any order, and the one canonical spelling of each.

A name is a lane word (`serial`, or `batchN` with N from 1 to 128), features, at most one
`@variant`, and any engine settings that differ from the cell's own, each as `@name=value`. Without
a lane word it is serial. Peer cells start from `mlx-lm` instead, or from the URL of a running
server, and take no default lane word. Output always uses the canonical spelling: lane, then spec,
fill, grammar, the variant, and settings by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from engine.errors import FmError, SettingError, UnknownNameError
from harness.cells.settings import (
    OWNERS,
    PEER_SETTINGS,
    Settings,
    belonging,
    changing_ids,
    parse_settings,
)

PEER = "mlx-lm"
"""The word that makes a cell a peer cell: mlx-lm itself, run in a child process."""

REJECTION = "rejection"
"""The variant that accepts drafts by rejection sampling: the law of plain decoding, not its ids."""

BASE = "base"
"""The side of a cell that the code compared with runs, in `fm gate --base`."""

MAX_BATCH_ROWS = 128

FEATURES: dict[str, str] = {
    "spec": "speculative decoding",
    "fill": "token fast-forwarding",
    "grammar": "grammar-constrained decoding",
}
"""Feature words in canonical order, which is also the order in which a mechanism is taken away to
find the cell a ratio is computed against: spec before fill before grammar."""

_URL = re.compile(r"https?://[^\s+@?#]+")

SECRETIVE = {"@": "an '@'", "?": "a '?'", "#": "a '#'"}
"""Marks of the parts of a URL that hold names, keys and the like."""
_BATCH = re.compile(r"batch([0-9]+)")
_VARIANT = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class CellName:
    """A parsed cell name.

    Args:
        rows: rows decoded together; None is the serial lane.
        features: words of FEATURES in canonical order.
        variant: the word after `@`, "" for none.
        is_peer: True for a cell that something else than our engine runs.
        url: of the server that runs a peer cell, "" where it is mlx-lm.
        side: BASE where other code than this runs the cell, "" otherwise; nobody can ask for one.
        settings: engine settings that the name spells out.
    """

    rows: int | None
    features: tuple[str, ...] = ()
    variant: str = ""
    is_peer: bool = False
    url: str = ""
    side: str = ""
    settings: Settings = ()

    @property
    def lane(self) -> Literal["serial", "batch"]:
        """`serial` or `batch`."""
        return "serial" if self.rows is None else "batch"

    @property
    def is_bare(self) -> bool:
        """True for a lane without features."""
        return not self.features

    def has(self, feature: str) -> bool:
        """True when the cell uses `feature`."""
        return feature in self.features

    def without(self, feature: str) -> CellName:
        """Return the name with one feature taken away, and what it gave a meaning to."""
        features = tuple(word for word in self.features if word != feature)
        keeps = self.is_peer or (feature != "spec" and bool(features))
        return replace(
            self,
            features=features,
            variant=self.variant if keeps else "",
            settings=belonging(self.settings, features),
        )

    def bare_lane(self) -> CellName:
        """Return the same lane without features."""
        return replace(
            self,
            features=(),
            variant=self.variant if self.is_peer else "",
            settings=belonging(self.settings, ()),
        )

    def without_settings(self) -> CellName:
        """Return the name without the settings that it spells out."""
        return replace(self, settings=())

    def identity(self) -> CellName:
        """Return the name of the serial cell that writes the same tokens, grammar as here."""
        return CellName(
            rows=None,
            features=("grammar",) if self.has("grammar") else (),
            settings=changing_ids(self.settings),
            side=self.side,
        )

    def serial(self) -> CellName:
        """Return the same features in the serial lane."""
        keeps = self.is_peer or (bool(self.features) and self.variant != "routed")
        return replace(self, rows=None, variant=self.variant if keeps else "")

    def __str__(self) -> str:
        lane = [] if self.rows is None else [f"batch{self.rows}"]
        lead = [self.url or PEER, *lane] if self.is_peer else (lane or ["serial"])
        name = "+".join([*lead, *self.features])
        spelled = [f"{setting}={value}" for setting, value in self.settings]
        return "@".join(filter(None, [name, self.variant, *spelled, self.side]))


def on_side(name: str, side: str) -> str:
    """Return the canonical name of a cell without a side as that of its twin on a side."""
    return f"{name}@{side}" if side else name


def side_of(name: str) -> str:
    """Return the side of a canonical name, "" for none."""
    return BASE if name.endswith(f"@{BASE}") else ""


def parse_cell_name(text: str) -> CellName:
    """Read a cell name; SettingError or UnknownNameError says in one line what is wrong with it."""
    if "://" in text:
        check_url(text, "a cell")
    body, *parts = text.strip().split("@")
    variant = _variant(text, [part for part in parts if "=" not in part])
    words = [word.strip() for word in body.split("+")]
    if not all(words):
        raise SettingError(f"cell {text!r} has an empty part; join words with single '+' signs")
    for word in words:
        if words.count(word) > 1:
            raise SettingError(f"cell {text!r} names {word!r} twice; name it once")
    lanes = [word for word in words if word == "serial" or _BATCH.fullmatch(word)]
    features = [word for word in words if word in FEATURES]
    urls = [word for word in words if _URL.fullmatch(word)]
    for word in words:
        if word not in (*lanes, *features, *urls, PEER):
            kind = "cell" if len(words) == 1 else "cell word"
            raise UnknownNameError(kind, word, known_words())
    if len(lanes) > 1:
        raise SettingError(f"cell {text!r} names the lanes {' and '.join(lanes)}; name one")
    if len(urls) + words.count(PEER) > 1:
        raise SettingError(f"cell {text!r} names two peers; name one")
    name = CellName(
        rows=_rows(lanes[0], text) if lanes else None,
        features=tuple(word for word in FEATURES if word in features),
        variant=variant,
        is_peer=PEER in words or bool(urls),
        url=urls[0] if urls else "",
        settings=_settings(text, [part for part in parts if "=" in part]),
    )
    _refuse_what_cannot_run(name, text)
    _refuse_settings(name, text)
    return name


def check_url(url: str, owner: str) -> None:
    """Refuse a URL in which a key may be: what is measured is written into reports.

    Args:
        owner: whose URL it is, for the error.
    """
    for mark, name in SECRETIVE.items():
        if mark in url:
            raise SettingError(
                f"the URL of {owner} holds {name}; set a key as FM_TARGET_API_KEY, where nobody "
                "reads it"
            )


def known_words() -> tuple[str, ...]:
    """Return every word that a cell name can hold in this version."""
    features = [word for word in FEATURES if word != "fill"]
    return ("serial", f"batchN (N 1-{MAX_BATCH_ROWS})", *features, PEER)


def _variant(text: str, words: list[str]) -> str:
    if len(words) > 1:
        raise SettingError(f"cell {text!r} has the variants {' and '.join(words)}; name one")
    if words and not _VARIANT.fullmatch(words[0]):
        raise SettingError(f"cell {text!r} has no usable word after '@'; write e.g. '@routed'")
    return "".join(words)


def _settings(text: str, parts: list[str]) -> Settings:
    try:
        return parse_settings(parts)
    except FmError as error:
        raise SettingError(f"cell {text!r}: {error}") from None


def _rows(lane: str, text: str) -> int | None:
    match = _BATCH.fullmatch(lane)
    if match is None:
        return None
    digits = match.group(1)
    if len(digits) > 4 or not 1 <= int(digits) <= MAX_BATCH_ROWS:
        raise SettingError(
            f"cell {text!r}: {lane[:24]} is out of range; N of batchN is between 1 and "
            f"{MAX_BATCH_ROWS}"
        )
    return int(digits)


def _refuse_what_cannot_run(name: CellName, text: str) -> None:
    if name.has("fill"):
        raise SettingError(
            f"cell {text!r}: fill cells are not available yet in this version; drop 'fill'"
        )
    if name.url and name.has("spec"):
        raise SettingError(f"cell {text!r}: a running server drafts as it was started; drop 'spec'")
    if name.is_peer and not name.url and name.has("grammar"):
        raise SettingError(f"cell {text!r}: mlx-lm has no grammar support; drop 'grammar'")
    if name.is_peer and name.has("spec") and name.rows is not None:
        raise SettingError(
            f"cell {text!r}: mlx-lm does not batch speculation; drop 'spec' or the batch lane"
        )
    if name.variant == "routed" and (name.rows is None or not name.has("spec") or name.is_peer):
        raise SettingError(f"cell {text!r}: '@routed' needs batchN and spec")
    if (name.variant == "blas") and not name.is_peer:
        raise SettingError(f"cell {text!r}: '@blas' is for {PEER} cells; ours always load it")
    if name.variant == REJECTION and (not name.has("spec") or name.is_peer):
        raise SettingError(f"cell {text!r}: '@{REJECTION}' is for cells of ours with spec")
    if name.variant == "aa" and not name.is_bare:
        raise SettingError(f"cell {text!r}: '@aa' repeats a bare lane; drop the features")


def _refuse_settings(name: CellName, text: str) -> None:
    for setting, _ in name.settings:
        owner = OWNERS[setting]
        if owner and not name.has(owner):
            raise SettingError(f"cell {text!r}: {setting} is for cells with {owner}; drop it")
        if name.is_peer and (name.url or setting not in PEER_SETTINGS):
            raise SettingError(f"cell {text!r}: {setting} is nothing that a peer is told; drop it")
