"""A request's body: read up to a limit, and parsed so strictly that nothing odd gets past."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import ClientDisconnect, Request

from engine.document import DocumentError, TooDeepError, is_deeper, read_document
from engine.server.problem import HttpError, late, refusal

MAX_DEPTH = 128
"""Levels of nesting: a schema has at most 115 of its own."""


async def read_body(request: Request, most: int, limit_s: float) -> bytes:
    """Return the body of a JSON request.

    Args:
        most: bytes it may have.
        limit_s: seconds in which all of it must have come.

    Raises:
        HttpError: 415 for another media type or encoding, 413 for a body over the limit, 408 for
            one that does not come.
    """
    _check_type(request)
    too_large = HttpError(413, f"the body is larger than {most} bytes", code="request_too_large")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > most:
        raise too_large
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limit_s):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise too_large
                parts.append(part)
    except TimeoutError:
        raise late(limit_s) from None
    except ClientDisconnect:
        raise refusal("the body ends early", code="invalid_json") from None
    return b"".join(parts)


def parse_document(body: bytes) -> dict[str, Any]:
    """Return the JSON object a body holds.

    Raises:
        HttpError: it holds something else: no UTF-8, no JSON, NaN or Infinity (also as 1e999), half
            a surrogate pair, a key twice, or values nested more than MAX_DEPTH deep.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise refusal(f"the body is not UTF-8: {error.reason}", code="invalid_json") from None
    document = parse_json(text, "the body")
    if not isinstance(document, dict):
        raise refusal("the body must be a JSON object", code="invalid_json")
    return document


def parse_json(text: str, what: str) -> Any:
    """Return the value of a JSON text; raises HttpError as parse_document, naming `what`."""
    try:
        value = read_document(text)
    except TooDeepError:
        raise _too_deep(what) from None
    except DocumentError as error:
        raise refusal(f"{what} is not JSON: {error}"[:300], code="invalid_json") from None
    if is_deeper(value, MAX_DEPTH):
        raise _too_deep(what)
    if "\\u" in text:
        _check_surrogates(value, what)
    return value


def _check_type(request: Request) -> None:
    media, _, parameters = request.headers.get("content-type", "").lower().partition(";")
    charset = parameters.partition("charset=")[2].strip().strip('"')
    if media.strip() != "application/json" or charset not in ("", "utf-8", "utf8"):
        raise HttpError(
            415,
            "the Content-Type must be application/json, in UTF-8",
            code="unsupported_media_type",
        )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(415, "the body must not be compressed", code="unsupported_content_encoding")


def _check_surrogates(value: Any, what: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise refusal(
            f"{what} holds half a surrogate pair, which is no text", code="invalid_json"
        ) from None


def _too_deep(what: str) -> HttpError:
    return refusal(f"{what} is nested deeper than {MAX_DEPTH} levels", code="invalid_json")
