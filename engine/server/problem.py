"""Errors as the OpenAI API words them, and the one table from the engine's errors to statuses."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from engine.errors import (
    BackendError,
    ContextLengthError,
    DownloadError,
    FmError,
    ModelError,
    RequestError,
    RowError,
    SchemaError,
    SettingError,
    UnknownNameError,
)

LOGGER = logging.getLogger("fm.server")

CALLER, SERVER = "invalid_request_error", "server_error"
"""Types of errors: the caller has to change the request, or it may be sent again as it is."""

RETRY_AFTER_S = 1
"""What clients are told to wait when there is no room; rows leave about that often."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an error is told with."""

    status: int
    kind: str
    code: str | None


ANSWERS: dict[type[FmError], Answer] = {
    ContextLengthError: Answer(400, CALLER, "context_length_exceeded"),
    SchemaError: Answer(400, CALLER, "invalid_schema"),
    RequestError: Answer(400, CALLER, "invalid_value"),
    SettingError: Answer(400, CALLER, "invalid_value"),
    UnknownNameError: Answer(404, CALLER, "not_found"),
    DownloadError: Answer(503, SERVER, "model_unavailable"),
    ModelError: Answer(400, CALLER, "unsupported_by_model"),
    BackendError: Answer(503, SERVER, "backend_unavailable"),
    RowError: Answer(503, SERVER, "row_failed"),
    FmError: Answer(500, SERVER, "internal_error"),
}
"""The engine's exception family; the nearest ancestor of an error's class answers for it."""


class HttpError(Exception):
    """An error as an HTTP answer.

    Args:
        message: one line for the caller.
        param: the field at fault, with the place inside it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = " ".join(message.split())
        self.param = param
        self.code = code
        self.kind = kind or (CALLER if status < 500 else SERVER)

    @property
    def document(self) -> dict[str, Any]:
        """The body that tells it."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def headers(self) -> dict[str, str]:
        """Headers that go with the status."""
        if self.status == 401:
            return {"www-authenticate": "Bearer"}
        if self.status == 408:  # the rest of that request is no next one
            return {"connection": "close"}
        return {"retry-after": str(RETRY_AFTER_S)} if self.status in (429, 503) else {}


def problem_of(error: FmError, param: str | None = None) -> HttpError:
    """Return what an error of the engine is told as."""
    answer = next(ANSWERS[kind] for kind in type(error).__mro__ if kind in ANSWERS)
    return HttpError(answer.status, str(error), param=param, code=answer.code, kind=answer.kind)


def told_as(error: Exception) -> HttpError:
    """Return what any error is told as; one that nobody foresaw is told by its class alone."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, FmError):
        return problem_of(error)
    LOGGER.error("a request failed: %s", type(error).__name__)
    LOGGER.debug("what it failed with", exc_info=error)
    return HttpError(500, f"an error of the server ({type(error).__name__})", code="internal_error")


def late(limit_s: float) -> HttpError:
    """Return what is told of a request that does not come to its end."""
    return HttpError(408, f"the request did not come within {limit_s:g} s", code="timeout")


def refusal(
    message: str, param: str | None = None, code: str | None = "invalid_value"
) -> HttpError:
    """Return a 400: the caller has to change the request."""
    return HttpError(400, message, param=param, code=code)
