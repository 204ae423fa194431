"""The corpus: one short passage for each kept field of each entry.

Notes, etymologies and asides stay out: with them in, the passage about a capital was found far less often by
"<country> capital". Of the long background only the opening is kept, so that encoding stays short.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from retriever_server.schema import Passage
from search_rl.datasets.factbook.cleaning import clean_html, split_passages
from search_rl.datasets.factbook.source import URL, Entry, slugify

MAX_WORDS = 100


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the source that becomes a passage; with `subfields` only those, in that order, and at most
    `max_passages` when it is long."""

    section: str
    name: str
    title: str = ""
    subfields: tuple[str, ...] = ()
    max_passages: int | None = None

    @property
    def heading(self) -> str:
        """What the passage is about: the second half of its title."""
        return self.title or self.name

    @property
    def slug(self) -> str:
        """The last two parts of its passages' ids."""
        return f"{slugify(self.section)}/{slugify(self.heading)}"


_GOVERNMENT, _GEOGRAPHY, _PEOPLE = "Government", "Geography", "People and Society"
_ECONOMY, _TRANSPORT = "Economy", "Transportation"

FIELDS: tuple[Field, ...] = (
    Field("Introduction", "Background", max_passages=1),
    Field(_GEOGRAPHY, "Location"),
    Field(_GEOGRAPHY, "Area"),
    Field(_GEOGRAPHY, "Land boundaries"),
    Field(_GEOGRAPHY, "Coastline"),
    Field(_GEOGRAPHY, "Climate"),
    Field(_GEOGRAPHY, "Terrain"),
    Field(_GEOGRAPHY, "Elevation"),
    Field(_GEOGRAPHY, "Natural resources"),
    Field(_PEOPLE, "Population"),
    Field(_PEOPLE, "Ethnic groups"),
    Field(_PEOPLE, "Languages"),
    Field(_PEOPLE, "Religions"),
    Field(_PEOPLE, "Median age"),
    Field(_PEOPLE, "Life expectancy at birth"),
    Field(_PEOPLE, "Total fertility rate"),
    Field(_PEOPLE, "Urbanization"),
    Field(_GOVERNMENT, "Country name", subfields=("conventional long form", "local short form", "former")),
    Field(_GOVERNMENT, "Government type"),
    Field(_GOVERNMENT, "Capital", subfields=("name", "geographic coordinates", "time difference")),
    Field(_GOVERNMENT, "Independence"),
    Field(_GOVERNMENT, "National holiday"),
    Field(_GOVERNMENT, "Executive branch", "Chief of state", ("chief of state",)),
    Field(_GOVERNMENT, "Executive branch", "Head of government", ("head of government",)),
    Field(_GOVERNMENT, "Legislative branch", "Legislature", ("legislature name", "legislative structure")),
    Field(
        _GOVERNMENT,
        "Diplomatic representation in the US",
        "Ambassador to the US",
        ("chief of mission", "chancery"),
    ),
    Field(_GOVERNMENT, "Flag"),
    Field(_GOVERNMENT, "National symbol(s)", "National symbol"),
    Field(_GOVERNMENT, "National color(s)", "National colors"),
    Field(_GOVERNMENT, "National anthem(s)", "National anthem", ("title", "lyrics/music")),
    Field(_ECONOMY, "Exchange rates", "Currency", ("Currency",)),
    Field(_ECONOMY, "Exports - commodities", "Export commodities"),
    Field(_ECONOMY, "Exports - partners", "Export partners"),
    Field(_ECONOMY, "Agricultural products"),
    Field(_ECONOMY, "Industries"),
    Field("Communications", "Internet country code"),
    Field(_TRANSPORT, "Airports"),
    Field(_TRANSPORT, "Railways", subfields=("total",)),
    Field(_TRANSPORT, "Civil aircraft registration country code prefix", "Aircraft registration prefix"),
)


def build_corpus(entries: Iterable[Entry]) -> tuple[Passage, ...]:
    """All passages, by entry and then in the order of `FIELDS`; ids are unique."""
    return tuple(passage for entry in entries for field in FIELDS for passage in _passages(entry, field))


def passage_id(entry: Entry, field: Field) -> str:
    """The id of the first passage of a field: "france/geography/area"."""
    return f"{entry.slug}/{field.slug}"


def field_slug(passage: Passage) -> str:
    """The slug of the field that a passage was made from: "geography/area"."""
    return "/".join(passage.id.split("/")[1:3])


def _passages(entry: Entry, field: Field) -> Iterator[Passage]:
    units = list(_units(entry.sections.get(field.section, {}).get(field.name, {}), field))
    texts = islice(split_passages(units, max_words=MAX_WORDS), field.max_passages)
    for number, text in enumerate(texts, start=1):
        suffix = "" if number == 1 else f"/{number}"
        yield Passage(
            id=passage_id(entry, field) + suffix,
            title=f"{entry.name}: {field.heading}",
            text=text,
            url=f"{URL}countries/{entry.slug}/",
        )


def _units(node: Mapping[str, Any], field: Field) -> Iterator[str]:
    leaves = {key.strip(): clean_html(text) for key, text in _leaves(node)}
    for key in field.subfields or leaves:
        if text := leaves.get(key, ""):
            label = field.heading if key in ("", "name", "title") else key[0].upper() + key[1:]
            yield f"{label}: {text.removesuffix('.')}."


def _leaves(node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Subfield and text; a field's own text has the subfield ""; notes and language samples are left out."""
    for key, value in node.items():
        if key == "text":
            yield "", value
        elif isinstance(value, dict) and "text" in value and "sample" not in key:
            yield key, value["text"]
