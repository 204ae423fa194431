"""Published sets in the shapes that they are published in, written by hand, and users' own files."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from search_rl.cli.data import app
from search_rl.datasets.benchmarks import BENCHMARKS, benchmark_named
from search_rl.datasets.foreign import FieldMapping, parse_mapping
from search_rl.datasets.get import get_benchmark, get_file
from search_rl.datasets.questions import question_row, read_questions
from search_rl.errors import ConfigError, DataError
from search_rl.types import Question

HOPS = {"title": ["Ada Lovelace", "Lord Byron", "Ada Lovelace"], "sent_id": [0, 1, 2]}
CONTEXT = {"title": ["Ada Lovelace", "Analytical Engine", "Lord Byron"]}
STEPS = [
    {"id": 13, "question": "Who was the first programmer?", "answer": "Ada", "paragraph_support_idx": 2},
    {"id": 27, "question": "Who was the father of #1?", "answer": "Byron", "paragraph_support_idx": 9},
]
PARAGRAPHS = [
    {"idx": 2, "title": "Ada Lovelace", "paragraph_text": "Ada wrote the first program.", "is_supporting": True},
    {"idx": 9, "title": "Lord Byron", "paragraph_text": "Byron died at Missolonghi.", "is_supporting": True},
]
SHAPES: dict[str, dict[str, Any]] = {
    "nq": {"id": "test_0", "question": "who got the first nobel prize in physics", "golden_answers": ["Röntgen"]},
    "triviaqa": {"id": "test_0", "question": "Who was Ada's father?", "golden_answers": ["Lord Byron", "BYRON"]},
    "popqa": {
        "id": "test_0",
        "question": "What is Ada's occupation?",
        "golden_answers": ["mathematician"],
        "metadata": {"id": 4222362, "subj": "Ada", "prop": "occupation", "s_pop": 25.5, "possible_answers": "[]"},
    },
    "hotpotqa": {
        "id": "dev_0",
        "question": "Were Ada and Byron kin?",
        "golden_answers": ["yes"],
        "metadata": {
            "type": "comparison",
            "level": "hard",
            "supporting_facts": HOPS,
            "context": CONTEXT | {"sentences": [["Ada wrote."], ["It computes."], ["Byron wrote."]]},
        },
    },
    "2wikimultihopqa": {
        "id": "dev_0",
        "question": "Where did Ada's father die?",
        "golden_answers": ["Missolonghi"],
        "metadata": {"type": "compositional", "supporting_facts": HOPS, "context": CONTEXT | {"content": [["x"]] * 3}},
    },
    "musique": {
        "id": "dev_0",
        "question": "Where did the father of the first programmer die?",
        "golden_answers": ["Missolonghi", "Mesolongi"],
        "metadata": {
            "question_decomposition": [
                step | {"support_paragraph": paragraph} for step, paragraph in zip(STEPS, PARAGRAPHS, strict=True)
            ],
        },
    },
    "bamboogle": {"id": "test_0", "question": "Who was Ada's mother's cousin?", "golden_answers": ["Melbourne"]},
}


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """A folder laid out as FlashRAG's collection is, one row a file, and a second of another metadata type."""
    folder = tmp_path / "flashrag"
    for name, row in SHAPES.items():
        (folder / name).mkdir(parents=True)
        (part,) = BENCHMARKS[name].parts
        (folder / part.path).write_text(json.dumps(row, ensure_ascii=False) + "\n", "utf-8")
    other = SHAPES["popqa"] | {"id": "test_1", "metadata": {"id": "Q7", "s_pop": "many", "possible_answers": ["a"]}}
    with (folder / "popqa/test.jsonl").open("a") as file:
        file.write(json.dumps(other) + "\n")
    return folder


def test_every_published_shape_becomes_questions(collection: Path, tmp_path: Path) -> None:
    """The `datasets` library fails on PopQA's metadata, whose types differ from row to row (FlashRAG issue 132)."""
    card = get_benchmark(benchmark_named("search_r1_test"), tmp_path / "out", folder=collection, allow_other_size=True)
    questions = read_questions(tmp_path / "out/search_r1_test.parquet").questions
    assert card.num_by_dataset == {name: 2 if name == "popqa" else 1 for name in sorted(SHAPES)}
    assert [question.dataset for question in questions] == [
        *("nq", "triviaqa", "popqa", "popqa"),
        *("hotpotqa", "2wikimultihopqa", "musique", "bamboogle"),
    ]
    by_set = {question.dataset: question for question in questions}
    assert by_set["triviaqa"] == Question("test_0", "Who was Ada's father?", ("Lord Byron", "BYRON"), "triviaqa")
    kinds = {name: question.kind for name, question in by_set.items() if question.kind}
    assert kinds == {"hotpotqa": "comparison", "2wikimultihopqa": "compositional", "musique": "2hop"}
    assert len({question.key for question in questions}) == 8, "ids of different sets collide"


def test_supporting_articles_are_kept(collection: Path, tmp_path: Path) -> None:
    """Retrieval on HotpotQA, 2Wiki and MuSiQue that can only be judged by whether an answer stands somewhere: the
    titles of their evidence were dropped; or the distractors of the context taken for evidence."""
    card = get_benchmark(benchmark_named("search_r1_test"), tmp_path / "out", folder=collection, allow_other_size=True)
    questions = read_questions(tmp_path / "out/search_r1_test.parquet").questions
    assert (card.num_questions, card.num_with_evidence) == (8, 3)
    titles = {question.dataset: question.evidence_titles for question in questions if question.evidence_titles}
    assert titles == dict.fromkeys(("hotpotqa", "2wikimultihopqa", "musique"), ("Ada Lovelace", "Lord Byron"))
    assert not any(question.evidence_ids for question in questions)


@pytest.mark.parametrize(
    ("metadata", "titles"),
    [
        ({"supporting_facts": {"title": np.array(["Ada", "Byron"])}}, ("Ada", "Byron")),
        ({"supporting_facts": None, "question_decomposition": None}, ()),
        ({"supporting_facts": {"title": None}}, ()),
        ({"supporting_facts": {"title": ["Ada", None, " ", 7]}}, ("Ada",)),
        ({"supporting_facts": [["Ada", 0]]}, ()),
        (
            {"question_decomposition": [{"support_paragraph": None}, 3, {"support_paragraph": {"title": "Ada"}}]},
            ("Ada",),
        ),
        ("{}", ()),
        (None, ()),
    ],
)
def test_metadata_of_any_shape(metadata: Any, titles: tuple[str, ...]) -> None:
    """One row with metadata of another type that ends the reading of fifty thousand."""
    row = {"id": "1", "question": "Who?", "golden_answers": ["Ada"], "metadata": metadata}
    assert question_row(row).question.evidence_titles == titles


def test_sizes_are_those_that_papers_report() -> None:
    """A subset under the full set's name is the most common reason why two papers' scores do not compare."""
    assert BENCHMARKS["search_r1_test"].num_rows == BENCHMARKS["nq_hotpotqa_test"].num_rows == 51_713
    assert BENCHMARKS["search_r1_train"].num_rows == BENCHMARKS["nq_hotpotqa_train"].num_rows == 169_615


def test_a_set_of_another_size_is_refused_and_nothing_written(collection: Path, tmp_path: Path) -> None:
    """A download that ended early, taken for the whole set."""
    with pytest.raises(DataError, match=r"bamboogle/test.jsonl has 1 usable rows, known are 125"):
        get_benchmark(benchmark_named("bamboogle"), tmp_path / "out", folder=collection)
    assert not (tmp_path / "out").exists()
    rows = [SHAPES["bamboogle"] | {"id": f"test_{index}"} for index in range(125)]
    (collection / "bamboogle/test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    card = get_benchmark(benchmark_named("bamboogle"), tmp_path / "out", folder=collection)
    assert card.num_questions == 125
    stored = json.loads((tmp_path / "out/bamboogle.card.json").read_text())
    assert stored["sources"][0]["name"] == "RUC-NLPIR/FlashRAG_datasets/bamboogle/test.jsonl"
    assert len(stored["sources"][0]["sha256"]) == 64


def test_search_r1s_merged_parquet_keeps_the_set_of_each_row(tmp_path: Path) -> None:
    """Groups of NQ and HotpotQA rows with one id merged into one, as in the reference (D9)."""
    shared = {"question": "Who?", "golden_answers": ["Ada"], "prompt": [{"role": "user", "content": "Who?"}]}
    rows: list[dict[str, Any]] = [{"id": "train_0", "data_source": name, **shared} for name in ("nq", "hotpotqa")]
    rows[0]["metadata"], rows[1]["metadata"] = None, SHAPES["hotpotqa"]["metadata"]
    folder = tmp_path / "published"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")
    get_benchmark(benchmark_named("nq_hotpotqa_train"), tmp_path / "out", folder=folder, allow_other_size=True)
    questions = read_questions(tmp_path / "out/nq_hotpotqa_train.parquet").questions
    assert [question.key for question in questions] == ["2:nq/train_0", "8:hotpotqa/train_0"]
    assert [question.evidence_titles for question in questions] == [(), ("Ada Lovelace", "Lord Byron")]
    assert read_questions(folder / "train.parquet").questions == questions


def test_fanoutqa_answers_become_one_text(tmp_path: Path) -> None:
    """Answers that are tables, lists, numbers or truth values: a scorer that calls text methods on them dies."""
    answers: list[Any] = [{"Burrell": "Right", "Mulder": ["Left", 2]}, ["Murray", "Cantwell"], 4, False, "Spain"]
    rows = [
        {"id": str(index), "question": "Which?", "answer": answer, "categories": [], "decomposition": []}
        for index, answer in enumerate(answers)
    ]
    draft = {"id": "a", "question": "Who?", "answer": ["Burrell"], "depends_on": [], "decomposition": []}
    hand = {"id": "b", "question": "Which?", "answer": "Right", "depends_on": ["a"], "decomposition": []}
    page = {"pageid": 1, "revid": 2, "url": "https://en.wikipedia.org/wiki/1"}
    rows[0]["decomposition"] = [
        draft | {"evidence": page | {"title": "1998 draft"}},
        hand | {"evidence": None, "decomposition": [hand | {"evidence": page | {"title": "Pat Burrell"}}]},
        hand | {"evidence": page | {"title": "1998 draft"}},
    ]
    (tmp_path / "data").mkdir()
    (tmp_path / "data/fanout-final-dev.json").write_text(json.dumps(rows))
    get_benchmark(benchmark_named("fanoutqa"), tmp_path / "out", folder=tmp_path, allow_other_size=True)
    questions = read_questions(tmp_path / "out/fanoutqa.parquet").questions
    assert [question.golden_answers for question in questions] == [
        ("Right, Left, 2",),
        ("Murray, Cantwell",),
        ("4",),
        ("no",),
        ("Spain",),
    ]
    assert [question.kind for question in questions] == ["several_answers"] * 2 + ["one_answer"] * 3
    assert [question.evidence_titles for question in questions[:2]] == [("1998 draft", "Pat Burrell"), ()]


def test_a_fanoutqa_of_another_version_is_refused(tmp_path: Path) -> None:
    """The right number of rows with other answers in them."""
    rows = [{"id": str(index), "question": "Which?", "answer": "Spain"} for index in range(310)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data/fanout-final-dev.json").write_text(json.dumps(rows))
    with pytest.raises(DataError, match=r"has sha256 [0-9a-f]{64}, known is 359300b0"):
        get_benchmark(benchmark_named("fanoutqa"), tmp_path / "out", folder=tmp_path)


def test_a_bad_row_is_named_or_listed(collection: Path, tmp_path: Path) -> None:
    """A row without golden answers that ends an evaluation of fifty thousand questions."""
    with (collection / "nq/test.jsonl").open("a") as file:
        file.write(json.dumps({"id": "test_1", "question": "Who?", "golden_answers": []}) + "\n")
    nq = benchmark_named("nq")
    with pytest.raises(DataError, match=r"nq/test.jsonl row 2: golden_answers is empty"):
        get_benchmark(nq, tmp_path, folder=collection, allow_other_size=True)
    card = get_benchmark(nq, tmp_path, folder=collection, allow_other_size=True, skip_bad=True)
    assert [(bad.number, bad.fault) for bad in card.sources[0].bad_rows] == [(2, "golden_answers is empty")]


def test_a_set_that_is_not_there_says_where_it_was_looked_for(tmp_path: Path) -> None:
    """A stack trace of the hub's client in place of what to do."""
    with pytest.raises(DataError, match=r"no nq/test.jsonl in .*: the folder must be laid out as RUC-NLPIR"):
        get_benchmark(benchmark_named("nq"), tmp_path, folder=tmp_path)
    with pytest.raises(ConfigError, match="unknown data set 'hotpot': did you mean 'hotpotqa'"):
        benchmark_named("hotpot")


def test_without_a_network_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine behind a wall that gets a traceback of five libraries."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DataError, match=r"cannot download nq/test.jsonl of RUC-NLPIR/.*give --from FOLDER"):
        get_benchmark(benchmark_named("nq"), tmp_path)


def write_csv(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_a_csv_with_its_own_columns(tmp_path: Path) -> None:
    """A user who has to write a converter first."""
    path = write_csv(tmp_path / "mine.csv", [{"uid": "7", "prompt": "Who, then?", "answer": "Ada | Ada Lovelace"}])
    mapping = parse_mapping(["id=uid", "question=prompt", "golden_answers=answer"], "|")
    get_file(path, tmp_path, mapping=mapping, name="mine", split="test")
    (question,) = read_questions(tmp_path / "mine.parquet").questions
    assert question == Question("7", "Who, then?", ("Ada", "Ada Lovelace"), "mine")


@pytest.mark.parametrize("pages", ["Lord Byron | Ada Lovelace", '["Lord Byron", "Ada Lovelace"]'])
def test_evidence_in_one_text(tmp_path: Path, pages: str) -> None:
    """Evidence that was mapped and silently lost, because a CSV has no lists."""
    path = write_csv(tmp_path / "mine.csv", [{"question": "Who?", "golden_answers": "Ada", "pages": pages}])
    mapping = parse_mapping(["evidence_titles=pages"], "|" if "|" in pages else None)
    card = get_file(path, tmp_path, mapping=mapping, name="mine", split="test")
    (question,) = read_questions(tmp_path / "mine.parquet").questions
    assert (card.num_with_evidence, question.evidence_titles) == (1, ("Lord Byron", "Ada Lovelace"))


def test_nested_columns_lists_in_text_and_rows_without_ids(tmp_path: Path) -> None:
    """Answers kept as one text that spells a list; every row of a file without ids called a duplicate."""
    path = tmp_path / "mine.jsonl"
    rows = [{"q": {"text": "Who?"}, "golds": '["Ada", "Byron"]'}, {"q": {"text": "When?"}, "golds": 1815}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    mapping = FieldMapping({"question": "q.text", "golden_answers": "golds"})
    get_file(path, tmp_path, mapping=mapping, name="mine", split="dev")
    questions = read_questions(tmp_path / "mine.parquet").questions
    assert [(question.id, question.text, question.golden_answers) for question in questions] == [
        ("1", "Who?", ("Ada", "Byron")),
        ("2", "When?", ("1815",)),
    ]


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    """A mistyped column that leaves every question without an answer."""
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "Who?", "answer": "Ada"}\n')
    result = CliRunner().invoke(app, ["get", str(path), "--out", str(tmp_path), "--map", "golden_answers=anwser"])
    assert "row 1: no 'anwser' among question, answer" in str(result.exception)
    with pytest.raises(ConfigError, match="unknown field 'golds': known: data_source"):
        parse_mapping(["golds=answer"], None)
    with pytest.raises(DataError, match="'answer' is no mapping"):
        parse_mapping(["answer"], None)


def test_the_command_brings_and_counts(collection: Path, tmp_path: Path) -> None:
    """Options that are read and then forgotten on the way."""
    arguments = ["get", "nq", "--from", str(collection), "--out", str(tmp_path / "out"), "--allow-other-size"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "nq.parquet: 1 nq; 0 name evidence; 0 bad rows skipped" in result.output
    assert "search_r1_train" in CliRunner().invoke(app, ["list"]).output
