"""Searchers that stand in for the retriever, to see whether a policy uses what it reads; and gold passages."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from search_rl.errors import ConfigError, DataError
from search_rl.types import Passage, Question, ScoredPassage, SearchResult

NUM_RANDOM_PASSAGES = 2000
_SEED = 0


class EmptySearcher:
    """Finds nothing."""

    async def search(self, query: str, top_k: int) -> SearchResult:
        """See `Searcher.search`."""
        return SearchResult(query, ())


@dataclass(frozen=True, slots=True)
class RandomSearcher:
    """Finds passages that have nothing to do with the query, always the same ones for it; scores are 0."""

    passages: Sequence[Passage]

    async def search(self, query: str, top_k: int) -> SearchResult:
        """See `Searcher.search`."""
        draw = random.Random(f"{_SEED} {query}")
        drawn = draw.sample(self.passages, min(top_k, len(self.passages)))
        return SearchResult(query, tuple(ScoredPassage(passage, 0.0) for passage in drawn))


@dataclass(frozen=True, slots=True)
class CorpusSample:
    """What the systems that need no retriever take from a corpus: evidence passages by id, and some drawn at random."""

    evidence: Mapping[str, Passage]
    drawn: tuple[Passage, ...]

    def gold(self, question: Question) -> SearchResult:
        """The question's evidence passages in the order that it names them, as if handed over without a query."""
        hits = tuple(ScoredPassage(self.evidence[identifier], 0.0) for identifier in question.evidence_ids)
        return SearchResult("", hits)


def sample_corpus(passages: Iterable[Passage], questions: Sequence[Question]) -> CorpusSample:
    """The sample from one pass over a corpus, of which the evidence and 2,000 passages stay in memory.

    Raises DataError for evidence that the corpus lacks.
    """
    wanted = {identifier for question in questions for identifier in question.evidence_ids}
    evidence: dict[str, Passage] = {}
    drawn: list[Passage] = []
    draw = random.Random(_SEED)
    for number, passage in enumerate(passages):
        if passage.id in wanted:
            evidence[passage.id] = passage
        if len(drawn) < NUM_RANDOM_PASSAGES:
            drawn.append(passage)
        elif (place := draw.randrange(number + 1)) < NUM_RANDOM_PASSAGES:
            drawn[place] = passage
    missing = wanted - evidence.keys()
    if missing:
        raise DataError(f"{len(missing)} evidence passages are not in the corpus, such as {min(missing)!r}")
    if not drawn:
        raise DataError("the corpus holds no passage")
    return CorpusSample(evidence, tuple(drawn))


def check_evidence(questions: Sequence[Question]) -> None:
    """Raise ConfigError unless every question names the passages that hold its answer."""
    without = [question for question in questions if not question.evidence_ids]
    if without:
        raise ConfigError(
            f"system oracle needs evidence_ids: {len(without)} of {len(questions)} questions name none, such as "
            f"{without[0].key}; leave that set or that system out"
        )
