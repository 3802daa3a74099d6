"""An effort is told to templates that read it, and refused where nothing would come of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.loop import Engine
from engine.models.load import load_model
from engine.models.random_model import write_random_model
from engine.testing import tiny_model
from tests.engine.server.live import Live, serving

TURNS = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
READS = (
    TURNS + "{% if enable_thinking is false %}<think></think>{% else %}"
    "effort={{ reasoning_effort }} thinks={{ enable_thinking }}\n{% endif %}"
)
ALWAYS = TURNS + "<think>"
JSON: Any = {"text": {"format": {"type": "json_object"}}}


@contextmanager
def served(template: str, folder: Path) -> Iterator[Live]:
    added = ("<think>", "</think>")
    write_random_model(3, folder, "float32", added=added, chat_template=template)
    model = load_model(str(folder))
    with serving(lambda: Engine(model, EngineConfig())) as live:
        yield live


def prompt_of(answer: Any) -> str:
    assert answer.status_code == 200, answer.text
    return tiny_model().tokenizer.decode(answer.json()["prompt_token_ids"])


def test_a_template_that_reads_an_effort_is_told_it(tmp_path: Path) -> None:
    with served(READS, tmp_path) as live:
        for effort in ("minimal", "high"):
            for fields in ({}, JSON):
                reasoning = {"effort": effort}
                reply = live.respond(reasoning=reasoning, return_token_ids=True, **fields)
                assert f"effort={effort} thinks=True" in prompt_of(reply)
            chat = live.chat(reasoning_effort=effort, return_token_ids=True)
            assert f"effort={effort} thinks=True" in prompt_of(chat)
        reply = live.respond(reasoning={"effort": "none"}, return_token_ids=True)
        assert "effort=" not in prompt_of(reply)
        assert not [item for item in reply.json()["output"] if item["type"] == "reasoning"]


@pytest.mark.parametrize("effort", ["none", "low"])
def test_an_effort_that_nobody_reads_is_refused(tmp_path: Path, effort: str) -> None:
    with served(ALWAYS, tmp_path) as live:
        assert live.respond().status_code == 200
        reply = live.respond(reasoning={"effort": effort})
        chat = live.chat(reasoning_effort=effort)
        assert (reply.status_code, chat.status_code) == (400, 400)
        assert reply.json()["error"]["param"] == "reasoning.effort"
        assert chat.json()["error"]["param"] == "reasoning_effort"
