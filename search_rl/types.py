"""The vocabulary: frozen values that every other module moves.

Nothing here talks to a model, a file or a network. Counts are in tokens or turns; log-probabilities are natural logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from retriever_server.schema import Passage, ScoredPassage


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its accepted answers. `kind` (one_hop, two_hop, comparison, …) is for reports only.

    Evidence is named by passage, or by the titles of articles where the set knows no passages (`search_rl.evidence`).
    """

    id: str
    text: str
    golden_answers: tuple[str, ...]
    dataset: str
    kind: str = ""
    evidence_ids: tuple[str, ...] = ()
    evidence_titles: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """A key that two data sets cannot share, for groups of siblings (invariant 8)."""
        return f"{len(self.dataset)}:{self.dataset}/{self.id}"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What the retriever returned for one query; no passages is a normal result of a healthy search."""

    query: str
    passages: tuple[ScoredPassage, ...]


@dataclass(frozen=True, slots=True)
class Search:
    """The policy asks the retriever for `query`, and for `more_queries` in the same turn."""

    query: str
    more_queries: tuple[str, ...] = ()

    @property
    def queries(self) -> tuple[str, ...]:
        """All queries of the turn in the order they were written, at least one."""
        return (self.query, *self.more_queries)


@dataclass(frozen=True, slots=True)
class Answer:
    """The policy ends the episode with `text`."""

    text: str


@dataclass(frozen=True, slots=True)
class Malformed:
    """The policy's turn holds no action that the protocol knows; `reason` is shown to people, not to the policy."""

    reason: str


Action = Search | Answer | Malformed


@dataclass(frozen=True, slots=True)
class Observation:
    """What the environment says back; `results` has one entry a query, and is empty for corrective text."""

    text: str
    results: tuple[SearchResult, ...] = ()
    num_passages_shortened: int = 0


class Origin(StrEnum):
    """Who wrote a run of tokens."""

    PROMPT = "prompt"
    POLICY = "policy"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens by one author. A policy segment has one log-prob a token, any other has none.

    Raises ValueError when that does not hold (invariant 4).
    """

    origin: Origin
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        expected = len(self.token_ids) if self.origin is Origin.POLICY else 0
        if len(self.logprobs) != expected:
            raise ValueError(
                f"{self.origin} segment of {len(self.token_ids)} tokens has {len(self.logprobs)} log-probs, "
                f"expected {expected}"
            )

    @property
    def is_policy(self) -> bool:
        """True when the policy sampled these tokens."""
        return self.origin is Origin.POLICY


@dataclass(frozen=True, slots=True)
class Turn:
    """One policy segment, what it asked for, and what the environment said back (None ends the episode)."""

    policy: Segment
    text: str
    action: Action
    observation: Observation | None = None
    environment: Segment | None = None
    generate_seconds: float = 0.0
    search_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.policy.is_policy:
            raise ValueError(f"a turn begins with a policy segment, got {self.policy.origin}")
        if (self.observation is None) != (self.environment is None):
            raise ValueError("a turn has both an observation and its tokens, or neither")
        if self.environment is not None and not self.environment.token_ids:
            raise ValueError("an observation needs at least one token (invariant 3)")


class StopReason(StrEnum):
    """Why an episode ended."""

    ANSWERED = "answered"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    MALFORMED = "malformed"
    SEARCH_FAILED = "search_failed"
    ENGINE_FAILED = "engine_failed"


@dataclass(frozen=True, slots=True)
class Trajectory:
    """An episode as tokens: the prompt, then turns. Masks and flat lists are derived, never stored twice.

    `given` is what the prompt itself holds of the corpus: found by a search for its query, which took
    `given_seconds`, or handed over, and then its query is empty. `failure` says what became of a search or a request
    that failed.
    """

    question: Question
    prompt: Segment
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    failure: str = ""
    given: SearchResult | None = None
    given_seconds: float = 0.0

    def __post_init__(self) -> None:
        if any(turn.environment is None for turn in self.turns[:-1]):
            raise ValueError("every turn but the last needs an observation (invariant 3)")

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The response side in order, prompt left out."""
        pairs = ((turn.policy, turn.environment) for turn in self.turns)
        return tuple(segment for pair in pairs for segment in pair if segment is not None)

    @property
    def response_ids(self) -> tuple[int, ...]:
        """All tokens after the prompt."""
        return tuple(token_id for segment in self.segments for token_id in segment.token_ids)

    @property
    def response_mask(self) -> tuple[bool, ...]:
        """True exactly where the policy sampled the token (invariant 2)."""
        return tuple(segment.is_policy for segment in self.segments for _ in segment.token_ids)

    @property
    def response_logprobs(self) -> tuple[float, ...]:
        """The sampling log-prob of each response token, 0.0 where the environment wrote it."""
        return tuple(
            logprob for segment in self.segments for logprob in segment.logprobs or (0.0,) * len(segment.token_ids)
        )

    @property
    def results(self) -> tuple[SearchResult, ...]:
        """The searches that were answered, in order; one whose passages the prompt holds comes first."""
        observations = (turn.observation for turn in self.turns)
        asked = tuple(result for seen in observations if seen is not None for result in seen.results)
        return (self.given, *asked) if self.given is not None and self.given.query else asked

    @property
    def passages_read(self) -> tuple[Passage, ...]:
        """All passages that the policy was shown, in order, also those that nobody searched for."""
        handed_over = () if self.given is None or self.given.query else (self.given,)
        return tuple(hit.passage for result in (*handed_over, *self.results) for hit in result.passages)

    @property
    def num_searches(self) -> int:
        """Searches that were answered; a search asked for in the final turn is not one (Search-R1 counts it)."""
        return len(self.results)

    @property
    def answer(self) -> str | None:
        """The text of the answer that ended the episode, None when nothing was answered (invariant 6)."""
        last = self.turns[-1].action if self.turns else None
        return last.text if self.stop_reason is StopReason.ANSWERED and isinstance(last, Answer) else None

    @property
    def is_void(self) -> bool:
        """True when a failed search or engine spoiled the episode: it is counted, and never trained on
        (invariant 7).
        """
        return self.stop_reason in (StopReason.SEARCH_FAILED, StopReason.ENGINE_FAILED)


@dataclass(frozen=True, slots=True)
class Reward:
    """A score and the unweighted parts that it was made of; `failure` says why there is none."""

    total: float
    parts: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A scored trajectory; siblings of one question share `group_id`."""

    trajectory: Trajectory
    reward: Reward
    group_id: str

    @property
    def is_void(self) -> bool:
        """True when a search or the reward failed: counted, and never trained on (invariant 7)."""
        return self.trajectory.is_void or bool(self.reward.failure)

    @property
    def failure(self) -> str:
        """What made it void, empty where nothing did."""
        return self.trajectory.failure or self.reward.failure


__all__ = [
    "Action",
    "Answer",
    "Malformed",
    "Observation",
    "Origin",
    "Passage",
    "Question",
    "Reward",
    "Rollout",
    "ScoredPassage",
    "Search",
    "SearchResult",
    "Segment",
    "StopReason",
    "Trajectory",
    "Turn",
]
