"""Every question is asked once, counted once, and kept."""

from __future__ import annotations

import dataclasses
import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from search_rl.errors import EngineError, RequestError, SearchRLError
from search_rl.evaluation.episode_file import stored_rollouts
from search_rl.evaluation.runner import is_failed
from search_rl.records import read
from search_rl.rewards import exact_match, score
from search_rl.types import Question, Rollout, StopReason
from tests.search_rl.conftest import ByteCodec, FixedSearcher
from tests.search_rl.evaluation.conftest import ANSWER, SEARCH, ReplyingEngine, Run, ask

QUESTIONS = tuple(ask(f"q{index}", str(index)) for index in range(8))
DIRECT = {question.key: [ANSWER.format(question.golden_answers[0])] for question in QUESTIONS}


def keys_in(path: Path) -> list[str]:
    """The questions that a file answers, in order."""
    return [rollout.trajectory.question.key for rollout in stored_rollouts(path)]


def outcomes(rollouts: Sequence[Rollout]) -> list[tuple[str, float, StopReason]]:
    """What each question came to."""
    found = [rollout.trajectory for rollout in rollouts]
    return [(episode.question.id, exact_match(episode), episode.stop_reason) for episode in found]


def test_all_questions_are_counted_in_their_order(codec: ByteCodec, run: Run, tmp_path: Path) -> None:
    """A question lost among workers, or results in the order they ended in."""
    heard: list[str] = []
    engine = ReplyingEngine(codec, DIRECT)
    evaluation = run(QUESTIONS, engine, on_done=lambda done: heard.append(done.trajectory.question.id))
    assert outcomes(evaluation.rollouts) == [(q.id, 1.0, StopReason.ANSWERED) for q in QUESTIONS]
    assert sorted(heard) == [question.id for question in QUESTIONS]
    assert heard != sorted(heard), "the engine answers later questions sooner"
    assert set(keys_in(tmp_path / "episodes.jsonl")) == DIRECT.keys()


def test_the_default_reward_is_that_of_training(codec: ByteCodec, run: Run) -> None:
    """An evaluation whose rows score otherwise than the reward that the policy was trained on."""
    question = ask("q", "dark blue")
    (rollout,) = run([question], ReplyingEngine(codec, {question.key: [ANSWER.format("The blue.")]})).rollouts
    assert rollout.reward == score(rollout.trajectory, {"exact_match": 1.0, "f1": 0.0, "format": 0.0})
    assert rollout.reward.parts == {"exact_match": 0.0, "f1": pytest.approx(2 / 3), "format": 1.0}


@pytest.mark.parametrize("concurrency", [1, 3, 20])
def test_concurrency_is_bounded_and_changes_nothing(
    codec: ByteCodec, run: Run, tmp_path: Path, concurrency: int
) -> None:
    """More episodes in flight than asked for, or results that depend on how many."""
    engine = ReplyingEngine(codec, DIRECT)
    evaluation = run(QUESTIONS, engine, concurrency=concurrency)
    assert engine.most_running == min(concurrency, len(QUESTIONS))
    alone = run(QUESTIONS, ReplyingEngine(codec, DIRECT), concurrency=1, out_path=tmp_path / "alone.jsonl")
    assert outcomes(evaluation.rollouts) == outcomes(alone.rollouts)


def test_resume_asks_nothing_twice(codec: ByteCodec, run: Run) -> None:
    """An interrupted evaluation that starts over, or that counts what it had done as missing."""
    run(QUESTIONS[:5], ReplyingEngine(codec, DIRECT))
    engine, heard = ReplyingEngine(codec, DIRECT), list[Rollout]()
    evaluation = run(QUESTIONS, engine, on_done=heard.append)
    assert sorted(engine.asked) == [question.key for question in QUESTIONS[5:]]
    assert len(evaluation.rollouts) == len(heard) == 8
    again = ReplyingEngine(codec, DIRECT)
    assert outcomes(run(QUESTIONS, again).rollouts) == outcomes(evaluation.rollouts)
    assert again.asked == []


def test_resume_asks_a_changed_question(codec: ByteCodec, run: Run) -> None:
    """The episode of an older question file taken for the answer to a question that was reworded since."""
    run(QUESTIONS[:2], ReplyingEngine(codec, DIRECT))
    changed = dataclasses.replace(QUESTIONS[0], text="what is the number?")
    engine = ReplyingEngine(codec, DIRECT)
    evaluation = run([changed, QUESTIONS[1]], engine)
    assert engine.asked == [changed.key]
    assert evaluation.rollouts[0].trajectory.question == changed


def test_failed_questions_count_as_wrong(codec: ByteCodec, run: Run, tmp_path: Path) -> None:
    """An over-long question or a failed search that is left out of the figures, or that ends the run."""
    long = Question("long", "word " * 500, ("x",), "demo")
    searching = QUESTIONS[0]
    replies = {**DIRECT, searching.key: [SEARCH.format("anything")], long.key: []}
    evaluation = run([long, *QUESTIONS[:2]], ReplyingEngine(codec, replies), searcher=FixedSearcher(error="down"))
    assert outcomes(evaluation.rollouts) == [
        ("long", 0.0, StopReason.MAX_TOKENS),
        ("q0", 0.0, StopReason.SEARCH_FAILED),
        ("q1", 1.0, StopReason.ANSWERED),
    ]
    assert [is_failed(rollout.trajectory) for rollout in evaluation.rollouts] == [True, True, False]
    rows = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row["question"]["id"] == "long"]
    assert "max_prompt_tokens=400" in row["failure"]


def test_resume_asks_again_where_the_search_had_failed(codec: ByteCodec, run: Run) -> None:
    """A retriever's bad minute that stays in the result for ever, or two results of one question."""
    replies = {QUESTIONS[0].key: [SEARCH.format("anything"), ANSWER.format("0")]}
    void = run(QUESTIONS[:1], ReplyingEngine(codec, replies), searcher=FixedSearcher(error="down"))
    assert outcomes(void.rollouts) == [("q0", 0.0, StopReason.SEARCH_FAILED)]
    mended = run(QUESTIONS[:1], ReplyingEngine(codec, replies))
    assert outcomes(mended.rollouts) == [("q0", 1.0, StopReason.ANSWERED)]
    assert outcomes(run(QUESTIONS[:1], ReplyingEngine(codec, {})).rollouts) == outcomes(mended.rollouts)


def test_a_file_that_cannot_be_written(codec: ByteCodec, run: Run, tmp_path: Path) -> None:
    """A traceback of an OSError, for a full disk as for a folder that went away, in place of one line."""
    path = tmp_path / "gone" / "episodes.jsonl"
    with pytest.raises(SearchRLError, match=f"cannot write {path}: No such file or directory"):
        run(QUESTIONS, ReplyingEngine(codec, DIRECT), out_path=path)


def test_engine_failure_ends_the_run_and_keeps_what_is_done(codec: ByteCodec, run: Run, tmp_path: Path) -> None:
    """Episodes lost with the engine, other workers that go on after it, or a bare ExceptionGroup."""

    async def fail_on_q3(request_id: str) -> None:
        if request_id == QUESTIONS[3].key:
            raise EngineError("the engine is dead")

    engine = ReplyingEngine(codec, DIRECT, before_turn=fail_on_q3)
    with pytest.raises(EngineError, match="dead"):
        run(QUESTIONS, engine, concurrency=1)
    assert keys_in(tmp_path / "episodes.jsonl") == [question.key for question in QUESTIONS[:3]]
    assert engine.asked == [question.key for question in QUESTIONS[:4]]


def test_a_lost_request_fails_one_question_alone(codec: ByteCodec, run: Run, tmp_path: Path) -> None:
    """An evaluation ended by one request that a busy server dropped, or a question dropped from the mean with it."""

    async def lose_q1(request_id: str) -> None:
        if request_id == QUESTIONS[1].key:
            raise RequestError("answered 503: busy (attempt 5)")

    evaluation = run(QUESTIONS[:3], ReplyingEngine(codec, DIRECT, before_turn=lose_q1))
    assert outcomes(evaluation.rollouts) == [
        ("q0", 1.0, StopReason.ANSWERED),
        ("q1", 0.0, StopReason.ENGINE_FAILED),
        ("q2", 1.0, StopReason.ANSWERED),
    ]
    assert [is_failed(rollout.trajectory) for rollout in evaluation.rollouts] == [False, True, False]
    errors = [record.rollout.trajectory.failure for record in read(tmp_path / "episodes.jsonl")]
    assert [error for error in errors if error] == ["answered 503: busy (attempt 5)"]
    engine = ReplyingEngine(codec, DIRECT)
    mended = run(QUESTIONS[:3], engine)
    assert engine.asked == [QUESTIONS[1].key]
    assert [rollout.reward.total for rollout in mended.rollouts] == [1.0, 1.0, 1.0]


def test_a_run_in_which_nothing_succeeds_ends(codec: ByteCodec, run: Run, tmp_path: Path) -> None:
    """50,000 questions, each of which waits its retries out, because the server went away; or a run that single
    failures end, however many questions succeed between them.
    """
    questions = tuple(ask(f"q{index}", "x") for index in range(60))
    replies = {question.key: [ANSWER.format("x")] for question in questions}

    async def lose(request_id: str) -> None:
        raise RequestError("no answer")

    with pytest.raises(EngineError, match="10 questions in a row failed, the last by: no answer; mend it and resume"):
        run(questions, ReplyingEngine(codec, replies, before_turn=lose), concurrency=1)
    assert len(keys_in(tmp_path / "episodes.jsonl")) == 10

    async def lose_most(request_id: str) -> None:
        if int(request_id.rpartition("q")[2]) % 10:
            raise RequestError("no answer")

    path = tmp_path / "most.jsonl"
    engine = ReplyingEngine(codec, replies, before_turn=lose_most)
    assert len(run(questions, engine, concurrency=1, out_path=path).rollouts) == 60


def test_a_row_that_a_kill_cut_short_is_asked_again(codec: ByteCodec, run: Run, tmp_path: Path) -> None:
    """Half a row that the next one grows onto, so that both are lost."""
    path = tmp_path / "episodes.jsonl"
    run(QUESTIONS[:3], ReplyingEngine(codec, DIRECT), concurrency=1)
    path.write_bytes(path.read_bytes()[:-20])
    engine = ReplyingEngine(codec, DIRECT)
    evaluation = run(QUESTIONS[:4], engine, concurrency=1)
    assert engine.asked == [question.key for question in QUESTIONS[2:4]]
    assert [rollout.reward.total for rollout in evaluation.rollouts] == [1.0] * 4
    assert len(path.read_bytes().splitlines()) == 4


def test_episodes_are_not_kept_in_memory(codec: ByteCodec, run: Run) -> None:
    """All episodes of a large set held at once: some 100 kB for each real one, 6 kB and more here."""
    questions = tuple(ask(f"q{index}", "x") for index in range(200))
    replies = {question.key: [ANSWER.format("x")] for question in questions}
    tracemalloc.start()
    try:
        evaluation = run(questions, ReplyingEngine(codec, replies, asked=_Forgetful()))
        num_right = sum(rollout.reward.total for rollout in evaluation.rollouts)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_right == 200
    assert peak_bytes < 200 * 3000


class _Forgetful(list[str]):
    """Keeps nothing: what an engine was asked is not what is measured."""

    def append(self, item: str) -> None:
        """Forget it."""
