"""Questions out of facts: one hop, two hops over a described country, and comparisons of two countries."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations, zip_longest

from retriever_server.schema import Passage
from search_rl.datasets.factbook.corpus import field_slug
from search_rl.datasets.factbook.facts import Fact, contains_words
from search_rl.datasets.factbook.hops import BRIDGES, COMPARISONS, Bridge, Comparison
from search_rl.datasets.factbook.parsing import without_accents
from search_rl.datasets.questions import QuestionRow
from search_rl.types import Question

DATASET = "factbook"
KINDS = ("one_hop", "two_hop", "comparison")
_FINALS_PER_BRIDGE = 3
_PAIRS_PER_COMPARISON = 130

FactsByRelation = Mapping[str, Sequence[Fact]]


def compose_questions(
    facts: Iterable[Fact], passages: Iterable[Passage], *, chooser: random.Random
) -> dict[str, list[QuestionRow]]:
    """All questions about one split's facts, by kind; `passages` (the corpus) decides what is unique."""
    by_relation: dict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        by_relation[fact.relation.name].append(fact)
    rows = {
        "one_hop": list(_one_hop(by_relation, chooser)),
        "two_hop": list(_two_hop(by_relation, passages, chooser)),
        "comparison": list(_comparisons(by_relation, chooser)),
    }
    for kind in KINDS:
        chooser.shuffle(rows[kind])
    return rows


def balanced(rows: Mapping[str, Sequence[QuestionRow]], *, num_each: int) -> list[QuestionRow]:
    """`num_each` questions of each kind in turn: every prefix is balanced; relations are spread evenly."""
    spread = (_spread_over_relations(rows[kind])[:num_each] for kind in KINDS)
    return [row for turn in zip_longest(*spread) for row in turn if row is not None]


def _spread_over_relations(rows: Sequence[QuestionRow]) -> list[QuestionRow]:
    by_relation: dict[str, list[QuestionRow]] = defaultdict(list)
    for row in rows:
        by_relation[row.relation].append(row)
    turns = zip_longest(*by_relation.values())
    return [row for row in chain.from_iterable(turns) if row is not None]


def _one_hop(by_relation: FactsByRelation, chooser: random.Random) -> Iterator[QuestionRow]:
    for fact in chain.from_iterable(by_relation.values()):
        if fact.relation.wordings:
            text = chooser.choice(fact.relation.wordings).format(country=fact.entry.noun_phrase)
            yield _row("one_hop", fact.relation.name, text, answer=fact, steps=(fact,), queries=(fact.query,))


def _two_hop(
    by_relation: FactsByRelation, passages: Iterable[Passage], chooser: random.Random
) -> Iterator[QuestionRow]:
    finals: dict[str, list[Fact]] = defaultdict(list)
    for fact in chain.from_iterable(by_relation.values()):
        if fact.relation.wordings:
            finals[fact.entry.code].append(fact)
    by_field: dict[str, list[Passage]] = defaultdict(list)
    for passage in passages:
        by_field[field_slug(passage)].append(passage)
    for bridge in BRIDGES:
        for fact in by_relation.get(bridge.relation, ()):
            if _identifies(fact, by_field[fact.relation.field.slug]):
                others = [other for other in finals[fact.entry.code] if other.passage_id != fact.passage_id]
                chosen = chooser.sample(others, min(_FINALS_PER_BRIDGE, len(others)))
                yield from (_bridged(bridge, fact, final, chooser) for final in chosen)


def _bridged(bridge: Bridge, fact: Fact, final: Fact, chooser: random.Random) -> QuestionRow:
    description = chooser.choice(bridge.descriptions).format(value=fact.value.text)
    text = chooser.choice(final.relation.wordings).format(country=description)
    relation = f"{final.relation.name}-via-{bridge.relation}"
    queries = (bridge.query.format(value=fact.value.text), final.query)
    return _row("two_hop", relation, text, answer=final, steps=(fact, final), queries=queries)


def _identifies(fact: Fact, same_field: Iterable[Passage]) -> bool:
    """True when the value stands in this country's passage alone, and does not spell the country's name."""
    rivals = (passage for passage in same_field if passage.id != fact.passage_id)
    if any(contains_words(passage.text, fact.value.text) for passage in rivals):
        return False
    name_words = without_accents(fact.entry.name).casefold().split()
    value_words = without_accents(fact.value.text).casefold().split()
    return not any(word.startswith(name[:5]) for name in name_words if len(name) > 3 for word in value_words)


def _comparisons(by_relation: FactsByRelation, chooser: random.Random) -> Iterator[QuestionRow]:
    for comparison in COMPARISONS:
        pairs = [
            pair
            for pair in combinations(by_relation.get(comparison.relation, ()), 2)
            if comparison.tells_apart(*map(_number, pair))
        ]
        for first, second in chooser.sample(pairs, min(_PAIRS_PER_COMPARISON, len(pairs))):
            pair = (first, second) if chooser.random() < 0.5 else (second, first)
            yield _compared(comparison, pair, chooser)


def _compared(comparison: Comparison, pair: tuple[Fact, Fact], chooser: random.Random) -> QuestionRow:
    asks_more = chooser.random() < 0.5
    wording = chooser.choice(comparison.more if asks_more else comparison.less)
    text = wording.format(first=pair[0].entry.noun_phrase, second=pair[1].entry.noun_phrase)
    pick = max if asks_more else min
    relation = f"{'more' if asks_more else 'less'}-{comparison.relation}"
    queries = tuple(fact.query for fact in pair)
    answer = pick(pair, key=_number)
    names = tuple(dict.fromkeys((*answer.entry.names, *map(without_accents, answer.entry.names))))
    return _row("comparison", relation, text, answer=names, steps=pair, queries=queries)


def _number(fact: Fact) -> float:
    if fact.value.number is None:
        raise ValueError(f"{fact.relation.name} of {fact.entry.name} is no number: {fact.value.text!r}")
    return fact.value.number


def _row(
    kind: str,
    relation: str,
    text: str,
    *,
    answer: Fact | tuple[str, ...],
    steps: tuple[Fact, ...],
    queries: tuple[str, ...],
) -> QuestionRow:
    countries = dict.fromkeys(fact.entry.slug for fact in steps)
    question = Question(
        id="/".join((relation, *countries)),
        text=text[0].upper() + text[1:],
        golden_answers=answer.value.golden_answers if isinstance(answer, Fact) else answer,
        dataset=DATASET,
        kind=kind,
        evidence_ids=tuple(fact.passage_id for fact in steps),
    )
    return QuestionRow(question, relation=relation, oracle_queries=queries)
