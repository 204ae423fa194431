"""How one question needs two passages: bridges that describe a country, and comparisons of two."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bridge:
    """A description that one country alone fits, by the value of a relation, and the search that finds it."""

    relation: str
    query: str
    descriptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A relation by which two countries are told apart; values must differ clearly, yet not so much that
    anyone knows the answer without a search."""

    relation: str
    more: tuple[str, ...]
    less: tuple[str, ...]
    min_ratio: float = 1.2
    max_ratio: float = 5.0
    min_gap: float = 0.0

    def tells_apart(self, first: float, second: float) -> bool:
        """True when the difference is beyond doubt and within bounds."""
        low, high = sorted((first, second))
        return high - low >= self.min_gap and self.min_ratio * low <= high <= self.max_ratio * low


BRIDGES: tuple[Bridge, ...] = (
    Bridge(
        "capital",
        "{value} capital",
        (
            "the country whose capital is {value}",
            "the country that is governed from {value}",
            "the country that has {value} as its capital city",
        ),
    ),
    Bridge(
        "internet-code",
        "internet code {value}",
        (
            "the country whose internet country code is {value}",
            "the country with the top-level domain {value}",
        ),
    ),
    Bridge(
        "aircraft-prefix",
        "aircraft registration prefix {value}",
        ("the country whose civil aircraft carry the registration prefix {value}",),
    ),
    Bridge(
        "highest-point",
        "highest point {value}",
        ("the country whose highest point is {value}", "the country in which {value} is the highest point"),
    ),
    Bridge(
        "anthem",
        "national anthem {value}",
        ('the country whose national anthem is "{value}"', 'the country that has "{value}" as its anthem'),
    ),
    Bridge(
        "chief-of-state",
        "chief of state {value}",
        ("the country whose chief of state is {value}", "the country that has {value} as its head of state"),
    ),
    Bridge(
        "prime-minister",
        "prime minister {value}",
        ("the country whose prime minister is {value}", "the country whose government is headed by {value}"),
    ),
    Bridge("ambassador", "ambassador to the US {value}", ("the country whose ambassador to the US is {value}",)),
    Bridge(
        "former-name",
        "country with former name {value}",
        ("the country that was formerly called {value}", "the country once known as {value}"),
    ),
)

COMPARISONS: tuple[Comparison, ...] = (
    Comparison(
        "population",
        more=(
            "Which has the larger population, {first} or {second}?",
            "Do more people live in {first} or in {second}?",
            "Of {first} and {second}, which one has more inhabitants?",
        ),
        less=(
            "Which has the smaller population, {first} or {second}?",
            "Do fewer people live in {first} or in {second}?",
        ),
    ),
    Comparison(
        "area",
        more=(
            "Which is larger by area, {first} or {second}?",
            "Which covers more square kilometers, {first} or {second}?",
        ),
        less=(
            "Which is smaller by area, {first} or {second}?",
            "Which takes up less room on the map, {first} or {second}?",
        ),
    ),
    Comparison(
        "highest-elevation",
        more=(
            "Whose highest point is higher, that of {first} or that of {second}?",
            "Does the land rise higher in {first} or in {second}?",
        ),
        less=("Whose highest point is lower, that of {first} or that of {second}?",),
    ),
    Comparison(
        "coastline",
        more=(
            "Which has the longer coast, {first} or {second}?",
            "Is there more shore in {first} or in {second}?",
        ),
        less=("Which has the shorter coast, {first} or {second}?",),
    ),
    Comparison(
        "median-age",
        more=(
            "Which has the higher median age, {first} or {second}?",
            "Are the people older on the whole in {first} or in {second}?",
        ),
        less=(
            "Which has the lower median age, {first} or {second}?",
            "Which has the younger people, {first} or {second}?",
        ),
        min_ratio=1.0,
        min_gap=3.0,
    ),
    Comparison(
        "life-expectancy",
        more=(
            "Do people live longer in {first} or in {second}?",
            "Which gives a newborn child the longer life, {first} or {second}?",
        ),
        less=("Which has the lower life expectancy, {first} or {second}?",),
        min_ratio=1.0,
        min_gap=3.0,
    ),
    Comparison(
        "fertility",
        more=(
            "Do women bear more children on average in {first} or in {second}?",
            "Are families larger by births per woman in {first} or in {second}?",
        ),
        less=("Which has the lower total fertility rate, {first} or {second}?",),
    ),
    Comparison(
        "urban-population",
        more=("Which has the larger urban share of its population, {first} or {second}?",),
        less=("Which has the smaller urban share of its population, {first} or {second}?",),
        min_ratio=1.15,
    ),
    Comparison(
        "airports",
        more=(
            "Which has more airports, {first} or {second}?",
            "Can planes land at more places in {first} or in {second}?",
        ),
        less=("Which has fewer airports, {first} or {second}?",),
    ),
    Comparison(
        "independence-date",
        more=("Which became independent later, {first} or {second}?",),
        less=(
            "Which became independent earlier, {first} or {second}?",
            "Which is older as an independent state, {first} or {second}?",
        ),
        min_ratio=1.0,
        min_gap=365.0,
    ),
)
