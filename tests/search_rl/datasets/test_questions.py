"""Question files: what is written is read, Search-R1's own files load, and bad rows are named."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from search_rl.cli.data import app
from search_rl.datasets.questions import QuestionRow, question_row, read_questions, write_questions
from search_rl.errors import DataError
from search_rl.types import Question

texts = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda text: bool(text.strip()))
text_tuples = st.lists(texts, max_size=3).map(tuple)
questions = st.builds(
    Question,
    id=texts,
    text=texts,
    golden_answers=st.lists(texts, min_size=1, max_size=3).map(tuple),
    dataset=texts,
    kind=st.sampled_from(["", "one_hop", "two_hop"]),
    evidence_ids=text_tuples,
    evidence_titles=text_tuples,
)
question_rows = st.builds(QuestionRow, question=questions, relation=texts, oracle_queries=text_tuples)

GOOD: dict[str, Any] = {"id": "q1", "question": "Who?", "golden_answers": ["Ada", "Ada Lovelace"]}


def write_lines(path: Path, *rows: Any) -> Path:
    """A JSON lines file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@settings(max_examples=50)
@given(st.lists(question_rows, min_size=1, max_size=6, unique_by=lambda row: row.question.key))
def test_any_questions_survive_parquet(rows: list[QuestionRow]) -> None:
    """A lossy column would change ids, answers or evidence between making and training."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.parquet"
        write_questions(path, rows, split="train")
        assert read_questions(path).rows == tuple(rows)


def test_the_columns_are_search_r1s(tmp_path: Path) -> None:
    """verl and Search-R1's scorers read these columns by name."""
    question = Question("q7", "Who?", ("Ada",), "people", kind="one_hop", evidence_ids=("ada/name",))
    path = tmp_path / "dev.parquet"
    write_questions(path, [QuestionRow(question)], split="dev", render_prompt=lambda text: f"Answer: {text}")
    (row,) = pq.read_table(path).to_pylist()
    assert row["data_source"] == "people"
    assert row["prompt"] == [{"role": "user", "content": "Answer: Who?"}]
    assert row["ability"] == "fact-reasoning"
    assert row["reward_model"] == {"style": "rule", "ground_truth": {"target": ["Ada"]}}
    assert (row["extra_info"]["split"], row["extra_info"]["index"]) == ("dev", 0)


def test_search_r1s_own_parquet_loads(tmp_path: Path) -> None:
    """The published training file has no column of ours, and metadata of mixed shape."""
    row: dict[str, Any] = {
        "id": "train_0",
        "question": "total number of death row inmates in the us",
        "golden_answers": ["2,718"],
        "data_source": "nq",
        "prompt": [{"role": "user", "content": "Answer the given question."}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": ["2,718"]}},
        "extra_info": {"split": "train", "index": 0},
        "metadata": None,
    }
    twin = row | {"data_source": "hotpotqa", "question": "Who?"}
    path = tmp_path / "train.parquet"
    pq.write_table(pa.Table.from_pylist([row, twin]), path)
    first, second = read_questions(path).questions
    assert first == Question("train_0", row["question"], ("2,718",), "nq")
    assert (second.id, second.dataset) == ("train_0", "hotpotqa")


def test_passage_ids_may_be_numbers() -> None:
    """A corpus with numbers for ids, as wiki-18's, whose questions seem to name no evidence."""
    row = GOOD | {"extra_info": {"evidence_ids": [12, "13", None, True], "evidence_titles": "Ada"}}
    assert question_row(row).question.evidence_ids == ("12", "13")


def test_a_file_from_before_titles_is_read(tmp_path: Path) -> None:
    """Question files that an update makes unreadable."""
    row = {"id": "1", "question": "Who?", "golden_answers": ["Ada"], "data_source": "demo"}
    path = tmp_path / "old.parquet"
    pq.write_table(pa.Table.from_pylist([row | {"extra_info": {"evidence_ids": ["ada/name"]}}]), path)
    assert read_questions(path).questions == (Question("1", "Who?", ("Ada",), "demo", evidence_ids=("ada/name",)),)


@pytest.mark.parametrize(
    "answers", [np.array(["Ada", "Lovelace"], dtype=object), ["Ada", "Lovelace"], ("Ada", "Lovelace")]
)
def test_golden_answers_may_be_any_sequence(answers: Any) -> None:
    """Data frames give numpy arrays, on which a plain truth test fails."""
    assert question_row(GOOD | {"golden_answers": answers}).question.golden_answers == ("Ada", "Lovelace")


def test_a_single_golden_answer_is_not_split_into_letters() -> None:
    """tuple("Ada") would accept the answer "A"."""
    assert question_row(GOOD | {"golden_answers": "Ada"}).question.golden_answers == ("Ada",)


def test_answers_may_stand_in_the_reward_model_only() -> None:
    """Users' own files often have no golden_answers column."""
    record = {"id": "q1", "question": "Who?", "reward_model": {"ground_truth": {"target": np.array(["Ada"])}}}
    assert question_row(record).question.golden_answers == ("Ada",)


def test_json_lines_take_the_file_name_as_data_set(tmp_path: Path) -> None:
    """Groups of two benchmarks would mix if both had an empty data set."""
    path = write_lines(tmp_path / "popqa.jsonl", GOOD, GOOD | {"id": 2})
    assert [(q.dataset, q.id) for q in read_questions(path).questions] == [("popqa", "q1"), ("popqa", "2")]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"question": "  "}, "question is empty"),
        ({"question": None}, "question is missing"),
        ({"question": math.nan}, "question is missing"),
        ({"question": 3}, "question is int 3, not text"),
        ({"golden_answers": []}, "golden_answers is empty"),
        ({"golden_answers": ["Ada", ""]}, "a golden answer is empty"),
        ({"golden_answers": [math.nan]}, "a golden answer is missing"),
        ({"golden_answers": math.nan}, "not a list"),
        ({"golden_answers": None}, "not a list"),
        ({"golden_answers": {"aliases": ["Ada"]}}, "not a list of texts"),
        ({"id": None}, "id is missing"),
        ({"id": True}, "id is bool True, not text"),
        ({"id": "q0"}, "id 'q0' was used by row 1"),
        ({"question": "Who\ud800?"}, "half of a surrogate pair"),
    ],
)
def test_a_bad_row_is_named_and_can_be_skipped(tmp_path: Path, change: dict[str, Any], fault: str) -> None:
    """A message without row and fault leaves the user to search thousands of rows."""
    path = write_lines(tmp_path / "own.jsonl", GOOD | {"id": "q0"}, GOOD | change, GOOD | {"id": "q2"})
    with pytest.raises(DataError, match=rf"own\.jsonl row 2: .*{fault}"):
        read_questions(path)
    skipped = read_questions(path, skip_bad=True)
    assert [question.id for question in skipped.questions] == ["q0", "q2"]
    assert [bad.number for bad in skipped.bad_rows] == [2]


@pytest.mark.parametrize("line", ['{"id": "q1",', "[1, 2]", "\udcff"])
def test_a_broken_line_is_a_bad_row(tmp_path: Path, line: str) -> None:
    """One torn line must not hide the rest of the file."""
    path = write_lines(tmp_path / "own.jsonl", GOOD)
    with path.open("ab") as file:
        file.write(line.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(DataError, match="row 2"):
        read_questions(path)
    assert len(read_questions(path, skip_bad=True).bad_rows) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.parquet", None, "no question file"),
        ("torn.parquet", b"PAR1 torn", "not a readable parquet file"),
        ("notes.txt", b"x", "end in .parquet or .jsonl"),
        ("empty.jsonl", b"\n", "no usable question"),
    ],
)
def test_a_file_that_holds_no_questions_is_told(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    """An empty or foreign file would otherwise start a run on nothing."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_questions(tmp_path / name)


def test_check_stops_at_a_bad_row_unless_told_to_skip(tmp_path: Path) -> None:
    """A check that swallows bad rows would approve a broken file."""
    path = tmp_path / "own.jsonl"
    rows = [{"id": "a", "question": "Who?", "golden_answers": ["Ada"]}, {"id": "b", "question": ""}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    with pytest.raises(DataError, match="row 2: question is empty"):
        CliRunner().invoke(app, ["check", str(path)], catch_exceptions=False)
    skipped = CliRunner().invoke(app, ["check", str(path), "--skip-bad"])
    assert skipped.exit_code == 0
    assert "1 bad rows skipped" in skipped.output
