"""The episode: engine and environment take turns until the policy answers or a budget ends.

The only loop there is: training, evaluation and `ask` all run it. It is token in, token out: sampled ids are
appended as they are, an observation is encoded apart, and nothing is decoded and encoded again (invariant 1).
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass, field, replace

from search_rl.agent.environment import Environment, least_tokens
from search_rl.agent.protocols import AgentProtocol
from search_rl.agent.reasoning import without_reasoning
from search_rl.codec import Codec
from search_rl.engines.base import Engine, Generation
from search_rl.errors import ConfigError, DataError, EngineError, RetrieverError
from search_rl.search import Searcher
from search_rl.types import (
    Answer,
    Origin,
    Question,
    Search,
    Segment,
    StopReason,
    Trajectory,
    Turn,
)

MIN_TURN_TOKENS = 16
"""No observation is given unless this much room is left for the policy to react to it."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of an episode; the defaults are Search-R1's. `max_turns` may search, then one more turn may
    only answer.

    `max_response_tokens` counts policy and environment tokens together. Raises ConfigError for limits under
    which no search could be answered.
    """

    max_turns: int = 4
    max_turn_tokens: int = 500
    max_observation_tokens: int = 500
    max_prompt_tokens: int = 2048
    max_response_tokens: int = 4096
    top_k: int = 3

    def __post_init__(self) -> None:
        for name in (
            "max_turn_tokens",
            "max_observation_tokens",
            "max_prompt_tokens",
            "max_response_tokens",
            "top_k",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_turns < 0:
            raise ConfigError(f"max_turns must be at least 0, got {self.max_turns}")
        if self.max_response_tokens < self.min_response_tokens:
            raise ConfigError(
                f"max_response_tokens={self.max_response_tokens} is too small: "
                f"one turn (max_turn_tokens={self.max_turn_tokens}), "
                f"its observation (max_observation_tokens={self.max_observation_tokens}) "
                f"and {MIN_TURN_TOKENS} tokens to go on need {self.min_response_tokens}"
            )

    @property
    def min_response_tokens(self) -> int:
        """The response budget under which a first search of full length could not be answered."""
        answered_search_tokens = self.max_observation_tokens + MIN_TURN_TOKENS if self.max_turns else 0
        return self.max_turn_tokens + answered_search_tokens

    @property
    def max_context_tokens(self) -> int:
        """The longest sequence that an episode can build."""
        return self.max_prompt_tokens + self.max_response_tokens

    def check_context(self, max_model_tokens: int | None) -> None:
        """Raise ConfigError when the model's context (None: unknown) is too small for the prompt and the response."""
        if max_model_tokens is not None and self.max_context_tokens > max_model_tokens:
            raise ConfigError(
                f"a context of {max_model_tokens} tokens cannot hold "
                f"max_prompt_tokens={self.max_prompt_tokens} + "
                f"max_response_tokens={self.max_response_tokens}: lower one of them"
            )


async def run_episode(
    question: Question,
    *,
    engine: Engine,
    searcher: Searcher,
    codec: Codec,
    protocol: AgentProtocol,
    limits: Limits,
    request_id: str | None = None,
) -> Trajectory:
    """The whole episode of one question; a failed search ends it as void, and no other failure is swallowed.

    `request_id` names the episode to the engine (a fresh one when None) and must differ between siblings.
    Raises DataError for a question over `max_prompt_tokens` (it is never cut, invariant 5), ConfigError for
    an observation budget that cannot hold an observation, EngineError when the engine fails or breaks its
    contract.
    """
    environment = Environment(searcher, codec, protocol, limits.top_k)
    check_observation_budget(codec, protocol, limits)
    prompt = Segment(Origin.PROMPT, _prompt_ids(question, codec=codec, protocol=protocol, limits=limits))
    transcript = _Transcript(prompt, limits, codec, protocol)
    request_id = request_id or uuid.uuid4().hex
    failure = ""
    while True:
        turn = await _policy_turn(transcript, engine=engine, request_id=request_id)
        stop_reason = _stop_reason(turn, transcript, environment)
        if stop_reason is None:
            try:
                turn = await _observed(turn, transcript, environment)
            except RetrieverError as error:
                _logger.warning("question %s is void: %s", question.key, error)
                stop_reason, failure = StopReason.SEARCH_FAILED, str(error)
        transcript.append(turn)
        if stop_reason is not None:
            return Trajectory(question, prompt, tuple(transcript.turns), stop_reason, failure)


@dataclass(slots=True)
class _Transcript:
    """What the policy sees (`token_ids`), and the turns that happened; both agree unless reasoning is dropped."""

    prompt: Segment
    limits: Limits
    codec: Codec
    protocol: AgentProtocol
    turns: list[Turn] = field(default_factory=list)
    token_ids: list[int] = field(init=False)
    num_response_tokens: int = 0

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt.token_ids)

    @property
    def room_tokens(self) -> int:
        """What is left of the response budget, which counts every token that was ever sampled or read."""
        return self.limits.max_response_tokens - self.num_response_tokens

    @property
    def turn_budget_tokens(self) -> int:
        """How long the next turn may be."""
        return min(self.limits.max_turn_tokens, self.room_tokens)

    @property
    def is_final_turn(self) -> bool:
        """True when the next turn may not search."""
        return len(self.turns) == self.limits.max_turns

    def observation_budget_tokens(self, turn: Turn) -> int:
        """How long the observation that closes `turn` may be; only passages fall under
        `max_observation_tokens`.
        """
        room = self.room_tokens - len(turn.policy.token_ids) - MIN_TURN_TOKENS
        return min(self.limits.max_observation_tokens, room) if isinstance(turn.action, Search) else room

    def append(self, turn: Turn) -> None:
        """Add a turn and its tokens."""
        self.turns.append(turn)
        policy_ids = turn.policy.token_ids
        environment_ids = () if turn.environment is None else turn.environment.token_ids
        self.num_response_tokens += len(policy_ids) + len(environment_ids)
        self.token_ids.extend(policy_ids if self.protocol.keep_reasoning else without_reasoning(self.codec, policy_ids))
        self.token_ids.extend(environment_ids)


async def _policy_turn(transcript: _Transcript, *, engine: Engine, request_id: str) -> Turn:
    """The next turn, as yet without an observation."""
    budget, protocol = transcript.turn_budget_tokens, transcript.protocol
    started = time.perf_counter()
    generation = await engine.generate(
        tuple(transcript.token_ids), max_tokens=budget, stop=protocol.stop, request_id=request_id
    )
    seconds = time.perf_counter() - started
    text = transcript.codec.decode(generation.token_ids)
    return Turn(_policy_segment(generation, budget), text, protocol.parse_action(text), generate_seconds=seconds)


def _policy_segment(generation: Generation, budget: int) -> Segment:
    """The sampled tokens, once the engine is known to have kept its contract."""
    num_tokens, num_logprobs = len(generation.token_ids), len(generation.logprobs)
    if not 1 <= num_tokens <= budget:
        raise EngineError(f"the engine returned {num_tokens} tokens, expected 1 to {budget}")
    if num_logprobs != num_tokens:
        raise EngineError(f"the engine returned {num_logprobs} log-probs for {num_tokens} tokens")
    return Segment(Origin.POLICY, tuple(generation.token_ids), tuple(generation.logprobs))


def _stop_reason(turn: Turn, transcript: _Transcript, environment: Environment) -> StopReason | None:
    """Why the episode ends with this turn's policy text, or None when an observation is due."""
    action = turn.action
    if isinstance(action, Answer):
        return StopReason.ANSWERED
    if transcript.is_final_turn:
        if isinstance(action, Search):
            return StopReason.MAX_TURNS
        is_cut = len(turn.policy.token_ids) == transcript.turn_budget_tokens
        return StopReason.MAX_TOKENS if is_cut else StopReason.MALFORMED
    if transcript.observation_budget_tokens(turn) < environment.least_tokens(action):
        return StopReason.MAX_TOKENS
    return None


async def _observed(turn: Turn, transcript: _Transcript, environment: Environment) -> Turn:
    """`turn` closed by what the environment says back."""
    assert not isinstance(turn.action, Answer)
    started = time.perf_counter()
    observation = await environment.respond(turn.action, max_tokens=transcript.observation_budget_tokens(turn))
    seconds = time.perf_counter() - started
    segment = Segment(Origin.ENVIRONMENT, environment.encode(observation, after=turn.policy.token_ids))
    return replace(turn, observation=observation, environment=segment, search_seconds=seconds)


def _prompt_ids(question: Question, *, codec: Codec, protocol: AgentProtocol, limits: Limits) -> tuple[int, ...]:
    """The prompt's tokens, whole."""
    token_ids = protocol.prompt_ids(codec, question)
    if len(token_ids) > limits.max_prompt_tokens:
        raise DataError(
            f"question {question.key}: its prompt has {len(token_ids)} tokens, more than "
            f"max_prompt_tokens={limits.max_prompt_tokens}: raise that or drop the question"
        )
    return token_ids


def check_observation_budget(codec: Codec, protocol: AgentProtocol, limits: Limits) -> None:
    """Raise ConfigError when the passages of as many queries as a turn may hold would never fit."""
    num_queries = protocol.max_queries
    least = least_tokens(Search("any", ("any",) * (num_queries - 1)), codec=codec, protocol=protocol)
    if limits.max_turns and limits.max_observation_tokens < least:
        raise ConfigError(
            f"max_observation_tokens={limits.max_observation_tokens} cannot hold an observation of "
            f"max_queries={num_queries}, which takes at least {least}: raise the one or lower the other"
        )
