"""How the field's scorers compare an answer with the accepted ones, each as one small value.

Each score is 0.0 to 1.0, for each metric alone the best over the accepted answers, and 0.0 for no answer. On every
row exact match is at most F1 and at most cover match on token boundaries, which is at most plain cover match.

An accepted answer that normalises to nothing ("The The") is matched, under every metric, by an answer of nothing
alone; SQuAD 2.0's rule leaves it out besides when another one is left (`drops_empty_golds`). The published cover
matches count it as found in any text, and the F1 of SQuAD 1.1, HotpotQA, TriviaQA and FlashRAG counts two empty texts
as different: ours differ there. Cover match on token boundaries is ours in every profile, and so are the metrics that
a profile's source does not publish.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from search_rl import normalisers
from search_rl.errors import unknown_name
from search_rl.normalisers import Normaliser

Similarity = Callable[[str, str], float]
Metric = Literal["exact_match", "f1", "cover_exact_match", "token_cover_exact_match"]

METRICS: tuple[Metric, ...] = ("exact_match", "f1", "cover_exact_match", "token_cover_exact_match")
_CLOSED = ("yes", "no", "noanswer")


def is_equal(mine: str, gold: str) -> float:
    """1.0 for equal texts."""
    return float(mine == gold)


def covers(mine: str, gold: str) -> float:
    """1.0 when `gold` is inside `mine`, even inside a word: "Norway" covers "no"."""
    return float(gold in mine)


def covers_tokens(mine: str, gold: str) -> float:
    """1.0 when `gold` is inside `mine` and neither end cuts a word (letters, digits and the marks on them) in two.

    Like DPR's has_answer (Karpukhin et al. 2020, 2004.04906), but on the profile's own normal form.
    """
    start = mine.find(gold)
    while start >= 0:
        if not _cuts_word(mine, start) and not _cuts_word(mine, start + len(gold)):
            return 1.0
        start = mine.find(gold, start + 1)
    return 0.0


def word_f1(mine: str, gold: str) -> float:
    """The harmonic mean of precision and recall over bags of words; yes and no have no own rule."""
    my_words, gold_words = mine.split(), gold.split()
    num_shared = sum((Counter(my_words) & Counter(gold_words)).values())
    return 2 * num_shared / (len(my_words) + len(gold_words)) if num_shared else 0.0


def closed_word_f1(mine: str, gold: str) -> float:
    """`word_f1`, but 0.0 where either text is yes, no or noanswer and the other is not the same."""
    return 0.0 if mine != gold and (mine in _CLOSED or gold in _CLOSED) else word_f1(mine, gold)


def as_written(gold: str) -> tuple[str, ...]:
    """The accepted answer alone."""
    return (gold,)


def popqa_spellings(gold: str) -> tuple[str, ...]:
    """The accepted answer as it is, in lower case, and in lower case with a capital."""
    return (gold, gold.lower(), gold.capitalize())


@dataclass(frozen=True, slots=True)
class Scores:
    """What one answer earned."""

    exact_match: float
    f1: float
    cover_exact_match: float
    token_cover_exact_match: float


@dataclass(frozen=True, slots=True)
class Profile:
    """A scorer. `headline` is the metric that its `source` reports first."""

    name: str
    source: str
    normalise: Normaliser = normalisers.squad
    word_overlap: Similarity = word_f1
    spellings: Callable[[str], tuple[str, ...]] = as_written
    drops_empty_golds: bool = False
    headline: Metric = "exact_match"

    def exact_match(self, answer: str | None, golden_answers: Iterable[str]) -> float:
        """1.0 when the normalised texts are equal."""
        return self._best(answer, golden_answers, is_equal)

    def f1(self, answer: str | None, golden_answers: Iterable[str]) -> float:
        """The word overlap with the nearest accepted answer."""
        return self._best(answer, golden_answers, self.word_overlap)

    def cover_exact_match(self, answer: str | None, golden_answers: Iterable[str]) -> float:
        """1.0 when the normalised answer has a normalised accepted one inside, even inside a word."""
        return self._best(answer, golden_answers, covers)

    def token_cover_exact_match(self, answer: str | None, golden_answers: Iterable[str]) -> float:
        """1.0 when the normalised answer has a normalised accepted one inside that cuts no word in two."""
        return self._best(answer, golden_answers, covers_tokens)

    def scores(self, answer: str | None, golden_answers: Iterable[str]) -> Scores:
        """All four."""
        golds = tuple(golden_answers)
        return Scores(
            exact_match=self.exact_match(answer, golds),
            f1=self.f1(answer, golds),
            cover_exact_match=self.cover_exact_match(answer, golds),
            token_cover_exact_match=self.token_cover_exact_match(answer, golds),
        )

    def _best(self, answer: str | None, golden_answers: Iterable[str], similarity: Similarity) -> float:
        if answer is None:
            return 0.0
        mine = self.normalise(answer)
        golds = [self.normalise(spelling) for gold in golden_answers for spelling in self.spellings(gold)]
        if self.drops_empty_golds:
            golds = [gold for gold in golds if _is_something(gold)] or golds
        return max((_similarity(mine, gold, similarity) for gold in golds), default=0.0)


def _similarity(mine: str, gold: str, similarity: Similarity) -> float:
    return similarity(mine, gold) if _is_something(gold) else float(not _is_something(mine))


def _is_something(text: str) -> bool:
    return bool(text.strip())


def _cuts_word(text: str, position: int) -> bool:
    return 0 < position < len(text) and _is_word(text[position - 1]) and _is_word(text[position])


def _is_word(character: str) -> bool:
    return character.isalnum() or unicodedata.category(character).startswith("M")


SEARCH_R1 = Profile(
    "search_r1",
    "Search-R1's outcome reward and evaluation (Jin et al. 2025, 2503.09516): exact match. It keeps accepted answers "
    "that normalise to nothing; we leave them out as SQuAD 2.0 does.",
    drops_empty_golds=True,
)
SQUAD = Profile(
    "squad",
    "SQuAD 2.0's script (Rajpurkar et al. 2018, 1806.03822): exact match and F1. Gives the same figures as search_r1.",
    drops_empty_golds=True,
)
HOTPOT = Profile(
    "hotpot",
    "HotpotQA's script (Yang et al. 2018, 1809.09600), 2WikiMultihopQA's too: F1 has a rule for yes and no. Answers "
    "alone are scored, not supporting facts.",
    word_overlap=closed_word_f1,
)
NQ_OPEN = Profile(
    "nq_open",
    "Natural Questions in the open (ORQA, Lee et al. 2019, 1906.00300): exact match.",
    normalise=normalisers.nq_open,
)
TRIVIAQA = Profile(
    "triviaqa",
    "TriviaQA's script (Joshi et al. 2017, 1705.03551): exact match and F1. Accepted answers are normalised here, "
    "whether they come as aliases or as normalised aliases.",
    normalise=normalisers.triviaqa,
)
POPQA_ACC = Profile(
    "popqa_acc",
    "PopQA's accuracy (Mallen et al. 2023, 2212.10511): a spelling of an accepted answer stands in the raw text, which "
    "is plain cover match here.",
    normalise=normalisers.raw,
    spellings=popqa_spellings,
    headline="cover_exact_match",
)
MUSIQUE = Profile(
    "musique",
    "MuSiQue's answer metric (Trivedi et al. 2022, 2108.00573): exact match and F1 of the answer alone.",
)
FLASHRAG = Profile(
    "flashrag",
    'FlashRAG (Jin et al. 2024, 2405.13576): exact match, F1 with HotpotQA\'s rule for yes and no, and "acc", which is '
    "plain cover match. Accepted answers that are regular expressions (CuratedTREC) are texts here.",
    word_overlap=closed_word_f1,
)

PROFILES: Mapping[str, Profile] = {
    profile.name: profile for profile in (SEARCH_R1, SQUAD, HOTPOT, NQ_OPEN, TRIVIAQA, POPQA_ACC, MUSIQUE, FLASHRAG)
}


def profile_named(name: str) -> Profile:
    """The profile of that name. Raises ConfigError that names the nearest."""
    if name not in PROFILES:
        raise unknown_name("profile", name, PROFILES)
    return PROFILES[name]
