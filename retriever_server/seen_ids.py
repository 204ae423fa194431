"""Which ids were used, and where: 24 to 48 bytes an id, where a dict of them takes 130 and more."""

from __future__ import annotations

from array import array

_FIRST_SLOTS = 1 << 12
_KEY_MASK = (1 << 64) - 1


class SeenIds:
    """Open addressing over 64-bit hashes of the ids.

    Two ids with one hash would pass for a duplicate: one chance in 80,000 for a corpus of 21 million.
    """

    def __init__(self) -> None:
        self._count = 0
        self._keys = array("Q", bytes(8 * _FIRST_SLOTS))
        self._places = array("Q", bytes(8 * _FIRST_SLOTS))

    def claim(self, passage_id: str, place: int) -> int | None:
        """The place that the id was claimed for before; None when it was free, and is now this place's."""
        key = hash(passage_id) & _KEY_MASK or 1
        slot = self._slot(key)
        if self._keys[slot]:
            return self._places[slot]
        self._keys[slot], self._places[slot] = key, place
        self._count += 1
        if 3 * self._count > 2 * len(self._keys):
            self._grow()
        return None

    def _slot(self, key: int) -> int:
        """Where the key is, or belongs."""
        keys = self._keys
        mask = len(keys) - 1
        slot = key & mask
        while keys[slot] and keys[slot] != key:
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        old = zip(self._keys, self._places, strict=True)
        num_slots = 2 * len(self._keys)
        self._keys, self._places = array("Q", bytes(8 * num_slots)), array("Q", bytes(8 * num_slots))
        for key, place in old:
            if key:
                slot = self._slot(key)
                self._keys[slot], self._places[slot] = key, place
