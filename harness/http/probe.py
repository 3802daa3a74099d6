"""What a server that speaks OpenAI's API can do: asked of it, with a few tiny requests."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from harness.http.chat_reply import ChatReply
from harness.http.client import Ask, Exchange, LoadClient
from harness.http.process import ServerError
from harness.http.trial import LOADING, Takes
from harness.report.visible import in_one_line
from harness.trials.prompting import UNREASONED

KEY_VARIABLES = ("FM_TARGET_API_KEY", "OPENAI_API_KEY")
"""Where the key of a server may be; the first one that is set is sent, and none is ever shown."""

MARK = "fm-4711"
SCHEMA = {
    "type": "object",
    "properties": {"mark": {"const": MARK}},
    "required": ["mark"],
    "additionalProperties": False,
}
"""No model answers a greeting with this document unless something makes it."""

MARK_TOKENS = 32
"""Twice what the document takes: a server that does not mind the schema writes all of them."""


def target_key() -> str | None:
    """Return the key for servers of others, None for none."""
    return next((os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)), None)


def model_of(client: LoadClient[ChatReply], base: str, wanted: str = "") -> str:
    """Return the id of a server's model: the wanted one where it is listed, else the only one.

    Args:
        base: path that all others of the API begin with.

    Raises:
        FmError: the server lists no models, several and not the wanted one, or one whose id would
            not show as it is.
    """
    listed = client.fetch("GET", f"{base}/models")
    data = listed.get("data") if isinstance(listed, Mapping) else None
    if not isinstance(data, list):
        raise ServerError("the server lists no models")
    ids = [str(item.get("id")) for item in data if isinstance(item, Mapping)]
    if odd := [ident for ident in ids if in_one_line(ident) != ident]:
        raise ServerError(
            f"the server lists the model {in_one_line(odd[0])!r}, whose id is no name"
        )
    if wanted in ids:
        return wanted
    if len(ids) == 1:
        return ids[0]
    known = ", ".join(ids[:20]) or "none"
    raise ServerError(f"the server lists {len(ids)} models ({known}); name one with --models")


def probe(client: LoadClient[ChatReply], path: str, model: str) -> Takes:
    """Return which fields a server takes.

    Raises:
        ServerError: it does not stream the plainest of chats.
    """
    client.patience = LOADING
    usual = client.waves([_ask(path, model, stream_options={"include_usage": True})], 1)
    has_usage = _went(usual.exchanges[0]) and usual.exchanges[0].reply.usage is not None
    if not _went(usual.exchanges[0]):
        plain = client.waves([_ask(path, model)], 1).exchanges[0]
        if not _went(plain):
            raise ServerError(f"the server streams no chat of {model!r}: {plain.error}")
    asks = [
        _ask(path, model, seed=1),
        _ask(path, model, chat_template_kwargs=UNREASONED),
    ]
    seeded, templated = client.waves(asks, 1).exchanges
    return Takes(usage=has_usage, template=_went(templated), seed=_went(seeded))


def enforces_schema(client: LoadClient[ChatReply], path: str, model: str, takes: Takes) -> bool:
    """Return whether a server holds a reply to a schema that no model meets by itself.

    It is asked as constrained trials ask: without reasoning where that can be said, since a model
    that thinks first would take all the tokens there are.
    """
    client.patience = LOADING
    format = {"name": "mark", "schema": SCHEMA, "strict": True}
    wanted = {"type": "json_schema", "json_schema": format}
    unreasoned = {"chat_template_kwargs": UNREASONED} if takes.template else {}
    ask = _ask(path, model, max_tokens=MARK_TOKENS, response_format=wanted, **unreasoned)
    (held,) = client.waves([ask], 1).exchanges
    return _went(held) and _is_mark(held.reply.text)


def _ask(path: str, model: str, **fields: Any) -> Ask:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 1,
        "temperature": 0,
        "stream": True,
    }
    return Ask.of(path, {**body, **fields})


def _went(exchange: Exchange[ChatReply]) -> bool:
    return exchange.error is None


def _is_mark(text: str) -> bool:
    try:
        return bool(json.loads(text) == {"mark": MARK})
    except (ValueError, RecursionError):
        return False
