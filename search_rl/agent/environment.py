"""What the environment says back, as text: passages fitted to a token budget, or a correction.

Retrieved text is untrusted: its protocol tags are neutralised (`protocols.neutralise`) before anyone reads
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from search_rl.agent.protocols import AgentProtocol, neutralise
from search_rl.codec import Codec
from search_rl.search import Searcher
from search_rl.types import Malformed, Observation, ScoredPassage, Search, SearchResult

_MIN_PASSAGES_TOKENS = 16
_LONGEST_PARTIAL_WORD = 24


@dataclass(frozen=True, slots=True)
class Environment:
    """Answers searches with passages and malformed turns with a correction."""

    searcher: Searcher
    codec: Codec
    protocol: AgentProtocol
    top_k: int

    def least_tokens(self, action: Search | Malformed) -> int:
        """See the function `least_tokens`."""
        return least_tokens(action, codec=self.codec, protocol=self.protocol)

    def encode(self, observation: Observation, *, after: Sequence[int]) -> tuple[int, ...]:
        """The tokens of an observation behind the policy's tokens `after`."""
        return self.protocol.observation_ids(self.codec, observation, after=after)

    async def respond(self, action: Search | Malformed, *, max_tokens: int) -> Observation:
        """The observation for `action`, at most `max_tokens` long, which must be at least
        `least_tokens(action)`.

        Raises RetrieverError when the search fails.
        """
        if isinstance(action, Malformed):
            return Observation(self.protocol.correction)
        results = await asyncio.gather(*(self.searcher.search(query, self.top_k) for query in action.queries))
        return fit_observation(results, codec=self.codec, protocol=self.protocol, max_tokens=max_tokens)


def least_tokens(action: Search | Malformed, *, codec: Codec, protocol: AgentProtocol) -> int:
    """Tokens of the shortest observation that is worth giving for `action`."""
    if isinstance(action, Malformed):
        return len(protocol.observation_ids(codec, Observation(protocol.correction), after=()))
    nothing = tuple(SearchResult(query, ()) for query in action.queries)
    empty = Observation(protocol.render_passages([""] * len(nothing)), nothing)
    return len(protocol.observation_ids(codec, empty, after=())) + _MIN_PASSAGES_TOKENS


def fit_observation(
    results: Sequence[SearchResult], *, codec: Codec, protocol: AgentProtocol, max_tokens: int
) -> Observation:
    """The passages of all results as one observation of at most `max_tokens`, each shortened at its end to a fair
    share (invariant 5).

    Short passages keep all their tokens and the long ones share what is left equally. Each passage is
    tokenised once. Raises ValueError when not even an observation without passages fits.
    """
    results = tuple(results)
    lines = [passage_line(position, hit) for result in results for position, hit in enumerate(result.passages, start=1)]

    def observation(lines: Sequence[str], num_shortened: int) -> tuple[Observation, int]:
        seen = Observation(protocol.render_passages(_blocks(lines, results)), results, num_shortened)
        return seen, len(protocol.observation_ids(codec, seen, after=()))

    seen, num_tokens = observation(lines, 0)
    if num_tokens <= max_tokens:
        return seen
    available = max_tokens - observation([""] * len(lines), 0)[1]
    if available < 0:
        raise ValueError(f"an observation without passages needs {max_tokens - available} tokens, got {max_tokens}")
    lines_ids = [codec.encode(line) for line in lines]
    while num_tokens > max_tokens:
        fitted = _shorten(codec, lines, lines_ids, available)
        num_shortened = sum(kept != line for kept, line in zip(fitted, lines, strict=True))
        seen, num_tokens = observation(fitted, num_shortened)
        # Tokens merge and split where pieces join, so the whole is counted and the overshoot taken off.
        available = max(available - (num_tokens - max_tokens), 0)
    return seen


def _blocks(lines: Sequence[str], results: Sequence[SearchResult]) -> list[str]:
    """The lines of each result as one text; a line that came out empty is left out."""
    waiting = iter(lines)
    return ["\n".join(filter(None, islice(waiting, len(result.passages)))) for result in results]


def _shorten(codec: Codec, lines: Sequence[str], lines_ids: Sequence[Sequence[int]], available: int) -> list[str]:
    """The lines cut to fair shares of `available` tokens; a line may come out empty."""
    shares = fair_shares([len(token_ids) for token_ids in lines_ids], available)
    return [
        line if share >= len(token_ids) else _beginning(codec, token_ids, share)
        for line, token_ids, share in zip(lines, lines_ids, shares, strict=True)
    ]


def passage_line(position: int, hit: ScoredPassage) -> str:
    """Search-R1's `Doc i(Title: "T") text` on one line, with protocol tags neutralised."""
    passage = hit.passage
    line = f'Doc {position}(Title: "{passage.title}") {passage.text}'
    return neutralise(" ".join(line.split()))


def fair_shares(lengths: Sequence[int], total: int) -> list[int]:
    """How many of `total` units each taker of at most `lengths[i]` gets: all get the same, save those who
    need less.
    """
    shares = [0] * len(lengths)
    takers = sorted(range(len(lengths)), key=lambda index: lengths[index])
    for num_served, index in enumerate(takers):
        shares[index] = min(lengths[index], total // (len(takers) - num_served))
        total -= shares[index]
    return shares


def _beginning(codec: Codec, token_ids: Sequence[int], num_tokens: int) -> str:
    """The first `num_tokens` as text, less a half character, and less a half word unless that is long."""
    kept = codec.decode(token_ids[:num_tokens]).rstrip("\ufffd")
    head, _, partial_word = kept.rpartition(" ")
    return head.rstrip() if head and len(partial_word) <= _LONGEST_PARTIAL_WORD else kept.rstrip()
