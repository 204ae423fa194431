"""Whatever moves a score is a rule: each field of each value that an evaluation is made of, and each rule refuses."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from typing import Any, NamedTuple

import pytest

from search_rl.agent.dialect import Dialect, Frame
from search_rl.agent.episode import Limits
from search_rl.agent.protocols import AgentProtocol, protocol_named
from search_rl.agent.tool_calls import ToolCallProtocol
from search_rl.config import AgentSection, RetrieverSection
from search_rl.engines.base import Sampling
from search_rl.engines.scripted import ScriptedEngine
from search_rl.errors import ConfigError
from search_rl.evaluation import wordings
from search_rl.evaluation.assemble import GREEDY, Setup
from search_rl.evaluation.comparison import compare_results
from search_rl.evaluation.controls import sample_corpus
from search_rl.evaluation.measuring import measuring_protocol
from search_rl.evaluation.protocol import MeasuringProtocol, flat
from search_rl.evaluation.results import Result, load_result
from search_rl.evaluation.systems import SYSTEMS, Given, Parts, Retriever, System
from search_rl.normalisers import triviaqa
from search_rl.profiles import SEARCH_R1, closed_word_f1, popqa_spellings
from search_rl.types import Passage, Question
from tests.search_rl.agent.test_episode import CODEC
from tests.search_rl.conftest import FixedSearcher, hit
from tests.search_rl.evaluation.told import ask, told, write

QUESTION = Question("q", "capital of Peru", ("Lima",), "demo", "one_hop", ("Peru",))
SETUP = Setup("a/model", RetrieverSection(), AgentSection())
CORPUS = sample_corpus([Passage("Peru", "Peru", "Its capital is Lima.")], [QUESTION])
FRAME, OTHER_FRAME = (Frame((1,), text, "", (2,), num_closing=1) for text in ("", "tool: "))
TOOLS = ToolCallProtocol("short", Dialect("hermes", FRAME, FRAME, frozenset({1})))
NO_RULE = object()
"""For a field that moves no score by itself; a comment says why."""


def measured(
    system: System = SYSTEMS["agent"],
    *,
    setup: Setup = SETUP,
    question: Question = QUESTION,
    prompt: AgentProtocol | None = None,
) -> MeasuringProtocol:
    """How it is about to be measured."""
    searcher = FixedSearcher((hit("Peru", "Its capital is Lima."),))
    agent = prompt or protocol_named("short")
    parts = Parts(ScriptedEngine([], CODEC), searcher, CODEC, agent, setup.limits, CORPUS)
    return asyncio.run(measuring_protocol(system, setup, parts, [question], weights="w"))


class Part(NamedTuple):
    """A value that evaluations are made of, how one with it is measured, and another value of each of its fields."""

    value: Any
    measure: Callable[[Any], MeasuringProtocol]
    changes: Mapping[str, Any]


def with_limits(limits: Limits) -> MeasuringProtocol:
    """An evaluation under these budgets."""
    budgets = asdict(limits)
    retriever = RetrieverSection(top_k=budgets.pop("top_k"))
    return measured(setup=replace(SETUP, retriever=retriever, agent=AgentSection(**budgets)))


def with_wording(wording: wordings.Wording) -> MeasuringProtocol:
    """A baseline that asks so."""
    return measured(replace(SYSTEMS["direct"], wording=wording))


PARTS = {
    "limits": Part(Limits(), with_limits, {field.name: getattr(Limits(), field.name) + 1 for field in fields(Limits)}),
    "sampling": Part(
        GREEDY,
        lambda sampling: measured(setup=replace(SETUP, sampling=sampling)),
        {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 7},
    ),
    "profile": Part(
        SEARCH_R1,
        lambda profile: measured(setup=replace(SETUP, profile=profile)),
        {
            "name": "other",
            "source": NO_RULE,  # words for people
            "normalise": triviaqa,
            "word_overlap": closed_word_f1,
            "spellings": popqa_spellings,
            "drops_empty_golds": False,
            "headline": "f1",
        },
    ),
    "tags": Part(
        protocol_named("short"),
        lambda prompt: measured(prompt=prompt),
        {
            "name": NO_RULE,  # picks the instructions
            "instructions": "Other words.",
            "max_queries": 2,
            "keep_reasoning": False,
            "stop": ("</answer>",),
        },
    ),
    "tool calls": Part(
        TOOLS,
        lambda prompt: measured(prompt=prompt),
        {
            "name": "search_r1",
            "dialect": replace(TOOLS.dialect, style="generic"),
            "max_queries": 2,
            "keep_reasoning": False,
        },
    ),
    "dialect": Part(
        TOOLS.dialect,
        lambda dialect: measured(prompt=replace(TOOLS, dialect=dialect)),
        {
            "style": "generic",
            "tool_frame": OTHER_FRAME,
            "user_frame": OTHER_FRAME,
            "special_ids": NO_RULE,  # the tokenizer's, and so the model's
            "arguments_key": NO_RULE,  # of the calls in demonstrations
        },
    ),
    "wording": Part(
        wordings.DIRECT,
        with_wording,
        {
            "name": NO_RULE,  # the system's
            "instructions": "Other words.",
            "max_queries": 2,
            "keep_reasoning": False,
            "stop": ("\n",),
            "passages": NO_RULE,  # a question's own: what is given, and the evidence, are rules
            "is_answer_alone": False,
            "special_texts": NO_RULE,  # the tokenizer's, and so the model's
        },
    ),
    "question": Part(
        QUESTION,
        lambda question: measured(question=question),
        {
            "id": "other",
            "text": "capital of Chile",
            "golden_answers": ("Lima", "Cusco"),
            "dataset": "other",
            "kind": NO_RULE,  # names rows of a report
            "evidence_ids": ("Chile",),
            "evidence_titles": ("Peru",),
        },
    ),
    "system": Part(
        SYSTEMS["direct"],
        measured,
        {
            "name": NO_RULE,  # who was measured
            "summary": NO_RULE,  # words for people
            "wording": wordings.READING,
            "given": Given.FOUND,
            "retriever": Retriever.EMPTY,
            "is_long": True,
        },
    ),
    "setup": Part(
        SETUP,
        lambda setup: measured(setup=setup),
        {
            "model": NO_RULE,  # who was measured
            "retriever": RetrieverSection(top_k=4),
            "agent": AgentSection(max_turns=3),
            "endpoint": NO_RULE,  # who was measured
            "served_model": NO_RULE,  # who was measured
            "api": "text",
            "endpoint_token_file": NO_RULE,
            "concurrency": NO_RULE,  # told among the circumstances
            "cache_gib": NO_RULE,
            "profile": replace(SEARCH_R1, name="other"),
            "sampling": Sampling(temperature=1.0, seed=0),
        },
    ),
}


def part_fields() -> Iterator[Any]:
    """Every field of every part, by name."""
    for name, part in PARTS.items():
        for field in fields(part.value):
            yield pytest.param(part, field.name, id=f"{name}.{field.name}")


@pytest.mark.parametrize(("part", "field"), list(part_fields()))
def test_a_field_that_moves_a_score_is_a_rule(part: Part, field: str) -> None:
    """A field that was added to a value and forgotten in the protocol: results with and without it are compared."""
    assert field in part.changes, f"say here whether {field!r} moves a score; if so it must be a rule"
    value = part.changes[field]
    if value is not NO_RULE:
        changed = replace(part.value, **{field: value})
        assert changed != part.value
        before, after = part.measure(part.value), part.measure(changed)
        assert before.differences(after) != ()
        assert before.rules_sha256 != after.rules_sha256


RULES = measured(SYSTEMS["rag"]).rules


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """One question that `rag` answered."""
    rules = MeasuringProtocol({"model": "one"}, RULES, {})
    return load_result(write(tmp_path_factory.mktemp("results") / "one", [told(ask("a", "x"), "x")], rules=rules))


def changed_rules(name: str) -> dict[str, Any]:
    """The rules with another value of one."""
    rules = copy.deepcopy(dict(RULES))
    *groups, last = name.split(".")
    place = rules
    for group in groups:
        place = place[group]
    place[last] = "another"
    return rules


@pytest.mark.parametrize("name", list(flat(RULES)))
def test_every_rule_that_differs_refuses_and_is_named(result: Result, name: str) -> None:
    """A rule that stands in the file and is not looked at, or one that a forced comparison does not tell."""
    other = replace(result, protocol=MeasuringProtocol({"model": "two"}, changed_rules(name), {"concurrency": 9}))
    with pytest.raises(ConfigError, match=rf"were not measured alike \({name}: "):
        compare_results(result, other)
    forced = compare_results(result, other, is_forced=True)
    assert [difference.name for difference in forced.differences] == [name]
    assert forced.differences[0].second == "another"


def test_only_rules_refuse(result: Result) -> None:
    """Two models that cannot be compared because they are two, which is what a comparison is for; or rules that differ
    from one measurement to the next."""
    assert measured(SYSTEMS["rag"]).rules == RULES
    other = replace(result, protocol=MeasuringProtocol({"model": "two"}, RULES, {"concurrency": 9}))
    assert compare_results(result, other).differences == ()


def test_a_rule_that_one_result_lacks_refuses(result: Result) -> None:
    """A result from before a rule was written down, taken for one that was measured under it."""
    for name in RULES.keys() - {"api"}:  # None without an endpoint, as in results from before it was told
        lacking = MeasuringProtocol({}, {key: value for key, value in RULES.items() if key != name}, {})
        with pytest.raises(ConfigError, match=rf"were not measured alike \({name}: .* against None"):
            compare_results(result, replace(result, protocol=lacking))


def test_the_rules_of_an_evaluation() -> None:
    """A rule that nobody misses when it is gone: each of those that the README lists, by its dotted name."""
    names = set(flat(RULES))
    assert {group.split(".")[0] for group in names} == {
        "prompt", "limits", "sampling", "api", "scorer", "datasets", "retriever", "versions",
    }  # fmt: skip
    assert names >= {
        "prompt.sha256", "prompt.template_sha256", "limits.top_k", "limits.max_turns", "limits.max_response_tokens",
        "sampling.temperature", "sampling.seed", "scorer.profile", "scorer.normaliser", "datasets.demo.sha256",
        "retriever.probes_sha256", "versions.search-rl",
    }  # fmt: skip
