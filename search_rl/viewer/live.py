"""An episode shown while it happens: engine and searcher are watched, the episode is the shared one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from search_rl.agent.episode import Limits, run_episode
from search_rl.agent.protocols import AgentProtocol
from search_rl.codec import Codec
from search_rl.engines.base import Engine, Generation
from search_rl.search import Searcher
from search_rl.types import Malformed, Question, SearchResult, Trajectory
from search_rl.viewer.terminal import EpisodeView


async def watch_episode(
    question: Question,
    console: Console,
    *,
    engine: Engine,
    searcher: Searcher,
    codec: Codec,
    protocol: AgentProtocol,
    limits: Limits,
) -> Trajectory:
    """The trajectory of `run_episode`, printed turn by turn. Raises what that raises."""
    view = EpisodeView(console)
    view.question(question.text, question.golden_answers)
    trajectory = await run_episode(
        question,
        engine=_WatchedEngine(engine, codec, protocol, view),
        searcher=_WatchedSearcher(searcher, view),
        codec=codec,
        protocol=protocol,
        limits=limits,
    )
    view.ending(trajectory)
    return trajectory


@dataclass(frozen=True, slots=True)
class _WatchedEngine:
    """An engine whose every turn is printed as soon as it is sampled."""

    engine: Engine
    codec: Codec
    protocol: AgentProtocol
    view: EpisodeView

    async def generate(
        self, prompt_ids: Sequence[int], *, max_tokens: int, stop: Sequence[str], request_id: str
    ) -> Generation:
        """See `Engine.generate`."""
        started = time.perf_counter()
        generation = await self.engine.generate(prompt_ids, max_tokens=max_tokens, stop=stop, request_id=request_id)
        seconds = time.perf_counter() - started
        text = self.codec.decode(generation.token_ids)
        self.view.policy(text, num_tokens=len(generation.token_ids), seconds=seconds)
        action = self.protocol.parse_action(text)
        if isinstance(action, Malformed):
            self.view.malformed(action)
        return generation


@dataclass(frozen=True, slots=True)
class _WatchedSearcher:
    """A searcher whose every result is printed as soon as it is there."""

    searcher: Searcher
    view: EpisodeView

    async def search(self, query: str, top_k: int) -> SearchResult:
        """See `Searcher.search`."""
        started = time.perf_counter()
        result = await self.searcher.search(query, top_k)
        self.view.result(result, seconds=time.perf_counter() - started)
        return result
