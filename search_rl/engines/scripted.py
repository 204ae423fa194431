"""An engine that replies from a script: for tests, documentation and program-made demonstrations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from search_rl.codec import Codec
from search_rl.engines.base import Generation, length_to_stop
from search_rl.errors import EngineError


@dataclass(frozen=True, slots=True)
class Call:
    """What one `generate` was asked."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    request_id: str


@dataclass(slots=True)
class ScriptedEngine:
    """Reply i of the script is turn i of every episode, cut where a real engine would stop.

    A reply is a text (each token gets `logprob`) or a Generation. `calls` keeps what was asked, in order.
    """

    replies: Sequence[str | Generation]
    codec: Codec
    logprob: float = -0.5
    calls: list[Call] = field(default_factory=list)
    _turns: Counter[str] = field(default_factory=Counter)
    _made: dict[tuple[int, tuple[str, ...]], Generation] = field(default_factory=dict)

    async def generate(
        self, prompt_ids: Sequence[int], *, max_tokens: int, stop: Sequence[str], request_id: str
    ) -> Generation:
        """See `Engine.generate`. Raises EngineError when the script has no more replies."""
        self.calls.append(Call(tuple(prompt_ids), max_tokens, request_id))
        turn = self._turns[request_id]
        self._turns[request_id] += 1
        if turn >= len(self.replies):
            raise EngineError(f"the script has {len(self.replies)} replies, turn {turn + 1} asked for another")
        reply = self._reply(turn, tuple(stop))
        return Generation(reply.token_ids[:max_tokens], reply.logprobs[:max_tokens])

    def _reply(self, turn: int, stop: tuple[str, ...]) -> Generation:
        """The reply of a turn up to its stop string, made once."""
        if (turn, stop) not in self._made:
            reply = self.replies[turn]
            if isinstance(reply, str):
                token_ids = self.codec.encode(reply)
                reply = Generation(token_ids, (self.logprob,) * len(token_ids))
            end = length_to_stop(reply.token_ids, stop, self.codec.decode)
            self._made[turn, stop] = Generation(reply.token_ids[:end], reply.logprobs[:end])
        return self._made[turn, stop]
