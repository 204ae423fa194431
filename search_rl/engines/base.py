"""The seam to whatever samples tokens: tokens in, tokens and log-probs out."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. Temperature 0 is greedy; top_k -1 keeps the whole vocabulary."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None

    def seed_of(self, request_id: str, num_prompt_tokens: int) -> int | None:
        """The seed of one request: siblings and turns differ, a second run does not. None when there is no
        seed.
        """
        if self.seed is None:
            return None
        digest = hashlib.blake2b(f"{self.seed}/{request_id}/{num_prompt_tokens}".encode(), digest_size=4).digest()
        return int.from_bytes(digest) >> 1


@dataclass(frozen=True, slots=True)
class Generation:
    """Sampled token ids with the log-prob of each under the sampling distribution.

    `num_cached_tokens` of the prompt were in the engine's prefix cache, where the engine tells.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    num_cached_tokens: int = field(default=0, compare=False)


class Engine(Protocol):
    """One way to sample."""

    async def generate(
        self, prompt_ids: Sequence[int], *, max_tokens: int, stop: Sequence[str], request_id: str
    ) -> Generation:
        """One to `max_tokens` tokens after `prompt_ids`, ending after the first `stop` string, its tokens
        kept.

        `request_id` is the same for all turns of an episode, so that an engine can reuse its prefix cache.
        Raises EngineError when the engine fails.
        """
        ...


def length_to_stop(token_ids: Sequence[int], stop: Sequence[str], decode: Callable[[Sequence[int]], str]) -> int:
    """How many tokens it takes to complete the first of the `stop` strings, all of them where there is none."""

    def has_stop(num_tokens: int) -> bool:
        text = decode(token_ids[:num_tokens])
        return any(string in text for string in stop)

    return bisect_left(range(len(token_ids)), True, key=has_stop)
