"""What retrieval did for the answers: whether the evidence was found, by which search, and what it was worth.

A search "hits" when a passage within its best k holds an accepted answer that cuts no word in two (DPR's has_answer, on
the profile's normal form). Questions whose accepted answers are all yes or no are left out there: such words stand
anywhere. Passages count whole, as the retriever gave them, also where the observation had to shorten them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles

from search_rl.evaluation.statistics import Interval, mean_interval
from search_rl.evidence import evidence_among, evidence_of
from search_rl.normalisers import squad
from search_rl.profiles import Profile
from search_rl.types import Question, Search, SearchResult, Trajectory

_ANYWHERE = ("yes", "no", "")


@dataclass(frozen=True, slots=True)
class FoundBySearch:
    """What one search found. `answer_rank` is the place of the first passage with an accepted answer, from 1."""

    answer_rank: int | None
    has_answer_inside_word: bool
    evidence: frozenset[str]
    num_passages: int

    def hits_within(self, k: int) -> bool:
        """True when a passage among the best k held an accepted answer."""
        return self.answer_rank is not None and self.answer_rank <= k


@dataclass(frozen=True, slots=True)
class RetrievalRow:
    """One question: what its searches found, without passages or tokens.

    `given` is what was handed over without a search. `has_open_answer` is False where all accepted answers are yes or
    no.
    """

    exact_match: float
    has_open_answer: bool
    num_evidence: int
    searches: tuple[FoundBySearch, ...]
    given: FoundBySearch | None
    num_repeated: int
    search_seconds: tuple[float, ...]

    @property
    def all_found(self) -> tuple[FoundBySearch, ...]:
        """The searches, and what was handed over before them."""
        return self.searches if self.given is None else (self.given, *self.searches)

    @property
    def is_evidence_found(self) -> bool | None:
        """True when all evidence was read; where none is named, when an accepted answer was. None where neither can be
        told.
        """
        if self.num_evidence:
            return self.evidence_after(len(self.all_found)) == 1.0
        return any(it.answer_rank for it in self.all_found) if self.has_open_answer else None

    def evidence_after(self, num_found: int) -> float:
        """The share of the evidence that was read by then; `num_found` counts what was handed over too."""
        read = frozenset[str]().union(*(it.evidence for it in self.all_found[:num_found]))
        return len(read) / self.num_evidence

    def hits_within(self, k: int) -> bool:
        """True when a passage among the best k of any search held an accepted answer."""
        return any(it.hits_within(k) for it in self.all_found)


@dataclass(frozen=True, slots=True)
class SearchFigures:
    """The n-th search of the episodes that made one; hits and evidence of that search alone, then of all up to it.

    Each query counts: a turn that asks two is two searches.
    """

    number: int
    num_episodes: int
    answer_hit_at: Mapping[int, Interval | None]
    evidence_recall: Interval | None
    evidence_recall_so_far: Interval | None


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds a search, retries included."""

    mean_seconds: float
    median_seconds: float
    p95_seconds: float


@dataclass(frozen=True, slots=True)
class RetrievalFigures:
    """Retrieval over some questions; None stands for what cannot be told of any of them.

    `exact_match_found` and `exact_match_not_found` are over the questions whose evidence was read, all of it, and over
    the others. `repeated_share` is of questions in which a query was asked again, `empty_share` of searches.
    """

    num_questions: int
    searches_per_question: float
    no_search_share: float
    repeated_share: float
    empty_share: float
    answer_hit_at: Mapping[int, Interval | None]
    answer_hit_inside_words: Interval | None
    evidence_recall: Interval | None
    evidence_found_share: Interval | None
    exact_match_found: Interval | None
    exact_match_not_found: Interval | None
    by_search: tuple[SearchFigures, ...]
    latency: Latency | None


def retrieval_row(trajectory: Trajectory, profile: Profile) -> RetrievalRow:
    """The row of an episode."""
    question = trajectory.question
    handed_over = trajectory.given if trajectory.given is not None and not trajectory.given.query else None
    queries = [" ".join(result.query.lower().split()) for result in trajectory.results]
    return RetrievalRow(
        exact_match=profile.exact_match(trajectory.answer, question.golden_answers),
        has_open_answer=bool(open_answers(question)),
        num_evidence=len(evidence_of(question)),
        searches=tuple(found_in(result, question, profile) for result in trajectory.results),
        given=None if handed_over is None else found_in(handed_over, question, profile),
        num_repeated=len(queries) - len(set(queries)),
        search_seconds=_search_seconds(trajectory),
    )


def found_in(result: SearchResult, question: Question, profile: Profile) -> FoundBySearch:
    """What a search found of what the question needs."""
    golds = open_answers(question)
    texts = [f"{hit.passage.title}\n{hit.passage.text}" for hit in result.passages] if golds else []
    ranks = (rank for rank, text in enumerate(texts, start=1) if profile.token_cover_exact_match(text, golds))
    answer_rank = next(ranks, None)
    return FoundBySearch(
        answer_rank=answer_rank,
        has_answer_inside_word=answer_rank is not None or any(profile.cover_exact_match(text, golds) for text in texts),
        evidence=evidence_among(question, (hit.passage for hit in result.passages)),
        num_passages=len(result.passages),
    )


def open_answers(question: Question) -> tuple[str, ...]:
    """The accepted answers without yes, no and those that normalise to nothing, which any passage holds."""
    return tuple(gold for gold in question.golden_answers if squad(gold) not in _ANYWHERE)


def retrieval_figures(rows: Sequence[RetrievalRow], *, depths: Sequence[int]) -> RetrievalFigures:
    """The figures of some rows, with answer hits at these depths. Raises ValueError for no rows."""
    searches = [search for row in rows for search in row.searches]
    open_rows = [row for row in rows if row.has_open_answer]
    with_evidence = [row for row in rows if row.num_evidence]
    told = [(row.is_evidence_found, row.exact_match) for row in rows if row.is_evidence_found is not None]
    return RetrievalFigures(
        num_questions=len(rows),
        searches_per_question=fmean(len(row.searches) for row in rows),
        no_search_share=fmean(not row.searches for row in rows),
        repeated_share=fmean(row.num_repeated > 0 for row in rows),
        empty_share=fmean(not it.num_passages for it in searches) if searches else 0.0,
        answer_hit_at={k: mean_of(row.hits_within(k) for row in open_rows) for k in depths},
        answer_hit_inside_words=mean_of(any(it.has_answer_inside_word for it in row.all_found) for row in open_rows),
        evidence_recall=mean_of(row.evidence_after(len(row.all_found)) for row in with_evidence),
        evidence_found_share=mean_of(found for found, _ in told),
        exact_match_found=mean_of(match for found, match in told if found),
        exact_match_not_found=mean_of(match for found, match in told if not found),
        by_search=_by_search(rows, depths),
        latency=_latency([seconds for row in rows for seconds in row.search_seconds]),
    )


def mean_of(values: Iterable[float | bool | None]) -> Interval | None:
    """The mean with its interval, None of nothing."""
    numbers = [float(value or 0.0) for value in values]
    return mean_interval(numbers) if numbers else None


def _by_search(rows: Sequence[RetrievalRow], depths: Sequence[int]) -> tuple[SearchFigures, ...]:
    most = max((len(row.searches) for row in rows), default=0)
    figures = []
    for number in range(1, most + 1):
        made = [row for row in rows if len(row.searches) >= number]
        named = [row for row in made if row.num_evidence]
        nth = [(row, row.searches[number - 1]) for row in named]
        open_searches = [row.searches[number - 1] for row in made if row.has_open_answer]
        figures.append(
            SearchFigures(
                number=number,
                num_episodes=len(made),
                answer_hit_at={k: mean_of(found.hits_within(k) for found in open_searches) for k in depths},
                evidence_recall=mean_of(len(found.evidence) / row.num_evidence for row, found in nth),
                evidence_recall_so_far=mean_of(row.evidence_after(number + (row.given is not None)) for row in named),
            )
        )
    return tuple(figures)


def _latency(seconds: Sequence[float]) -> Latency | None:
    if not seconds:
        return None
    p95 = quantiles(seconds, n=20, method="inclusive")[-1] if len(seconds) > 1 else seconds[0]
    return Latency(fmean(seconds), median(seconds), p95)


def _search_seconds(trajectory: Trajectory) -> tuple[float, ...]:
    given = (trajectory.given_seconds,) if trajectory.given is not None and trajectory.given.query else ()
    asked = (
        turn.search_seconds
        for turn in trajectory.turns
        if isinstance(turn.action, Search) and turn.observation is not None
    )
    return (*given, *asked)
