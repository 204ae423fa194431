"""Program-made demonstrations: which questions, what text, which tokens count."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from search_rl import records
from search_rl.agent.episode import Limits
from search_rl.agent.protocols import protocol_named
from search_rl.agent.selection import protocol_for
from search_rl.datasets.questions import QuestionRow
from search_rl.errors import DataError, RetrieverError
from search_rl.training.demonstrations import DemonstrationDataset, choose_rows, demonstrate
from search_rl.types import Passage, Question, Rollout, ScoredPassage, Search
from tests.search_rl.agent.families import FAMILIES
from tests.search_rl.conftest import ByteCodec, FixedSearcher

LIMITS = Limits(max_turns=2, max_turn_tokens=80, max_observation_tokens=300, max_response_tokens=900)
PARIS = ScoredPassage(Passage("paris", "France: Capital", "The capital is Paris."), 1.0)


def row(number: int, *, kind: str = "one_hop", relation: str = "capital", evidence: str = "paris") -> QuestionRow:
    question = Question(str(number), "What is the capital of France?", ("Paris", "paris"), "toy", kind, (evidence,))
    return QuestionRow(question, relation=relation, oracle_queries=("France capital",))


def demonstrated(rows: list[QuestionRow], codec: ByteCodec, searcher: FixedSearcher) -> list[Rollout]:
    return asyncio.run(
        demonstrate(rows, searcher=searcher, codec=codec, protocol=protocol_named("short"), limits=LIMITS)
    )


def test_demonstration_is_the_oracles_episode(codec: ByteCodec) -> None:
    """Would catch a demonstration in another layout than the policy's own episodes."""
    (rollout,) = demonstrated([row(1)], codec, FixedSearcher((PARIS,)))
    assert [turn.text for turn in rollout.trajectory.turns] == [
        "<search>France capital</search>",
        "<answer>Paris</answer>",
    ]
    assert rollout.reward.total == 1.0


@pytest.mark.parametrize("family", ["qwen3", "llama3_1", "gemma3"])
def test_demonstration_in_the_models_own_calls(family: str) -> None:
    """Would catch a warm-up that teaches tags to an agent that is to call tools."""
    codec = FAMILIES[family]()
    protocol = protocol_for(codec, protocol="tool_call", prompt="short", max_queries=1, keep_reasoning=True)
    searcher = FixedSearcher((PARIS,))
    episodes = demonstrate([row(1)], searcher=searcher, codec=codec, protocol=protocol, limits=LIMITS)
    (rollout,) = asyncio.run(episodes)
    search, answer = rollout.trajectory.turns
    assert search.action == Search("France capital")
    assert '"query": "France capital"' in search.text
    assert "<search>" not in search.text
    assert answer.text == "<answer>Paris</answer>"
    assert rollout.reward.total == 1.0


def test_question_whose_evidence_was_not_found_is_left_out(codec: ByteCodec) -> None:
    """Would catch a demonstration that teaches to answer from nothing."""
    assert demonstrated([row(1, evidence="london")], codec, FixedSearcher((PARIS,))) == []
    article = replace(row(1).question, evidence_ids=(), evidence_titles=("Paris",))
    assert demonstrated([QuestionRow(article, oracle_queries=("q",))], codec, FixedSearcher((PARIS,))) == []
    found = replace(article, evidence_titles=("france: capital",))
    assert len(demonstrated([QuestionRow(found, oracle_queries=("q",))], codec, FixedSearcher((PARIS,)))) == 1


def test_failed_search_ends_the_warm_up(codec: ByteCodec) -> None:
    """Would catch a warm-up on what a broken retriever left over, without a word."""
    with pytest.raises(RetrieverError):
        demonstrated([row(1)], codec, FixedSearcher((PARIS,), error="down"))


def test_dataset_trains_on_policy_tokens_alone(codec: ByteCodec, tmp_path: Path) -> None:
    """Would catch a prompt or a passage in the loss, and ids that are encoded anew."""
    (rollout,) = demonstrated([row(1)], codec, FixedSearcher((PARIS,)))
    records.append(tmp_path / "demonstrations.jsonl", [rollout])
    dataset = DemonstrationDataset([str(tmp_path / "demonstrations.jsonl")])
    item = dataset[0]
    ids, mask = item["input_ids"].tolist(), item["loss_mask"].tolist()  # type: ignore[attr-defined]
    assert len(dataset) == 1
    assert ids == [*rollout.trajectory.prompt.token_ids, *rollout.trajectory.response_ids]
    trained = codec.decode([token for token, bit in zip(ids, mask, strict=True) if bit])
    assert trained == "<search>France capital</search><answer>Paris</answer>"
    assert item["position_ids"].tolist() == list(range(len(ids)))  # type: ignore[attr-defined]


def test_choice_is_balanced_seeded_and_within_the_relations() -> None:
    """Would catch a warm-up that shows the relations it was told to keep for RL, or one kind alone."""
    rows = [
        row(number, kind=kind, relation=relation)
        for number, (kind, relation) in enumerate(
            (kind, relation) for kind in ("one_hop", "two_hop") for relation in ("capital", "area") for _ in range(20)
        )
    ]
    chosen = choose_rows(rows, relations=["capital"], mix={}, count=10, seed=1)
    assert {row.relation for row in chosen} == {"capital"}
    assert Counter(row.question.kind for row in chosen) == {"one_hop": 5, "two_hop": 5}
    assert choose_rows(rows, relations=["capital"], mix={}, count=10, seed=1) == chosen
    assert choose_rows(rows, relations=["capital"], mix={}, count=10, seed=2) != chosen


def test_mix_weighs_the_kinds() -> None:
    """Would catch weights that are ignored, and a kind that comes in although the mix leaves it out."""
    rows = [row(number, kind=kind) for number, kind in enumerate(("one_hop", "two_hop", "comparison") * 20)]
    chosen = choose_rows(rows, relations=(), mix={"one_hop": 3, "two_hop": 1}, count=16, seed=1)
    assert Counter(row.question.kind for row in chosen) == {"one_hop": 12, "two_hop": 4}


def test_unknown_relation_or_kind_is_named() -> None:
    """Would catch a mistyped relation or kind that leaves the warm-up without questions."""
    with pytest.raises(DataError, match=r"sft.mix: no question is of kind 'two_hops'; known: one_hop"):
        choose_rows([row(1)], relations=(), mix={"two_hops": 1}, count=1, seed=1)
    with pytest.raises(DataError, match=r"no question asks about 'captal'; known: capital"):
        choose_rows([row(1)], relations=["captal"], mix={}, count=1, seed=1)
