"""From a body to what the engine is asked: fields that belong together, prompts, requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from engine.errors import FmError, RequestError
from engine.loop import Engine
from engine.models.load import LoadedModel
from engine.models.tokenizer import RESERVED_OPTIONS
from engine.request import Reasoning, Request, SamplingParams
from engine.server.body import parse_document
from engine.server.bounds import Bounds, read_bounds
from engine.server.calls import CallSyntax
from engine.server.effort import NO_EFFORT, effort_options
from engine.server.fields import read_fields
from engine.server.model_ids import adapter_of
from engine.server.overrides import check_overrides
from engine.server.problem import problem_of, refusal
from engine.server.readers import shown
from engine.server.response_fields import LOGPROBS
from engine.server.response_input import with_instructions
from engine.server.settings import ServerConfig
from engine.server.standing import Endpoint
from engine.server.tools import ToolUse

COMPLETION_TOKENS = 16
"""OpenAI's default for a completion; a chat's is a setting of the server."""

DEFAULT_TEMPERATURE = 1.0
"""OpenAI's default; the engine's own is 0."""


PROMPTS: Mapping[Endpoint, str] = {
    Endpoint.CHAT: "messages",
    Endpoint.COMPLETIONS: "prompt",
    Endpoint.RESPONSES: "input",
}
"""Endpoint -> the field that holds what is answered."""

EFFORTS: Mapping[Endpoint, str] = {
    Endpoint.CHAT: "reasoning_effort",
    Endpoint.RESPONSES: "reasoning",
}
"""Endpoint -> the field that says how much to reason."""

LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""The names of the most tokens to emit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One HTTP request, checked.

    Args:
        model: an id of `/v1/models`.
        requests: one for each prompt; each is answered `num_choices` times.
        include_reasoning: whether reasoning is part of the reply.
        top_logprobs: alternatives to show beside each token, None where no logprobs are wanted.
        constraint_field: the field that holds the constraint, to name when it cannot be compiled.
        tool_use: the tools a reply may call, None where there are none.
        call_syntax: how its calls are found in its text.
        asked: the body's fields as they were sent, but for its prompt; for replies that repeat
            them.
    """

    endpoint: Endpoint
    model: str
    requests: tuple[Request, ...]
    num_choices: int
    is_stream: bool
    include_usage: bool
    return_token_ids: bool
    include_reasoning: bool
    top_logprobs: int | None
    constraint_field: str | None
    tool_use: ToolUse | None
    call_syntax: CallSyntax | None
    asked: Mapping[str, Any]

    @property
    def num_rows(self) -> int:
        """Choices of all prompts together."""
        return len(self.requests) * self.num_choices


def read_call(
    endpoint: Endpoint, body: bytes, engine: Engine, name: str, config: ServerConfig
) -> Call:
    """Return what a body asks for.

    Args:
        name: the model's id in `/v1/models`.

    Raises:
        HttpError: it cannot be served.
    """
    model = engine.model
    document = parse_document(body)
    values = read_fields(endpoint, document)
    adapter = adapter_of(values["model"], name, engine.config)
    include_usage = values.get("stream_options")
    if include_usage is not None and not values.get("stream"):
        raise refusal("stream_options goes with stream", "stream_options")
    _check_ids(values, model)
    check_overrides(values.get("fm"), engine.config, is_allowed=config.allow_overrides)
    try:
        bounds = read_bounds(values, model.tokenizer)
        if bounds.constraint is not None and values.get("ignore_eos"):
            raise refusal(f"ignore_eos does not go with {bounds.field}", "ignore_eos")
        sampling, top_logprobs = _sampling(endpoint, values)
        prompts = _prompts(endpoint, values, model, bounds)
        requests = tuple(
            Request(
                prompt_ids=prompt,
                max_tokens=_max_tokens(endpoint, values, config.default_max_tokens),
                sampling=sampling,
                constraint=bounds.constraint,
                stop=values.get("stop", ()),
                reasoning=_reasoning(endpoint, prompt, model),
                ignore_eos=values.get("ignore_eos", False),
                adapter=adapter,
                cache_salt=values.get("cache_salt", ""),
                **values.get("fm", {}),
            )
            for prompt in prompts
        )
    except FmError as error:
        raise problem_of(error) from None
    return Call(
        endpoint=endpoint,
        model=values["model"],
        requests=requests,
        num_choices=values.get("n", 1),
        is_stream=values.get("stream", False),
        include_usage=bool(include_usage),
        return_token_ids=values.get("return_token_ids", False),
        include_reasoning=values.get("include_reasoning", True),
        top_logprobs=top_logprobs,
        constraint_field=bounds.field,
        tool_use=bounds.tool_use,
        call_syntax=bounds.call_syntax,
        asked=_asked(document, PROMPTS[endpoint]),
    )


def _asked(document: Mapping[str, Any], prompt: str) -> dict[str, Any]:
    return {key: item for key, item in document.items() if key != prompt and item is not None}


def _check_ids(values: Mapping[str, Any], model: LoadedModel) -> None:
    """Refuse token ids the model does not have, by the field they are in."""
    prompts = [prompt for prompt in values.get("prompt", ()) if not isinstance(prompt, str)]
    for name, groups in (("logit_bias", [values.get("logit_bias", ())]), ("prompt", prompts)):
        for token in (token for ids in groups for token in ids):
            if not 0 <= token < model.vocab_size:
                raise refusal(f"{name}: {shown(token)} is no token id of the model", name)


def _sampling(endpoint: Endpoint, values: Mapping[str, Any]) -> tuple[SamplingParams, int | None]:
    names = {item.name for item in fields(SamplingParams)} - {"logprobs", "top_logprobs"}
    given = {name: values[name] for name in names if name in values}
    top = _top_logprobs(endpoint, values)
    given |= {} if top is None else {"logprobs": True, "top_logprobs": top}
    return SamplingParams(**{"temperature": DEFAULT_TEMPERATURE, **given}), top


def _top_logprobs(endpoint: Endpoint, values: Mapping[str, Any]) -> int | None:
    if endpoint is Endpoint.COMPLETIONS:
        top: int | None = values.get("logprobs")
        return top
    is_response = endpoint is Endpoint.RESPONSES
    if LOGPROBS in values.get("include", ()) if is_response else values.get("logprobs"):
        return int(values.get("top_logprobs", 0))
    if values.get("top_logprobs"):
        needed = f"include {LOGPROBS}" if is_response else "logprobs"
        raise refusal(f"top_logprobs goes with {needed}", "top_logprobs")
    return None


def _max_tokens(endpoint: Endpoint, values: Mapping[str, Any], default: int) -> int:
    given = {values[name] for name in LIMITS if name in values}
    if len(given) > 1:
        raise refusal(
            "max_tokens and max_completion_tokens differ; send one of them",
            "max_completion_tokens",
        )
    unset = COMPLETION_TOKENS if endpoint is Endpoint.COMPLETIONS else default
    return int(given.pop()) if given else unset


def _reasoning(endpoint: Endpoint, prompt: tuple[int, ...], model: LoadedModel) -> Reasoning:
    """Return whether a reply begins with reasoning; only a chat's does."""
    is_chat = endpoint is not Endpoint.COMPLETIONS
    return model.tokenizer.reasoning_of(prompt) if is_chat else Reasoning.NONE


def _prompts(
    endpoint: Endpoint, values: Mapping[str, Any], model: LoadedModel, bounds: Bounds
) -> list[tuple[int, ...]]:
    if endpoint is not Endpoint.COMPLETIONS:
        return [_chat_prompt(endpoint, values, model, bounds)]
    return [
        tuple(model.tokenizer.encode(prompt, add_special_tokens=True))
        if isinstance(prompt, str)
        else prompt
        for prompt in values["prompt"]
    ]


def _chat_prompt(
    endpoint: Endpoint, values: Mapping[str, Any], model: LoadedModel, bounds: Bounds
) -> tuple[int, ...]:
    """Render a chat; whether its reply reasons is for the template and its variables to say."""
    options = dict(values.get("chat_template_kwargs", {}))
    effort = values.get(EFFORTS[endpoint])
    place = EFFORTS[endpoint] + (".effort" if endpoint is Endpoint.RESPONSES else "")
    if effort is not None:
        options |= effort_options(effort, options, model.tokenizer, place)
    for name in options:
        if name in RESERVED_OPTIONS:
            raise refusal(f"{name} is no variable of the template", f"chat_template_kwargs.{name}")
    messages = values[PROMPTS[endpoint]]
    if "instructions" in values:
        messages = with_instructions(values["instructions"], messages)
    tools = [] if bounds.tool_use is None else bounds.tool_use.documents
    tokenizer = model.tokenizer
    try:
        ids = tuple(tokenizer.apply_chat_template(messages, tools=tools, options=options))
    except RequestError as error:
        raise problem_of(error, PROMPTS[endpoint]) from None
    if effort == NO_EFFORT and tokenizer.reasoning_of(ids) is not Reasoning.NONE:
        raise refusal(f"{place} none is not supported: the model always reasons", place)
    return ids
