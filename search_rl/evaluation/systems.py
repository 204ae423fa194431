"""Systems under test: ways to answer a question with a model and a retriever, all run by the one episode loop.

A baseline is the loop under other limits and another wording; what it reads without asking for it stands in its prompt.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from search_rl.agent.environment import fit_observation
from search_rl.agent.episode import Limits, run_episode
from search_rl.agent.protocols import AgentProtocol
from search_rl.codec import Codec
from search_rl.engines.base import Engine
from search_rl.errors import ConfigError, unknown_name
from search_rl.evaluation import wordings
from search_rl.evaluation.controls import CorpusSample, EmptySearcher, RandomSearcher
from search_rl.evaluation.wordings import CLOSING, Continuation, Wording
from search_rl.search import Searcher
from search_rl.types import (
    Observation,
    Origin,
    Question,
    SearchResult,
    Segment,
    StopReason,
    Trajectory,
)

ALL_SYSTEMS = "all"
_CLOSING_TOKENS = 16


class Given(StrEnum):
    """What the prompt holds of the corpus."""

    NOTHING = "nothing"
    FOUND = "found"
    GOLD = "gold"


class Retriever(StrEnum):
    """Who answers searches."""

    NONE = "none"
    SERVED = "served"
    RANDOM = "random"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class System:
    """One way to answer; without a `wording` it is the agent under its own protocol.

    A policy that `is_long` may write in its one turn as much as the agent in all of its turns.
    """

    name: str
    summary: str
    wording: Wording | None = None
    given: Given = Given.NOTHING
    retriever: Retriever = Retriever.NONE
    is_long: bool = False

    @property
    def is_interleaved(self) -> bool:
        """True when the policy's sentences are queries."""
        return isinstance(self.wording, wordings.Interleaving)

    @property
    def needs_corpus(self) -> bool:
        """True when passages are taken from the corpus and not from the retrieval service."""
        return self.given is Given.GOLD or self.retriever is Retriever.RANDOM

    def limits(self, agent: Limits) -> Limits:
        """The budgets that leave the system no more room than the agent has: its context, and its tokens to write.

        Raises ConfigError when the agent's are too small for it.
        """
        if self.wording is None:
            return agent
        given_tokens = 0 if self.given is Given.NOTHING else agent.max_observation_tokens
        prompt_tokens = agent.max_prompt_tokens + given_tokens
        if self.is_interleaved:
            closing_tokens = agent.max_turn_tokens + _CLOSING_TOKENS
            changes = {
                "max_turns": max(agent.max_turns - 1, 0),
                "max_response_tokens": agent.max_response_tokens - given_tokens - closing_tokens,
            }
        else:
            num_turns = agent.max_turns + 1 if self.is_long else 1
            turn_tokens = min(num_turns * agent.max_turn_tokens, agent.max_response_tokens)
            changes = {"max_turns": 0, "max_turn_tokens": turn_tokens, "max_response_tokens": turn_tokens}
        try:
            return replace(agent, max_prompt_tokens=prompt_tokens, **changes)
        except ConfigError as error:
            raise ConfigError(f"system {self.name} has too little room: {error}") from error


@dataclass(frozen=True, slots=True)
class Parts:
    """What systems share, open and ready.

    `limits` are the agent's, `corpus` is there if a system needs it, `special_texts` are the special tokens.
    """

    engine: Engine
    searcher: Searcher
    codec: Codec
    protocol: AgentProtocol
    limits: Limits
    corpus: CorpusSample | None = None
    special_texts: tuple[str, ...] = ()


async def answer(system: System, question: Question, parts: Parts) -> Trajectory:
    """The episode of a question under a system.

    Raises what `run_episode` does, and RetrieverError when the search for what the prompt is to hold fails.
    """
    searcher = searcher_of(system, parts)
    limits = system.limits(parts.limits)
    if system.wording is None:
        return await _episode(question, parts, parts.protocol, limits, searcher)
    wording = system.wording.ending_at(parts.special_texts)
    started = time.perf_counter()
    given = await _given(system, question, parts, searcher)
    given_seconds = time.perf_counter() - started
    if given is not None:
        wording = wording.reading(_fitted(given, parts, wording, limits))
    trajectory = await _episode(question, parts, wording, limits, searcher)
    if system.is_interleaved and trajectory.stop_reason is StopReason.MAX_TURNS:
        trajectory = await _closed(trajectory, parts, wording, limits)
    return replace(trajectory, given=given, given_seconds=given_seconds if given else 0.0)


def systems_named(names: Iterable[str]) -> tuple[System, ...]:
    """The systems of those names, each once, in order; "all" stands for all of them.

    Raises ConfigError that names the nearest for an unknown one.
    """
    found: dict[str, System] = {}
    for name in names:
        if name != ALL_SYSTEMS and name not in SYSTEMS:
            raise unknown_name("system", name, [*SYSTEMS, ALL_SYSTEMS])
        found |= SYSTEMS if name == ALL_SYSTEMS else {name: SYSTEMS[name]}
    return tuple(found.values())


def searcher_of(system: System, parts: Parts) -> Searcher:
    """Who answers the system's searches."""
    match system.retriever:
        case Retriever.RANDOM:
            assert parts.corpus is not None
            return RandomSearcher(parts.corpus.drawn)
        case Retriever.EMPTY:
            return EmptySearcher()
    return parts.searcher


async def _given(system: System, question: Question, parts: Parts, searcher: Searcher) -> SearchResult | None:
    match system.given:
        case Given.FOUND:
            return await searcher.search(question.text, parts.limits.top_k)
        case Given.GOLD:
            assert parts.corpus is not None
            return parts.corpus.gold(question)
    return None


def _fitted(given: SearchResult, parts: Parts, wording: Wording, limits: Limits) -> str:
    """The passages as text that fits the budget of one observation."""
    observation = fit_observation(
        [given], codec=parts.codec, protocol=wording, max_tokens=limits.max_observation_tokens
    )
    return observation.text


async def _closed(trajectory: Trajectory, parts: Parts, wording: Wording, limits: Limits) -> Trajectory:
    """The episode with one more turn, in which the policy is asked for the answer alone."""
    closing = parts.codec.encode(CLOSING)
    so_far = (*trajectory.prompt.token_ids, *trajectory.response_ids, *closing)
    protocol = Continuation("closing", "", special_texts=wording.special_texts, token_ids=so_far)
    room = replace(limits, max_turns=0, max_prompt_tokens=len(so_far), max_response_tokens=limits.max_turn_tokens)
    last = await _episode(trajectory.question, parts, protocol, room, parts.searcher)
    asked = replace(
        trajectory.turns[-1],
        observation=Observation(CLOSING),
        environment=Segment(Origin.ENVIRONMENT, tuple(closing)),
    )
    return replace(trajectory, turns=(*trajectory.turns[:-1], asked, *last.turns), stop_reason=last.stop_reason)


async def _episode(
    question: Question, parts: Parts, protocol: AgentProtocol, limits: Limits, searcher: Searcher
) -> Trajectory:
    return await run_episode(
        question,
        engine=parts.engine,
        searcher=searcher,
        codec=parts.codec,
        protocol=protocol,
        limits=limits,
        request_id=question.key,
    )


SYSTEMS: Mapping[str, System] = {
    system.name: system
    for system in (
        System("agent", "searches when it wants to, under its own protocol", retriever=Retriever.SERVED),
        System("direct", "answers from memory", wordings.DIRECT),
        System("cot", "thinks step by step, answers from memory", wordings.CHAIN_OF_THOUGHT, is_long=True),
        System(
            "rag",
            "reads what a search for the question finds, then answers",
            wordings.READING,
            given=Given.FOUND,
            retriever=Retriever.SERVED,
        ),
        System(
            "ircot",
            "reads that too, and after each sentence of its reasoning what a search for the sentence finds",
            wordings.INTERLEAVED,
            given=Given.FOUND,
            retriever=Retriever.SERVED,
        ),
        System("oracle", "reads the evidence passages, then answers", wordings.READING, given=Given.GOLD),
        System("random", "the agent over passages drawn at random", retriever=Retriever.RANDOM),
        System("empty", "the agent over a retriever that finds nothing", retriever=Retriever.EMPTY),
    )
}


def needs_service(systems: Sequence[System]) -> bool:
    """True when one of them asks the retrieval service."""
    return any(system.retriever is Retriever.SERVED for system in systems)
