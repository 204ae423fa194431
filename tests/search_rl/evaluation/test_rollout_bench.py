"""Rollout loops compared on an engine whose turns take as long as they are written to."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import httpx
import pytest

from retriever_server.app import create_app
from retriever_server.schema import ScoredPassage
from search_rl.agent.protocols import protocol_named
from search_rl.engines.base import Generation
from search_rl.evaluation.rollout_bench import Bench, LoopReport, TurnLoop, bench_to_json, compare, speed_up
from search_rl.evaluation.turn_loops import PrefixHits
from search_rl.types import Question
from tests.search_rl.conftest import ByteCodec, hit
from tests.search_rl.evaluation.conftest import LIMITS

SLOW, QUICK = 0.04, 0.005


class OnePassage:
    """A retriever that knows one thing."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[ScoredPassage]]:
        """See `Retriever.search`."""
        return [[hit("Paris", "Paris is the capital of France.")][:top_k] for _ in queries]


@dataclass(slots=True)
class TimedEngine:
    """Searches twice, then answers; turn t of question i is slow where i + t is even. Without a stop it writes on."""

    codec: ByteCodec
    turns: Counter[str] = field(default_factory=Counter)
    log: list[tuple[str, int, str]] = field(default_factory=list)
    num_forgotten: int = 0

    async def generate(
        self, prompt_ids: Sequence[int], *, max_tokens: int, stop: Sequence[str], request_id: str
    ) -> Generation:
        """See `Engine.generate`."""
        turn = self.turns[request_id]
        self.turns[request_id] += 1
        self.log.append((request_id, turn, "start"))
        index = int(request_id.partition("/")[2].partition("#")[0])
        await asyncio.sleep(SLOW if (index + turn) % 2 == 0 else QUICK)
        self.log.append((request_id, turn, "end"))
        reply = f"<search>{request_id} {turn}</search>" if turn < 2 else "<answer>Paris</answer>"
        token_ids = self.codec.encode(reply if stop else reply + " and more")
        return Generation(token_ids, (-0.5,) * len(token_ids), len(prompt_ids) // 2 if turn else 0)

    async def forget(self) -> None:
        """A new batch begins."""
        self.num_forgotten += 1
        self.turns.clear()
        self.log.clear()


def bench_of(engine: TimedEngine, codec: ByteCodec, *, latency_seconds: float = 0.0) -> Bench:
    """Four questions, one episode each, over the real service in process."""
    app = create_app(OnePassage())
    return Bench(
        engine,
        engine.forget,
        codec,
        protocol_named("short"),
        replace(LIMITS, max_turns=3, max_response_tokens=900),
        [Question(str(i), "what?", ("Paris",), "demo") for i in range(4)],
        samples=1,
        retriever={"url": "http://retriever"},
        latency_seconds=latency_seconds,
        transport=lambda: httpx.ASGITransport(app),
    )


def run(bench: Bench, loop: TurnLoop) -> LoopReport:
    """One batch."""
    return asyncio.run(bench.run(loop))


def test_the_barrier_keeps_turns_apart_and_independent_episodes_do_not(codec: ByteCodec) -> None:
    """Would catch a comparison with itself: no turn may begin before the slowest of the turn before has ended."""
    engine = TimedEngine(codec)
    bench = bench_of(engine, codec)
    for loop, is_apart in ((TurnLoop.BARRIER, True), (TurnLoop.INDEPENDENT, False)):
        report = run(bench, loop)
        assert (report.num_episodes, report.num_void, report.num_searches) == (4, 0, 8)
        phases = [2 * turn + (what == "end") for _, turn, what in engine.log]
        assert (phases == sorted(phases)) is is_apart
    assert engine.num_forgotten == 2


def test_the_barrier_costs_the_slowest_turn_each_time_and_the_latency_in_between(codec: ByteCodec) -> None:
    """Would catch a latency that nobody waits for, and an idle share that counts waiting as work."""
    bench = bench_of(TimedEngine(codec), codec, latency_seconds=0.1)
    report = run(bench, TurnLoop.BARRIER)
    assert report.idle_share * report.seconds >= 2 * 0.1
    assert (1 - report.idle_share) * report.seconds >= 3 * SLOW
    assert report.num_requests == 2
    assert report.num_tokens_after_tag == 0


def test_tokens_past_the_closing_tag_are_counted_and_not_kept(codec: ByteCodec) -> None:
    """Would catch waste that is reported as speed."""
    bench = bench_of(TimedEngine(codec), codec)
    stopped, overrun = run(bench, TurnLoop.BARRIER), run(bench, TurnLoop.BARRIER_OVERRUN)
    assert stopped.num_tokens == overrun.num_tokens
    assert stopped.num_tokens_after_tag == 0
    assert overrun.num_tokens_after_tag == 4 * 3 * len(codec.encode(" and more"))


def test_prefix_hits_of_siblings_and_of_turns_are_told_apart(codec: ByteCodec) -> None:
    """Would catch one share that says nothing about either."""
    report = run(bench_of(TimedEngine(codec), codec), TurnLoop.INDEPENDENT)
    assert report.sibling_prefix_share == 0.0
    assert report.turn_prefix_share == pytest.approx(0.5, abs=0.01)
    assert PrefixHits().share == 0.0


def test_an_episode_that_ends_early_does_not_hold_the_others(codec: ByteCodec) -> None:
    """Would catch a barrier that waits for ever for an episode whose search failed."""
    bench = replace(bench_of(TimedEngine(codec), codec), retriever={"url": "http://retriever", "max_attempts": 1})
    down = replace(bench, transport=lambda: httpx.MockTransport(lambda request: httpx.Response(500)))
    started = time.perf_counter()
    assert run(down, TurnLoop.BARRIER).num_void == 4
    assert time.perf_counter() - started < 2


def test_the_comparison_is_of_medians_in_turn(codec: ByteCodec) -> None:
    """Would catch the warm-up counted, and a ratio upside down."""
    engine = TimedEngine(codec)
    reports = asyncio.run(compare(bench_of(engine, codec), repeats=2))
    assert [report.loop for report in reports] == [*TurnLoop, *TurnLoop]
    assert engine.num_forgotten == 7
    by_hand = [replace(reports[0], seconds=2.0, num_tokens=tokens) for tokens in (40, 20, 60)]
    slower = [replace(report, loop=TurnLoop.BARRIER, seconds=4.0) for report in by_hand]
    assert speed_up([*by_hand, *slower], TurnLoop.BARRIER) == pytest.approx(2.0)
    figures = bench_to_json(reports, {"samples": 1})
    assert set(figures["speed_up"]) == {"barrier", "barrier, no stop"}
    assert figures["reports"][0]["tokens_per_second"] == reports[0].tokens_per_second
