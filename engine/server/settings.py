"""Settings of the server, each once: default, bounds and help."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from engine.config import check_settings, setting
from engine.errors import SettingError

LOG_LEVELS = ("debug", "info", "warning", "error")

OPEN_PATHS = ("/health",)
"""What may be asked without a key: it tells nothing but a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How the server listens, and what it lets one client cost the others.

    Raises:
        SettingError: a value is out of bounds, or others than this machine could connect without a
            key.
    """

    host: str = setting("127.0.0.1", "address to listen on; beyond this machine it takes a key")
    port: int = setting(8000, "port to listen on; 0 takes a free one", low=0, high=65535)
    api_key: str | None = field(
        default=None,
        repr=False,
        metadata={"help": "key that clients must send; the variable FM_API_KEY does as well"},
    )
    insecure: bool = setting(False, "listen beyond this machine without a key")
    max_body_bytes: int = setting(4 * 2**20, "largest request body, in bytes", low=1024, high=2**30)
    max_waiting: int = setting(
        256, "choices that may wait for a row; further requests get 429", low=1, high=100_000
    )
    default_max_tokens: int = setting(
        1024, "tokens of a chat reply whose request sets no limit", low=1, high=2**31
    )
    request_timeout_s: float = setting(
        600.0, "seconds a request may take, waiting included", low=0.01, high=86_400
    )
    client_timeout_s: float = setting(
        60.0,
        "seconds in which a client must have sent its request, and must take some of its reply",
        low=0.01,
        high=86_400,
    )
    stuck_after_s: float = setting(
        60.0, "seconds one step may take before /health says stuck", low=0.01, high=86_400
    )
    drain_s: float = setting(
        30.0, "seconds that live requests get to end after SIGTERM", low=0, high=86_400
    )
    allow_overrides: bool = setting(
        False, "take the body field fm, which chooses lane and drafts of a request; for measuring"
    )
    log_level: str = setting(
        "warning", "how much is logged; never prompts, replies or keys", choices=LOG_LEVELS
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.api_key is not None and not (self.api_key and self.api_key.isascii()):
            raise SettingError("api_key must be ASCII text that is not empty")
        if not (self.is_local or self.api_key or self.insecure):
            raise SettingError(
                f"host is {self.host!r}, which others can reach; set --api-key, or --insecure when "
                "that is meant"
            )

    @property
    def is_local(self) -> bool:
        """True when only this machine can connect."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address means this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
