"""Facts: the exact value of a relation for a country, and the passage that holds it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from retriever_server.schema import Passage
from search_rl.datasets.factbook.cleaning import clean_html
from search_rl.datasets.factbook.corpus import passage_id
from search_rl.datasets.factbook.parsing import Value
from search_rl.datasets.factbook.relations import RELATIONS, Relation
from search_rl.datasets.factbook.source import Entry


@dataclass(frozen=True, slots=True)
class Fact:
    """A value that stands word for word in the passage `passage_id`."""

    entry: Entry
    relation: Relation
    value: Value
    passage_id: str

    @property
    def query(self) -> str:
        """The search that an agent would make for it once it knows the country."""
        return f"{self.entry.name} {self.relation.query}"


def extract_facts(entries: Iterable[Entry], passages: Mapping[str, Passage]) -> tuple[Fact, ...]:
    """All facts of countries with a capital, by entry and then in the order of `RELATIONS`."""
    facts = (fact for entry in entries if entry.is_country for fact in _facts(entry, passages))
    return tuple(facts)


def contains_words(text: str, words: str) -> bool:
    """True when `words` stand in `text` as whole words, upper and lower case alike."""
    if words.lower() not in text.lower():
        return False
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text, re.IGNORECASE) is not None


def _facts(entry: Entry, passages: Mapping[str, Passage]) -> Iterator[Fact]:
    if not _source_text(entry, "Government", "Capital", "name"):
        return
    for relation in RELATIONS:
        field = relation.field
        value = relation.parse(_source_text(entry, field.section, field.name, relation.subfield))
        passage = passages.get(passage_id(entry, field))
        if value and passage and contains_words(passage.text, value.text):
            yield Fact(entry, relation, value, passage.id)


def _source_text(entry: Entry, section: str, field: str, subfield: str) -> str:
    node = entry.sections.get(section, {}).get(field, {})
    nodes = {key.strip(): value for key, value in node.items()}
    leaf = nodes.get(subfield, {}) if subfield else node
    return clean_html(leaf.get("text", ""))
