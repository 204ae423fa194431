"""Verdicts of the doctor."""

from __future__ import annotations

import importlib.metadata
import socket

import pytest

from search_rl import health


@pytest.mark.parametrize(("version", "fatal"), [((3, 10), True), ((3, 11), False), ((3, 12), False), ((3, 13), True)])
def test_supported_pythons(version: tuple[int, int], fatal: bool) -> None:
    """Catches a range that is off by one version."""
    assert health.python_version(version).is_fatal is fatal


def test_another_version_of_a_pinned_package_is_fatal() -> None:
    """Catches a doctor that only looks whether a package is there."""
    found = importlib.metadata.version("typer")
    right, wrong = (next(iter(health.packages({"typer": pin}, faiss="typer"))) for pin in (found, "0.0.1"))
    assert (right.is_fatal, wrong.is_fatal) == (False, True)
    assert "0.0.1" in wrong.advice and wrong.value == found


def test_a_missing_package_is_fatal() -> None:
    """Catches a missing package that ends in a traceback or in silence."""
    assert next(iter(health.packages({"no-such-package": "1"}, faiss="typer"))).value == "not installed"


def test_size_counts_in_gib() -> None:
    """Catches a mix-up of GB and GiB at the limit."""
    assert health.size("disk", 3 * 1024**3, 3, "free some").is_fatal is False
    assert health.size("disk", 3 * 10**9, 3, "free some").advice == "needs 3 GiB: free some"


def test_slow_cpu_is_a_note_and_not_fatal() -> None:
    """Catches a doctor that turns away a machine which is only slow."""
    assert health.cpu_features(frozenset({"avx2"})).is_fatal is False
    assert health.cpu_features(frozenset({"avx2"})).advice != ""
    assert health.cpu_features(frozenset({"avx512_bf16"})).advice == ""


def test_a_retriever_that_is_away_is_fatal() -> None:
    """Catches a connection error that escapes as a traceback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert health.retriever(f"http://127.0.0.1:{port}/retrieve").is_fatal is True
    assert health.retriever("not a url").is_fatal is True
