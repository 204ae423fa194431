"""From options and a config file to the parts of an evaluation; what is cheap to check is checked first."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from search_rl.agent.episode import Limits, check_observation_budget
from search_rl.agent.protocols import protocol_named
from search_rl.agent.selection import PROTOCOL_NAMES, protocol_for
from search_rl.codec import Codec, load_codec
from search_rl.config import AgentSection, Config, RetrieverSection
from search_rl.datasets.questions import read_questions
from search_rl.engines.base import Engine, Sampling
from search_rl.engines.endpoint import Endpoint
from search_rl.engines.served import APIS, Api, served_api, served_engine
from search_rl.errors import ConfigError, DataError, unknown_name
from search_rl.evaluation.outcomes import kind_of, set_of
from search_rl.evaluation.systems import Parts
from search_rl.models import check_checkpoint, context_tokens
from search_rl.profiles import SEARCH_R1, Profile, profile_named
from search_rl.search import SearchClient
from search_rl.types import Question

GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Setup:
    """Who is asked, under which rules, and who scores.

    With an `endpoint` only the tokenizer of `model` is used here; `api` is how the endpoint is spoken to, None before
    it was asked.
    """

    model: str
    retriever: RetrieverSection
    agent: AgentSection
    endpoint: str | None = None
    served_model: str | None = None
    api: Api | None = None
    endpoint_token_file: Path | None = None
    concurrency: int = 64
    cache_gib: int | None = None
    profile: Profile = SEARCH_R1
    sampling: Sampling = GREEDY

    @property
    def model_name(self) -> str:
        """The model as who serves it calls it."""
        return self.served_model or self.model

    @property
    def limits(self) -> Limits:
        """The budgets of an episode."""
        return Limits(**self.agent.budgets, top_k=self.retriever.top_k)

    @property
    def budgets_label(self) -> str:
        """The preset, and what departs from it; sampling is greedy under every preset."""
        return self.agent.budgets_label(top_k=self.retriever.top_k)

    @property
    def needs_checkpoint(self) -> bool:
        """True when the weights are read from a folder here, not by a server and not from a hub."""
        path = Path(self.model)
        is_hub_id = len(path.parts) == 2 and not path.is_absolute() and not path.parent.exists()
        return self.endpoint is None and not is_hub_id

    @property
    def settings(self) -> dict[str, Any]:
        """What must be equal for two runs to be parts of one evaluation."""
        return {
            "model": str(Path(self.model).resolve()) if Path(self.model).exists() else self.model,
            "endpoint": self.endpoint,
            "served_model": self.served_model,
            "api": self.api if self.api != "tokens" else None,
            **self.agent.conversation,
            "budgets": self.budgets_label,
            "profile": self.profile.name,
            "sampling": None if self.sampling == GREEDY else asdict(self.sampling),
            **asdict(self.limits),
        }


def setup_from(
    config: Config | None,
    *,
    model: str | None = None,
    retriever: str | None = None,
    top_k: int | None = None,
    prompt: str | None = None,
    protocol: str | None = None,
    endpoint: str | None = None,
    served_model: str | None = None,
    api: str | None = None,
    endpoint_token_file: Path | None = None,
    concurrency: int = 64,
    profile: str = SEARCH_R1.name,
    sampling: Sampling = GREEDY,
) -> Setup:
    """The setup of a config (the defaults without one) with the given options on top. Raises ConfigError."""
    model = model or (config.model.path if config else None)
    if model is None:
        raise ConfigError("no model: give --model with a checkpoint folder, or --config")
    if served_model and not endpoint:
        raise ConfigError(f"--served-model {served_model} needs --endpoint, the URL of the server")
    if api is not None and not endpoint:
        raise ConfigError(f"--api {api} needs --endpoint, the URL of the server")
    if protocol and protocol not in PROTOCOL_NAMES:
        raise unknown_name("protocol", protocol, PROTOCOL_NAMES)
    retriever_section = config.retriever if config else RetrieverSection()
    agent_section = config.agent if config else AgentSection()
    return Setup(
        model=model,
        retriever=retriever_section.model_copy(update=_given(url=retriever, top_k=top_k)),
        agent=agent_section.model_copy(
            update=_given(prompt=protocol_named(prompt).name if prompt else None, protocol=protocol)
        ),
        endpoint=endpoint,
        served_model=served_model,
        api=api_named(api) if api else None,
        endpoint_token_file=endpoint_token_file,
        concurrency=concurrency,
        cache_gib=config.hardware.kv_cache_gib if config and config.hardware.platform == "cpu" else None,
        profile=profile_named(profile),
        sampling=sampling,
    )


def sampling_of(temperature: float, seed: int | None) -> Sampling:
    """Greedy at temperature 0, else sampled with a seed. Raises ConfigError for an infinite temperature, and for a seed
    that nothing would be drawn with.
    """
    if not math.isfinite(temperature):
        raise ConfigError(f"--temperature {temperature} is no number to sample at: 0 is greedy, 1 the model's own")
    if temperature == 0.0:
        if seed is not None:
            raise ConfigError(f"--seed {seed} changes nothing at temperature 0: give --temperature too")
        return GREEDY
    return Sampling(temperature=temperature, seed=seed or 0)


def read_question_files(
    paths: Sequence[Path], *, limit: int | None = None, skip_bad: bool = False
) -> tuple[Question, ...]:
    """The questions of all files in order; with a `limit` that many, balanced over kinds.

    Raises DataError for a bad row, and for a question that two files hold.
    """
    if not paths:
        raise ConfigError("no questions: give --questions with a parquet or JSON lines file")
    questions: dict[str, Question] = {}
    for path in paths:
        for question in read_questions(path, skip_bad=skip_bad).questions:
            if question.key in questions:
                raise DataError(f"{path}: question {question.key} is in an earlier file too; give each once")
            questions[question.key] = question
    return balanced(tuple(questions.values()), limit)


def balanced(questions: tuple[Question, ...], limit: int | None) -> tuple[Question, ...]:
    """At most `limit` of the questions in their order: the first ones of each kind in each data set, as many of each as
    there can be.
    """
    if limit is None or limit >= len(questions):
        return questions
    seen: Counter[tuple[str, str]] = Counter()
    rounds = []
    for position, question in enumerate(questions):
        part = set_of(question), kind_of(question)
        rounds.append((seen[part], position))
        seen[part] += 1
    return tuple(questions[position] for position in sorted(position for _, position in sorted(rounds)[:limit]))


def api_named(name: str) -> Api:
    """The way to speak to an endpoint of that name. Raises ConfigError, which names the nearest one."""
    for api in APIS:
        if api == name:
            return api
    raise unknown_name("api", name, APIS)


async def with_api(setup: Setup) -> Setup:
    """The setup once its endpoint, if it has one, was asked how it answers. Raises EngineError or ModelError."""
    if setup.endpoint is None or setup.api is not None:
        return setup
    codec = load_codec(setup.model)
    async with Endpoint(setup.endpoint, token_file=setup.endpoint_token_file, max_attempts=2) as endpoint:
        return replace(setup, api=await served_api(endpoint, setup.model_name, codec))


@asynccontextmanager
async def open_parts(setup: Setup, *, needs_service: bool = True) -> AsyncIterator[Parts]:
    """The parts, checked first: the checkpoint and its tokenizer, then the retriever, then (slow) the engine.

    Without `needs_service` the retriever may be away. Raises ModelError, RetrieverError, ConfigError or EngineError,
    each with one line.
    """
    if setup.needs_checkpoint:
        check_checkpoint(Path(setup.model))
        setup.limits.check_context(context_tokens(Path(setup.model)))
    setup = await with_api(setup)
    codec = load_codec(setup.model)
    if setup.api == "chat" and setup.agent.protocol != "tags":
        raise ConfigError(f"--api chat needs --protocol tags, got {setup.agent.protocol}: the server renders the chat")
    protocol = protocol_for(codec, **setup.agent.conversation)
    check_observation_budget(codec, protocol, setup.limits)
    async with AsyncExitStack() as stack:
        searcher = await stack.enter_async_context(SearchClient(**setup.retriever.client_options))
        if needs_service:
            await searcher.check()
        engine, engine_codec = await stack.enter_async_context(_engine(setup, codec))
        yield Parts(engine, searcher, engine_codec, protocol, setup.limits, special_texts=tuple(codec.special_tokens))


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@asynccontextmanager
async def _engine(setup: Setup, codec: Codec) -> AsyncIterator[tuple[Engine, Codec]]:
    """The engine, and the codec that its ids need."""
    if setup.endpoint:
        assert setup.api is not None
        async with Endpoint(setup.endpoint, token_file=setup.endpoint_token_file) as endpoint:
            yield served_engine(setup.api, endpoint, setup.model_name, setup.sampling, codec)
        return
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from search_rl.engines.vllm_engine import VllmEngine

    async with VllmEngine.open(
        setup.model,
        setup.sampling,
        max_model_tokens=setup.limits.max_context_tokens,
        max_concurrent_requests=setup.concurrency,
        cache_bytes=setup.cache_gib * 1024**3 if setup.cache_gib else None,
    ) as engine:
        yield engine, codec
