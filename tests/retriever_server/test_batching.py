"""The micro-batcher against a retriever whose speed and failures are in the test's hands."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from retriever_server.batching import MicroBatcher
from retriever_server.contract import Answers
from retriever_server.dense import DenseIndex
from retriever_server.errors import OverloadedError
from retriever_server.metrics import Metrics
from retriever_server.retrievers import DenseRetriever
from retriever_server.schema import Hits, ScoredPassage
from retriever_server.served import ServedIndex
from retriever_server.settings import Batching
from retriever_server.store import PassageStore, write_passages
from tests.retriever_server.bag_of_words import PLANETS, BagOfWordsEncoder
from tests.retriever_server.conftest import EchoRetriever


def ids(answers: list[list[ScoredPassage]]) -> list[list[str]]:
    """Ids per query."""
    return [[hit.passage.id for hit in hits] for hits in answers]


requests = st.lists(
    st.tuples(st.lists(st.sampled_from("abcdefgh"), max_size=9), st.integers(1, 4)), min_size=1, max_size=8
)


@settings(max_examples=50)
@given(requests, st.integers(1, 10), st.integers(1, 5))
def test_everybody_gets_his_own_answers(
    asked: list[tuple[list[str], int]], max_batch_queries: int, share_queries: int
) -> None:
    """Would catch answers mixed between requests, reordered, cut wrongly, or lost in a split request."""
    retriever = EchoRetriever()

    async def ask() -> list[list[list[ScoredPassage]]]:
        bounds = Batching(max_batch_queries=max_batch_queries, share_queries=share_queries)
        batcher = MicroBatcher(retriever, bounds)
        answers = await asyncio.gather(*(batcher.search(queries, top_k=top_k) for queries, top_k in asked))
        assert batcher.num_pending == 0
        return answers

    for (queries, top_k), answers in zip(asked, asyncio.run(ask()), strict=True):
        assert ids(answers) == [[f"{query}-{k}" for k in range(top_k)] for query in queries]
    assert all(len(batch) <= max_batch_queries for batch in retriever.batches)
    assert len(retriever.threads) <= 1


def test_what_arrives_during_a_search_shares_the_next() -> None:
    """Would catch one search per request: the cost of a scan is per search, not per query."""
    retriever = EchoRetriever(is_open=False)

    async def ask() -> None:
        batcher = MicroBatcher(retriever)
        first = asyncio.create_task(batcher.search(["first"], top_k=1))
        await asyncio.sleep(0.05)
        others = [asyncio.create_task(batcher.search([f"q{n}", "same"], top_k=1)) for n in range(20)]
        await asyncio.sleep(0.05)
        retriever.gate.set()
        await asyncio.gather(first, *others)

    asyncio.run(ask())
    assert [len(batch) for batch in retriever.batches] == [1, 21]


def test_a_large_request_does_not_starve_a_small_one() -> None:
    """Would catch a single query that waits for all 1,000 queries that came before it."""
    retriever = EchoRetriever(is_open=False)

    async def ask() -> None:
        batcher = MicroBatcher(retriever, Batching(max_batch_queries=64, share_queries=32))
        large = asyncio.create_task(batcher.search([f"large {n}" for n in range(1000)], top_k=1))
        await asyncio.sleep(0.05)
        small = asyncio.create_task(batcher.search(["small"], top_k=1))
        await asyncio.sleep(0.05)
        retriever.gate.set()
        await small
        assert len(retriever.batches) <= 3
        assert len(await large) == 1000

    asyncio.run(ask())


def test_a_full_queue_refuses_at_once_and_recovers() -> None:
    """Would catch a queue without bound, or a count that never comes down again."""
    retriever = EchoRetriever(is_open=False)

    async def ask() -> None:
        batcher = MicroBatcher(retriever, Batching(max_batch_queries=4, max_pending_queries=10))
        first = asyncio.create_task(batcher.search(["a"] * 4, top_k=1))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(batcher.search(["b"] * 9, top_k=1))
        await asyncio.sleep(0.05)
        assert batcher.num_pending == 9
        with pytest.raises(OverloadedError, match="9 queries are waiting"):
            await batcher.search(["c"] * 2, top_k=1)
        retriever.gate.set()
        await asyncio.gather(first, second)
        assert batcher.num_pending == 0
        assert ids(await batcher.search(["c"], top_k=1)) == [["c-0"]]

    asyncio.run(ask())


def test_no_answer_by_the_deadline_is_overload() -> None:
    """Would catch a client that waits for a stuck search until its own timeout."""
    retriever = EchoRetriever(is_open=False)

    async def ask() -> None:
        batcher = MicroBatcher(retriever, Batching(deadline_seconds=0.05))
        with pytest.raises(OverloadedError, match=r"no answer within 0\.05 s"):
            await batcher.search(["a"], top_k=1)
        retriever.gate.set()

    asyncio.run(ask())


def test_queries_of_callers_that_left_are_dropped() -> None:
    """Would catch work done for clients that hung up, which keeps an overloaded server overloaded."""
    retriever = EchoRetriever(is_open=False)

    async def ask() -> None:
        batcher = MicroBatcher(retriever)
        first = asyncio.create_task(batcher.search(["first"], top_k=1))
        await asyncio.sleep(0.05)
        gone = asyncio.create_task(batcher.search(["gone"] * 5, top_k=1))
        kept = asyncio.create_task(batcher.search(["kept"], top_k=1))
        await asyncio.sleep(0.05)
        gone.cancel()
        await asyncio.sleep(0)
        assert batcher.num_pending == 1
        retriever.gate.set()
        await asyncio.gather(first, kept)

    asyncio.run(ask())
    assert retriever.batches == [["first"], ["kept"]]


def test_a_search_that_fails_fails_for_those_who_asked_only() -> None:
    """Would catch a batcher that hangs for ever after one bad batch."""

    async def ask() -> None:
        batcher = MicroBatcher(EchoRetriever())
        with pytest.raises(RuntimeError, match="blew up"):
            await batcher.search(["explode"], top_k=1)
        assert ids(await batcher.search(["fine"], top_k=2)) == [["fine-0", "fine-1"]]

    asyncio.run(ask())


class Memory:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.pending: list[int] = []
        self.answered: list[str] = []
        self.sizes: list[int] = []

    def on_pending(self, change: int) -> None:
        """See Listener."""
        self.pending.append(change)

    def on_search(self, num_queries: int, seconds: float) -> None:
        """See Listener."""
        self.sizes.append(num_queries)

    def on_answers(self, queries: Sequence[str], top_k: int, answers: list[list[ScoredPassage]]) -> None:
        """See Listener."""
        assert ids(answers) == [[f"{query}-{k}" for k in range(top_k)] for query in queries]
        self.answered += queries


def test_what_was_found_before_the_deadline_is_not_lost() -> None:
    """Would catch a large body on a slow machine that begins anew at each retry, and so never ends."""
    retriever, memory = EchoRetriever(), Memory()

    async def ask() -> None:
        bounds = Batching(max_batch_queries=4, deadline_seconds=0.1)
        batcher = MicroBatcher(SlowRetriever(retriever), bounds, listener=memory)
        with pytest.raises(OverloadedError, match=r"no answer within 0\.1 s"):
            await batcher.search([f"q{n}" for n in range(100)], top_k=2)
        assert batcher.num_pending == 0

    asyncio.run(ask())
    assert 0 < len(memory.answered) < 100 and memory.answered == [f"q{n}" for n in range(len(memory.answered))]
    assert sum(memory.pending) == 0


class SlowRetriever:
    """Another one, and then a thirtieth of a second."""

    def __init__(self, retriever: EchoRetriever) -> None:
        self._retriever = retriever

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[ScoredPassage]]:
        """See Retriever."""
        time.sleep(0.03)
        return self._retriever.search(queries, top_k=top_k)


def test_work_that_would_be_late_is_refused_at_once_but_a_small_request_is_not() -> None:
    """Would catch requests that wait out their deadline in vain, and a single query refused behind large bodies."""

    async def ask() -> None:
        bounds = Batching(max_batch_queries=4, share_queries=2, deadline_seconds=0.3)
        batcher = MicroBatcher(SlowRetriever(EchoRetriever()), bounds)
        for _ in range(8):
            await batcher.search(["to know how long a batch takes"], top_k=1)
        large = [asyncio.create_task(batcher.search([f"{n} {m}" for m in range(60)], top_k=1)) for n in range(2)]
        await asyncio.sleep(0.01)
        with pytest.raises(OverloadedError, match=r"an answer would take [012] s"):
            await batcher.search([f"late {m}" for m in range(60)], top_k=1)
        assert ids(await batcher.search(["small"], top_k=1)) == [["small-0"]]
        await asyncio.gather(*large, return_exceptions=True)

    asyncio.run(ask())


def test_batches_go_side_by_side_where_others_search() -> None:
    """Would catch replicas on other machines that are idle, because one batch waits for the other."""
    retriever = EchoRetriever(is_open=False)

    async def ask() -> None:
        batcher = MicroBatcher(retriever, Batching(max_batch_queries=2, share_queries=2), num_threads=3)
        asked = [asyncio.create_task(batcher.search([f"{n}a", f"{n}b"], top_k=1)) for n in range(4)]
        await asyncio.sleep(0.1)
        assert batcher.num_pending == 2
        retriever.gate.set()
        assert [ids(answers) for answers in await asyncio.gather(*asked)] == [
            [[f"{n}a-0"], [f"{n}b-0"]] for n in range(4)
        ]

    asyncio.run(ask())


class SlowEcho(EchoRetriever):
    """Takes 40 ms a search."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[ScoredPassage]]:
        """See Retriever."""
        time.sleep(0.04)
        return super().search(queries, top_k=top_k)


def test_callers_who_were_answered_together_share_their_next_search() -> None:
    """Would catch a search for the first who comes back alone, at nearly the price of the one for all."""
    retriever = SlowEcho()

    async def caller(batcher: MicroBatcher, number: int) -> None:
        for turn in range(3):
            await batcher.search([f"{number}, turn {turn}"], top_k=1)
            await asyncio.sleep(0.0005 * number)

    async def ask() -> None:
        batcher = MicroBatcher(retriever)
        await asyncio.gather(*(caller(batcher, number) for number in range(8)))

    asyncio.run(ask())
    assert [len(batch) for batch in retriever.batches] == [8, 8, 8]


def test_nobody_waits_for_those_who_do_not_come_back() -> None:
    """Would catch a caller who is held up because others once asked with him, or a lone one who waits for nobody."""
    retriever = SlowEcho()

    async def ask() -> list[float]:
        batcher = MicroBatcher(retriever)
        await asyncio.gather(*(batcher.search([f"{number}"], top_k=1) for number in range(8)))
        seconds = []
        for turn in range(3):
            start = time.perf_counter()
            await batcher.search([f"turn {turn}"], top_k=1)
            seconds.append(time.perf_counter() - start)
        return seconds

    assert min(asyncio.run(ask())) < 0.06
    assert [len(batch) for batch in retriever.batches] == [8, 1, 1, 1]


class Steps:
    """Counts who is in a step, and waits in `search` until another batch is being encoded."""

    def __init__(self) -> None:
        self.encoding = threading.Event()
        self.num_within = Counter[str]()
        self.most_within = Counter[str]()
        self.met = 0

    @contextmanager
    def within(self, step: str) -> Iterator[None]:
        """Count a thread in a step."""
        self.num_within[step] += 1
        self.most_within[step] = max(self.most_within[step], self.num_within[step])
        yield
        self.num_within[step] -= 1


class WatchedEncoder(BagOfWordsEncoder):
    """Says when it encodes."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._steps = steps

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See Encoder."""
        with self._steps.within("encode"):
            self._steps.encoding.set()
            time.sleep(0.01)
            return super().encode_queries(texts)


class WatchedIndex(DenseIndex):
    """Searches once the next batch is being encoded, or after a while."""

    def __init__(self, steps: Steps) -> None:
        vectors = faiss.IndexFlatIP(256)
        vectors.add(BagOfWordsEncoder().encode_passages([passage.text for passage in PLANETS]))
        super().__init__(vectors)
        self._steps = steps

    def search(self, queries_ND: NDArray[np.float32], top_k: int) -> list[Hits]:
        """See DenseIndex."""
        with self._steps.within("search"):
            self._steps.encoding.clear()
            self._steps.met += self._steps.encoding.wait(0.3)
            return super().search(queries_ND, top_k)


@pytest.mark.parametrize("overlap", [False, True])
def test_with_overlap_the_next_batch_is_encoded_while_one_is_searched(overlap: bool, tmp_path: Path) -> None:
    """Would catch two threads in one model or one index, and an option that overlaps nothing."""
    write_passages(iter(PLANETS), tmp_path)
    steps = Steps()
    retriever = DenseRetriever(WatchedIndex(steps), WatchedEncoder(steps), PassageStore(tmp_path))
    bounds = Batching(max_batch_queries=1, overlap=overlap)

    async def ask() -> list[Answers]:
        served = ServedIndex(retriever, None, metrics=Metrics(), cache_entries=0, batching=bounds)
        return await asyncio.gather(*(served.search([passage.text], top_k=1) for passage in PLANETS[:4]))

    assert [ids(answers) for answers in asyncio.run(ask())] == [[[passage.id]] for passage in PLANETS[:4]]
    assert steps.most_within == Counter(encode=1, search=1)
    assert (steps.met >= 1) is overlap
