"""What orchestration costs.

    python tests/search_rl/evaluation/bench_runner.py TOKENIZER_FOLDER NUM_QUESTIONS [MAX_OBSERVATION_TOKENS]

Runs the agent with an engine that answers at once from a script, and a retriever that has its passages at hand: all
that is left is ours. Prints episodes a second of one process, and its memory before and after.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import psutil

from search_rl.agent.episode import Limits
from search_rl.agent.protocols import protocol_named
from search_rl.codec import load_codec
from search_rl.engines.scripted import Call, ScriptedEngine
from search_rl.evaluation.episode_file import StoredRollouts
from search_rl.evaluation.measured import measure
from search_rl.evaluation.report import summarise
from search_rl.evaluation.runner import evaluate
from search_rl.evaluation.systems import SYSTEMS, Parts, answer
from search_rl.profiles import SEARCH_R1
from search_rl.types import Passage, Question, ScoredPassage, SearchResult, Trajectory

REPLIES = ("<think>I need its capital.</think>\n<search>capital of Peru</search>", "<answer>Lima</answer>")
TEXT = "Lima is the capital and the largest city of Peru. It lies in the valleys of three rivers, on the coast. " * 2


class _NoCalls(list[Call]):
    """Keeps nothing, so that the script's own memory is not measured."""

    def append(self, item: Call) -> None:
        """Forget it."""


class NumberedSearcher:
    """Finds three passages that no other search found, so that nothing is known beforehand."""

    def __init__(self) -> None:
        self.num_searches = 0

    async def search(self, query: str, top_k: int) -> SearchResult:
        """See `Searcher.search`."""
        self.num_searches += 1
        passages = (
            Passage(f"{self.num_searches}/{rank}", "Lima", f"{self.num_searches} {TEXT}") for rank in range(top_k)
        )
        return SearchResult(query, tuple(ScoredPassage(passage, 1.0) for passage in passages))


async def run(folder: str, num_questions: int, max_observation_tokens: int, out: Path) -> None:
    """Measure and print. Under some 180 tokens an observation has its passages shortened, which takes longer."""
    limits = Limits(max_observation_tokens=max_observation_tokens)
    codec = load_codec(folder)
    questions = tuple(
        Question(str(number), f"What is the capital of country {number}?", ("Lima", "Lima, Peru"), "bench")
        for number in range(num_questions)
    )
    parts = Parts(
        ScriptedEngine(REPLIES, codec, calls=_NoCalls()), NumberedSearcher(), codec, protocol_named("short"), limits
    )

    async def ask(question: Question) -> Trajectory:
        return await answer(SYSTEMS["agent"], question, parts)

    process = psutil.Process()
    before_bytes, cpu = process.memory_info().rss, time.process_time()
    evaluation = await evaluate(questions, ask=ask, concurrency=64, out_path=out / "episodes.jsonl")
    cpu_seconds = time.process_time() - cpu
    after_bytes = process.memory_info().rss
    started = time.perf_counter()
    summarise(evaluation)
    assert isinstance(evaluation.rollouts, StoredRollouts)
    measure(evaluation.rollouts, profile=SEARCH_R1, top_k=3)
    print(
        f"{num_questions} episodes: {num_questions / evaluation.seconds:.0f}/s, "
        f"{num_questions / cpu_seconds:.0f}/s of CPU; report {time.perf_counter() - started:.1f} s; "
        f"RSS {before_bytes >> 20} MiB before, {after_bytes >> 20} MiB after, {process.memory_info().rss >> 20} MiB "
        f"after the report; file {(out / 'episodes.jsonl').stat().st_size >> 20} MiB"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(run(sys.argv[1], int(sys.argv[2]), int((*sys.argv, "500")[3]), Path(temporary)))
