"""LoRA adapters as models of their own, beside the model they belong to."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import SettingError
from engine.oracle import Oracle
from engine.server.model_ids import check_ids
from engine.testing import request_for, tiny_model, write_adapter
from tests.engine.server.live import MODEL, serving, tiny_engine


def test_an_adapter_is_a_model_that_answers_as_merged(tmp_path: Path) -> None:
    place = write_adapter(tmp_path / "tuned", tiny_model(), 1)
    prompt = request_for(tiny_model(), "hello", max_tokens=12).prompt_ids
    oracle = Oracle(tiny_model(), {"tuned": place})
    config = EngineConfig(max_rows=4, adapters=(f"tuned={place}",))
    with serving(lambda: tiny_engine(config)) as live:
        listed = {
            item["id"]: item["parent"] for item in live.client.get("/v1/models").json()["data"]
        }
        assert listed == {MODEL: None, "tuned": MODEL}
        assert live.client.get("/v1/models/tuned").json()["parent"] == MODEL
        for model, adapter in ((MODEL, ""), ("tuned", "tuned"), (MODEL, "")):
            answer = live.complete(
                list(prompt), model=model, max_tokens=12, return_token_ids=True
            ).json()
            request = request_for(tiny_model(), "hello", max_tokens=12, adapter=adapter)
            assert answer["model"] == model
            assert answer["choices"][0]["token_ids"] == oracle.generate(request)
        answer = live.complete(model="other")
        assert answer.status_code == 404
        assert "tuned" in answer.json()["error"]["message"]


def test_an_adapter_may_not_have_the_models_id() -> None:
    with pytest.raises(SettingError, match="give it another"):
        check_ids("tiny", EngineConfig(adapters=("tiny=somewhere",)))
