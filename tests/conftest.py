"""Properties are not timed: the first example pays for imports, and the machine may be busy. Quick tests go first."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A mistake shows in the first minute; files stay together, so that what they share is made once."""
    items.sort(key=lambda item: item.get_closest_marker("engine") is not None)
