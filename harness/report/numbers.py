"""Numbers as reports print them: fixed decimals, no -0.0, a dash for what was not observed."""

from __future__ import annotations

from harness.report.figures import Acceptance, Conforming, Spread
from harness.stats import Ratio, tail

DASH = "—"

VERDICT_WORDS: dict[str, str] = {
    "faster": "faster",
    "slower": "slower",
    "same": "same",
    "unclear": "~",
    "provisional": "provisional",
}
"""What a verdict is printed as."""


def fixed(value: float | None, digits: int) -> str:
    """Return a number with so many decimals, a dash for None."""
    if value is None:
        return DASH
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if not text.strip("-0.") else text


def count(value: int | None) -> str:
    """Return a whole number, a dash for None."""
    return DASH if value is None else str(value)


def counted(value: int, noun: str) -> str:
    """Return a number with its noun, e.g. `1 block` or `7 blocks`."""
    return f"{value} {noun}" if value == 1 else f"{value} {noun}s"


def rate(value: float | None) -> str:
    """Return tokens a second with three significant digits or more."""
    return fixed(value, 1 if value is None or value < 100 else 0)


def percent(share: float | None, digits: int = 0) -> str:
    """Return a share of 0 to 1 as percent."""
    return DASH if share is None else f"{fixed(100 * share, digits)} %"


def change(share: float | None) -> str:
    """Return a relative change with its sign, e.g. `-4.1 %`."""
    if share is None:
        return DASH
    text = fixed(100 * share, 1)
    return f"{'' if text.startswith('-') else '+'}{text} %"


def milliseconds(seconds: float | None) -> str:
    """Return a time in whole milliseconds, with one decimal below 10."""
    if seconds is None:
        return DASH
    return fixed(1000 * seconds, 0 if seconds >= 0.01 else 1)


def gigabytes(size: int | None) -> str:
    """Return bytes in units of 10^9."""
    return fixed(None if size is None else size / 1e9, 2)


def interval(ratio: Ratio | None) -> str:
    """Return a ratio with its interval, e.g. `1.25 [1.20, 1.31]`."""
    if ratio is None or ratio.estimate is None:
        return DASH
    text = fixed(ratio.estimate, 2)
    if ratio.low is None or ratio.high is None:
        return text
    return f"{text} [{fixed(ratio.low, 2)}, {fixed(ratio.high, 2)}]"


def verdict(ratio: Ratio | None) -> str:
    """Return the verdict's word; `refused` where reasons stand against one, a dash for too few."""
    if ratio is None or ratio.estimate is None:
        return DASH
    if ratio.refusals:
        return "refused"
    return DASH if ratio.verdict is None else VERDICT_WORDS[ratio.verdict]


def wins(ratio: Ratio | None) -> str:
    """Return the blocks won of all, e.g. `6/7`."""
    return DASH if ratio is None or not ratio.n else f"{ratio.wins}/{ratio.n}"


def latency(spread: Spread | None) -> str:
    """Return p50 / p95 in milliseconds; p95 carries `*` below 59 values, is left out below 20."""
    if spread is None:
        return DASH
    shown = {"hidden": DASH, "flagged": f"{milliseconds(spread.p95)}*"}
    p95 = shown.get(tail(spread.n), milliseconds(spread.p95))
    return f"{milliseconds(spread.p50)} / {p95}"


def accepted(acceptance: Acceptance | None) -> str:
    """Return the share of drafts accepted."""
    return DASH if acceptance is None else percent(acceptance.rate)


def conforming(value: Conforming | None) -> str:
    """Return how many conform and what that proves, e.g. `32, >= 91.1 %` or `30 of 32, >= ...`."""
    if value is None:
        return DASH
    count = f"{value.n}" if value.ok == value.n else f"{value.ok} of {value.n}"
    return f"{count}, >= {percent(value.lower_bound, 1)}"
