"""Exact match over the dev questions, and the export of the step that had most of them right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from search_rl.errors import TrainingError
from search_rl.training.dev_set import DevResult, best_result, dev_metrics, dev_result, dev_scores, keep_if_best
from search_rl.training.run_folder import RunFolder
from search_rl.types import Answer, Origin, Question, Reward, Rollout, Segment, StopReason, Trajectory, Turn


def rollout(answer: str, *, failure: str = "") -> Rollout:
    turn = Turn(Segment(Origin.POLICY, (1,), (-1.0,)), "", Answer(answer))
    question = Question("1", "?", ("Paris",), "toy")
    trajectory = Trajectory(question, Segment(Origin.PROMPT, (9,)), (turn,), StopReason.ANSWERED)
    return Rollout(trajectory, Reward(0.0, failure=failure), "group")


def test_rewards_of_the_run_do_not_change_the_exact_match() -> None:
    """Would catch a dev score that is the reward: it is 0 here, and the answer is right."""
    assert dev_scores(rollout("The Paris.")) == {"exact_match": 1.0, "void": 0.0}
    assert dev_scores(rollout("Rome")) == {"exact_match": 0.0, "void": 0.0}
    assert dev_scores(rollout("Paris", failure="NaN")) == {"exact_match": 0.0, "void": 1.0}


def test_dev_score_is_over_all_rows() -> None:
    """Would catch a mean over what was not void: of ten questions one is void, three are right."""
    scores = {"exact_match": [1.0, 0.0, 1.0, 0.0, 1.0, *[0.0] * 5], "void": [*[0.0] * 9, 1.0]}
    result = dev_result(40, 10, scores)
    assert (result.step, result.exact_match, result.n) == (40, 0.3, 10)
    assert (result.low, result.high) == pytest.approx((0.10779, 0.60322), abs=1e-5)  # Wilson, by hand
    assert dev_metrics(result, best=result, scores=scores)["dev/void_share"] == pytest.approx(0.1)


@pytest.mark.parametrize(("scores", "lost"), [({}, 3), ({"exact_match": [1.0, 0.0, None], "void": [0, 0, None]}, 1)])
def test_dev_episodes_that_raised_are_no_wrong_answers(scores: Any, lost: int) -> None:
    """Dev episodes that all raised read `dev exact match 0.000`, and the run went on."""
    with pytest.raises(TrainingError, match=f"{lost} of 3 dev questions could not be asked"):
        dev_result(40, 3, scores)


def save(folder: RunFolder, step: int) -> None:
    model = folder.model(step)
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(bytes([step]))
    folder.note_checkpoint(step, keep=1)


def test_best_export_outlives_its_checkpoint_and_a_tie_goes_to_the_earlier(tmp_path: Path) -> None:
    """Would catch a best step that is pruned, replaced by an equal one, forgotten by a resume, or copied."""
    kept = []
    for step, exact_match in ((1, 0.0), (2, 0.4), (3, 0.4), (4, 0.2), (5, 0.5)):
        folder = RunFolder(tmp_path)  # as after a resume
        save(folder, step)
        best = keep_if_best(folder, DevResult(step, exact_match, 0.0, 1.0, 5))
        assert best == best_result(folder)
        kept.append((best.step, (folder.best / "model.safetensors").read_bytes()[0]))
        assert (folder.best / "model.safetensors").stat().st_nlink == (2 if best.step == step else 1)
    assert kept == [(1, 1), (2, 2), (2, 2), (2, 2), (5, 5)]
    assert json.loads((tmp_path / "best.json").read_text()) == {
        "step": 5,
        "exact_match": 0.5,
        "low": 0.0,
        "high": 1.0,
        "n": 5,
    }
    assert sorted(path.name for path in folder.checkpoints.iterdir() if path.name.startswith("best")) == [
        folder.best.resolve().name
    ]


def test_result_over_other_questions_is_no_rival(tmp_path: Path) -> None:
    """Would catch a lucky best of five questions that no result over five hundred can ever replace."""
    folder = RunFolder(tmp_path)
    for step, n in ((1, 5), (2, 500)):
        save(folder, step)
        assert keep_if_best(folder, DevResult(step, 1 / step, 0.0, 1.0, n)).step == step


def test_step_whose_export_cannot_be_seen_is_not_noted_as_best(tmp_path: Path) -> None:
    """Would catch a best.json that names a model that nobody has."""
    folder = RunFolder(tmp_path)
    with pytest.raises(TrainingError, match=r"no export of step 2 at .* do all nodes see that disk"):
        keep_if_best(folder, DevResult(2, 1.0, 0.5, 1.0, 5))
    assert best_result(folder) is None
