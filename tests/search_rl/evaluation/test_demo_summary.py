"""The document of a whole run."""

from __future__ import annotations

import json

from pytest import approx

from search_rl.evaluation.demo_summary import demo_summary
from search_rl.evaluation.report import Stage
from search_rl.evaluation.runner import Evaluation
from tests.search_rl.conftest import ByteCodec
from tests.search_rl.evaluation.conftest import ANSWER, ReplyingEngine, Run, ask

QUESTIONS = (ask("q0", "red"), ask("q1", "blue", kind="two_hop"))


def test_demo_summary(run: Run, codec: ByteCodec) -> None:
    """A figure under another stage's name, or an agreement read from a row that has none."""
    replies = {question.key: [ANSWER.format("red")] for question in QUESTIONS}
    rollouts = run(QUESTIONS, ReplyingEngine(codec, replies)).rollouts
    half, full = Evaluation(rollouts, 5.0), Evaluation(rollouts[:1], 5.0)
    document = demo_summary(
        before=Stage("before", half),
        sft=Stage("SFT", half),
        after=Stage("GRPO", full),
        metrics=[{"step": 1, "agreement/pearson": 0.999, "agreement/mean_abs_gap": 0.01}, {"step": 2}],
        stage_seconds={"train": 400.0},
        stage_peak_bytes={"sft": 2 * 1024**3, "train": 3 * 1024**3},
    )
    assert json.loads(json.dumps(document)) == document
    assert document["em_sft"]["mean"] == 0.5
    assert document["em_sft"]["n"] == 2
    assert document["em_sft"]["by_kind"]["two_hop"]["mean"] == 0.0
    assert document["em_after"]["mean"] == 1.0
    assert document["em_after"]["low"] == approx(0.2065, abs=1e-4)
    assert document["format_rate"] == {"before": 1.0, "sft": 1.0, "after": 1.0}
    assert document["agreement"] == {"pearson": 0.999, "mean_abs_gap": 0.01}
    assert document["paired"]["sft_to_after"]["all"]["difference"]["n"] == 1
    assert document["seconds"] == {"train": 400.0}
    assert document["peak_memory_gib"] == 3.0
    assert document["stage_peak_memory_gib"] == {"sft": 2.0, "train": 3.0}
    assert document["is_valid"] is True
