"""Text to token ids and back, exactly: bytes of every token, and no control token from text."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from llguidance import LLTokenizer
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE, Unigram

from engine.errors import ModelError, RequestError
from engine.models.chat import ControlTexts
from engine.models.special_names import ControlTokens, hidden_tokens, hide_names
from engine.models.tool_template import CallFormat, ToolTemplate, probe_template
from engine.models.tool_wording import worded
from engine.models.vocabulary import token_table
from engine.reasoning import ReasoningTags
from engine.request import Reasoning

RESERVED_OPTIONS = (
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "conversation",
    "documents",
    "max_length",
    "messages",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "sanitize_control_tokens",
    "tokenize",
    "tokenizer_kwargs",
    "tools",
    "truncation",
)
"""Arguments of the renderer that are no variables of a template; a template is not exchanged."""


REFUSALS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What reading messages may raise that are not of the form a template has in mind."""

TAG = re.compile(r"<[^<>\s]+>")

MARKER = re.compile(r"<\S+>|\[\S+\]")
"""What an added token that structures a chat looks like; runs of blanks and others are text."""


class Tokenizer:
    """A model's tokenizer. Safe to share between threads.

    Args:
        wrapper: MLX-LM's tokenizer, over a fast one.
        vocab_size: width of the logits; the tokenizer may know fewer tokens.
        eos_ids: tokens that end a row.

    Attributes:
        control_tokens: the tokens that llguidance takes for no text.

    Raises:
        ModelError: a slow tokenizer, or one larger than the logits.
    """

    def __init__(self, wrapper: TokenizerWrapper, vocab_size: int, eos_ids: frozenset[int]) -> None:
        self._wrapper: Any = wrapper  # its methods have no annotations
        self.vocab_size = vocab_size
        self.eos_ids = eos_ids
        self._backend = _own_backend(wrapper, vocab_size)
        self._added = self._backend.get_added_tokens_decoder()
        special = {index for index, token in self._added.items() if token.special}
        self.special_ids = frozenset(special) | eos_ids
        self._controls = self._control_texts()
        self.control_ids = self.special_ids | frozenset(self._controls.ids.values())
        text = self._backend.to_str()
        settings = json.loads(text)
        hidden = {item["content"]: item["id"] for item in hidden_tokens(settings)}
        self.control_tokens = ControlTokens(hidden, self.special_ids & frozenset(hidden.values()))
        self._first = self._text_encoder(text)
        inner = _without_prefix(settings)
        self._inner = self._text_encoder(json.dumps(inner)) if inner else self._first
        self._table = token_table(self._backend, settings["decoder"], self.special_ids, vocab_size)
        self._ll: LLTokenizer | None = None
        self._tool_template: ToolTemplate | None = None
        self._lock = threading.Lock()

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return token ids; control tokens that the text spells out stay text.

        Args:
            add_special_tokens: put what the tokenizer wants around a text (often a first token).
        """
        return self._plain_ids(self._first, text, add_special_tokens)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of tokens; bytes that are no UTF-8 become U+FFFD. Nothing is tidied."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the exact bytes of a token; b"" for special tokens and unused rows."""
        return self._table[token_id] if 0 <= token_id < self.vocab_size else b""

    def control_name(self, token_id: int) -> str:
        """Return what a token without bytes is called; "" for an unused row."""
        return self._backend.id_to_token(token_id) or ""

    def chat_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Return what the chat template writes, to be read by people.

        Encoding it again could turn a person's text into control tokens; for ids use
        apply_chat_template. What the template does not write of tools, calls and results is put
        into the messages (tool_wording.py).

        Args:
            tools: what the model may call, {"type": "function", "function": {...}}.
            options: further variables for the template, such as {"enable_thinking": False}.

        Raises:
            ModelError: the model has no chat template.
            RequestError: the template refuses the messages.
        """
        if tools or any("tool_calls" in item or item.get("role") == "tool" for item in messages):
            try:
                conversation = worded(messages, tools, self.tool_template)
            except REFUSALS as error:
                raise RequestError(f"messages lack what calls are made of: {error}") from error
            messages, tools = conversation.messages, conversation.tools
        return self._rendered(messages, tools, add_generation_prompt, options or {})

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the ids of a conversation; only the template itself yields control tokens.

        Args:
            messages: {"role": ..., "content": ...}, and whatever else the template reads; the
                arguments of a call are a JSON value.
            tools: what the model may call, {"type": "function", "function": {...}}.
            options: further variables for the template, such as {"enable_thinking": False}.

        Raises:
            ModelError: the model has no chat template.
            RequestError: the template refuses the messages.
        """
        chat = self._controls.mark(messages, options, tools)
        text = self.chat_text(
            chat.messages,
            tools=chat.tools,
            add_generation_prompt=add_generation_prompt,
            options=chat.options,
        )
        pieces = list(self._controls.split(text))
        if not chat.mark:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
            written = sum(control is not None for _, control in pieces)
            # More are found where a normaliser reads them into something else.
            if sum(index in self.control_ids for index in ids) == written:
                return ids
        return self._encode_pieces(pieces, chat.mark)

    @property
    def tool_template(self) -> ToolTemplate:
        """What the chat template does with tools, found once, at first use (a few renderings).

        Raises:
            ModelError: the model has no chat template.
        """
        with self._lock:
            if self._tool_template is None:
                self._tool_template = probe_template(
                    lambda messages, tools: self._rendered(messages, tools, True, {})
                )
            return self._tool_template

    @property
    def call_format(self) -> CallFormat:
        """How the model writes calls.

        Raises:
            ModelError: the model has no chat template, or one that teaches another form; or the
                form's tags are not text.
        """
        template = self.tool_template
        if template.call_format is None:
            form = f", as in {template.shown!r}" if template.shown else ""
            raise ModelError(
                f"the model's chat template has calls written in a form that is not known{form}; "
                "known is JSON in <tool_call> tags; leave the tools out"
            )
        known = template.call_format
        tags = TAG.findall(known.written("", ""))
        if any(self._backend.token_to_id(tag) in self.special_ids for tag in tags):
            raise ModelError(
                "the tags of the model's calls are special tokens, which are no part of a reply's "
                "text; leave the tools out"
            )
        return known

    def template_names(self, variable: str) -> bool:
        """Return whether the chat template mentions a variable."""
        template = json.dumps(self._wrapper.chat_template or "", ensure_ascii=False)
        return re.search(rf"\b{re.escape(variable)}\b", template) is not None

    @property
    def wrapper(self) -> TokenizerWrapper:
        """MLX-LM's tokenizer, for MLX-LM's own functions."""
        wrapper: TokenizerWrapper = self._wrapper
        return wrapper

    @property
    def ll(self) -> LLTokenizer:
        """The same vocabulary for llguidance, built once, at first use (0.3 s for 49k tokens)."""
        with self._lock:
            if self._ll is None:
                settings, eos = json.loads(self._backend.to_str()), sorted(self.eos_ids)
                text = json.dumps(hide_names(settings))
                self._ll = LLTokenizer(text, n_vocab=self.vocab_size, eos_token=eos)
            return self._ll

    @property
    def vocabulary(self) -> dict[str, int]:
        """Token text -> id, added tokens included."""
        return self._backend.get_vocab(with_added_tokens=True)

    @property
    def has_thinking(self) -> bool:
        """True when the model writes a reasoning block between tags."""
        return bool(self.think_end_ids)

    @property
    def think_start_ids(self) -> tuple[int, ...]:
        """Ids of the tag that opens a reasoning block; empty without one."""
        return tuple(self._wrapper.think_start_tokens or ())

    @property
    def think_end_ids(self) -> tuple[int, ...]:
        """Ids of the tag that closes a reasoning block; empty without one."""
        return tuple(self._wrapper.think_end_tokens or ())

    @property
    def tags(self) -> ReasoningTags:
        """Both tags; empty without them."""
        return ReasoningTags(self.think_start_ids, self.think_end_ids)

    def reasoning_of(self, prompt_ids: Sequence[int]) -> Reasoning:
        """Return where a reply to a rendered chat begins.

        OPEN when a block is open at the end of the prompt: no control token stands behind its
        tag, so it is none of an earlier turn. NONE when the prompt ends with a closed block and
        nothing but blanks, or the model has no tags.
        """
        if not self.has_thinking:
            return Reasoning.NONE
        last = [*prompt_ids]
        start, end = (_behind(tag, last) for tag in (self.think_start_ids, self.think_end_ids))
        if start > end and self.special_ids.isdisjoint(last[start:]):
            return Reasoning.OPEN
        is_closed = end > 0 and all(self._is_blank(token) for token in last[end:])
        return Reasoning.NONE if is_closed else Reasoning.OPTIONAL

    def _is_blank(self, token: int) -> bool:
        return token not in self.control_ids and not self.token_bytes(token).strip()

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        options: Mapping[str, Any],
    ) -> str:
        """Return what the template makes of messages and tools as they are."""
        if not self._wrapper.has_chat_template:
            raise ModelError("the model has no chat template; send a plain prompt instead")
        if taken := [key for key in RESERVED_OPTIONS if key in options]:
            raise RequestError(f"template option {taken[0]!r} is reserved; remove it")
        extra = {**options, "tools": [dict(tool) for tool in tools]} if tools else dict(options)
        try:
            text = self._wrapper.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **extra,
            )
        except REFUSALS as error:
            raise RequestError(f"the chat template refuses the messages: {error}") from error
        return str(text)

    def _control_texts(self) -> ControlTexts:
        """Special tokens, and added ones the chat template writes, such as <tool_call>."""
        template = self._wrapper.chat_template
        written = json.dumps(template, ensure_ascii=False) if template else ""
        ids = {
            token.content: index
            for index, token in self._added.items()
            if index in self.special_ids
            or (MARKER.fullmatch(token.content) and token.content in written)
        }
        tags = [tag for tag in (self._wrapper.think_start, self._wrapper.think_end) if tag]
        ids |= {tag: self.vocabulary[tag] for tag in tags if tag in self.vocabulary}
        return ControlTexts(ids, tags)

    def _text_encoder(self, settings: str) -> Backend:
        """An encoder that reads control tokens as the characters they are written with."""
        encoder = _forgetful(settings)
        control = [token for index, token in self._added.items() if index in self.control_ids]
        encoder.add_special_tokens(control)
        encoder.encode_special_tokens = True
        return encoder

    def _encode_pieces(self, pieces: Iterable[tuple[str, int | None]], mark: str) -> list[int]:
        ids: list[int] = []
        for piece, control in pieces:
            if control is not None:
                ids.append(control)
                continue
            encoder = self._inner if ids else self._first
            ids += self._plain_ids(encoder, piece.replace(mark, ""))
        return ids

    def _plain_ids(
        self, encoder: Backend, text: str, add_special_tokens: bool = False
    ) -> list[int]:
        """Encode text; a control token that came of it all the same is spelled out."""
        encoding = encoder.encode(text, add_special_tokens=add_special_tokens)
        ids: list[int] = []
        for index, is_wanted in zip(encoding.ids, encoding.special_tokens_mask, strict=True):
            is_text = is_wanted or index not in self.control_ids
            ids += [index] if is_text else self._spelled(index)
        return ids

    def _spelled(self, control_id: int) -> list[int]:
        text = self._backend.decode([control_id], skip_special_tokens=False)
        if len(text) < 2:
            return [control_id]
        return self._plain_ids(self._inner, text[:1]) + self._plain_ids(self._inner, text[1:])


def _behind(tag: Sequence[int], ids: list[int]) -> int:
    """Return the place behind the last occurrence of a tag, 0 when there is none."""
    wanted = list(tag)
    for place in range(len(ids) - len(wanted), -1, -1):
        if ids[place : place + len(wanted)] == wanted:
            return place + len(wanted)
    return 0


def _own_backend(wrapper: TokenizerWrapper, vocab_size: int) -> Backend:
    """A copy that nobody else changes, without added tokens beyond the logits (some have them)."""
    backend = getattr(wrapper, "backend_tokenizer", None)
    if not isinstance(backend, Backend):
        raise ModelError(
            "the tokenizer has no fast form; save it as tokenizer.json beside the weights"
        )
    num_tokens = backend.get_vocab_size(with_added_tokens=False)
    if num_tokens > vocab_size:
        raise ModelError(
            f"the tokenizer knows {num_tokens} tokens, the model {vocab_size}; "
            "they do not belong together"
        )
    text = backend.to_str()
    if backend.get_vocab_size(with_added_tokens=True) > vocab_size:
        settings = json.loads(text)
        kept = [item for item in settings["added_tokens"] if item["id"] < vocab_size]
        text = json.dumps({**settings, "added_tokens": kept})
    copy = _forgetful(text)
    copy.no_padding()
    copy.no_truncation()
    return copy


def _forgetful(settings: str) -> Backend:
    """An encoder, of the text of a tokenizer.json, that keeps nothing of what it has read.

    By itself it would keep 10,000 words, up to 8 kB each, and a tokenizer that parts no words takes
    a whole text for one. On prose that is new to it, that saves an eighth of the time of encoding.
    """
    encoder = Backend.from_str(settings)
    if isinstance(encoder.model, BPE | Unigram):  # other kinds keep nothing
        encoder.model._resize_cache(0)
    return encoder


def _without_prefix(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """tokenizer.json for text after a control token, where only the first text gets a space."""
    first, never = (f'"prepend_scheme": "{scheme}"' for scheme in ("first", "never"))
    cut = json.dumps(settings["pre_tokenizer"])
    if first not in cut:
        return None
    return {**settings, "pre_tokenizer": json.loads(cut.replace(first, never))}
