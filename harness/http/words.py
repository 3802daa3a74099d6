"""What servers say, read strictly and put into one line: they may be anybody's."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from harness.http.chat_reply import StreamError
from harness.report.visible import in_one_line


def parsed(text: str | bytes) -> Any:
    """Return the value of a JSON text; raises ValueError when it is none."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deep to be read") from None


def _refuse_constant(literal: str) -> NoReturn:
    raise ValueError(f"{literal} is not JSON")


def problem_words(status: int, content: bytes) -> str:
    """Return a status with the words of a server's error, however it puts them."""
    try:
        document = parsed(content)
    except ValueError:
        document = {}
    error = document.get("error") if isinstance(document, dict) else None
    words = (
        message_words(error)
        if error
        else in_one_line(content[:800].decode("utf-8", "replace"), 200)
    )
    return f"HTTP {status}: {words}".rstrip(": ")


def message_words(error: Any) -> str:
    """Return what an error says."""
    words = error.get("message", error) if isinstance(error, dict) else error
    return in_one_line(str(words))


def error_words(error: Exception) -> str:
    """Return what went wrong, with its class where it is not ours."""
    words = in_one_line(str(error)) or type(error).__name__
    return words if type(error) is StreamError else f"{type(error).__name__}: {words}"[:300]
