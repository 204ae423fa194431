"""verl's FSDP engines with what ours add; registered for the accelerator's vendor, which verl looks up first."""

from __future__ import annotations

from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

from search_rl.training.engine import SearchEngine


class GpuEngine(SearchEngine, FSDPEngineWithLMHead):
    """The language-model engine on accelerators."""


class GpuCritic(SearchEngine, FSDPEngineWithValueHead):
    """The critic's engine on accelerators."""
