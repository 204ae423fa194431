"""Engines that let a rollout be measured, and that force it to go turn by turn as Search-R1's loop does.

Each wraps another engine, so that whatever is compared runs the one episode loop there is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from search_rl.codec import Codec
from search_rl.engines.base import Engine, Generation, length_to_stop


@dataclass(slots=True)
class PrefixHits:
    """Prompt tokens, and those of them that the prefix cache held."""

    num_tokens: int = 0
    num_cached_tokens: int = 0

    @property
    def share(self) -> float:
        """The cached share, 0 when nothing was asked."""
        return self.num_cached_tokens / self.num_tokens if self.num_tokens else 0.0


@dataclass(slots=True)
class MeteredEngine:
    """An engine, and what went through it. It is busy while a request is in flight.

    Prefix hits are told apart for first turns, where a sibling asked the same, and for later ones, which go on from the
    episode's own turns. `stop` says where a turn ends; what comes after it in a turn is waste.
    """

    engine: Engine
    codec: Codec
    stop: tuple[str, ...]
    num_tokens: int = 0
    num_tokens_after_tag: int = 0
    first_turns: PrefixHits = field(default_factory=PrefixHits)
    later_turns: PrefixHits = field(default_factory=PrefixHits)
    busy_seconds: float = 0.0
    _in_flight: int = 0
    _busy_since: float = 0.0
    _known: set[str] = field(default_factory=set)

    async def generate(
        self, prompt_ids: Sequence[int], *, max_tokens: int, stop: Sequence[str], request_id: str
    ) -> Generation:
        """See `Engine.generate`."""
        if self._in_flight == 0:
            self._busy_since = time.perf_counter()
        self._in_flight += 1
        try:
            generation = await self.engine.generate(prompt_ids, max_tokens=max_tokens, stop=stop, request_id=request_id)
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self.busy_seconds += time.perf_counter() - self._busy_since
        self._note(len(prompt_ids), generation, request_id)
        return generation

    def _note(self, num_prompt_tokens: int, generation: Generation, request_id: str) -> None:
        hits = self.later_turns if request_id in self._known else self.first_turns
        self._known.add(request_id)
        hits.num_tokens += num_prompt_tokens
        hits.num_cached_tokens += generation.num_cached_tokens
        self.num_tokens += len(generation.token_ids)
        num_kept = length_to_stop(generation.token_ids, self.stop, self.codec.decode)
        self.num_tokens_after_tag += len(generation.token_ids) - num_kept


@dataclass(slots=True)
class Turnstile:
    """Lets everyone through at once, as soon as all who have not left stand before it."""

    num_players: int
    _waiting: list[asyncio.Future[None]] = field(default_factory=list)

    async def wait(self) -> None:
        """Stand before it until it opens."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(opened)
        self._open_if_complete()
        await opened

    def leave(self) -> None:
        """Nobody waits for this one any more."""
        self.num_players -= 1
        self._open_if_complete()

    def _open_if_complete(self) -> None:
        if len(self._waiting) == self.num_players:
            for opened in self._waiting:
                opened.set_result(None)
            self._waiting = []


@dataclass(frozen=True, slots=True)
class BarrierEngine:
    """All episodes generate, then all search, then the next turn begins: nobody goes on before the slowest."""

    engine: Engine
    turnstile: Turnstile

    async def generate(
        self, prompt_ids: Sequence[int], *, max_tokens: int, stop: Sequence[str], request_id: str
    ) -> Generation:
        """See `Engine.generate`."""
        await self.turnstile.wait()
        generation = await self.engine.generate(prompt_ids, max_tokens=max_tokens, stop=stop, request_id=request_id)
        await self.turnstile.wait()
        return generation


@dataclass(frozen=True, slots=True)
class OverrunEngine:
    """Generates past the closing tag and cuts afterwards: Search-R1's loop has no stop strings."""

    engine: Engine
    codec: Codec

    async def generate(
        self, prompt_ids: Sequence[int], *, max_tokens: int, stop: Sequence[str], request_id: str
    ) -> Generation:
        """See `Engine.generate`."""
        whole = await self.engine.generate(prompt_ids, max_tokens=max_tokens, stop=(), request_id=request_id)
        end = length_to_stop(whole.token_ids, stop, self.codec.decode)
        return Generation(whole.token_ids[:end], whole.logprobs[:end], whole.num_cached_tokens)
