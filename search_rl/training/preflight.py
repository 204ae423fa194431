"""What can be known to fail before a run starts: everything that is cheap to check, in one place."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from search_rl.agent.episode import check_observation_budget
from search_rl.agent.protocols import AgentProtocol
from search_rl.agent.selection import protocol_for
from search_rl.codec import ChatCodec, load_codec
from search_rl.config import Config
from search_rl.datasets.questions import read_questions
from search_rl.errors import ConfigError, DataError
from search_rl.models import check_checkpoint, context_tokens
from search_rl.rewards import check_weights
from search_rl.search import SearchClient
from search_rl.training.overrides import check_trainable, limits_of
from search_rl.training.plan import Plan, check_memory
from search_rl.training.requirements import check_installed, check_requirements
from search_rl.training.trackers import check_trackers
from search_rl.types import Question

_SEAM_TOKENS = 16
"""What the words around a question may take more when there is one between them."""


def check_before_training(config: Config) -> Plan | None:
    """What the run will need, where that can be known.

    Raises a SearchRLError for a config, model, question file or retriever that it would fail on.
    """
    check_weights(config.reward)
    check_requirements(config)
    check_installed(config)
    check_trackers(config.trainer.trackers)
    _check_model(config)
    made = check_memory(config)
    num_questions = sum(len(_checked_questions(path, config)) for path in config.data.train)
    check_enough(num_questions, config.rollout.prompts_per_step)
    for path in config.data.dev:
        _checked_questions(path, config)
    asyncio.run(_check_retriever(config))
    return made


def check_before_warm_up(config: Config) -> None:
    """Raises a SearchRLError for a model, question file or retriever that the warm-up would fail on."""
    _check_model(config)
    for path in config.data.train:
        _checked_questions(path, config)
    asyncio.run(_check_retriever(config))


def _check_model(config: Config) -> None:
    check_trainable(config.agent)
    limits = limits_of(config.agent, config.retriever.top_k)
    path = Path(config.model.path)
    if path.exists() or config.model.path.startswith((".", "/", "runs/")):
        check_checkpoint(path)
        limits.check_context(context_tokens(path))
    codec = load_codec(config.model.path)
    check_observation_budget(codec, protocol_for(codec, **config.agent.conversation), limits)


def _checked_questions(path: Path, config: Config) -> tuple[Question, ...]:
    """The questions of a file, each of which fits its budget: a question is never cut."""
    questions = read_questions(path).questions
    codec = load_codec(config.model.path)
    protocol = protocol_for(codec, **config.agent.conversation)
    check_prompts(codec, protocol, questions, config.agent.max_prompt_tokens, path)
    return questions


def check_enough(num_questions: int, prompts_per_step: int) -> None:
    """Raises ConfigError for train files that hold less than a step together."""
    if num_questions < prompts_per_step:
        raise ConfigError(
            f"data.train has {num_questions} questions in all, fewer than rollout.prompts_per_step={prompts_per_step}"
        )


def check_prompts(
    codec: ChatCodec, protocol: AgentProtocol, questions: Sequence[Question], max_prompt_tokens: int, path: Path
) -> None:
    """Raises DataError for the first question whose prompt is over its budget.

    A byte is one token at most, two where a tokenizer's normal form lengthens the text, so only those are encoded that
    are long enough to be over it.
    """
    around = len(protocol.prompt_ids(codec, replace(questions[0], text=""))) + _SEAM_TOKENS
    for question in questions:
        if around + 2 * len(question.text.encode()) <= max_prompt_tokens:
            continue
        num_tokens = len(protocol.prompt_ids(codec, question))
        if num_tokens > max_prompt_tokens:
            raise DataError(
                f"{path}: the prompt of question {question.id!r} has {num_tokens} tokens, more than "
                f"agent.max_prompt_tokens={max_prompt_tokens}: raise that or drop the question"
            )


async def _check_retriever(config: Config) -> None:
    async with SearchClient(**config.retriever.client_options) as client:
        await client.check()
