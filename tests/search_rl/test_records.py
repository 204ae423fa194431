"""Records: what is read back is what was written."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_rl.errors import DataError
from search_rl.records import Record, append, read
from search_rl.types import (
    Answer,
    Malformed,
    Observation,
    Origin,
    Passage,
    Question,
    Reward,
    Rollout,
    ScoredPassage,
    Search,
    SearchResult,
    Segment,
    StopReason,
    Trajectory,
    Turn,
)

any_text = st.text(st.characters(), max_size=12)  # lone surrogates and line separators too
floats = st.floats(allow_nan=False)
ids = st.lists(st.integers(0, 2**31), min_size=1, max_size=6).map(tuple)
passages = st.builds(Passage, any_text, any_text, any_text, any_text)
results = st.builds(SearchResult, any_text, st.lists(st.builds(ScoredPassage, passages, floats), max_size=3).map(tuple))
observations = st.builds(Observation, any_text, st.lists(results, max_size=3).map(tuple), st.integers(0, 9))
searches = st.builds(Search, any_text, st.lists(any_text, max_size=3).map(tuple))
actions = searches | st.builds(Answer, any_text) | st.builds(Malformed, any_text)
questions = st.builds(
    Question,
    any_text,
    any_text,
    st.lists(any_text).map(tuple),
    any_text,
    any_text,
    st.lists(any_text).map(tuple),
    st.lists(any_text).map(tuple),
)


@st.composite
def turns(draw: st.DrawFn, is_last: bool) -> Turn:
    """A turn; every turn but the last has an observation."""
    token_ids = draw(ids)
    logprobs = draw(st.lists(floats, min_size=len(token_ids), max_size=len(token_ids)))
    observation = draw(st.none() | observations if is_last else observations)
    return Turn(
        policy=Segment(Origin.POLICY, token_ids, tuple(logprobs)),
        text=draw(any_text),
        action=draw(actions),
        observation=observation,
        environment=None if observation is None else Segment(Origin.ENVIRONMENT, draw(ids)),
        generate_seconds=draw(floats),
        search_seconds=draw(floats),
    )


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    """Any rollout that the types allow."""
    earlier = draw(st.lists(turns(is_last=False), max_size=2))
    trajectory = Trajectory(
        draw(questions),
        Segment(Origin.PROMPT, draw(ids)),
        (*earlier, draw(turns(is_last=True))),
        draw(st.sampled_from(StopReason)),
        draw(any_text),
    )
    reward = Reward(draw(floats), draw(st.dictionaries(any_text, floats, max_size=2)), draw(any_text))
    return Rollout(trajectory, reward, draw(any_text))


@settings(max_examples=150)
@given(st.lists(rollouts(), max_size=3), st.dictionaries(any_text, st.integers() | any_text, max_size=2))
def test_what_is_read_back_equals_what_was_written(written: list[Rollout], metadata: dict[str, int | str]) -> None:
    """A rounded log-prob, a list where a tuple was, a text cut at a line separator."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rollouts.jsonl"
        append(path, written[:1], metadata)
        append(path, written[1:], metadata)
        assert list(read(path)) == [Record(rollout, metadata) for rollout in written]


@pytest.fixture
def rollout() -> Rollout:
    """A short episode with a search."""
    turn = Turn(
        policy=Segment(Origin.POLICY, (5, 6), (-0.1, -1 / 3)),
        text="<search>q</search>",
        action=Search("q"),
        observation=Observation("obs", (SearchResult("q", (ScoredPassage(Passage("1", "T", "x"), 0.5),)),), 1),
        environment=Segment(Origin.ENVIRONMENT, (7, 8, 9)),
    )
    last = Turn(Segment(Origin.POLICY, (4,), (-0.2,)), "<answer>a</answer>", Answer("a"))
    trajectory = Trajectory(
        Question("q1", "who?", ("a", "b"), "demo", "two_hop", ("7",)),
        Segment(Origin.PROMPT, (1, 2, 3)),
        (turn, last),
        StopReason.ANSWERED,
    )
    return Rollout(trajectory, Reward(1.0, {"exact_match": 1.0}), "4:demo/q1")


def test_a_row_reads_like_the_vocabulary(tmp_path: Path, rollout: Rollout) -> None:
    """A silent change of the file format: other programs read these rows."""
    path = tmp_path / "rollouts.jsonl"
    append(path, [rollout], {"step": 3, "checkpoint": "step_2"})
    row = json.loads(path.read_text())
    assert row["version"] == 2
    assert row["metadata"] == {"step": 3, "checkpoint": "step_2"}
    assert row["stop_reason"] == "answered"
    assert row["prompt_ids"] == [1, 2, 3]
    assert row["turns"][0]["action"] == {"kind": "search", "query": "q", "more_queries": []}
    assert row["turns"][0]["policy_logprobs"] == [-0.1, -1 / 3]
    assert row["turns"][0]["environment_ids"] == [7, 8, 9]
    assert row["turns"][1]["observation"] is None
    assert row["reward"] == {"total": 1.0, "parts": {"exact_match": 1.0}, "failure": ""}
    assert row["failure"] == ""


def test_a_row_of_before_failures_were_told_is_read(tmp_path: Path, rollout: Rollout) -> None:
    """A run folder that nobody can open after an update."""
    path = tmp_path / "rollouts.jsonl"
    append(path, [rollout])
    row = json.loads(path.read_text())
    del row["failure"], row["reward"]["failure"], row["question"]["evidence_titles"]
    path.write_text(json.dumps(row) + "\n")
    assert [record.rollout for record in read(path)] == [rollout]


def test_rows_of_version_1_are_still_read(tmp_path: Path, rollout: Rollout) -> None:
    """Episodes on disk that an update makes unreadable: they had one query and one result a turn."""
    path = tmp_path / "rollouts.jsonl"
    append(path, [rollout])
    row = json.loads(path.read_text())
    row["version"] = 1
    del row["turns"][0]["action"]["more_queries"]
    observation = row["turns"][0]["observation"]
    (observation["result"],) = observation.pop("results")
    correction = {"text": "Try again.", "result": None, "num_passages_shortened": 0}
    row["turns"].insert(1, {**row["turns"][0], "observation": correction})
    path.write_text(json.dumps(row) + "\n")
    (record,) = read(path)
    first, corrected, last = record.rollout.trajectory.turns
    assert (first, last) == rollout.trajectory.turns
    assert corrected.observation == Observation("Try again.")


def test_the_mask_is_derived_and_survives(tmp_path: Path, rollout: Rollout) -> None:
    """A mask that is stored apart and drifts from the ids."""
    append(tmp_path / "r.jsonl", [rollout])
    (record,) = read(tmp_path / "r.jsonl")
    assert record.rollout.trajectory.response_mask == (True, True, False, False, False, True)
    assert record.rollout.trajectory.response_ids == (5, 6, 7, 8, 9, 4)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("not json", "not a rollout: Expecting value"),
        ("{}", "not a rollout: no field 'version'"),
        ('{"version": 3}', "version 3, this program reads versions 1 to 2"),
        ("[1]", "not a rollout"),
        ("null", "not a rollout"),
        ("", "not a rollout"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, rollout: Rollout, row: str, message: str) -> None:
    """Rows that are skipped, or an error that names no line."""
    path = tmp_path / "rollouts.jsonl"
    append(path, [rollout])
    with path.open("a") as file:
        file.write(row + "\n")
    with pytest.raises(DataError, match=rf"rollouts\.jsonl:2: .*{message}"):
        list(read(path))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("turns", 0, "policy_logprobs"), [-0.1]),
        (("turns", 0, "action", "kind"), "dance"),
        (("turns", 0, "environment_ids"), None),
        (("stop_reason",), "bored"),
        (("question", "golden"), ["x"]),
        (("reward",), 1.0),
    ],
)
def test_a_row_that_breaks_an_invariant_is_named(
    tmp_path: Path, rollout: Rollout, path: tuple[str | int, ...], value: object
) -> None:
    """A row edited by hand that would train on a wrong mask."""
    file = tmp_path / "rollouts.jsonl"
    append(file, [rollout])
    row = json.loads(file.read_text())
    target = row
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    file.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=r"rollouts\.jsonl:1: not a rollout"):
        list(read(file))


def test_a_row_cut_short_is_no_row(tmp_path: Path, rollout: Rollout) -> None:
    """A run that cannot be resumed, or read, because it was killed while it wrote a row."""
    path = tmp_path / "rollouts.jsonl"
    append(path, [rollout, rollout])
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert [record.rollout for record in read(path)] == [rollout]
    other = dataclasses.replace(rollout, group_id="other")
    append(path, [other])
    assert [record.rollout for record in read(path)] == [rollout, other]


def test_a_last_row_without_its_line_break_is_kept(tmp_path: Path, rollout: Rollout) -> None:
    """A row lost because an editor dropped the last line break."""
    path = tmp_path / "rollouts.jsonl"
    append(path, [rollout])
    path.write_bytes(path.read_bytes()[:-1])
    append(path, [rollout])
    assert len(list(read(path))) == 2
