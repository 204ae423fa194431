"""Budgets under a name, so that a report can say in one word under which rules an agent worked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Preset = Mapping[str, Mapping[str, Any]]

PAPER: Preset = {
    "agent": {
        "max_turns": 4,
        "max_turn_tokens": 500,
        "max_observation_tokens": 500,
        "max_prompt_tokens": 2048,
        "max_response_tokens": 4096,
        "max_queries": 1,
    },
    "retriever": {"top_k": 3},
    "rollout": {"temperature": 1.0, "top_p": 1.0},
}
"""Search-R1's numbers (2503.09516). Its five turns of 500 tokens and four observations of 500 need 4500, so a long
episode can end before its answer: there the answer is cut off, here the stop reason is max_tokens."""

DEFAULT: Preset = {**PAPER, "agent": {**PAPER["agent"], "max_response_tokens": 4500}}
"""The same with a response budget that holds every turn and every observation at full length."""

PRESETS: Mapping[str, Preset] = {"default": DEFAULT, "paper": PAPER}


def budgets_label(preset: str, **values: object) -> str:
    """The preset's name, and the `values` that depart from it: "paper" or "paper, but max_turns=3"."""
    named = {key: value for section in PRESETS[preset].values() for key, value in section.items()}
    changed = [f"{name}={value}" for name, value in values.items() if named[name] != value]
    return f"{preset}, but {', '.join(changed)}" if changed else preset
