"""How long an engine was at work: an engine around another one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from search_rl.engines.base import Engine, Generation


@dataclass(slots=True)
class EngineClock:
    """An engine that counts the seconds in which at least one request was under way, each once."""

    engine: Engine
    _past_seconds: float = 0.0
    _num_running: int = 0
    _since: float = 0.0

    @property
    def busy_seconds(self) -> float:
        """So far, a request that is still under way included."""
        return self._past_seconds + (time.perf_counter() - self._since if self._num_running else 0.0)

    async def generate(
        self, prompt_ids: Sequence[int], *, max_tokens: int, stop: Sequence[str], request_id: str
    ) -> Generation:
        """See `Engine.generate`."""
        if not self._num_running:
            self._since = time.perf_counter()
        self._num_running += 1
        try:
            return await self.engine.generate(prompt_ids, max_tokens=max_tokens, stop=stop, request_id=request_id)
        finally:
            self._num_running -= 1
            if not self._num_running:
                self._past_seconds += time.perf_counter() - self._since
