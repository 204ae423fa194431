"""Errors that end at the command line as one line: what, which value, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SearchRLError(Exception):
    """Base of all errors that are meant for the user's eyes."""


class ConfigError(SearchRLError):
    """A config file or override that cannot be used as it stands."""


class DataError(SearchRLError):
    """A data file with a row that cannot be used; the message names file and row."""


class ModelError(SearchRLError):
    """A model folder that is not a usable checkpoint."""


class RetrieverError(SearchRLError):
    """The retrieval service is away, too slow, or answers nonsense: never an observation (invariant 7)."""


class RetrieverOutage(RetrieverError):
    """No retrieval service has answered for as long as one may wait."""


class EngineError(SearchRLError):
    """The sampling engine failed, is silent, or disagrees with the trainer."""


class RequestError(EngineError):
    """The engine refused or lost one request for good; others may fare better, so an evaluation goes on."""


class RewardError(SearchRLError):
    """A user's reward function that raised or gave no finite number."""


class TrainingError(SearchRLError):
    """A training run that had to stop; what it wrote so far stays."""


def unknown_name(what: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for a name that is not among the `known` ones: it offers the nearest, or else all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    return ConfigError(f"unknown {what} {name!r}: {hint}")
