"""One whole run with every part real: warm-up, live service, verl, vLLM, a kill, a resume, the export.

The model is tiny and knows nothing, so its rewards are equal and an entropy bonus is what moves the weights.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest

from search_rl import records
from search_rl.codec import load_codec
from search_rl.training.run_folder import read_metrics
from search_rl.types import Rollout, Search

pytestmark = pytest.mark.engine


NUM_DEV_QUESTIONS = 5
ENGINE_PATIENCE_SECONDS = 120.0
RAY_AGENTS = {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}  # they linger after a killed driver: README, Limits


@pytest.fixture(scope="module")
def killed_in_step_four(workspace: Any) -> Any:
    """The run, killed with three checkpoints written; a copy of it is the run `straight`."""
    folder = workspace.run_folder

    def has_third_checkpoint() -> bool:
        return (folder.last_step or 0) >= 3 and len(read_metrics(folder.root / "metrics.jsonl")) >= 3

    with workspace.start_training("--set", "trainer.total_steps=50", "--set", "trainer.keep_checkpoints=9") as process:
        try:
            tree = workspace.await_in(process, has_third_checkpoint, "three steps")
        finally:
            os.kill(process.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(tree, timeout=30)
    names = {process.name() for process in alive}
    for survivor in alive:
        survivor.kill()
    assert names <= RAY_AGENTS, "a kill leaves more than Ray's own agents"
    shutil.copytree(folder.root, straight_run(workspace).run_folder.root, symlinks=True)
    return workspace


def straight_run(workspace: Any) -> Any:
    return replace(workspace, name="straight")


@dataclass(frozen=True)
class Resumption:
    """A resumed run whose engine was killed behind step 3: what it said, and how long it took to say so."""

    returncode: int
    error: str
    seconds_to_end: float


def steps(run: Any) -> list[int]:
    return [row["step"] for row in read_metrics(run.run_folder.root / "metrics.jsonl")]


@pytest.fixture(scope="module")
def resumption(killed_in_step_four: Any) -> Resumption:
    """The resume finds step 2 whole and all later ones damaged, and has the dev questions asked."""
    run, folder = killed_in_step_four, killed_in_step_four.run_folder
    for step in folder.steps[2:]:
        os.truncate(folder.checkpoint(step) / "actor" / "optim_world_size_1_rank_0.pt", 4096)
    asking = ("--set", "trainer.eval_every_steps=1", "--set", f"trainer.eval_questions={NUM_DEV_QUESTIONS}")
    endless = ("--set", "trainer.total_steps=50", "--set", "trainer.keep_checkpoints=9")
    errors: list[str] = []
    with run.start_training("--resume", *asking, *endless) as process:
        reader = Thread(target=lambda: errors.extend(process.stderr), daemon=True)
        reader.start()
        tree = run.await_in(process, lambda: steps(run) == [1, 2], "the step before the damage")
        engines = [child for child in tree if "EngineCore" in child.name() or "EngineCore" in " ".join(child.cmdline())]
        assert engines, [child.name() for child in tree]
        run.await_in(process, lambda: steps(run) == [1, 2, 3], "step 3 again")
        for engine in engines:
            engine.kill()
        killed_at = time.monotonic()
        returncode = process.wait(timeout=ENGINE_PATIENCE_SECONDS + 60)
        seconds_to_end = time.monotonic() - killed_at
        reader.join()
    _, alive = psutil.wait_procs(tree, timeout=10)
    assert [survivor.name() for survivor in alive] == []
    return Resumption(returncode, "".join(errors), seconds_to_end)


@pytest.fixture(scope="module")
def resumed(killed_in_step_four: Any, resumption: Resumption) -> Any:
    return killed_in_step_four


def test_dead_engine_is_an_error_within_two_minutes(resumed: Any, resumption: Resumption) -> None:
    """Would catch a run that waits on an engine that is gone (or that leaves processes behind: in the fixture)."""
    assert resumption.returncode == 2
    last_line = resumption.error.strip().splitlines()[-1]
    assert "failed: the rollout engine failed: " in last_line, resumption.error
    assert last_line.endswith("; step 3 is saved, go on with --resume")
    assert resumption.seconds_to_end < ENGINE_PATIENCE_SECONDS
    assert resumed.run_folder.last_step == 3


def test_killed_run_leaves_no_process_and_resumes_to_the_last_step(resumed: Any) -> None:
    """Would catch orphans of Ray or vLLM after a kill (in the fixture), and a resume that begins again."""
    assert steps(resumed) == [1, 2, 3]


def test_damaged_checkpoint_is_passed_over_and_told(resumed: Any, resumption: Resumption) -> None:
    """Would catch a resume that loads half an optimiser, or that begins again because the last checkpoint is gone."""
    assert "step 3 is passed over: actor/optim_world_size_1_rank_0.pt has 4096 bytes of" in resumption.error
    assert resumption.error.count("passed over") == len(straight_run(resumed).run_folder.steps) - 2


def test_step_after_a_resume_is_the_step_of_the_run_that_went_straight_on(resumed: Any) -> None:
    """Would catch any state that a checkpoint lacks: place in the data, seeds, weights, rate."""
    straight = straight_run(resumed)
    (ids, log_probs), (same_ids, same_log_probs) = (by_question(run.rollouts(3)) for run in (straight, resumed))
    assert all(len(set(siblings)) == 2 for siblings in ids.values()), "siblings that are copies would prove nothing"
    assert same_ids == ids
    assert same_log_probs == pytest.approx(log_probs, abs=1e-4)
    first, again = (read_metrics(run.run_folder.root / "metrics.jsonl")[2] for run in (straight, resumed))
    is_same = re.compile(r"(?:actor/(?!perf|ppo_kl)|critic/|reward/|agent/|group/|waste/|response_length/).*")
    names = [name for name in first if is_same.match(name)]
    assert {"actor/lr", "actor/grad_norm", "actor/entropy_loss", "critic/score/mean"} <= set(names)
    assert {name: again[name] for name in names} == pytest.approx(
        {name: first[name] for name in names}, rel=1e-3, abs=1e-6
    )


def test_first_step_after_a_start_has_the_ratio_of_all_steps(resumed: Any) -> None:
    """The check of the engine left the trainer's log-probs in the loss's ratio: it was 1, whatever was configured."""
    runs = (straight_run(resumed), resumed)
    first, again = (read_metrics(run.run_folder.root / "metrics.jsonl")[2]["actor/ppo_kl"] for run in runs)
    assert again != 0.0
    assert again == pytest.approx(first, abs=5e-4), "the mean gap of sampler and trainer: rounding, in itself"


def test_update_after_a_resume_is_the_update_of_the_run_that_went_straight_on(resumed: Any) -> None:
    """Would catch an optimiser that begins anew: without Adam's moments of steps 1 and 2 this update is another one."""
    straight = straight_run(resumed)
    before, after, again = (
        weights(straight.run_folder.model(2)),
        weights(straight.run_folder.model(3)),
        weights(resumed.run_folder.model(3)),
    )
    moved = sum((after[name] - before[name]).abs().sum() for name in before)
    apart = sum((after[name] - again[name]).abs().sum() for name in before)
    assert moved > 0
    assert apart / moved < 0.02


def by_question(rollouts: list[Rollout]) -> tuple[dict[str, list[tuple[int, ...]]], list[float]]:
    """What was sampled for each question, siblings in order of their ids; the log-probs in the same order."""
    rollouts = sorted(rollouts, key=lambda rollout: (rollout.trajectory.question.id, rollout.trajectory.response_ids))
    ids: dict[str, list[tuple[int, ...]]] = {}
    for rollout in rollouts:
        ids.setdefault(rollout.trajectory.question.id, []).append(rollout.trajectory.response_ids)
    return ids, [value for rollout in rollouts for value in rollout.trajectory.response_logprobs]


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {name: weight.float() for name, weight in load_file(folder / "model.safetensors").items()}


def test_dev_questions_are_asked_and_the_best_export_stays(resumed: Any, resumption: Resumption) -> None:
    """Would catch a run that forgets a step it owes a result, dev episodes that fail unseen, and moving ties."""
    folder = resumed.run_folder
    *_, owed, last = read_metrics(folder.root / "metrics.jsonl")
    for row in (owed, last):
        assert (row["dev/exact_match"], row["dev/void_share"], row["dev/best_step"]) == (0.0, 0.0, 2)
    assert json.loads((folder.root / "best.json").read_text())["n"] == NUM_DEV_QUESTIONS
    assert (folder.best / "model.safetensors").samefile(folder.model(2) / "model.safetensors")
    assert "; dev exact match 0.000 [0.000, 0.4" in resumption.error


def test_resumed_run_goes_on_with_the_next_batch(resumed: Any) -> None:
    """Would catch a resume that trains on the first questions again: twelve questions make exactly three batches."""
    batches = [{rollout.trajectory.question.id for rollout in resumed.rollouts(step)} for step in (1, 2, 3)]
    assert [len(batch) for batch in batches] == [4, 4, 4]
    assert set.union(*batches) == {f"capital/{name}" for name in resumed.countries}


def test_ids_masks_and_log_probs_of_stored_rollouts_agree(resumed: Any) -> None:
    """Would catch a decode and encode on the way through verl, and groups of wrong size."""
    codec = load_codec(str(resumed.folder / "tiny"))
    for step in (1, 2, 3):
        rollouts = resumed.rollouts(step)
        assert sorted(rollout.group_id for rollout in rollouts) == sorted(2 * list({r.group_id for r in rollouts}))
        for rollout in rollouts:
            trajectory = rollout.trajectory
            assert trajectory.question.text in codec.decode(trajectory.prompt.token_ids)
            assert len(trajectory.response_ids) == len(trajectory.response_mask) == len(trajectory.response_logprobs)
            assert all(isfinite(logprob) and logprob <= 0 for logprob in trajectory.response_logprobs)
            for turn in trajectory.turns:
                assert codec.decode(turn.policy.token_ids) == turn.text
                if turn.environment is not None and turn.observation is not None:
                    assert turn.environment.token_ids == codec.encode(turn.observation.text)


def test_rollout_and_trainer_agree_after_start_and_after_resume(resumed: Any) -> None:
    """Would catch a rollout engine that ignores its weights: it then samples with log-prob -ln(vocabulary)."""
    rows = read_metrics(resumed.run_folder.root / "metrics.jsonl")
    for row in (rows[0], rows[2]):
        assert row["agreement/pearson"] >= 0.99
        assert row["agreement/mean_abs_gap"] <= 0.03
        assert row["agreement/turn_1_mean_abs_gap"] <= 0.03


def test_metrics_of_a_real_step_reach_tensorboard(resumed: Any) -> None:
    """Would catch tokens that vLLM samples behind a closing tag, and a tracker that is started and never told."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    row = read_metrics(resumed.run_folder.root / "metrics.jsonl")[-1]
    assert row["waste/behind_stop_tokens"] == 0
    assert 0 <= row["search/share_of_step"] < 1
    events = EventAccumulator(str(resumed.run_folder.root / "tensorboard"))
    events.Reload()
    for name in ("agent/searches_per_question", "waste/token_share", "search/seconds_p95", "group/all_zero_share"):
        point = [event for event in events.Scalars(name) if event.step == row["step"]][-1]
        assert point.value == pytest.approx(row[name], rel=1e-6)


def test_weights_moved_and_the_export_loads(resumed: Any) -> None:
    """Would catch an optimiser that never steps, and an export that transformers cannot read."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    before = AutoModelForCausalLM.from_pretrained(resumed.folder / "tiny", dtype=torch.float32).state_dict()
    after = AutoModelForCausalLM.from_pretrained(resumed.run_folder.export, dtype=torch.float32).state_dict()
    assert before.keys() == after.keys()
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert resumed.run_folder.export.resolve().parent.parent.name == "global_step_3"
    for folder in (resumed.run_folder.export, resumed.run_folder.best):
        kept = GenerationConfig.from_pretrained(folder).eos_token_id
        assert kept == GenerationConfig.from_pretrained(resumed.folder / "tiny").eos_token_id


def test_earlier_run_is_not_written_over(resumed: Any) -> None:
    """Would catch a second start that destroys a finished run."""
    again = resumed.run("train", str(resumed.config))
    assert again.returncode == 2
    assert "holds an earlier run: go on with --resume" in again.stderr
    done = resumed.run("train", str(resumed.config), "--resume")
    assert done.returncode == 2
    assert "is already at step 3 of trainer.total_steps=3" in done.stderr


def test_retriever_that_is_away_is_told_before_anything_starts(workspace: Any) -> None:
    """Would catch a run that pays its whole start before it finds that nobody answers."""
    result = workspace.run(
        "train", str(workspace.config), "--set", "retriever.url=http://127.0.0.1:9", "--set", "run.name=other"
    )
    assert result.returncode == 2
    assert "127.0.0.1:9" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (workspace.folder / "runs" / "other").exists()


def test_warm_up_fits_its_demonstrations(workspace: Any) -> None:
    """Would catch a warm-up on other tokens than the policy's, and an export that is no checkpoint."""
    import torch
    from transformers import AutoModelForCausalLM

    out = workspace.folder / "warm-up"
    result = workspace.run("sft", str(workspace.config), "--out", str(out))
    assert result.returncode == 0, result.stderr
    losses = [float(line.rsplit("loss ", 1)[1]) for line in result.stderr.splitlines() if "loss " in line]
    assert len(losses) == 3
    assert not (workspace.folder / "outputs").exists(), "Hydra's own files belong in the folder of the warm-up"
    demonstrations = [record.rollout.trajectory for record in records.read(out / "demonstrations.jsonl")]
    assert [t.answer for t in demonstrations] == [t.question.golden_answers[0] for t in demonstrations]
    assert all(isinstance(t.turns[0].action, Search) and t.num_searches == 1 for t in demonstrations)
    model = AutoModelForCausalLM.from_pretrained(out / "export", dtype=torch.float32)
    trajectory = demonstrations[0]
    ids = torch.tensor([*trajectory.prompt.token_ids, *trajectory.response_ids])
    log_probs = model(input_ids=ids[None]).logits[0].log_softmax(-1)[:-1].gather(1, ids[1:, None]).flatten()
    mask = torch.tensor(trajectory.response_mask)
    response = log_probs[len(trajectory.prompt.token_ids) - 1 :]
    assert response[mask].mean() > response[~mask].mean()
