"""How fast rollouts are: independent episodes against a turn barrier, on the same engine, questions and seeds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import httpx

from search_rl.agent.episode import Limits, run_episode
from search_rl.agent.protocols import AgentProtocol
from search_rl.agent.selection import protocol_for
from search_rl.codec import Codec, load_codec
from search_rl.engines.base import Engine, Sampling
from search_rl.engines.vllm_engine import VllmEngine
from search_rl.evaluation.assemble import Setup
from search_rl.evaluation.turn_loops import BarrierEngine, MeteredEngine, OverrunEngine, Turnstile
from search_rl.models import check_checkpoint
from search_rl.search import SearchClient, Searcher
from search_rl.types import Question, Trajectory

if TYPE_CHECKING:
    from rich.table import Table


class TurnLoop(StrEnum):
    """How the episodes of a batch are run."""

    INDEPENDENT = "independent"
    BARRIER = "barrier"
    BARRIER_OVERRUN = "barrier, no stop"


@dataclass(frozen=True, slots=True)
class LoopReport:
    """One batch of episodes under one loop. Tokens are those that the policy sampled and the episodes kept.

    `idle_share` is of the time from the first to the last episode; prefix shares are of prompt tokens.
    """

    loop: TurnLoop
    num_episodes: int
    num_void: int
    seconds: float
    num_tokens: int
    num_tokens_after_tag: int
    idle_share: float
    sibling_prefix_share: float
    turn_prefix_share: float
    num_searches: int
    num_requests: int

    @property
    def tokens_per_second(self) -> float:
        """Kept tokens a second."""
        return self.num_tokens / self.seconds

    @property
    def episodes_per_second(self) -> float:
        """Episodes a second."""
        return self.num_episodes / self.seconds


@dataclass(frozen=True, slots=True)
class Bench:
    """What every loop runs on. `samples` episodes of each question, in the order of `questions`."""

    engine: Engine
    forget_prefixes: Callable[[], Awaitable[None]]
    codec: Codec
    protocol: AgentProtocol
    limits: Limits
    questions: Sequence[Question]
    samples: int
    retriever: Mapping[str, Any]
    latency_seconds: float = 0.0
    transport: Callable[[], httpx.AsyncBaseTransport] = httpx.AsyncHTTPTransport

    async def run(self, loop: TurnLoop) -> LoopReport:
        """The batch under one loop, with nothing left in any cache of ours from the batch before."""
        await self.forget_prefixes()
        asked = [(question, f"{question.key}#{i}") for question in self.questions for i in range(self.samples)]
        meter = MeteredEngine(self.engine, self.codec, self.protocol.stop)
        turnstile = Turnstile(len(asked))
        engine = self._looped(loop, meter, turnstile)
        transport = DelayedTransport(self.transport(), self.latency_seconds)
        async with SearchClient(**self.retriever, transport=transport) as client:
            started = time.perf_counter()
            episodes = await asyncio.gather(
                *(self._play(*one, engine=engine, searcher=client, turnstile=turnstile) for one in asked)
            )
            seconds = time.perf_counter() - started
            counts = client.take_counts()
        return LoopReport(
            loop,
            len(episodes),
            num_void=sum(episode.is_void for episode in episodes),
            seconds=seconds,
            num_tokens=sum(sum(episode.response_mask) for episode in episodes),
            num_tokens_after_tag=meter.num_tokens_after_tag,
            idle_share=1 - meter.busy_seconds / seconds,
            sibling_prefix_share=meter.first_turns.share,
            turn_prefix_share=meter.later_turns.share,
            num_searches=counts.searches,
            num_requests=counts.requests,
        )

    async def _play(
        self, question: Question, request_id: str, *, engine: Engine, searcher: Searcher, turnstile: Turnstile
    ) -> Trajectory:
        try:
            return await run_episode(
                question,
                engine=engine,
                searcher=searcher,
                codec=self.codec,
                protocol=self.protocol,
                limits=self.limits,
                request_id=request_id,
            )
        finally:
            turnstile.leave()

    def _looped(self, loop: TurnLoop, meter: MeteredEngine, turnstile: Turnstile) -> Engine:
        match loop:
            case TurnLoop.INDEPENDENT:
                return meter
            case TurnLoop.BARRIER:
                return BarrierEngine(meter, turnstile)
            case TurnLoop.BARRIER_OVERRUN:
                return BarrierEngine(OverrunEngine(meter, self.codec), turnstile)


class DelayedTransport(httpx.AsyncBaseTransport):
    """A network that takes `seconds` more for each request."""

    def __init__(self, transport: httpx.AsyncBaseTransport, seconds: float) -> None:
        self._transport = transport
        self._seconds = seconds

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx."""
        await asyncio.sleep(self._seconds)
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        """See httpx."""
        await self._transport.aclose()


@asynccontextmanager
async def open_bench(
    setup: Setup, questions: Sequence[Question], *, samples: int, sampling: Sampling, latency_seconds: float
) -> AsyncIterator[Bench]:
    """The bench over vLLM in process; the checkpoint is checked first, then the retriever, then the engine starts.

    Raises ModelError, RetrieverError, ConfigError or EngineError, each with one line.
    """
    if setup.needs_checkpoint:
        check_checkpoint(Path(setup.model))
    codec = load_codec(setup.model)
    protocol = protocol_for(codec, **setup.agent.conversation)
    async with SearchClient(**setup.retriever.client_options) as client:
        await client.check()
    async with VllmEngine.open(
        setup.model,
        sampling,
        max_model_tokens=setup.limits.max_context_tokens,
        max_concurrent_requests=setup.concurrency,
        cache_bytes=setup.cache_gib * 1024**3 if setup.cache_gib else None,
    ) as engine:
        yield Bench(
            engine,
            engine.forget_prefixes,
            codec,
            protocol,
            setup.limits,
            questions,
            samples,
            setup.retriever.client_options,
            latency_seconds,
        )


async def compare(
    bench: Bench, *, repeats: int, on_report: Callable[[LoopReport], None] = lambda report: None
) -> list[LoopReport]:
    """`repeats` reports of each loop, taken in turn after a batch that warms up and is not counted."""
    await bench.run(TurnLoop.INDEPENDENT)
    reports = []
    for loop in list(TurnLoop) * repeats:
        reports.append(await bench.run(loop))
        on_report(reports[-1])
    return reports


def speed_up(reports: Sequence[LoopReport], over: TurnLoop) -> float:
    """Kept tokens a second of independent episodes over those of another loop, medians of the repeats."""
    return _median(reports, TurnLoop.INDEPENDENT) / _median(reports, over)


def _median(reports: Sequence[LoopReport], loop: TurnLoop) -> float:
    return median(report.tokens_per_second for report in reports if report.loop is loop)


def bench_to_json(reports: Sequence[LoopReport], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The reports, their rates and the speed-ups, with the settings they were taken under."""
    rows = [
        {
            **asdict(report),
            "tokens_per_second": report.tokens_per_second,
            "episodes_per_second": report.episodes_per_second,
        }
        for report in reports
    ]
    others = [loop for loop in TurnLoop if loop is not TurnLoop.INDEPENDENT]
    return {
        "settings": dict(settings),
        "speed_up": {str(loop): speed_up(reports, loop) for loop in others},
        "reports": rows,
    }


def bench_table(reports: Sequence[LoopReport]) -> Table:
    """A row for each report."""
    from rich.table import Table

    table = Table()
    for title in (
        "loop",
        "seconds",
        "tokens/s",
        "episodes/s",
        "idle",
        "after tag",
        "prefix: siblings",
        "turns",
        "void",
    ):
        table.add_column(title, justify="left" if title == "loop" else "right")
    for report in reports:
        table.add_row(
            str(report.loop),
            f"{report.seconds:.2f}",
            f"{report.tokens_per_second:.1f}",
            f"{report.episodes_per_second:.2f}",
            f"{report.idle_share:.1%}",
            str(report.num_tokens_after_tag),
            f"{report.sibling_prefix_share:.0%}",
            f"{report.turn_prefix_share:.0%}",
            str(report.num_void),
        )
    return table
