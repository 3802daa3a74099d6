"""Tiny GGUF files, and a model cache of their own for tests that fill one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from engine.models.vocabulary import BYTE_TO_CHAR

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 9, 64, 256, 4, 2, 16
CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"

Build = Callable[..., Path]


@dataclass(frozen=True)
class Packed:
    """A tensor as the file holds it: [rows, bytes a row], of a type numpy cannot make."""

    rows: np.ndarray
    kind: str


@pytest.fixture
def packed() -> Callable[[int, int, str], Packed]:
    """Make random but finite blocks of any type, for `rows` x `columns` values."""

    def make(rows: int, columns: int, kind: str) -> Packed:
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        draw = np.random.default_rng(rows)
        values = draw.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
        scale = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
        for start in SCALES[kind]:
            values[:, :, start : start + 2] = scale
        return Packed(values.reshape(rows, -1), kind)

    return make


SCALES = {
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
}
"""Where a block keeps its float16 scales, byte offsets."""


@pytest.fixture
def model_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder that this test alone uses."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FM_CACHE_DIR", str(folder))
    monkeypatch.setenv("FM_BLAS", "off")  # child processes would make a copy of it here
    return folder


def tokens_and_merges() -> tuple[list[str], list[str], list[int]]:
    texts = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    texts += [BYTE_TO_CHAR[byte] for byte in range(256)]
    merges = ["t h", "th e", "Ġ the"]
    texts += [merge.replace(" ", "") for merge in merges]
    return texts, merges, [3] * 3 + [1] * (len(texts) - 3)


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's rotary order, as its converter writes it."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def reference_weights(seed: int = 3) -> dict[str, np.ndarray]:
    """The arrays of a small Llama in MLX-LM's names and order, float32."""
    draw = np.random.default_rng(seed)
    vocab = len(tokens_and_merges()[0])
    shapes = {"model.embed_tokens.weight": (vocab, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes |= {
            at + "input_layernorm.weight": (HIDDEN,),
            at + "self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            at + "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            at + "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            at + "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            at + "post_attention_layernorm.weight": (HIDDEN,),
            at + "mlp.gate_proj.weight": (INNER, HIDDEN),
            at + "mlp.up_proj.weight": (INNER, HIDDEN),
            at + "mlp.down_proj.weight": (HIDDEN, INNER),
        }
    return {
        name: (draw.standard_normal(shape) * 0.3).astype(np.float32)
        for name, shape in shapes.items()
    }


GGUF_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


def gguf_name(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{GGUF_NAMES[rest]}"


def stored_order(name: str, values: np.ndarray) -> np.ndarray:
    heads = {"q_proj": HEADS, "k_proj": KV_HEADS}
    found = [count for part, count in heads.items() if f".{part}." in name]
    return permuted(values, found[0]) if found else values


def default_settings() -> dict[str, Any]:
    tokens, merges, kinds = tokens_and_merges()
    return {
        "llama.block_count": LAYERS,
        "llama.context_length": 512,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.freq_base": 10000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": CHAT,
    }


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_array(key, value)


@pytest.fixture
def build_gguf(tmp_path: Path) -> Build:
    """Write a tiny Llama as GGUF; `settings` and `tensors` replace parts of it, None drops one."""

    def build(
        name: str = "tiny.gguf",
        kind: str = "F32",
        architecture: str = "llama",
        settings: Mapping[str, Any] | None = None,
        tensors: Mapping[str, np.ndarray | Packed | None] | None = None,
    ) -> Path:
        path = tmp_path / name
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in (default_settings() | dict(settings or {})).items():
            if value is not None:
                add_value(writer, key, value)
        arrays: dict[str, np.ndarray | Packed | None] = {
            gguf_name(key): stored_order(key, values) for key, values in reference_weights().items()
        }
        for key, values in (arrays | dict(tensors or {})).items():
            if values is not None:
                add_tensor(writer, key, values, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return build


def add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray | Packed, kind: str) -> None:
    if isinstance(values, Packed):
        writer.add_tensor(name, values.rows, raw_dtype=gguf.GGMLQuantizationType[values.kind])
    elif values.ndim == 1:
        writer.add_tensor(name, values)
    else:
        wanted = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, gguf.quants.quantize(values, wanted), raw_dtype=wanted)


@pytest.fixture
def weights() -> dict[str, np.ndarray]:
    """The arrays `build_gguf` stores, by MLX-LM's names."""
    return reference_weights()
