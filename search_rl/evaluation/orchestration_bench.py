"""What an evaluation costs besides the model: the engine answers at once, the retriever has its passages at hand.

The real runner asks the questions, the real loop encodes, fits and scores, and each episode is written to a file; then
the figures of the report are made from that file.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from search_rl.agent.episode import Limits
from search_rl.agent.protocols import protocol_named
from search_rl.codec import Codec
from search_rl.engines.scripted import Call, ScriptedEngine
from search_rl.errors import DataError
from search_rl.evaluation.episode_file import StoredRollouts
from search_rl.evaluation.measured import measure
from search_rl.evaluation.result_folder import EPISODES, SUMMARY
from search_rl.evaluation.runner import Evaluation, evaluate
from search_rl.evaluation.summary import summarise
from search_rl.evaluation.systems import SYSTEMS, Parts, answer
from search_rl.profiles import SEARCH_R1
from search_rl.types import Passage, Question, ScoredPassage, SearchResult, Trajectory

_REPLIES = ("<think>I need its capital.</think>\n<search>capital of Peru</search>", "<answer>Lima</answer>")
_TEXT = "Lima is the capital and the largest city of Peru. It lies in the valleys of three rivers, on the coast. " * 2


@dataclass(frozen=True, slots=True)
class OrchestrationReport:
    """CPU seconds of one process on episodes with a search and an answer each, and then on the figures of all.

    Memory is the process's own (RSS): before the first episode, after the last, and after the figures.
    """

    num_episodes: int
    num_right: int
    cpu_seconds: float
    figures_cpu_seconds: float
    before_bytes: int
    after_bytes: int
    figures_bytes: int
    file_bytes: int

    @property
    def seconds_per_episode(self) -> float:
        """CPU seconds, those of the figures left out."""
        return self.cpu_seconds / self.num_episodes

    def __str__(self) -> str:
        memory = ", ".join(f"{size >> 20} MiB" for size in (self.before_bytes, self.after_bytes, self.figures_bytes))
        return (
            f"{self.num_episodes} episodes, {1 / self.seconds_per_episode:.0f} a second of one core "
            f"({1000 * self.seconds_per_episode:.2f} ms of CPU each); figures of all {self.figures_cpu_seconds:.1f} s; "
            f"memory before, after, with figures: {memory}; file {self.file_bytes >> 20} MiB"
        )


async def run_orchestration(codec: Codec, *, num_episodes: int, concurrency: int = 64) -> OrchestrationReport:
    """The report of so many episodes, whose file is temporary."""
    questions = tuple(
        Question(str(number), f"What is the capital of country {number}?", ("Lima", "Lima, Peru"), "bench")
        for number in range(num_episodes)
    )
    engine = ScriptedEngine(_REPLIES, codec, calls=_NoCalls())
    parts = Parts(engine, _NumberedSearcher(), codec, protocol_named("short"), Limits())

    async def ask(question: Question) -> Trajectory:
        return await answer(SYSTEMS["agent"], question, parts)

    memory = psutil.Process().memory_info
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / EPISODES
        before_bytes, started = memory().rss, time.process_time()
        evaluation = await evaluate(questions, ask=ask, concurrency=concurrency, out_path=path)
        after_bytes, asked = memory().rss, time.process_time()
        num_right = _figures(evaluation)
        return OrchestrationReport(
            num_episodes,
            num_right,
            cpu_seconds=asked - started,
            figures_cpu_seconds=time.process_time() - asked,
            before_bytes=before_bytes,
            after_bytes=after_bytes,
            figures_bytes=memory().rss,
            file_bytes=path.stat().st_size,
        )


def engine_seconds_per_question(result: Path) -> float:
    """Seconds in which the engine had work, by question, of a finished evaluation with a real engine.

    Raises DataError for a folder that tells of none.
    """
    try:
        cost = json.loads((result / SUMMARY).read_text(encoding="utf-8"))["cost"]
        seconds = float(cost["engine_seconds"]) / int(cost["num_questions"])
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise DataError(f"{result} holds no finished evaluation: {error}") from error
    if seconds <= 0:
        raise DataError(f"{result} tells of no engine: its answers were stored ones")
    return seconds


def _figures(evaluation: Evaluation) -> int:
    """Make the figures of a report; how many answers were right."""
    assert isinstance(evaluation.rollouts, StoredRollouts)
    summarise(evaluation)
    measured = measure(evaluation.rollouts, profile=SEARCH_R1, top_k=Limits().top_k)
    return round(measured.cost.num_right)


class _NoCalls(list[Call]):
    """Keeps nothing, so that the script's own memory is not measured."""

    def append(self, item: Call) -> None:
        """Forget it."""


class _NumberedSearcher:
    """Finds passages that no other search found, so that nothing is known beforehand."""

    def __init__(self) -> None:
        self._num_searches = 0

    async def search(self, query: str, top_k: int) -> SearchResult:
        """See `Searcher.search`."""
        self._num_searches += 1
        passages = (
            Passage(f"{self._num_searches}/{rank}", "Lima", f"{self._num_searches} {_TEXT}") for rank in range(top_k)
        )
        return SearchResult(query, tuple(ScoredPassage(passage, 1.0) for passage in passages))
