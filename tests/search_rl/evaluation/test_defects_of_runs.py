"""Defects D9 to D16 of the reference code: groups, losses, retrieval, evaluation (D1 to D8: test_defects.py)."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import yaml

from search_rl.agent.episode import Limits, run_episode
from search_rl.agent.protocols import PROTOCOLS
from search_rl.agent.selection import protocol_for
from search_rl.algorithms.grpo import group_advantages
from search_rl.config import load_config
from search_rl.engines.base import Generation
from search_rl.engines.scripted import ScriptedEngine
from search_rl.evaluation.assemble import setup_from
from search_rl.evaluation.runner import evaluate
from search_rl.evaluation.summary import summarise
from search_rl.search import SearchClient
from search_rl.training.metrics import step_metrics
from search_rl.training.overrides import verl_overrides
from search_rl.training.packing import loss_positions
from search_rl.types import Malformed, Question, Reward, Rollout, Search, StopReason, Trajectory
from tests.search_rl.agent.families import qwen2_5
from tests.search_rl.agent.test_episode import ANSWER, CODEC, LIMITS, PROTOCOL, QUESTION, SEARCH, play
from tests.search_rl.conftest import ByteCodec, FixedSearcher, hit
from tests.search_rl.evaluation.conftest import ReplyingEngine, Run

CONFIGS = sorted(Path("configs").glob("*.yaml"))
DEMO = Path("configs/demo.yaml")


def test_d09_equal_ids_of_two_data_sets_are_two_groups(codec: ByteCodec, run: Run) -> None:
    """Groups by an index that each data set counts for itself: answers to other questions become siblings."""
    questions = [Question("train_0", f"from {name}", (name,), name) for name in ("nq", "hotpotqa")]
    replies = {question.key: ["<answer>nq</answer>"] for question in questions}
    rollouts = run(questions, ReplyingEngine(codec, replies)).rollouts
    assert [rollout.reward.total for rollout in rollouts] == [1.0, 0.0]
    assert len({rollout.group_id for rollout in rollouts}) == 2
    rewards_B, mask_BT = torch.tensor([1.0, 0.0]), torch.ones(2, 3)
    assert group_advantages(rewards_B, mask_BT, [rollout.group_id for rollout in rollouts]).abs().sum() == 0
    assert group_advantages(rewards_B, mask_BT, ["train_0", "train_0"]).abs().sum() > 0


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("preset", ["default", "paper"])
def test_d10_training_samples_from_the_whole_softmax(path: Path, preset: str) -> None:
    """Samples of a nucleus (top_p 0.95) with log-probs of the whole softmax: the ratio starts away from 1."""
    lines = verl_overrides(load_config(path, [f"agent.preset={preset}"]))
    sampling = {line for line in lines if line.startswith("actor_rollout_ref.rollout.t")}
    assert "actor_rollout_ref.rollout.temperature=1.0" in sampling
    assert "actor_rollout_ref.rollout.top_p=1.0" in sampling
    assert not any("top_k=" in line for line in sampling)
    assert "actor_rollout_ref.rollout.calculate_log_probs=True" in lines


def test_d11_a_batch_without_policy_tokens_is_no_nan() -> None:
    """A mean over the mask without an epsilon: one micro-batch of void episodes makes the weights NaN."""
    rewards_B, mask_BT = torch.tensor([1.0, 0.0, 1.0, 0.5]), torch.tensor([[1, 1], [0, 0], [0, 0], [0, 0]])
    for rows in (slice(0, 4), slice(1, 4)):
        groups = ["a", "a", "b", "b"][rows]
        advantages_BT = group_advantages(rewards_B[rows], mask_BT[rows], groups)
        assert advantages_BT.tolist() == torch.zeros_like(mask_BT[rows], dtype=torch.float32).tolist()
    assert loss_positions([4, 4], [torch.zeros(2), torch.zeros(3)]).tolist() == []
    void, _ = play([SEARCH], searcher=FixedSearcher(error="down"))
    metrics = step_metrics([Rollout(void, Reward(0.0), "g")], stop=PROTOCOL.stop, decode=CODEC.decode, step_seconds=1.0)
    assert metrics["waste/token_share"] == metrics["agent/void_share"] == 1.0


@pytest.mark.parametrize("concurrency", [1, 3, 7, 64])
def test_d12_an_evaluation_counts_every_row(codec: ByteCodec, run: Run, concurrency: int) -> None:
    """A last batch that is not full and is dropped: rows missing from the score, all of them in a small set."""
    questions = [Question(f"q{i}", f"what is {i}?", (str(i),), "demo") for i in range(7)]
    replies = {question.key: [f"<answer>{i % 6}</answer>"] for i, question in enumerate(questions)}
    evaluation = run(questions, ReplyingEngine(codec, replies), concurrency=concurrency)
    summary = summarise(evaluation)
    assert [rollout.trajectory.question for rollout in evaluation.rollouts] == questions
    assert summary.num_questions == 7
    assert summary.kinds["all"].exact_match.mean == pytest.approx(6 / 7)


def test_d13_a_hiccup_of_the_retriever_costs_a_retry_and_stops_nobody() -> None:
    """One blocking request without timeout or retry: a hiccup ends the run, and the engine waits for the search."""
    num_failures, answered = 0, asyncio.Event()

    async def handler(request: httpx.Request) -> httpx.Response:
        nonlocal num_failures
        await asyncio.wait_for(answered.wait(), 5)
        if num_failures < 2:
            num_failures += 1
            raise httpx.ConnectError("refused") if num_failures == 1 else httpx.ReadTimeout("slow")
        queries = json.loads(request.content)["queries"]
        document = {"id": "Paris", "contents": "Paris\nParis is the capital."}
        return httpx.Response(200, json={"result": [[{"document": document, "score": 1.0}] for _ in queries]})

    async def episode(searcher: SearchClient, *replies: str) -> Trajectory:
        engine = ScriptedEngine(replies, CODEC)
        return await run_episode(
            QUESTION, engine=engine, searcher=searcher, codec=CODEC, protocol=PROTOCOL, limits=LIMITS
        )

    async def answer_at_once(searcher: SearchClient) -> Trajectory:
        trajectory = await episode(searcher, ANSWER)
        answered.set()
        return trajectory

    async def run() -> tuple[Trajectory, Trajectory]:
        transport = httpx.MockTransport(handler)
        async with SearchClient("http://r", transport=transport, backoff_seconds=0.001) as searcher:
            return await asyncio.gather(episode(searcher, SEARCH, ANSWER), answer_at_once(searcher))

    searched, direct = asyncio.run(run())
    assert (searched.stop_reason, searched.num_searches) == (StopReason.ANSWERED, 1)
    assert "Paris is the capital." in CODEC.decode(searched.response_ids)
    assert direct.stop_reason is StopReason.ANSWERED
    assert num_failures == 2


def test_d14_a_search_of_the_final_turn_is_neither_answered_nor_counted() -> None:
    """A search in the final turn that is answered, or that is counted as a valid one: the metric is too high."""
    searcher = FixedSearcher((hit("Paris", "text"),))
    trajectory, engine = play([SEARCH, SEARCH, SEARCH], searcher=searcher)
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assert len(engine.calls) == 3
    assert len(searcher.queries) == trajectory.num_searches == 2
    assert trajectory.turns[-1].action == Search("capital of France")
    assert trajectory.turns[-1].observation is None
    assert trajectory.answer is None
    rollout = Rollout(trajectory, Reward(0.0), "g")
    metrics = step_metrics([rollout], stop=PROTOCOL.stop, decode=CODEC.decode, step_seconds=1.0)
    assert metrics["agent/searches_per_question"] == 2.0
    assert metrics["agent/valid_action_share"] == pytest.approx(2 / 3)


def training_settings(lines: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What the agent loop is told, read back from the overrides that start a run."""
    prefix = "+actor_rollout_ref.rollout.custom.search_rl."
    settings: dict[str, dict[str, Any]] = {"limits": {}, "conversation": {}}
    for line in lines:
        key, _, value = line.removeprefix(prefix).partition("=")
        section, _, name = key.partition(".")
        if line.startswith(prefix) and section in settings:
            settings[section][name] = yaml.safe_load(value)
    return settings


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("override", ["agent.preset=default", "agent.preset=paper", "agent.protocol=tool_call"])
def test_d15_an_evaluation_talks_as_training_did(path: Path, override: str, tmp_path: Path) -> None:
    """Another prompt, other budgets or another layout at inference than in training: the policy is judged elsewhere."""
    config = load_config(path, [override, "agent.max_turns=3", "agent.max_prompt_tokens=500"])
    codec = qwen2_5()
    searcher = FixedSearcher(tuple(hit(name, f"{name} word " * 300) for name in "ABCD"))
    trained, setup = training_settings(verl_overrides(config)), setup_from(config)
    protocol = protocol_for(codec, **trained["conversation"])
    long = "<think>" + "so " * 2000
    act = protocol.reply_ids(codec, Search("Paris")), protocol.reply_ids(codec, Search("Rome")), codec.encode(long)
    script = [Generation(token_ids, (-0.5,) * len(token_ids)) for token_ids in (*act, *act)]
    in_training = asyncio.run(
        run_episode(
            QUESTION,
            engine=ScriptedEngine(script, codec),
            searcher=searcher,
            codec=codec,
            protocol=protocol,
            limits=Limits(**trained["limits"]),
        )
    )
    evaluation = asyncio.run(
        evaluate(
            [QUESTION],
            ask=partial(
                run_episode,
                engine=ScriptedEngine(script, codec),
                searcher=searcher,
                codec=codec,
                protocol=protocol_for(codec, **setup.agent.conversation),
                limits=setup.limits,
            ),
            concurrency=1,
            out_path=tmp_path / "episodes.jsonl",
        )
    )
    (rollout,) = evaluation.rollouts
    assert len(in_training.turns) == 4
    assert rollout.trajectory.prompt == in_training.prompt
    assert rollout.trajectory.response_ids == in_training.response_ids
    assert rollout.trajectory.response_mask == in_training.response_mask


def test_d16_a_query_is_taken_from_the_policys_own_turn() -> None:
    """The last search pair of the whole text: the prompt's example, or an earlier query, is sent again."""
    question = dataclasses.replace(QUESTION, text="what does <search>query</search> find")
    searcher = FixedSearcher((hit("<search>passage</search>", "text <search>passage</search>"),))
    limits = dataclasses.replace(LIMITS, max_turns=4, max_response_tokens=900)
    replies = ["I wonder.", "<search>my own words</search>", "Still nothing.", ANSWER]
    protocol = PROTOCOLS["search_r1"]
    engine = ScriptedEngine(replies, CODEC)
    limits = dataclasses.replace(limits, max_prompt_tokens=1500)
    episode = run_episode(question, engine=engine, searcher=searcher, codec=CODEC, protocol=protocol, limits=limits)
    trajectory = asyncio.run(episode)
    assert "<search>query</search>" in CODEC.decode(trajectory.prompt.token_ids)
    assert searcher.queries == ["my own words"]
    actions = [type(turn.action) for turn in trajectory.turns[:3]]
    assert actions == [Malformed, Search, Malformed]
