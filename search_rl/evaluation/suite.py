"""Several systems on the same questions, over one engine that is opened once."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from search_rl.engines.clock import EngineClock
from search_rl.errors import ConfigError
from search_rl.evaluation.assemble import Setup, open_parts, with_api
from search_rl.evaluation.ceiling import Ceiling, CeilingRow, ceiling, ceiling_rows
from search_rl.evaluation.controls import CorpusSample, check_evidence, sample_corpus
from search_rl.evaluation.cost import Prices
from search_rl.evaluation.episode_file import StoredRollouts
from search_rl.evaluation.measured import Measured, measure
from search_rl.evaluation.measuring import check_protocol, measuring_protocol, rollouts_protocol
from search_rl.evaluation.outcomes import group_by
from search_rl.evaluation.protocol import MeasuringProtocol, weights_sha256
from search_rl.evaluation.report_files import write_result
from search_rl.evaluation.result_folder import (
    EPISODES,
    RETRIEVER,
    SETTINGS,
    check_claim,
    claim,
    settings_of,
    write_json,
)
from search_rl.evaluation.runner import Evaluation, evaluate
from search_rl.evaluation.stored_answers import stored_answers
from search_rl.evaluation.summary import Summary
from search_rl.evaluation.systems import Given, Parts, System, answer, needs_service
from search_rl.search import Searcher
from search_rl.types import Passage, Question, Rollout, Trajectory

OnDone = Callable[[Rollout], None]
Watch = Callable[[str], AbstractContextManager[OnDone]]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SystemResult:
    """What one system came to; its episodes lie in `folder`. `budgets` are None where nobody knows them."""

    name: str
    folder: Path
    summary: Summary
    measured: Measured
    budgets: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: systems on questions, into a folder (one below it for each of several systems).

    `passages` go through the corpus once, for systems that need it; `corpus` is where they come from.
    """

    systems: tuple[System, ...]
    questions: tuple[Question, ...]
    out: Path
    is_resumed: bool = False
    corpus: Path | None = None
    passages: Iterable[Passage] = ()
    prices: Prices | None = None

    def folder(self, system: System) -> Path:
        """Where the system's result lies."""
        return self.out if len(self.systems) == 1 else self.out / system.name


async def run_systems(setup: Setup, plan: Plan, watch: Watch) -> tuple[SystemResult, ...]:
    """The results in the order of the systems, each stored before the next system begins.

    All that can be checked is checked before the first question. Raises ConfigError for a folder that holds another
    evaluation, or this one while the plan is not resumed.
    """
    if len(plan.systems) > 1 and (plan.out / SETTINGS).exists():
        raise ConfigError(f"{plan.out} holds the result of one system: give a suite another --out")
    setup = await with_api(setup)
    settings = {system.name: settings_of(setup, system, plan.corpus) for system in plan.systems}
    for system in plan.systems:
        system.limits(setup.limits)
        check_claim(plan.folder(system), settings[system.name], is_resumed=plan.is_resumed)
    corpus = _corpus_sample(plan)
    results = []
    async with open_parts(setup, needs_service=needs_service(plan.systems)) as opened:
        parts = replace(opened, corpus=corpus)
        protocols = await _protocols(setup, plan, parts)
        if needs_service(plan.systems):
            await _measure_retriever(setup, plan, parts.searcher)
        for system in plan.systems:
            claim(plan.folder(system), settings[system.name])
            results.append(await _run_system(system, setup, plan, parts, protocols[system.name], watch))
    return tuple(results)


async def score_rollouts(path: Path, setup: Setup, plan: Plan, watch: Watch) -> SystemResult:
    """The result of a stored rollout file in place of a system: what it holds is scored as if it was just sampled.

    Only the profile and `top_k` of the setup matter. A question that the file does not answer counts 0. Raises
    DataError for a file that answers one twice.
    """
    settings = {"system": "rollouts", "rollouts": str(path.resolve()), "profile": setup.profile.name}
    check_claim(plan.out, settings, is_resumed=plan.is_resumed)
    stored = stored_answers(path)
    extra = stored.offsets_bytes.keys() - {question.key for question in plan.questions}
    if extra:
        _logger.warning(
            "%s answers %d questions that are not asked, such as %s: left out", path, len(extra), min(extra)
        )
    claim(plan.out, settings)
    protocol = rollouts_protocol(path, setup, plan.questions)
    protocol.write(plan.out)
    with watch("rollouts") as on_done:
        evaluation = await evaluate(
            plan.questions,
            ask=stored.ask,
            concurrency=1,
            out_path=plan.out / EPISODES,
            on_done=on_done,
            profile=setup.profile,
            max_failures_in_a_row=len(plan.questions) + 1,
        )
    return _finish("rollouts", plan.out, evaluation, protocol, setup, plan)


async def _protocols(setup: Setup, plan: Plan, parts: Parts) -> dict[str, MeasuringProtocol]:
    """How each system is about to be measured. Raises ConfigError for a folder with episodes measured otherwise."""
    weights = None if setup.endpoint else weights_sha256(setup.model)
    found = {}
    for system in plan.systems:
        protocol = await measuring_protocol(system, setup, parts, plan.questions, weights=weights)
        check_protocol(plan.folder(system), protocol)
        found[system.name] = protocol
    return found


async def _run_system(
    system: System, setup: Setup, plan: Plan, parts: Parts, protocol: MeasuringProtocol, watch: Watch
) -> SystemResult:
    clock = EngineClock(parts.engine)
    timed = replace(parts, engine=clock)

    async def ask(question: Question) -> Trajectory:
        return await answer(system, question, timed)

    folder = plan.folder(system)
    protocol.write(folder)
    with watch(system.name) as on_done:
        evaluation = await evaluate(
            plan.questions,
            ask=ask,
            concurrency=setup.concurrency,
            out_path=folder / EPISODES,
            on_done=on_done,
            profile=setup.profile,
            engine_seconds=lambda: clock.busy_seconds,
        )
    agent = _agent(setup, parts)
    return _finish(system.name, folder, evaluation, protocol, setup, plan, agent=agent)


def _agent(setup: Setup, parts: Parts) -> dict[str, Any]:
    """How the policy is spoken to."""
    return {**setup.agent.conversation, "protocol": parts.protocol.label, "budgets": setup.budgets_label}


def _finish(
    name: str,
    folder: Path,
    evaluation: Evaluation,
    protocol: MeasuringProtocol,
    setup: Setup,
    plan: Plan,
    *,
    agent: Mapping[str, Any] | None = None,
) -> SystemResult:
    assert isinstance(evaluation.rollouts, StoredRollouts)
    measured = measure(evaluation.rollouts, profile=evaluation.profile, top_k=setup.limits.top_k, prices=plan.prices)
    # Of all runs that it took, not of the last one alone.
    evaluation = replace(evaluation, seconds=measured.cost.wall_seconds)
    summary = write_result(folder, evaluation, protocol, measured, system={"system": name, "agent": agent})
    return SystemResult(name, folder, summary, measured, protocol.circumstances.get("budgets"))


def _corpus_sample(plan: Plan) -> CorpusSample | None:
    hungry = [system for system in plan.systems if system.needs_corpus]
    if not hungry:
        return None
    if plan.corpus is None:
        raise ConfigError(f"system {hungry[0].name} takes passages from the corpus: give --corpus, or eval.corpus")
    is_gold = any(system.given is Given.GOLD for system in hungry)
    if is_gold:
        check_evidence(plan.questions)
    sample = sample_corpus(plan.passages, plan.questions if is_gold else ())
    if sample.num_titles_missing:
        _logger.warning(
            "oracle: %d of %d articles that questions name as evidence are not in %s: it reads what there is",
            sample.num_titles_missing,
            sample.num_titles,
            plan.corpus,
        )
    return sample


async def _measure_retriever(setup: Setup, plan: Plan, searcher: Searcher) -> None:
    """Write the retriever's ceiling by kind of question, unless a run before this one did for the same questions."""
    path = plan.out / RETRIEVER
    plan.out.mkdir(parents=True, exist_ok=True)
    about = {
        "questions_sha256": hashlib.sha256("\n".join(question.key for question in plan.questions).encode()).hexdigest(),
        "retriever": setup.retriever.url,
        "profile": setup.profile.name,
    }
    if plan.is_resumed and path.exists():
        stored = json.loads(path.read_text(encoding="utf-8"))
        if all(stored.get(name) == value for name, value in about.items()):
            return
    rows = await ceiling_rows(plan.questions, searcher=searcher, profile=setup.profile, concurrency=setup.concurrency)
    ceilings = {name: asdict(found) for name, found in _by_kind(plan.questions, rows).items()}
    write_json(path, {**about, "ceiling": ceilings})


def _by_kind(questions: Sequence[Question], rows: Sequence[CeilingRow]) -> Mapping[str, Ceiling]:
    groups = group_by(zip(questions, rows, strict=True), itemgetter(0))
    return {name: ceiling([row for _, row in members]) for name, members in groups.rows.items()}
