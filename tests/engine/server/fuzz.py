"""Hostile requests from a seed: good ones with something done to them, and what is no request."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.engine.server.calling import TOOLS
from tests.engine.server.live import (
    CHAT,
    COMPLETIONS,
    MODEL,
    RESPONSES,
    chat_body,
    response_body,
)

SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
LOOK = {"name": "look", "parameters": SCHEMA, "strict": True}
TURNS = [
    {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {"type": "function_call", "call_id": "c", "name": "look", "arguments": '{"a": true}'},
    {"type": "function_call_output", "call_id": "c", "output": "yes"},
]
GOOD: list[tuple[str, dict[str, Any]]] = [
    (CHAT, chat_body(max_tokens=3)),
    (CHAT, chat_body(max_tokens=3, stream=True, stream_options={"include_usage": True})),
    (CHAT, chat_body(max_tokens=3, n=2, logprobs=True, top_logprobs=2, stop=["a", "b"])),
    (CHAT, chat_body(max_tokens=3, chat_template_kwargs={"enable_thinking": False})),
    (
        CHAT,
        chat_body(
            max_tokens=3,
            response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
        ),
    ),
    (CHAT, chat_body(max_tokens=3, tools=TOOLS, tool_choice="required")),
    (RESPONSES, response_body(max_output_tokens=3, stream=True, reasoning={"effort": "none"})),
    (RESPONSES, response_body(TURNS, max_output_tokens=3, tools=[{"type": "function", **LOOK}])),
    (COMPLETIONS, {"model": MODEL, "prompt": "x", "max_tokens": 3, "logprobs": 1, "seed": 7}),
    (COMPLETIONS, {"model": MODEL, "prompt": [1, 2], "max_tokens": 3, "logit_bias": {"7": -3}}),
    (COMPLETIONS, {"model": MODEL, "prompt": ["x", [1]], "max_tokens": 3, "guided_regex": "[ab]"}),
]

LITERALS = (
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e308", "5e-324", "-0", "-0.0", "1E400"),
    *("9" * 30, "9" * 309, "-" + "9" * 400, "9" * 5000, "0.1e-9999", "18446744073709551616"),
    *("null", "true", "[]", "{}", '""', '"5"', "[[]]", '{"": {}}', "[null]", '["", 0, {}]'),
    *(r'"\ud800"', r'"\udc00\ud800"', r'"\u0000"', r'"\ud83d\ude00"', '"\u202e"', '"<|im_end|>"'),
    *("undefined", "01", "+1", ".5", "1.", "0x10", "'x'", "{a:1}", "[1,]", '{"a":1,}', "/**/1"),
)
"""What is put in the place of a value."""

HOLE = "a hole in the body"


@dataclass(frozen=True, slots=True)
class Hostile:
    """One connection's worth of bytes.

    Args:
        what: the change, for messages.
        is_whole: whether it is a request as HTTP has them, which has to be answered.
    """

    what: str
    sent: bytes
    is_whole: bool = True


def hostile(seed: int, count: int) -> Iterator[Hostile]:
    """Yield so many, every kind of change in turn."""
    rng = random.Random(seed)
    for index in range(count):
        change = CHANGES[index % len(CHANGES)]
        path, body = rng.choice(GOOD)
        yield change(rng, path, body)


def request(
    path: str,
    body: bytes,
    *headers: str,
    kind: str = "application/json",
    length: int | None = None,
) -> bytes:
    """The bytes of a POST; `headers` instead of a length when there are any."""
    size = len(body) if length is None else length
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [f"Content-Type: {kind}", *(headers or (f"Content-Length: {size}",))]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found = [at] if at else []
    if isinstance(value, dict | list):
        for key, item in inner:
            found += places(item, (*at, key)) if isinstance(item, dict | list) else [(*at, key)]
    return found


def with_hole(rng: random.Random, body: dict[str, Any]) -> tuple[str, str]:
    """The text of a body and a text of its own in it, that stands for one of its values."""
    body = json.loads(json.dumps(body))
    at = rng.choice(places(body))
    inner = body
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = HOLE
    return json.dumps(body), f'"{HOLE}"'


def literal(rng: random.Random, path: str, body: dict[str, Any]) -> Hostile:
    text, hole = with_hole(rng, body)
    value = rng.choice(LITERALS)
    return Hostile(value[:20], request(path, text.replace(hole, value).encode()))


def nesting(rng: random.Random, path: str, body: dict[str, Any]) -> Hostile:
    text, hole = with_hole(rng, body)
    depth = rng.choice([5, 60, 127, 128, 129, 400, 900, 20_000])
    opened, closed = rng.choice([("[", "]"), ('{"a":', "}"), ('{"items":', "}")])
    inner = rng.choice(["", "1", "{}"]) if opened == "[" else "1"
    ends = rng.choice([depth, depth, depth - 1, 0])
    return Hostile(
        f"{depth} deep",
        request(path, text.replace(hole, opened * depth + inner + closed * ends).encode()),
    )


def added_field(rng: random.Random, path: str, body: dict[str, Any]) -> Hostile:
    """A key twice, a key of a hundred thousand characters, one that is no text, or many."""
    key = rng.choice(
        [rng.choice(list(body)), "k" * 100_000, "", r"\u0000", r"\ud800", "__proto__", "a.b[0]"]
    )
    many = rng.choice([1, 1, 1, 3000]) if len(key) < 100 else 1
    fields = "".join(f', "{key}{index or ""}": {rng.choice(LITERALS)}' for index in range(many))
    return Hostile(f"key {key[:20]}", request(path, f"{json.dumps(body)[:-1]}{fields}}}".encode()))


def bytes_of(rng: random.Random, path: str, body: dict[str, Any]) -> Hostile:
    """A body cut, with bytes changed, or with what is no UTF-8."""
    raw = bytearray(json.dumps(body, ensure_ascii=False).encode())
    match rng.randrange(6):
        case 0:
            raw = raw[: rng.randrange(len(raw))]
        case 1:
            for _ in range(rng.randint(1, 4)):
                raw[rng.randrange(len(raw))] = rng.randrange(256)
        case 2:
            at = rng.randrange(len(raw))
            raw[at:at] = rng.choice([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"])
        case 3:
            raw = bytearray(rng.choice([b"\xef\xbb\xbf", b"\xff\xfe", b"\0"])) + raw
        case 4:
            raw = bytearray(bytes(raw).decode().encode(rng.choice(["utf-16", "utf-32", "utf-7"])))
        case _:
            start, end = sorted(rng.randrange(len(raw)) for _ in range(2))
            raw[start:end] = raw[start:end] * rng.randint(0, 3)
    return Hostile("bytes", request(path, bytes(raw)))


def big(rng: random.Random, path: str, body: dict[str, Any]) -> Hostile:
    """Texts, lists and objects of many members in the place of a value."""
    text, hole = with_hole(rng, body)
    size = rng.choice([300, 5000, 50_000])
    match rng.randrange(4):
        case 0:
            value = f'"{"x" * size}"'
        case 1:
            value = f"[{','.join(['1'] * size)}]"
        case 2:
            value = f"[{','.join(['[1]'] * size)}]"
        case _:
            value = "{" + ",".join(f'"{index}":1' for index in range(size)) + "}"
    return Hostile(f"{size} members", request(path, text.replace(hole, value).encode()))


def head(rng: random.Random, path: str, body: dict[str, Any]) -> Hostile:
    """A good body under headers that say something else."""
    raw = json.dumps(body).encode()
    kinds = ("text/plain", "", "multipart/form-data", "application/json; charset=utf-16", "\xff")
    sent = rng.choice(
        [
            request(path, raw, kind=rng.choice(kinds)),
            request(path, raw, f"Content-Length: {len(raw)}", "Content-Encoding: gzip"),
            request(path, raw, f"Content-Length: {len(raw)}", f"Content-Length: {len(raw) + 1}"),
            request(path, raw, f"Content-Length: {len(raw)}", "Transfer-Encoding: chunked"),
            request(path, raw, f"Content-Length: {len(raw)}", f"Authorization: {'x' * 9000}"),
            request(path, raw, "Content-Length: -1"),
            request(path, raw, "Content-Length: 0"),
            request(path, raw, "Content-Length: 1e3"),
            request(path, raw, f"Content-Length: {'9' * 30}"),
            request(path, raw, "X-Other: 1"),
            request(path, raw, f"Content-Length: {len(raw)}", "Expect: 100-continue"),
            request(f"{path}?a=%ff&b[]=1", raw),
            request(f"{path}/", raw),
            request(path.upper(), raw),
            request("/v1/%2e%2e/stats", raw),
        ]
    )
    return Hostile("headers", sent, is_whole=False)


def length(rng: random.Random, path: str, body: dict[str, Any]) -> Hostile:
    """A body that is longer or shorter than it says, whole or in chunks."""
    raw = json.dumps(body).encode()
    cut = rng.randrange(len(raw))
    chunks = [
        f"{len(raw):x}\r\n".encode() + raw + b"\r\n0\r\n\r\n",
        f"{len(raw):X};a=b\r\n".encode() + raw + b"\r\n0\r\nTrailer: 1\r\n\r\n",
        f"{len(raw) + 5:x}\r\n".encode() + raw,
        f"{len(raw) - 5:x}\r\n".encode() + raw + b"\r\n0\r\n\r\n",
        b"zz\r\n" + raw,
        b"-1\r\n" + raw,
        b"f" * 40 + b"\r\n" + raw,
        f"{cut:x}\r\n".encode() + raw[:cut] + b"\r\n0\r\n\r\n",
        b"".join(b"1\r\n" + raw[i : i + 1] + b"\r\n" for i in range(len(raw))) + b"0\r\n\r\n",
    ]
    sent = rng.choice(
        [
            request(path, raw, length=len(raw) + rng.randint(1, 5000)),
            request(path, raw, length=cut),
            request(path, raw[:cut]),
            *(request(path, chunk, "Transfer-Encoding: chunked") for chunk in chunks),
        ]
    )
    return Hostile("length", sent, is_whole=False)


def garbage(rng: random.Random, path: str, body: dict[str, Any]) -> Hostile:
    """What is no request."""
    sent = rng.choice(
        [
            rng.randbytes(rng.randint(1, 2000)),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(100),
            f"GET {path}\r\n\r\n".encode(),
            f"POST {path} HTTP/9.9\r\n\r\n".encode(),
            f"POST {path} HTTP/1.1\r\n\r\n".encode(),
            f"POST {path} HTTP/1.1\r\nHost localhost\r\n\r\n".encode(),
            f"POST {path} HTTP/1.1\r\nHost: a\r\nHost: localhost\r\n\r\n".encode(),
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\n".encode() + b"X-Y: " + b"z" * 200_000,
            f"POST {path} HTTP/1.1\nHost: localhost\n\n".encode(),
            f"P\0ST {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
            f"POST http://other{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
            b"POST * HTTP/1.1\r\nHost: localhost\r\n\r\n",
            request(path, json.dumps(body).encode())[: rng.randint(1, 120)],
            b"\r\n" * rng.randint(1, 50),
        ]
    )
    return Hostile("garbage", sent, is_whole=False)


CHANGES: tuple[Callable[[random.Random, str, dict[str, Any]], Hostile], ...] = (
    *(literal, literal, literal, nesting, added_field, bytes_of, bytes_of, big),
    *(head, length, garbage),
)
