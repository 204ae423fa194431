"""Train, dev and test countries: none in two splits, nor one whose name another split's contains."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence

from search_rl.datasets.factbook.facts import contains_words
from search_rl.datasets.factbook.source import Entry

SPLITS = ("train", "dev", "test")
_SHARES: Mapping[str, float] = {"test": 0.25, "dev": 0.13}


def split_countries(entries: Iterable[Entry], *, seed: int) -> dict[str, tuple[Entry, ...]]:
    """Countries by split, in name order; "Guinea" goes where "Papua New Guinea" goes."""
    families = _families(sorted(entries, key=lambda entry: entry.name))
    random.Random(f"{seed}/countries").shuffle(families)
    num_countries = sum(map(len, families))
    taken: dict[str, list[Entry]] = {split: [] for split in SPLITS}
    for family in families:
        open_splits = (split for split, share in _SHARES.items() if len(taken[split]) < share * num_countries)
        taken[next(open_splits, "train")] += family
    return {split: tuple(sorted(members, key=lambda entry: entry.name)) for split, members in taken.items()}


def naming(entries: Iterable[Entry]) -> re.Pattern[str]:
    """A pattern that finds any of the entries' names as whole words, upper and lower case alike."""
    names = sorted({name for entry in entries for name in entry.names}, key=lambda name: (-len(name), name))
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, names))})(?!\w)", re.IGNORECASE)


def _families(entries: Sequence[Entry]) -> list[list[Entry]]:
    families: list[list[Entry]] = []
    for entry in entries:
        related = [family for family in families if any(_share_name(entry, member) for member in family)]
        families = [family for family in families if family not in related]
        families.append([*(member for family in related for member in family), entry])
    return families


def _share_name(first: Entry, second: Entry) -> bool:
    return any(
        contains_words(one, other) or contains_words(other, one) for one in first.names for other in second.names
    )
