"""Sampling through an OpenAI-style `/v1/completions` endpoint, token ids in and token ids out."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import httpx
from pydantic import BaseModel, ValidationError

from search_rl.engines.base import Generation, Sampling
from search_rl.errors import EngineError


class HttpEngine:
    """An engine on a served model, to be used as an async context manager inside one event loop.

    `url` is the server's base, with or without `/v1`. The server must return token ids: vLLM does so when
    asked with `return_token_ids`. Its log-probs are those of its own `--logprobs-mode`, which should be
    `processed_logprobs` unless temperature and top_p are 1. Nothing is retried here.
    """

    def __init__(
        self,
        url: str,
        model: str,
        sampling: Sampling,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        timeout_seconds: float = 600.0,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1") + "/v1/completions"
        self._model = model
        self._sampling = sampling
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx.AsyncClient(transport=transport, timeout=timeout_seconds, limits=limits)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def generate(
        self, prompt_ids: Sequence[int], *, max_tokens: int, stop: Sequence[str], request_id: str
    ) -> Generation:
        """See `Engine.generate`. Raises EngineError for a server that is away, refuses, or returns no token
        ids.
        """
        body = {
            "model": self._model,
            "prompt": list(prompt_ids),
            "max_tokens": max_tokens,
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "top_k": self._sampling.top_k,
            "seed": self._sampling.seed_of(request_id, len(prompt_ids)),
            "stop": list(stop),
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "logprobs": 0,
            "return_token_ids": True,
        }
        try:
            response = await self._client.post(self.url, json=body)
        except httpx.RequestError as error:
            raise EngineError(f"no answer from {self.url}: {type(error).__name__} {error}".rstrip()) from error
        if response.status_code != httpx.codes.OK:
            raise EngineError(f"{self.url} answered {response.status_code}: {response.text[:300]}")
        return self._parse(response.content)

    def _parse(self, content: bytes) -> Generation:
        try:
            choice = _Completion.model_validate_json(content).choices[0]
        except (ValidationError, IndexError) as error:
            raise EngineError(f"{self.url} did not answer with a completion: {content[:200]!r}") from error
        if choice.token_ids is None:
            raise EngineError(
                f"{self.url} returned no token ids: serve the model with vLLM, or another server that knows "
                "return_token_ids"
            )
        if choice.logprobs is None:
            raise EngineError(f"{self.url} returned no log-probs")
        return Generation(tuple(choice.token_ids), tuple(choice.logprobs.token_logprobs))


class _Logprobs(BaseModel):
    token_logprobs: list[float]


class _Choice(BaseModel):
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _Completion(BaseModel):
    choices: list[_Choice]
