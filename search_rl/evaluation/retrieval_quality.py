"""What retrieval gives an agent: the answer, and the passages that the question was made from, among the best k."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from retriever_server.schema import ScoredPassage
from search_rl.evaluation.statistics import Interval, mean_interval
from search_rl.evaluation.tables import new_table
from search_rl.evidence import evidence_among, evidence_of
from search_rl.profiles import Profile
from search_rl.types import Question

if TYPE_CHECKING:
    from rich.table import Table

_TOP_KS = (1, 3, 5, 10, 20, 50, 100)
_YES_OR_NO = ("yes", "no")


@dataclass(frozen=True, slots=True)
class QualityAtK:
    """Means over questions, None where no question can tell.

    `recall` is of the exact search's hits. An answer is hit when the contents of a passage cover an accepted one,
    plainly or on token boundaries, under a profile's normaliser. Of the evidence its share, and whether it was all
    found.
    """

    top_k: int
    recall: Interval | None
    answer_hit: Interval | None
    token_answer_hit: Interval | None
    evidence_recall: Interval | None
    all_evidence: Interval | None


@dataclass(frozen=True, slots=True)
class RetrievalQuality:
    """By k. Yes-or-no questions are outside the answer hits: any text has a "no" in it."""

    num_questions: int
    num_yes_or_no: int
    num_without_evidence: int
    by_k: tuple[QualityAtK, ...]


def top_ks(largest: int) -> list[int]:
    """The usual ks up to the largest, and that one."""
    return [*(k for k in _TOP_KS if k < largest), largest]


def retrieval_quality(
    questions: Sequence[Question],
    answers: Sequence[Sequence[ScoredPassage]],
    profile: Profile,
    largest_k: int,
    *,
    recalls: Mapping[int, Sequence[float]] | None = None,
) -> RetrievalQuality:
    """The figures of the answers to the questions' texts; `recalls` holds each question's recall by k."""
    asked = list(zip(questions, answers, strict=True))
    open_ones = [(question, hits) for question, hits in asked if not _is_yes_or_no(question, profile)]
    with_evidence = [(question, hits) for question, hits in asked if evidence_of(question)]
    plain = [_first_rank(profile.cover_exact_match, *pair) for pair in open_ones]
    token = [_first_rank(profile.token_cover_exact_match, *pair) for pair in open_ones]
    by_k = []
    for k in top_ks(largest_k):
        shares = [_evidence_share(question, hits[:k]) for question, hits in with_evidence]
        by_k.append(
            QualityAtK(
                top_k=k,
                recall=_mean(recalls[k]) if recalls is not None else None,
                answer_hit=_mean([float(rank <= k) for rank in plain]),
                token_answer_hit=_mean([float(rank <= k) for rank in token]),
                evidence_recall=_mean(shares),
                all_evidence=_mean([float(share == 1.0) for share in shares]),
            )
        )
    return RetrievalQuality(
        len(questions), len(questions) - len(open_ones), len(questions) - len(with_evidence), tuple(by_k)
    )


def quality_to_json(quality: RetrievalQuality, queries_per_second: float) -> dict[str, Any]:
    """The JSON form; means as objects with the bounds of their 95 % intervals."""
    return {"queries_per_second": queries_per_second, **asdict(quality)}


def quality_table(quality: RetrievalQuality) -> Table:
    """A row a k."""
    headings = ("recall", "answer hit", "token answer hit", "evidence", "all evidence")
    table = new_table("k", *(heading for heading in headings))
    for row in quality.by_k:
        means = (row.recall, row.answer_hit, row.token_answer_hit, row.evidence_recall, row.all_evidence)
        table.add_row(str(row.top_k), *(str(mean) if mean is not None else "-" for mean in means))
    return table


def quality_summary(quality: RetrievalQuality, queries_per_second: float) -> str:
    """One line: how fast, over what, and who is outside which figure."""
    return (
        f"{queries_per_second:.1f} queries/s, {quality.num_questions} questions; answer hits without "
        f"{quality.num_yes_or_no} yes-or-no questions, evidence without {quality.num_without_evidence} that name none"
    )


def _is_yes_or_no(question: Question, profile: Profile) -> bool:
    return any(profile.normalise(gold).lower() in _YES_OR_NO for gold in question.golden_answers)


def _first_rank(
    covers: Callable[[str, Iterable[str]], float], question: Question, hits: Sequence[ScoredPassage]
) -> float:
    """The rank, from 1, of the first passage with an accepted answer; infinite when none has one."""
    ranks = (rank for rank, hit in enumerate(hits, 1) if covers(hit.passage.contents, question.golden_answers))
    return next(ranks, math.inf)


def _evidence_share(question: Question, hits: Sequence[ScoredPassage]) -> float:
    return len(evidence_among(question, (hit.passage for hit in hits))) / len(evidence_of(question))


def _mean(values: Sequence[float]) -> Interval | None:
    return mean_interval(values) if values else None
