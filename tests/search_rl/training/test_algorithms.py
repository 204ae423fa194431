"""Algorithms by name, two steps each, every part real. Two starts cover what differs in kind; --algorithms runs all.

Plain GRPO is what test_training_run starts. The tiny model's rewards are equal, so it gets one that differs between
siblings; in the two it fails for every fifth episode, whose siblings must do without.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import compress
from math import isfinite
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from search_rl.algorithms.downsampling import most_varied
from search_rl.codec import load_codec
from search_rl.datasets.questions import QuestionRow, read_questions, write_questions
from search_rl.training.run_folder import read_metrics
from search_rl.types import Rollout, Search

pytestmark = pytest.mark.engine
REWARD = """
def parity(trajectory):
    return float(sum(trajectory.response_ids) % 2)


def failing(trajectory):
    if sum(trajectory.response_ids) % 5 == 0:
        raise ValueError("every fifth episode has no reward")
    return parity(trajectory)
"""
FAILING = "reward={algorithm_rewards:failing: 1.0}"
KL = "algorithm.kl_coefficient=0.01"
ADAPTERS = ("model.lora_rank=8", "optimizer.learning_rate=1.0e-2")
ASYNC = "trainer.mode=colocate_async"
WEIGHTS = "algorithm.importance_weights=token"
DAPO = "algorithm.name=dapo"
HALF = "algorithm.trained_samples=4"
DEV = "trainer.eval_every_steps=2"
TOOL_CALLS = ("agent.protocol=tool_call", "agent.max_prompt_tokens=300", "optimizer.micro_batch_tokens=1500")
EVERY_TIME = {
    "ppo with all that differs in kind": (
        *("algorithm.name=ppo", KL, ASYNC, WEIGHTS, *ADAPTERS),
        *("algorithm.dynamic_sampling=true", "rollout.samples_per_prompt=4", "algorithm.overlong_penalty=1.0", DEV),
        *(FAILING, *TOOL_CALLS),
    ),
    "grpo, half of the siblings, some void": (
        *("rollout.prompts_per_step=6", "rollout.samples_per_prompt=8", "optimizer.mini_batch_prompts=6", HALF),
        *(FAILING, "algorithm.recompute_old_logprobs=true", "data.train=[three.parquet,other_three.parquet]"),
    ),
}
ON_DEMAND = {
    "ppo with KL in the reward": ("algorithm.name=ppo", KL),
    "dapo, async, adapters": (DAPO, "algorithm.recompute_old_logprobs=false", ASYNC, *ADAPTERS),
    **{name: (f"algorithm.name={name}",) for name in ("grpo_no_std", "dr_grpo", "dapo", "gspo", "cispo")},
    "grpo with KL in the loss, adapters": ("algorithm.name=grpo", KL, *ADAPTERS),
    "grpo, async, importance weights": (ASYNC, WEIGHTS, "algorithm.recompute_old_logprobs=true"),
    "reinforce++ with KL in the reward": ("algorithm.name=reinforce++", KL),
    "reinforce++_baseline with KL in the loss": ("algorithm.name=reinforce++_baseline", KL),
    "rloo, two mini-batches": ("algorithm.name=rloo", "optimizer.mini_batch_prompts=2"),
}
RUNS = [
    *(pytest.param(overrides, id=name) for name, overrides in EVERY_TIME.items()),
    *(pytest.param(overrides, id=name, marks=pytest.mark.algorithms) for name, overrides in ON_DEMAND.items()),
]


@pytest.fixture(scope="module")
def rewards(workspace: Any) -> Path:
    """The reward function, and two data sets of three questions each whose ids are equal."""
    folder: Path = workspace.folder
    (folder / "algorithm_rewards.py").write_text(REWARD)
    questions = read_questions(folder / "train.parquet").questions[:6]
    for name, three in (("three", questions[:3]), ("other_three", questions[3:])):
        rows = [QuestionRow(replace(it, id=str(i), dataset=name), relation="capital") for i, it in enumerate(three)]
        write_questions(folder / f"{name}.parquet", rows, split="train")
    return folder


def train(workspace: Any, name: str, overrides: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    settings = (
        *(f"run.name={name}", "trainer.total_steps=2", "trainer.save_every_steps=2"),
        *("reward={algorithm_rewards:parity: 1.0}", "trainer.max_void_share=0.9", *overrides),
    )
    command = [sys.executable, "-m", "search_rl.cli.main", "train", str(workspace.config)]
    path = os.pathsep.join([str(workspace.folder), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [*command, *(part for setting in settings for part in ("--set", setting))],
        cwd=workspace.folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )


def moved_weights(start: Path, export: Path) -> set[str]:
    import torch
    from transformers import AutoModelForCausalLM

    before, after = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict() for folder in (start, export)
    )
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name].bfloat16(), after[name].bfloat16())}


@pytest.mark.parametrize("overrides", RUNS)
def test_two_steps_of_the_algorithm(
    workspace: Any,
    calling_model: Path,
    rewards: Path,
    overrides: tuple[str, ...],
    request: pytest.FixtureRequest,
) -> None:
    """Would catch an algorithm that does not start, does not learn, or whose figures are no numbers."""
    name = "".join(letter if letter.isalnum() else "_" for letter in request.node.callspec.id)
    model = calling_model if TOOL_CALLS[0] in overrides else workspace.folder / "tiny"
    done = train(workspace, name, (f"model.path={model}", *overrides))
    assert done.returncode == 0, done.stderr
    folder = replace(workspace, name=name).run_folder
    rows = read_metrics(folder.root / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert [key for key, value in row.items() if not isinstance(value, int | float) or not isfinite(value)] == []
        assert row["actor/skipped_updates_total"] == 0
        assert row["actor/grad_norm"] > 0
    assert (max(row["agent/void_reward_share"] for row in rows) > 0) is (FAILING in overrides)
    assert rows[0]["agreement/pearson"] >= 0.99
    assert moved_weights(model, folder.export)
    if HALF in overrides:
        check_group_statistics(replace(workspace, name=name), rows, count=4)
    if TOOL_CALLS[0] in overrides:
        check_tool_calls(replace(workspace, name=name), model, rows[0])
    if DEV in overrides:
        assert f"best on the dev questions: {folder.best} (step 2, exact match 0.000)" in done.stdout
    check_pieces(rows, overrides)


def check_tool_calls(run: Any, model: Path, row: dict[str, Any]) -> None:
    """Calls that vLLM sampled were answered by the service, in a turn of the tool, and the policy went on behind it."""
    codec = load_codec(model)
    trajectories = [it.trajectory for it in run.rollouts(row["step"])]
    assert all("<tool_call>" in codec.decode(trajectory.prompt.token_ids) for trajectory in trajectories)
    searching = [trajectory for trajectory in trajectories if trajectory.num_searches]
    assert 0 < len(searching) < len(trajectories)
    for trajectory in searching:
        first, second = trajectory.turns
        assert first.action == Search("the capital")
        assert first.text.endswith("</tool_call>") and first.environment is not None
        assert "<tool_response>" in codec.decode(first.environment.token_ids)
        assert "ville." in codec.decode(first.environment.token_ids)
        assert second.policy.token_ids
    assert row["waste/behind_stop_tokens"] == 0


def check_group_statistics(run: Any, rows: list[dict[str, Any]], *, count: int) -> None:
    """What verl trained on is, by its own figures, what the stored rollouts say should be: groups without the void."""
    for row in rows:
        assert row["agreement/turn_1_mean_abs_gap"] <= 0.03, "the trainer's own log-probs are there at every step"
        rollouts = run.rollouts(row["step"])
        check_groups(rollouts)
        rewards, groups = [it.reward.total for it in rollouts], [None if it.is_void else it.group_id for it in rollouts]
        kept = list(compress(rollouts, most_varied(rewards, groups, range(len(rollouts)), count)))
        sizes = Counter(group for group in groups if group is not None)
        assert len(kept) == sum(min(count, size) for size in sizes.values()) < len(rollouts)
        assert row["critic/score/mean"] == pytest.approx(fmean(it.reward.total for it in kept))
        assert row["reward/total"] == pytest.approx(fmean(it.reward.total for it in rollouts if not it.is_void))
        credit = credit_by_hand([(it.group_id, it.reward.total) for it in kept])
        num_tokens = [sum(it.trajectory.response_mask) for it in kept]
        mean = sum(a * n for a, n in zip(credit, num_tokens, strict=True)) / sum(num_tokens)
        found = [row[f"critic/advantages/{name}"] for name in ("mean", "max", "min")]
        assert found == pytest.approx([mean, max(credit), min(credit)], abs=1e-4)


def check_groups(rollouts: list[Rollout]) -> None:
    """Each step asks all six questions eight times; as many ids as one data set has, and twice as many groups (D9)."""
    asked = Counter((it.group_id, it.trajectory.question.key) for it in rollouts)
    assert (len(asked), set(asked.values())) == (6, {8})
    assert len({group for group, _ in asked}) == len({question for _, question in asked}) == 6
    assert len({it.trajectory.question.id for it in rollouts}) == 3


def credit_by_hand(kept: list[tuple[str, float]]) -> list[float]:
    """GRPO's advantage of each episode (group, reward); a group of one teaches nothing."""
    groups: dict[str, list[float]] = defaultdict(list)
    for group, reward in kept:
        groups[group].append(reward)
    spread = {group: stdev(rewards) if len(rewards) > 1 else 1.0 for group, rewards in groups.items()}
    return [(reward - fmean(groups[group])) / (spread[group] + 1e-6) for group, reward in kept]


def check_pieces(rows: list[dict[str, Any]], overrides: tuple[str, ...]) -> None:
    """The pieces of the algorithm ran, by the metrics that nothing else writes."""
    given = set(overrides)
    wanted = {
        "algorithm.name=ppo": "critic/max_skipped_in_a_row",
        DAPO: "reward/overlong",
        WEIGHTS: "rollout_corr/rollout_is_mean",
    }
    for override, metric in wanted.items():
        assert override not in given or all(metric in row for row in rows), metric
    if KL in given:
        assert all({"actor/kl_loss", "actor/reward_kl_penalty"} & row.keys() for row in rows)
        assert abs(rows[0].get("actor/kl_loss", 0.0)) < 1e-3, "the policy is its own reference at first"
    if {DAPO, "algorithm.dynamic_sampling=true"} & given:
        assert all(row["group/mixed_share"] == 1.0 for row in rows)


@pytest.mark.algorithms
def test_questions_that_teach_nothing_end_dynamic_sampling(workspace: Any, rewards: Path) -> None:
    """Would catch a run that samples for ever: no question of this workspace is ever answered right."""
    overrides = (DAPO, "reward={exact_match: 1.0}", "algorithm.overlong_penalty=0")
    done = train(workspace, "hopeless", (*overrides, "algorithm.max_generation_batches=2"))
    assert done.returncode == 2
    assert "dynamic sampling found 0 questions with different rewards among" in done.stderr.splitlines()[-1]


@pytest.mark.algorithms
def test_weights_that_blow_up_end_the_run(workspace: Any, rewards: Path) -> None:
    """Would catch a run that goes on without a step, or on weights that are no numbers."""
    done = train(workspace, "blown", ("optimizer.learning_rate=1.0e+30", "trainer.max_skipped_updates=1"))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()[-1]) < 1000
