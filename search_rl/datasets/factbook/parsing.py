"""Exact short values out of the Factbook's cleaned texts; None where a text gives none, or a doubtful one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

Parse = Callable[[str], "Value | None"]

_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_SINGULARS: Mapping[str, str] = {
    f"{noun}s": noun
    for noun in (
        "dollar",
        "euro",
        "franc",
        "pound",
        "dinar",
        "peso",
        "rupee",
        "shilling",
        "rial",
        "riyal",
        "dirham",
        "ruble",
        "escudo",
        "pula",
        "dalasi",
        "cedi",
        "kwacha",
        "ouguiya",
        "naira",
        "leone",
        "dobra",
        "taka",
        "gourde",
        "lempira",
        "cordoba",
        "balboa",
        "som",
        "kyat",
        "riel",
        "kip",
        "pataca",
        "ringgit",
    )
} | {"colones": "colon", "quetzales": "quetzal", "kroner": "krone", "meticais": "metical"}
_HEAD_TITLE = re.compile(
    r"(?:(?:Acting|Interim|Transition|Transitional|Federal|Supreme) )?"
    r"(?:President|King|Queen|Sultan and Prime Minister|Sultan|Amir|Prince|Grand Duke|Emperor|Supreme Leader|"
    r"Prime Minister|Premier|Chancellor)"
    r"(?: (?:Gen\.|Col\.|Dr\.|General|Colonel))?"
)


@dataclass(frozen=True, slots=True)
class Value:
    """An answer as it stands in the passage, its other accepted forms, and a number where it is one."""

    text: str
    aliases: tuple[str, ...] = ()
    number: float | None = None

    @property
    def golden_answers(self) -> tuple[str, ...]:
        """The text, its aliases and their forms without accents, each once."""
        forms = (self.text, *self.aliases)
        return tuple(dict.fromkeys((*forms, *map(without_accents, forms))))


def without_accents(text: str) -> str:
    """The text with its letters' marks taken off: "Bogotá" becomes "Bogota"."""
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter))


def quantity(unit: str = "", *, unit_aliases: tuple[str, ...] = ()) -> Parse:
    """A parser of a leading number above zero in `unit`: the bare number answers, with its unit an alias."""
    gap = " " if unit not in ("", "%") else ""
    end = r"(?=$|[\s;(])" if unit else r"(?=$| \()"
    pattern = re.compile(rf"(\d[\d,]*(?:\.\d+)?){gap}{re.escape(unit)}{end}")

    def parse(text: str) -> Value | None:
        match = pattern.match(text)
        number = float(match[1].replace(",", "")) if match else 0.0
        if match is None or number == 0:
            return None
        with_unit = (f"{match[1]}{gap}{unit}",) if unit else ()
        return Value(match[1], (*with_unit, *(f"{match[1]} {alias}" for alias in unit_aliases)), number)

    return parse


def place(text: str) -> Value | None:
    """A name with an optional second name in brackets: "Tripoli (Tarabulus)"."""
    match = re.fullmatch(r"([^();,:/]+?)(?: \(([^();,]+)\))?", text)
    if match is None or len(match[1].split()) > 5 or not match[1][0].isupper() or match[1].startswith("no "):
        return None
    second = match[2] or ""
    is_name = bool(second) and second[0].isupper() and len(second.split()) <= 4 and "city" not in second
    return Value(match[1], tuple(second.split("/")) if is_name else ())


def peak(text: str) -> Value | None:
    """The name of a mountain from "Tahat 2,908 m"."""
    match = re.match(r"(.+?) -?[\d,]+(?:\.\d+)? m(?: \([^)]*\))?$", text)
    return place(match[1]) if match else None


def peak_height(text: str) -> Value | None:
    """The height from "Tahat 2,908 m"."""
    match = re.match(r"[^\d;]+? ([\d,]+(?:\.\d+)? m)(?: \([^)]*\))?$", text)
    return quantity("m", unit_aliases=("meters",))(match[1]) if match and peak(text) else None


def currency(text: str) -> Value | None:
    """The currency's name from "Algerian dinars (DZD) per US dollar", its code as an alias."""
    match = re.match(r"([^();/]+?)(?: \(([A-Z]{3})\))? per US dollar", text)
    if match is None:
        return None
    *words, noun = match[1].split()
    singular = " ".join((*words, _SINGULARS[noun])) if noun in _SINGULARS else ""
    return Value(match[1], tuple(form for form in (singular, match[2]) if form))


def currency_code(text: str) -> Value | None:
    """The three-letter code from "Algerian dinars (DZD) per US dollar"."""
    match = re.match(r"[^();/]+? \(([A-Z]{3})\) per US dollar", text)
    return Value(match[1]) if match else None


def internet_code(text: str) -> Value | None:
    """A two-letter top-level domain with its dot."""
    return Value(text, (text[1:],)) if re.fullmatch(r"\.[a-z]{2}", text) else None


def aircraft_prefix(text: str) -> Value | None:
    """A single registration prefix."""
    return Value(text) if re.fullmatch(r"[A-Z0-9]{1,3}(?:-[A-Z0-9])?", text) else None


def person(text: str) -> Value | None:
    """The office holder's name without title from "President Paul BIYA (since 6 November 1982)"."""
    match = re.fullmatch(rf"({_HEAD_TITLE.pattern}) ([^();,]+?) \(since [^)]+\)", text)
    if match is None or not re.search(r"[^\W\d_a-z]{2}", match[2]) or re.search(r"^and | of ", match[2]):
        return None
    return Value(match[2], (f"{match[1]} {match[2]}",))


def prime_minister(text: str) -> Value | None:
    """As `person`, for a head of government who is a prime minister."""
    return person(text) if text.startswith("Prime Minister ") else None


def tenure_start(text: str) -> Value | None:
    """The date from "President Paul BIYA (since 6 November 1982)"."""
    match = re.search(r"\(since ([^)]+)\)$", text)
    return date(match[1]) if match and person(text) else None


def ambassador(text: str) -> Value | None:
    """The name from "Ambassador Sabri BOUKADOUM (since 27 February 2024)"."""
    match = re.fullmatch(r"Ambassador ([^();,]+?) \(since [^)]+\)", text)
    return Value(match[1], (f"Ambassador {match[1]}",)) if match else None


def date(text: str) -> Value | None:
    """A day, month and year, also in American order; the number is the day's ordinal."""
    if not re.fullmatch(rf"\d{{1,2}} (?:{_MONTHS}) \d{{4}}", text):
        return None
    day, month, year = text.split()
    ordinal = datetime.strptime(text, "%d %B %Y").toordinal() if int(year) > 1 else None
    return Value(text, (f"{month} {day}, {year}",), ordinal)


def independence_date(text: str) -> Value | None:
    """The date from "5 July 1962 (from France)"."""
    match = re.fullmatch(r"([^();]+) \(from [^);]+\)", text)
    return date(match[1]) if match else None


def holiday_date(text: str) -> Value | None:
    """The day and month of a single national holiday from "Independence Day, 26 June (1960)"."""
    match = re.fullmatch(rf"[^;,\d]+, (\d{{1,2}} (?:{_MONTHS})) \(\d{{4}}\)", text)
    if match is None:
        return None
    day, month = match[1].split()
    return Value(match[1], (f"{month} {day}",))


def anthem(text: str) -> Value | None:
    """The anthem's title, its translation as an alias."""
    match = re.fullmatch(r'["\u201c]([^"\u201c\u201d]+)["\u201d] ?(?:\(([^()]+)\))?', text)
    if match is None:
        return None
    translation = match[2] or ""
    is_title = bool(translation) and not translation.casefold().startswith(("national", "the national"))
    return Value(match[1].strip(" ,"), (translation,) if is_title else ())


def symbol(text: str) -> Value | None:
    """A single national symbol, without its gloss."""
    match = re.fullmatch(r"([^();,:/]+?)(?: \([^()]+\))?", text)
    is_single = match and len(match[1].split()) <= 4 and " and " not in text
    return Value(match[1]) if match and is_single else None


def legislature(text: str) -> Value | None:
    """The legislature's English name, its local name as an alias."""
    match = re.fullmatch(r"([^();,/]+?)(?: \(([^()/,]+)\))?", text)
    if match is None or " - " in text or len(match[1].split()) > 6:
        return None
    return Value(match[1], (match[2],) if match[2] and " or " not in match[2] else ())


def government_type(text: str) -> Value | None:
    """A government type of at most five words with nothing added."""
    is_plain = re.fullmatch(r"[a-z -]+", text) and len(text.split()) <= 5
    return Value(text) if is_plain else None


def first_listed(text: str) -> Value | None:
    """The first of a plain list: "natural gas" from "natural gas, crude petroleum, iron bars (2023)"."""
    match = re.match(r"([a-z][a-z ]+), [a-z]", text)
    return Value(match[1]) if match and len(match[1].split()) <= 3 else None


def former_name(text: str) -> Value | None:
    """A single former name."""
    match = re.fullmatch(r"[A-Z][^();,:/]+", text)
    return Value(text) if match and len(text.split()) <= 4 else None
