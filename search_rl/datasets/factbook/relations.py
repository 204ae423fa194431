"""The relations of a country that can be asked for, as a table.

`{country}` in a wording takes a name or, in a two-hop question, a description of one.
"""

from __future__ import annotations

from dataclasses import dataclass

from search_rl.datasets.factbook import parsing
from search_rl.datasets.factbook.corpus import FIELDS, Field
from search_rl.datasets.factbook.parsing import Parse


@dataclass(frozen=True, slots=True)
class Relation:
    """One fact of a country: where it stands, how its value is read, how it is asked and searched for."""

    name: str
    heading: str
    subfield: str
    parse: Parse
    query: str
    wordings: tuple[str, ...]

    @property
    def field(self) -> Field:
        """The field whose passage holds the value."""
        return next(field for field in FIELDS if field.heading == self.heading)


_METERS = parsing.quantity("m", unit_aliases=("meters",))
_KILOMETERS = parsing.quantity("km", unit_aliases=("kilometers",))
_YEARS = parsing.quantity("years")

RELATIONS: tuple[Relation, ...] = (
    Relation(
        "capital",
        "Capital",
        "name",
        parsing.place,
        "capital",
        (
            "What is the capital of {country}?",
            "Which city is the capital of {country}?",
            "Name the capital city of {country}.",
            "In which city does {country} have its capital?",
        ),
    ),
    Relation(
        "currency",
        "Currency",
        "Currency",
        parsing.currency,
        "currency",
        (
            "What is the currency of {country}?",
            "Which currency is used in {country}?",
            "With what money do people pay in {country}?",
            "Name the currency of {country}.",
        ),
    ),
    Relation(
        "currency-code",
        "Currency",
        "Currency",
        parsing.currency_code,
        "currency code",
        (
            "What is the three-letter code of the currency of {country}?",
            "Under which three-letter code is the currency of {country} traded?",
            "Give the currency code of {country}.",
        ),
    ),
    Relation(
        "internet-code",
        "Internet country code",
        "",
        parsing.internet_code,
        "internet country code",
        (
            "What is the internet country code of {country}?",
            "Which top-level domain belongs to {country}?",
            "In which country code do web addresses of {country} end?",
        ),
    ),
    Relation(
        "aircraft-prefix",
        "Aircraft registration prefix",
        "",
        parsing.aircraft_prefix,
        "aircraft registration prefix",
        (
            "What is the aircraft registration prefix of {country}?",
            "With which prefix are civil aircraft of {country} registered?",
            "Which registration prefix do planes from {country} carry?",
        ),
    ),
    Relation(
        "chief-of-state",
        "Chief of state",
        "chief of state",
        parsing.person,
        "chief of state",
        (
            "Who is the chief of state of {country}?",
            "Who is the head of state of {country}?",
            "Name the chief of state of {country}.",
        ),
    ),
    Relation(
        "chief-of-state-since",
        "Chief of state",
        "chief of state",
        parsing.tenure_start,
        "chief of state since",
        (
            "Since what date has the chief of state of {country} been in office?",
            "When did the chief of state of {country} take office?",
            "On which date did the present head of state of {country} come to power?",
        ),
    ),
    Relation(
        "prime-minister",
        "Head of government",
        "head of government",
        parsing.prime_minister,
        "head of government",
        (
            "Who is the prime minister of {country}?",
            "Who heads the government of {country}?",
            "Name the head of government of {country}.",
        ),
    ),
    Relation(
        "ambassador",
        "Ambassador to the US",
        "chief of mission",
        parsing.ambassador,
        "ambassador to the US",
        (
            "Who is the ambassador of {country} to the US?",
            "Who represents {country} as ambassador in Washington?",
            "Name the ambassador that {country} has sent to the US.",
        ),
    ),
    Relation(
        "legislature",
        "Legislature",
        "legislature name",
        parsing.legislature,
        "legislature",
        (
            "What is the legislature of {country} called?",
            "What is the name of the parliament of {country}?",
            "Name the lawmaking body of {country}.",
        ),
    ),
    Relation(
        "government-type",
        "Government type",
        "",
        parsing.government_type,
        "government type",
        (
            "What is the government type of {country}?",
            "What form of government does {country} have?",
            "How is the system of government of {country} classified?",
        ),
    ),
    Relation(
        "independence-date",
        "Independence",
        "",
        parsing.independence_date,
        "independence date",
        (
            "When did {country} become independent?",
            "On what date did {country} gain independence?",
            "What is the date of independence of {country}?",
        ),
    ),
    Relation(
        "national-holiday",
        "National holiday",
        "",
        parsing.holiday_date,
        "national holiday",
        (
            "On what day is the national holiday of {country}?",
            "When does {country} celebrate its national holiday?",
            "On which day of the year does the national holiday of {country} fall?",
        ),
    ),
    Relation(
        "anthem",
        "National anthem",
        "title",
        parsing.anthem,
        "national anthem",
        (
            "What is the national anthem of {country}?",
            "What is the title of the anthem of {country}?",
            "Which song is the national anthem of {country}?",
        ),
    ),
    Relation(
        "symbol",
        "National symbol",
        "",
        parsing.symbol,
        "national symbol",
        (
            "What is the national symbol of {country}?",
            "Which symbol stands for {country}?",
            "What serves as the national symbol of {country}?",
        ),
    ),
    Relation(
        "highest-point",
        "Elevation",
        "highest point",
        parsing.peak,
        "highest point elevation",
        (
            "What is the highest point of {country}?",
            "Which mountain or place is the highest in {country}?",
            "Name the highest point in {country}.",
        ),
    ),
    Relation(
        "highest-elevation",
        "Elevation",
        "highest point",
        parsing.peak_height,
        "highest point elevation",
        (
            "How many meters high is the highest point of {country}?",
            "What is the elevation of the highest point in {country}, in meters?",
            "How high does the land rise in {country}, in meters?",
        ),
    ),
    Relation(
        "mean-elevation",
        "Elevation",
        "mean elevation",
        _METERS,
        "mean elevation",
        (
            "What is the mean elevation of {country} in meters?",
            "How many meters above the sea is the average point in {country}?",
            "What is the average height of the land in {country}, in meters?",
        ),
    ),
    Relation(
        "area",
        "Area",
        "total",
        parsing.quantity("sq km", unit_aliases=("square kilometers",)),
        "total area",
        (
            "What is the total area of {country} in sq km?",
            "How many square kilometers does {country} cover?",
            "How large is {country} in square kilometers?",
        ),
    ),
    Relation(
        "coastline",
        "Coastline",
        "",
        _KILOMETERS,
        "coastline length",
        (
            "How long is the coastline of {country} in km?",
            "What is the length of the coast of {country} in kilometers?",
            "How many kilometers of shore belong to {country}?",
        ),
    ),
    Relation(
        "land-boundaries",
        "Land boundaries",
        "total",
        _KILOMETERS,
        "land boundaries total",
        (
            "How long are the land boundaries of {country} in km?",
            "What is the total length of the land borders of {country} in kilometers?",
            "How many kilometers of border on land does {country} have?",
        ),
    ),
    Relation(
        "population",
        "Population",
        "total",
        parsing.quantity(),
        "total population",
        (
            "What is the population of {country}?",
            "How many people live in {country}?",
            "How many inhabitants does {country} have?",
        ),
    ),
    Relation(
        "median-age",
        "Median age",
        "total",
        _YEARS,
        "median age",
        (
            "What is the median age in {country}?",
            "What is the total median age of the people of {country}, in years?",
            "Half of the people of {country} are younger than how many years?",
        ),
    ),
    Relation(
        "life-expectancy",
        "Life expectancy at birth",
        "total population",
        _YEARS,
        "life expectancy at birth",
        (
            "What is the life expectancy at birth in {country}?",
            "How many years can a newborn child in {country} expect to live?",
            "How long do people in {country} live on average, in years?",
        ),
    ),
    Relation(
        "fertility",
        "Total fertility rate",
        "",
        parsing.quantity("children born/woman", unit_aliases=("children per woman",)),
        "total fertility rate",
        (
            "What is the total fertility rate of {country}?",
            "How many children does a woman in {country} bear on average?",
            "How many children are born per woman in {country}?",
        ),
    ),
    Relation(
        "urban-population",
        "Urbanization",
        "urban population",
        parsing.quantity("%", unit_aliases=("percent",)),
        "urban population",
        (
            "What share of the population of {country} is urban?",
            "What percentage of the people of {country} live in cities?",
            "How large is the urban share of the population of {country}?",
        ),
    ),
    Relation(
        "top-export",
        "Export commodities",
        "",
        parsing.first_listed,
        "export commodities",
        (
            "What is the top export commodity of {country}?",
            "Which commodity comes first among the exports of {country}?",
            "Which good earns {country} the most from export?",
        ),
    ),
    Relation(
        "airports",
        "Airports",
        "",
        parsing.quantity(),
        "number of airports",
        (
            "How many airports does {country} have?",
            "How many airports are there in {country}?",
            "What is the number of airports in {country}?",
        ),
    ),
    Relation(
        "railways",
        "Railways",
        "total",
        _KILOMETERS,
        "railways total length",
        (
            "How long is the railway network of {country} in km?",
            "How many kilometers of railways does {country} have?",
            "What is the total length of the railways of {country} in kilometers?",
        ),
    ),
    Relation("former-name", "Country name", "former", parsing.former_name, "former name", ()),
)
