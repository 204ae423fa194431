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
from search_rl.evaluation.report import Summary, kind_of, summarise, summary_to_json
from search_rl.evaluation.runner import Evaluation, evaluate, read_rollouts
from search_rl.models import check_checkpoint
from search_rl.profiles import SEARCH_R1, Profile, profile_named
from search_rl.search import SearchClient, Searcher
from search_rl.types import Question, Rollout

EPISODES = "episodes.jsonl"
SUMMARY = "summary.json"
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
    )


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
    """At most `limit` of the questions in their order: the first ones of each kind, as many of each as there can be."""
    if limit is None or limit >= len(questions):
        return questions
    seen: Counter[str] = Counter()
    rounds = []
    for position, question in enumerate(questions):
        rounds.append((seen[kind_of(question)], position))
        seen[kind_of(question)] += 1
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
        searcher = await stack.enter_async_context(SearchClient(**setup.retriever.client_options))
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
    summary = summarise(evaluation)
    (out / SUMMARY).write_text(json.dumps(summary_to_json(summary), indent=2) + "\n", encoding="utf-8")
    return summary


def load_evaluation(folder: Path) -> Evaluation:
    """The evaluation that `run_evaluation` stored in `folder`. Raises DataError where none is whole."""
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        rollouts = read_rollouts(folder / EPISODES)
    except (FileNotFoundError, json.JSONDecodeError) as error:
        raise DataError(f"{folder} holds no finished evaluation: {error}") from error
    profile = profile_named(summary.get("profile", SEARCH_R1.name))
    return Evaluation(tuple(rollouts.values()), seconds=summary["seconds"], profile=profile)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _engine(setup: Setup) -> Any:
    """The engine as an async context manager."""
    if setup.endpoint:
        from search_rl.engines.http_engine import HttpEngine

        return HttpEngine(setup.endpoint, setup.served_model or setup.model, GREEDY)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from search_rl.engines.vllm_engine import VllmEngine

    return VllmEngine.open(
        setup.model,
        GREEDY,
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
    (out / SUMMARY).unlink(missing_ok=True)
    stored = {"profile": SEARCH_R1.name, **json.loads(settings_path.read_text(encoding="utf-8"))}
    for name, value in setup.settings.items():
        if stored.get(name) != value:
            raise ConfigError(
                f"cannot resume {out}: its {name} is {stored.get(name)!r}, now it is {value!r}; give another --out"
            )
