"""What the questions give away: overlap with training, answers inside questions, what needs no retriever."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from search_rl import answers
from search_rl.evaluation.audit.findings import Finding, finding
from search_rl.evaluation.outcomes import Outcome
from search_rl.evaluation.retrieval_figures import open_answers
from search_rl.profiles import SEARCH_R1
from search_rl.types import Question

NEAR_JACCARD = 0.8
QUESTION_OVERLAP = 0.05
ANSWER_OVERLAP = 0.7
ANSWER_IN_QUESTION = 0.05
CLOSED_BOOK = 0.25
RIGHT_WITHOUT_READING = 0.5


def question_overlap(questions: Sequence[Question], train: Sequence[Question]) -> Finding:
    """Questions whose words are nearly those of a training question (Jaccard similarity of .8 or more) that accepts the
    same answer: one of another name in the same words asks something else.

    Lewis et al. (2021, 2008.02637) found paraphrases of training questions for about 30 % of NQ, TriviaQA and
    WebQuestions; theirs were judged by people, ours are lexical and fewer.
    """
    mine, theirs = [_normal_golds(question) for question in questions], [_normal_golds(question) for question in train]
    near = near_duplicates(
        [question.text for question in questions],
        [question.text for question in train],
        is_pair=lambda place, other: not mine[place].isdisjoint(theirs[other]),
    )
    return finding(
        "question_overlap",
        "nearly the words of a training question with that answer",
        hits=(f"{questions[place].text} ~ {train[other].text}" for place, other in near.items()),
        num_cases=len(questions),
        threshold=QUESTION_OVERLAP,
    )


def answer_overlap(questions: Sequence[Question], train: Iterable[Question]) -> Finding:
    """Questions with an accepted answer that training accepts somewhere; yes and no are left out.

    The threshold is what Lewis et al. (2021, 2008.02637) found at most (60 to 70 %).
    """
    known = {answers.normalise(gold) for question in train for gold in question.golden_answers}
    open_questions = [question for question in questions if open_answers(question)]
    return finding(
        "answer_overlap",
        "an accepted answer is one of training's",
        hits=(
            question.text
            for question in open_questions
            if any(answers.normalise(gold) in known for gold in open_answers(question))
        ),
        num_cases=len(open_questions),
        threshold=ANSWER_OVERLAP,
    )


def answer_in_question(questions: Sequence[Question]) -> Finding:
    """Questions that hold an accepted answer between word boundaries, as every comparison of two names does."""
    open_questions = [question for question in questions if open_answers(question)]
    return finding(
        "answer_in_question",
        "the question holds an accepted answer",
        hits=(
            f"{question.text} = {question.golden_answers[0]}"
            for question in open_questions
            if SEARCH_R1.token_cover_exact_match(question.text, open_answers(question))
        ),
        num_cases=len(open_questions),
        threshold=ANSWER_IN_QUESTION,
    )


def empty_golds(questions: Sequence[Question]) -> Finding:
    """Questions with an accepted answer that normalises to nothing: `search_rl.profiles` says how each profile scores
    them.
    """
    return finding(
        "empty_golds",
        "an accepted answer normalises to nothing",
        hits=(
            f"{question.text} = {question.golden_answers!r}"
            for question in questions
            if not all(map(answers.normalise, question.golden_answers))
        ),
        num_cases=len(questions),
        threshold=0.0,
    )


def closed_book_solvable(outcomes: Sequence[Outcome], closed_book: Mapping[str, Outcome]) -> Finding:
    """Questions that the closed-book result, by question key, gets right without any passage."""
    return _against_closed_book(
        "closed_book_solvable", "right without any passage", outcomes, closed_book, lambda mine: True, CLOSED_BOOK
    )


def right_without_reading(outcomes: Sequence[Outcome], closed_book: Mapping[str, Outcome]) -> Finding:
    """Of the questions that the result gets right, those that the closed-book result gets right too."""
    return _against_closed_book(
        "right_without_reading",
        "of the right answers, those that are right without any passage",
        outcomes,
        closed_book,
        lambda mine: mine.scores.exact_match == 1.0,
        RIGHT_WITHOUT_READING,
    )


def near_duplicates(
    texts: Sequence[str],
    others: Iterable[str],
    *,
    least_jaccard: float = NEAR_JACCARD,
    is_pair: Callable[[int, int], bool] = lambda place, other: True,
) -> dict[int, int]:
    """The place of the first of `others` that is near to each text and makes a pair with it, by the text's own place;
    texts without one are left out.

    Words are those of SQuAD's normal form, each once. Exact and without comparing all pairs: two sets that are near
    share one of their rarest words (prefix filtering: Chaudhuri, Ganti and Kaushik 2006).
    """
    bags = [_words(text) for text in texts]
    frequency = Counter(word for bag in bags for word in bag)
    by_word: dict[str, list[int]] = defaultdict(list)
    for place, bag in enumerate(bags):
        for word in _rarest(bag, frequency, least_jaccard):
            by_word[word].append(place)
    found: dict[int, int] = {}
    for other, text in enumerate(others):
        bag = _words(text)
        candidates = {place for word in _rarest(bag, frequency, least_jaccard) for place in by_word.get(word, ())}
        for place in candidates - found.keys():
            if len(bag & bags[place]) >= least_jaccard * len(bag | bags[place]) and is_pair(place, other):
                found[place] = other
    return dict(sorted(found.items()))


def _against_closed_book(
    check: str,
    meaning: str,
    outcomes: Sequence[Outcome],
    closed_book: Mapping[str, Outcome],
    counts: Callable[[Outcome], bool],
    threshold: float,
) -> Finding:
    cases = [outcome for outcome in outcomes if outcome.question.key in closed_book and counts(outcome)]
    solved = [case for case in cases if closed_book[case.question.key].scores.exact_match == 1.0]
    return finding(
        check, meaning, hits=(case.question.text for case in solved), num_cases=len(cases), threshold=threshold
    )


def _normal_golds(question: Question) -> frozenset[str]:
    return frozenset(map(answers.normalise, question.golden_answers))


def _words(text: str) -> frozenset[str]:
    return frozenset(answers.normalise(text).split())


def _rarest(bag: frozenset[str], frequency: Counter[str], least_jaccard: float) -> list[str]:
    """So many of the rarest words that a near set has one of them among its own."""
    num_needed = len(bag) - math.ceil(least_jaccard * len(bag) - 1e-9) + 1
    return sorted(bag, key=lambda word: (frequency[word], word))[:num_needed]
