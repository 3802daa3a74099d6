"""A name becomes a model that runs, with everything the engine needs to know about it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten
from mlx_lm.utils import quantize_model, save_model

from engine.errors import ModelError, SettingError
from engine.models import load
from engine.models.load import LoadedModel, check_same_vocabulary, load_model
from engine.models.registry import pull

Build = Callable[..., Path]


def arrays(model: Module) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))


@pytest.fixture
def folder(model_cache: Path, tmp_path: Path) -> Path:
    """A folder as a person may have it: safetensors, in bfloat16."""
    made = tmp_path / "mine"
    shutil.copytree(pull("tiny-thinking"), made)
    weights = mx.load(str(made / "model.safetensors"))
    assert isinstance(weights, dict)
    cast = {name: array.astype(mx.bfloat16) for name, array in weights.items()}
    mx.save_safetensors(str(made / "model.safetensors"), cast, {"format": "mlx"})
    return made


def test_a_loaded_model_tells_what_it_is(model_cache: Path) -> None:
    model = load_model("tiny-thinking", dtype="float32")
    assert (model.name, model.source, model.dtype) == ("tiny-thinking", "random:7", "float32")
    assert (model.vocab_size, model.num_layers) == (261, 2)
    assert model.eos_ids == {256, 258}
    assert len(model.digest) == 64
    assert model.model(mx.array([[1, 2]])).shape == (1, 2, 261)


def test_mlx_lm_loads_the_same_weights_from_its_path(
    build_gguf: Build, model_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FM_TILED_WEIGHTS", "0")  # they change names and shapes, not values
    model = load_model(str(build_gguf(kind="Q4_0")), dtype="float32")
    assert model.path is not None
    other, tokenizer = mlx_lm.load(str(model.path))
    ids = mx.array([model.tokenizer.encode("the cat")])
    assert ids.tolist() == [tokenizer.encode("the cat")]
    theirs, ours = (dict(tree_flatten(held.parameters())) for held in (other, model.model))
    assert theirs.keys() == ours.keys()
    assert all(mx.array_equal(theirs[name], ours[name]) for name in theirs)
    assert mx.allclose(other(ids), model.model(ids), atol=1e-5)
    assert set(tokenizer.eos_token_ids) == set(model.eos_ids) == {0, 2}


def test_a_model_is_run_by_any_thread_whoever_loaded_it(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    (folder / "config.json").write_text(json.dumps({**values, "rope_scaling": scaling}))
    with ThreadPoolExecutor(1) as loader, ThreadPoolExecutor(1) as runner:
        model = loader.submit(load_model, str(folder)).result().model
        found = runner.submit(lambda: np.array(model(mx.array([[1, 2, 3]])))).result()
    np.testing.assert_array_equal(found, np.array(model(mx.array([[1, 2, 3]]))))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_are_cast_to_the_dtype_asked_for(folder: Path, dtype: str) -> None:
    model = load_model(str(folder), dtype=dtype)
    assert {array.dtype for array in arrays(model.model).values()} == {getattr(mx, dtype)}
    assert model.model(mx.array([[1]])).dtype == getattr(mx, dtype)


def test_the_default_dtype_is_the_backends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "default_dtype", lambda: "float16")
    assert load_model(str(folder)).dtype == "float16"


def test_an_unknown_dtype_is_refused(folder: Path) -> None:
    with pytest.raises(SettingError, match="dtype is 'int3'; it must be one of float32"):
        load_model(str(folder), dtype="int3")


def test_packed_weights_stay_packed(folder: Path, tmp_path: Path) -> None:
    model, _ = mlx_lm.load(str(folder))
    config = json.loads((folder / "config.json").read_text())
    model, config = quantize_model(model, config, group_size=32, bits=4)
    packed = tmp_path / "packed"
    shutil.copytree(folder, packed)
    (packed / "model.safetensors").unlink()
    save_model(packed, model)
    (packed / "config.json").write_text(json.dumps(config))
    loaded = load_model(str(packed), dtype="float32")
    kinds = {array.dtype for array in arrays(loaded.model).values()}
    assert kinds == {mx.uint32, mx.float32}
    assert mx.isfinite(loaded.model(mx.array([[1, 2]]))).all().item()


def test_end_tokens_come_from_config_generation_config_and_tokenizer(folder: Path) -> None:
    for name, ids in (("config.json", 1), ("generation_config.json", [2, 3])):
        values = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**values, "eos_token_id": ids}))
    model = load_model(str(folder))
    assert model.eos_ids == {1, 2, 3, 258}
    assert model.tokenizer.eos_ids == model.eos_ids


def test_code_beside_the_weights_is_not_run(folder: Path) -> None:
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "model_file": "evil.py"}))
    with pytest.raises(ModelError, match=r"MLX-LM cannot load it \(.*custom module") as caught:
        load_model(str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"model_type": "nonsense"}, "nonsense not supported", id="kind"),
        pytest.param({"hidden_size": None}, "cannot load it", id="missing-setting"),
        pytest.param({"num_hidden_layers": 3}, "cannot load it", id="missing-layer"),
        pytest.param({"num_hidden_layers": 1}, "cannot load it", id="extra-layer"),
        pytest.param({"intermediate_size": 64}, "cannot load it", id="shape"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_in_one_line(
    folder: Path, change: dict[str, object], said: str
) -> None:
    values = {**json.loads((folder / "config.json").read_text()), **change}
    kept = {key: value for key, value in values.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    with pytest.raises(ModelError, match=said) as caught:
        load_model(str(folder))
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_settings_file_is_refused_in_one_line(folder: Path, name: str) -> None:
    (folder / name).write_text("{")
    with pytest.raises(ModelError) as caught:
        load_model(str(folder))
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_cut_model_shares_its_parents_arrays_and_computes_its_first_layers(
    build_gguf: Build, model_cache: Path
) -> None:
    name = str(build_gguf())
    parent = load_model(name, dtype="float32")
    entry = load.find_entry(name)
    cut_name = "cut"
    cut_entry = type(entry)(name=cut_name, source=f"layers:{name}/8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "find_entry", lambda _: cut_entry)
        before = mx.get_active_memory()
        cut = load_model(cut_name, dtype="float32")
    assert mx.get_active_memory() - before < 100_000
    assert cut.num_layers == 8
    ids = mx.array([[5, 6, 7]])
    hidden = parent.model.model.embed_tokens(ids)
    mask = mx.triu(mx.full((3, 3), -np.inf), k=1)
    for layer in parent.model.layers[:8]:
        hidden = layer(hidden, mask)
    expected = parent.model.model.embed_tokens.as_linear(parent.model.model.norm(hidden))
    assert mx.allclose(cut.model(ids), expected, atol=1e-4)
    check_same_vocabulary(parent, cut)


def test_padded_rows_are_no_other_vocabulary(folder: Path, tmp_path: Path) -> None:
    weights = mx.load(str(folder / "model.safetensors"))
    assert isinstance(weights, dict)
    wider = tmp_path / "wider"
    shutil.copytree(folder, wider)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = mx.pad(weights[name], ((0, 27), (0, 0)))
    mx.save_safetensors(str(wider / "model.safetensors"), weights, {"format": "mlx"})
    values = json.loads((folder / "config.json").read_text())
    (wider / "config.json").write_text(json.dumps({**values, "vocab_size": 288}))
    first, second = load_model(str(folder)), load_model(str(wider))
    assert (first.vocab_size, second.vocab_size) == (261, 288)
    check_same_vocabulary(first, second)


def test_another_vocabulary_is_refused_with_both_names_and_sizes(
    build_gguf: Build, folder: Path
) -> None:
    target, draft = load_model(str(folder)), load_model(str(build_gguf()))
    with pytest.raises(ModelError, match="262 tokens against 261"):
        check_same_vocabulary(target, draft)


@pytest.fixture(scope="module")
def smollm() -> LoadedModel:
    return load_model("smollm2-135m", dtype="float32")


def test_the_default_model_answers(smollm: LoadedModel) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ids = smollm.tokenizer.apply_chat_template(messages)
    text = mlx_lm.generate(smollm.model, smollm.tokenizer.wrapper, ids, max_tokens=12)
    assert text == "The capital of France is Paris."


def test_the_default_models_tokenizer_cuts_single_digits_and_keeps_markers_text(
    smollm: LoadedModel,
) -> None:
    tokenizer = smollm.tokenizer
    assert smollm.eos_ids == {0, 2}
    assert [tokenizer.decode([index]) for index in tokenizer.encode(" 2024")] == [*" 2024"]
    ids = tokenizer.encode("<|im_end|>")
    assert not smollm.eos_ids.intersection(ids)
    assert tokenizer.decode(ids) == "<|im_end|>"
    assert b"".join(map(tokenizer.token_bytes, ids)) == b"<|im_end|>"


def test_the_default_models_drafter_shares_its_arrays(smollm: LoadedModel) -> None:
    before = mx.get_active_memory()
    draft = load_model("smollm2-135m-first8", dtype="float32")
    assert mx.get_active_memory() - before < 1_000_000
    assert (draft.num_layers, smollm.num_layers) == (8, 30)
    check_same_vocabulary(smollm, draft)
