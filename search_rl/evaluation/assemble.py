"""From options and a config file to the parts of an evaluation; what is cheap to check is checked first."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from search_rl.agent.episode import Limits
from search_rl.agent.protocols import TagProtocol, protocol_named
from search_rl.codec import Codec, load_codec
from search_rl.config import AgentSection, Config, RetrieverSection, load_config
from search_rl.datasets.questions import read_questions
from search_rl.engines.base import Engine, Sampling
from search_rl.errors import ConfigError, DataError
from search_rl.evaluation import protocol as protocols
from search_rl.evaluation.audit.report import AUDIT
from search_rl.evaluation.outcomes import kind_of, set_of
from search_rl.evaluation.protocol import MeasuringProtocol, read_protocol
from search_rl.evaluation.report import Summary
from search_rl.evaluation.report_files import HTML as HTML
from search_rl.evaluation.report_files import write_result
from search_rl.evaluation.results import EPISODES as EPISODES
from search_rl.evaluation.results import SUMMARY as SUMMARY
from search_rl.evaluation.results import asked_keys
from search_rl.evaluation.runner import Evaluation, evaluate, read_rollouts
from search_rl.models import check_checkpoint
from search_rl.profiles import SEARCH_R1, Profile, profile_named
from search_rl.search import SearchClient, Searcher
from search_rl.types import Question, Rollout

SETTINGS = "settings.json"

GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Setup:
    """Who is asked, under which rules, and who scores.

    With an `endpoint` only the tokenizer of `model` is used here.
    """

    model: str
    retriever: RetrieverSection
    agent: AgentSection
    endpoint: str | None = None
    served_model: str | None = None
    concurrency: int = 64
    cache_gib: int | None = None
    profile: Profile = SEARCH_R1
    sampling: Sampling = GREEDY

    @property
    def limits(self) -> Limits:
        """The budgets of an episode."""
        return Limits(**self.agent.model_dump(exclude={"prompt"}), top_k=self.retriever.top_k)

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
            "prompt": self.agent.prompt,
            "profile": self.profile.name,
            **({} if self.sampling == GREEDY else {"sampling": asdict(self.sampling)}),
            **asdict(self.limits),
        }


@dataclass(frozen=True, slots=True)
class Parts:
    """What `run_episode` needs, open and ready."""

    engine: Engine
    searcher: Searcher
    codec: Codec
    protocol: TagProtocol
    limits: Limits


def setup_from(
    config: Config | None,
    *,
    model: str | None = None,
    retriever: str | None = None,
    top_k: int | None = None,
    prompt: str | None = None,
    endpoint: str | None = None,
    served_model: str | None = None,
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
    retriever_section = config.retriever if config else RetrieverSection()
    agent_section = config.agent if config else AgentSection()
    return Setup(
        model=model,
        retriever=retriever_section.model_copy(update=_given(url=retriever, top_k=top_k)),
        agent=agent_section.model_copy(update={"prompt": protocol_named(prompt).name} if prompt else {}),
        endpoint=endpoint,
        served_model=served_model,
        concurrency=concurrency,
        cache_gib=config.hardware.kv_cache_gib if config and config.hardware.platform == "cpu" else None,
        profile=profile_named(profile),
        sampling=sampling,
    )


def sampling_of(temperature: float, seed: int | None) -> Sampling:
    """Greedy at temperature 0, else sampled with a seed. Raises ConfigError for a seed that nothing would be drawn
    with.
    """
    if temperature == 0.0:
        if seed is not None:
            raise ConfigError(f"--seed {seed} changes nothing at temperature 0: give --temperature too")
        return GREEDY
    return Sampling(temperature=temperature, seed=seed or 0)


def read_config(path: Path | None, overrides: Sequence[str]) -> Config | None:
    """The config file with overrides, None without a file. Raises ConfigError for overrides of no file."""
    if path is None and overrides:
        raise ConfigError(f"--set {overrides[0]} needs --config: there is no file to override")
    return load_config(path, overrides) if path else None


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


@asynccontextmanager
async def open_parts(setup: Setup) -> AsyncIterator[Parts]:
    """The parts, checked first: the checkpoint, then the retriever, then (slow) the engine.

    Raises ModelError, RetrieverError, ConfigError or EngineError, each with one line.
    """
    limits = setup.limits
    if setup.needs_checkpoint:
        check_checkpoint(Path(setup.model))
    async with AsyncExitStack() as stack:
        client = SearchClient(
            setup.retriever.url,
            timeout_seconds=setup.retriever.timeout_seconds,
            max_attempts=setup.retriever.max_attempts,
            token_file=setup.retriever.token_file,
        )
        searcher = await stack.enter_async_context(client)
        await searcher.check()
        codec = load_codec(setup.model)
        engine = await stack.enter_async_context(_engine(setup))
        yield Parts(engine, searcher, codec, protocol_named(setup.agent.prompt), limits)


async def run_evaluation(
    setup: Setup,
    questions: Sequence[Question],
    out: Path,
    *,
    is_resumed: bool,
    on_done: Callable[[Rollout], None],
) -> Summary:
    """The summary, with every episode and the summary itself stored in the folder `out`.

    Raises ConfigError for a folder that holds another evaluation, or this one while not `is_resumed`.
    """
    _claim(out, setup, is_resumed=is_resumed)
    async with open_parts(setup) as parts:
        protocol = await measuring_protocol(setup, parts, questions)
        _claim_protocol(out, protocol)
        evaluation = await evaluate(
            questions,
            engine=parts.engine,
            searcher=parts.searcher,
            codec=parts.codec,
            protocol=parts.protocol,
            limits=parts.limits,
            concurrency=setup.concurrency,
            out_path=out / EPISODES,
            on_done=on_done,
            profile=setup.profile,
        )
    return write_result(out, evaluation, protocol)


async def measuring_protocol(setup: Setup, parts: Parts, questions: Sequence[Question]) -> MeasuringProtocol:
    """How these questions are about to be asked. Raises RetrieverError when the retriever cannot say what it finds."""
    info = await parts.searcher.info() if isinstance(parts.searcher, SearchClient) else None
    served = {"served": await protocols.served_version(setup.endpoint)} if setup.endpoint else {}
    return MeasuringProtocol(
        system={
            "model": setup.settings["model"],
            "weights_sha256": None if setup.endpoint else protocols.weights_sha256(setup.model),
            "endpoint": setup.endpoint,
            "served_model": setup.served_model,
        },
        rules={
            "prompt": protocols.prompt_rules(parts.protocol, parts.codec),
            "limits": asdict(setup.limits),
            "sampling": asdict(setup.sampling),
            "scorer": protocols.scorer_rules(setup.profile),
            "datasets": protocols.dataset_rules(questions),
            "retriever": await protocols.retriever_rules(
                parts.searcher, questions, top_k=setup.limits.top_k, info=info
            ),
            "versions": {**protocols.installed_versions(is_engine_here=setup.endpoint is None), **served},
        },
        circumstances=protocols.circumstances(concurrency=setup.concurrency, retriever=setup.retriever.url),
    )


def _claim_protocol(out: Path, protocol: MeasuringProtocol) -> None:
    """Write it down; where the folder has one, its episodes must have been measured alike. The questions may be more
    or fewer.
    """
    stored = read_protocol(out)
    if stored is not None:
        unlike = [found for found in stored.differences(protocol) if not found.name.startswith("datasets.")]
        unlike += [
            protocols.Difference(name, stored.system.get(name), value)
            for name, value in protocol.system.items()
            if stored.system.get(name) != value
        ]
        if unlike:
            raise ConfigError(f"cannot resume {out}: its {unlike[0]}; give another --out")
    protocol.write(out)


def load_evaluation(folder: Path) -> Evaluation:
    """The evaluation that `run_evaluation` stored in `folder`. Raises DataError where none is whole."""
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        rollouts = read_rollouts(folder / EPISODES)
        asked = asked_keys(folder) or list(rollouts)
    except (FileNotFoundError, json.JSONDecodeError) as error:
        raise DataError(f"{folder} holds no finished evaluation: {error}") from error
    profile = profile_named(summary.get("profile", SEARCH_R1.name))
    found = tuple(rollouts[key] for key in asked if key in rollouts)
    return Evaluation(found, seconds=summary["seconds"], profile=profile)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _engine(setup: Setup) -> Any:
    """The engine as an async context manager."""
    if setup.endpoint:
        from search_rl.engines.http_engine import HttpEngine

        return HttpEngine(setup.endpoint, setup.served_model or setup.model, setup.sampling)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from search_rl.engines.vllm_engine import VllmEngine

    return VllmEngine.open(
        setup.model,
        setup.sampling,
        max_model_tokens=setup.limits.max_context_tokens,
        max_concurrent_requests=setup.concurrency,
        cache_bytes=setup.cache_gib * 1024**3 if setup.cache_gib else None,
    )


def _claim(out: Path, setup: Setup, *, is_resumed: bool) -> None:
    """Make the folder this evaluation's own."""
    settings_path = out / SETTINGS
    if not settings_path.exists():
        out.mkdir(parents=True, exist_ok=True)
        settings_path.write_text(json.dumps(setup.settings, indent=2) + "\n", encoding="utf-8")
        return
    if not is_resumed:
        raise ConfigError(f"{out} holds an evaluation already: --resume goes on with it, or give another --out")
    for name in (SUMMARY, AUDIT):
        (out / name).unlink(missing_ok=True)
    stored = {"profile": SEARCH_R1.name, **json.loads(settings_path.read_text(encoding="utf-8"))}
    for name, value in setup.settings.items():
        if stored.get(name) != value:
            raise ConfigError(
                f"cannot resume {out}: its {name} is {stored.get(name)!r}, now it is {value!r}; give another --out"
            )
