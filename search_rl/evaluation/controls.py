"""Searchers that stand in for the retriever, to see whether a policy uses what it reads; and the pass over a corpus."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from search_rl.errors import ConfigError, DataError
from search_rl.evaluation.gold_passages import GoldPassages
from search_rl.evidence import evidence_of
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
    """What the systems that need no retriever take from a corpus: evidence by the key of its question, and some
    passages drawn at random.

    `num_titles_missing` of the `num_titles` articles that questions name are not in the corpus.
    """

    evidence: Mapping[str, tuple[Passage, ...]]
    drawn: tuple[Passage, ...]
    num_titles: int = 0
    num_titles_missing: int = 0

    def gold(self, question: Question) -> SearchResult:
        """The question's evidence in the order that it names it, as if handed over without a query."""
        return SearchResult("", tuple(ScoredPassage(passage, 0.0) for passage in self.evidence[question.key]))

    @property
    def evidence_passages(self) -> tuple[Passage, ...]:
        """All of the evidence, each passage once."""
        return tuple({passage.id: passage for found in self.evidence.values() for passage in found}.values())


def sample_corpus(passages: Iterable[Passage], questions: Sequence[Question]) -> CorpusSample:
    """The sample from one pass over a corpus, of which the evidence and 2,000 passages stay in memory.

    Raises DataError for passages named as evidence that the corpus lacks, and for one that has none of the articles
    that are named.
    """
    gold = GoldPassages(questions)
    drawn: list[Passage] = []
    draw = random.Random(_SEED)
    for number, passage in enumerate(passages):
        gold.see(passage)
        if len(drawn) < NUM_RANDOM_PASSAGES:
            drawn.append(passage)
        elif (place := draw.randrange(number + 1)) < NUM_RANDOM_PASSAGES:
            drawn[place] = passage
    if not drawn:
        raise DataError("the corpus holds no passage")
    gold.check()
    return CorpusSample(gold.by_question(), tuple(drawn), gold.num_titles, gold.num_titles_missing)


def check_evidence(questions: Sequence[Question]) -> None:
    """Raise ConfigError unless every question names the evidence for its answer."""
    without = [question for question in questions if not evidence_of(question)]
    if without:
        raise ConfigError(
            f"system oracle needs evidence_ids or evidence_titles: {len(without)} of {len(questions)} questions name "
            f"none, such as {without[0].key}; leave that set or that system out"
        )
