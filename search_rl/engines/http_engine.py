"""Sampling through an OpenAI-style `/v1/completions` endpoint, token ids in and token ids out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from search_rl.engines.base import Generation, Sampling
from search_rl.engines.endpoint import Endpoint
from search_rl.errors import EngineError, RequestError

COMPLETIONS = "/completions"


@dataclass(frozen=True, slots=True)
class HttpEngine:
    """An engine on a served model.

    The server must return token ids: vLLM does so when asked with `return_token_ids`. Its log-probs are those of its
    own `--logprobs-mode`, which should be `processed_logprobs` unless temperature and top_p are 1.
    """

    endpoint: Endpoint
    model: str
    sampling: Sampling

    async def generate(
        self, prompt_ids: Sequence[int], *, max_tokens: int, stop: Sequence[str], request_id: str
    ) -> Generation:
        """See `Engine.generate`. Raises RequestError for nonsense too, EngineError for a server that returns no token
        ids.
        """
        body = {
            "model": self.model,
            "prompt": list(prompt_ids),
            "max_tokens": max_tokens,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "top_k": self.sampling.top_k,
            "seed": self.sampling.seed_of(request_id, len(prompt_ids)),
            "stop": list(stop),
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "logprobs": 0,
            "return_token_ids": True,
        }
        return self._parse(await self.endpoint.post(COMPLETIONS, body))

    def _parse(self, content: bytes) -> Generation:
        choice = first_choice(content, _Completion, f"{self.endpoint.url}{COMPLETIONS}")
        if choice.token_ids is None:
            raise EngineError(
                f"{self.endpoint.url} returned no token ids: serve the model with vLLM, or with another server that "
                "knows return_token_ids, or let it answer in text with --api text"
            )
        if choice.logprobs is None:
            raise EngineError(f"{self.endpoint.url} returned no log-probs")
        return Generation(tuple(choice.token_ids), tuple(choice.logprobs.token_logprobs))


def first_choice(content: bytes, kind: Any, url: str) -> Any:
    """The first choice of a reply of that `kind`. Raises RequestError for anything else."""
    try:
        return kind.model_validate_json(content).choices[0]
    except (ValidationError, IndexError) as error:
        raise RequestError(f"{url} did not answer with a completion: {content[:200]!r}") from error


class _Logprobs(BaseModel):
    token_logprobs: list[float]


class _Choice(BaseModel):
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _Completion(BaseModel):
    choices: list[_Choice]
