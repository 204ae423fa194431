"""Which engine a served model needs: asked of the server, or told."""

from __future__ import annotations

from typing import Literal, get_args

import httpx
from pydantic import BaseModel, ValidationError

from search_rl.codec import Codec
from search_rl.engines.base import Engine, Sampling
from search_rl.engines.endpoint import Endpoint
from search_rl.engines.http_engine import COMPLETIONS, HttpEngine
from search_rl.engines.text_engine import CHAT, ChatEngine, MarkedCodec, TextEngine
from search_rl.errors import EngineError

Api = Literal["tokens", "text", "chat"]
APIS: tuple[Api, ...] = get_args(Api)

_PROBE = "Hello"


async def served_api(endpoint: Endpoint, model: str, codec: Codec) -> Api:
    """The most exact way in which the server answers: token ids, else text, else chat messages.

    Costs up to three requests of one token. Raises EngineError when the server knows none, or is away.
    """
    completion = {"model": model, "max_tokens": 1}
    ids = {"prompt": list(codec.encode(_PROBE)), "return_token_ids": True, "logprobs": 0}
    response = await endpoint.answer(COMPLETIONS, {**completion, **ids})
    if response.is_success:
        return "tokens" if _has_token_ids(response) else "text"
    if (await endpoint.answer(COMPLETIONS, {**completion, "prompt": _PROBE})).is_success:
        return "text"
    messages = [{"role": "user", "content": _PROBE}]
    chat = await endpoint.answer(CHAT, {**completion, "messages": messages})
    if chat.is_success:
        return "chat"
    path, refused = (COMPLETIONS, response) if chat.status_code == httpx.codes.NOT_FOUND else (CHAT, chat)
    raise EngineError(endpoint.refusal(path, refused))


def served_engine(api: Api, endpoint: Endpoint, model: str, sampling: Sampling, codec: Codec) -> tuple[Engine, Codec]:
    """The engine for that way, and the codec that its ids need."""
    match api:
        case "tokens":
            return HttpEngine(endpoint, model, sampling), codec
        case "text":
            return TextEngine(endpoint, model, sampling, codec), codec
        case "chat":
            marked = MarkedCodec(codec)
            return ChatEngine(endpoint, model, sampling, marked), marked


class _Choice(BaseModel):
    token_ids: list[int]


class _Completion(BaseModel):
    choices: list[_Choice]


def _has_token_ids(response: httpx.Response) -> bool:
    try:
        return bool(_Completion.model_validate_json(response.content).choices)
    except ValidationError:
        return False
