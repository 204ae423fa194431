"""What people read of a result: report.md, report.html, row.csv, and the row a question."""

from __future__ import annotations

import base64
import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from search_rl.datasets.predictions import read_predictions
from search_rl.errors import DataError
from search_rl.evaluation.report_files import write_report
from search_rl.evaluation.results import load_result
from search_rl.types import StopReason
from tests.search_rl.conftest import hit
from tests.search_rl.evaluation.told import ask, protocol, rows, told, write

NASTY = "<script>alert('x')</script> | *which* `city`?"
PASSAGES = [hit("Peru: Capital", "Capital: Lima.")]
TRAJECTORIES = [
    told(ask("capital of Peru?", "Lima", evidence=["Peru: Capital"]), "Lima", "Peru", passages=PASSAGES),
    told(ask(NASTY, "Lima", dataset="popqa"), "a | b\nc", "q", "q"),
    told(ask("who?", "x", dataset="popqa"), None, stop_reason=StopReason.SEARCH_FAILED),
    told(ask("small?", "x", dataset="bamboogle"), "x"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of three sets, one of them failed for a part."""
    return write(tmp_path / "runs" / "mine", TRAJECTORIES, rules=protocol(prompt={"name": "short", "text": "Do | it."}))


class Page(HTMLParser):
    """What a page refers to, and the tags that were left open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note it."""
        self.tags.append(tag)
        if tag not in ("meta", "img"):
            self.open.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        """Close the last one, which must be of the same kind."""
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_runs_nothing(folder: Path) -> None:
    """A page that needs the network, a question that becomes a script, or a table that is not closed."""
    page = Page((folder / "report.html").read_text())
    assert page.open == []
    assert "script" not in page.tags and "link" not in page.tags
    assert len(page.sources) == 5
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.sources)
    for source in page.sources:
        drawing = ElementTree.fromstring(base64.b64decode(source.partition(",")[2]))
        assert drawing.tag.endswith("svg")


def test_pictures_say_what_they_show(folder: Path) -> None:
    """A bar under another row's name, or a picture of what was not measured."""
    text = (folder / "report.html").read_text()
    captions = re.findall("<figcaption>(.*?)</figcaption>", text)
    assert captions == [
        "Exact match and F1 with 95 % intervals",
        "Exact match by number of searches",
        "Exact match by share of the evidence that was read",
        "Exact match by accepted answer in a passage that was read",
        "Why episodes ended",
    ]
    drawings = [base64.b64decode(source.partition(",")[2]).decode() for source in Page(text).sources]
    assert "popqa  (n = 2)" in drawings[0] and "bamboogle  (n = 1)" in drawings[0]
    assert "2  (n = 1)" in drawings[1]
    assert "search_failed" in drawings[4]


def test_failed_questions_are_told_first_and_listed(folder: Path) -> None:
    """Figures that look sound at the top and a failure at the end, or a failed question that nobody can find."""
    markdown = (folder / "report.md").read_text()
    assert markdown.splitlines()[0].startswith("# NOT VALID: 1 of 4 questions failed")
    assert "## Failed questions, counted as wrong" in markdown
    assert "| 5:popqa/who? | search\\_failed | who? |" in markdown
    page = (folder / "report.html").read_text().partition("<body>")[2].strip()
    assert page.startswith('<p class="headline invalid">NOT VALID: 1 of 4 questions failed')


def test_the_preset_of_the_budgets_stands_in_every_report(tmp_path: Path) -> None:
    """Figures under the paper's budgets beside figures under ours, and nobody can tell which is which."""
    rules = replace(protocol(), circumstances={"budgets": "paper, but max_turns=3"})
    folder = write(tmp_path / "runs" / "mine", TRAJECTORIES, rules=rules)
    assert (folder / "report.md").read_text().splitlines()[2] == "runs/mine, budgets paper, but max\\_turns=3"
    assert '<p class="note">Budgets paper, but max_turns=3</p>' in (folder / "report.html").read_text()
    with (folder / "row.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["budgets"] == "paper, but max_turns=3"
    before = write(tmp_path / "runs" / "before", TRAJECTORIES)
    assert (before / "report.md").read_text().splitlines()[2] == "runs/before"
    with (before / "row.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["budgets"] == ""


def test_a_report_of_a_result_from_before_hits_by_search(folder: Path) -> None:
    """Results on disk whose report cannot be written anew because they have one hit a search and not one a depth."""
    assert "|  | n | answer in best 1 | answer in best 3 | evidence recall |" in (folder / "report.md").read_text()
    summary = json.loads((folder / "summary.json").read_text())
    for row in summary["retrieval"]["all"]["by_search"]:
        row["answer_hit"] = row.pop("answer_hit_at")["3"]
    (folder / "summary.json").write_text(json.dumps(summary))
    result = load_result(folder)
    write_report(result, result.summary())
    assert "|  | n | evidence recall | recall so far |" in (folder / "report.md").read_text()


def test_markdown_tables_hold(folder: Path) -> None:
    """A question with a bar or a line break that ends its row."""
    tables = re.findall(r"(?:^\|.*\n)+", (folder / "report.md").read_text(), re.MULTILINE)
    assert len(tables) >= 8
    for table in tables:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table


def test_bamboogle_stands_apart(folder: Path) -> None:
    """Bamboogle among the sets that people rank by."""
    markdown = (folder / "report.md").read_text()
    sets, apart = markdown.split("## Apart")
    assert "| popqa | 2 |" in sets and "bamboogle" not in sets
    assert "| bamboogle | 1 |" in apart
    assert "| macro over 2 | 3 | 0.500 |" in markdown
    assert "| macro over 3, with bamboogle | 4 | 0.667 |" in markdown


def test_the_same_result_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    """A date or a random id in a report, which shows a difference where none is."""
    again = write(tmp_path / "again" / "runs" / "mine", TRAJECTORIES, rules=load_result(folder).protocol)
    for name in ("report.md", "report.html", "row.csv", "questions.jsonl"):
        assert (folder / name).read_bytes() == (again / name).read_bytes(), name


def test_one_row_for_a_table_over_many(folder: Path) -> None:
    """A figure under another heading, or a second row."""
    with (folder / "row.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["result"] == "runs/mine"
    assert row["system/model"] == "a model"
    assert row["is_valid"] == "False"
    assert (float(row["exact_match/all"]), float(row["exact_match/popqa"])) == (0.5, 0.0)
    assert float(row["exact_match/macro over 2"]) == 0.5
    assert float(row["exact_match/bamboogle/low"]) == pytest.approx(0.2065, abs=1e-4)
    assert (float(row["evidence_recall"]), float(row["exact_match_found"])) == (1.0, 1.0)
    assert float(row["written_tokens"]) == pytest.approx(2 * 7 / 4)
    assert (row["engine_seconds"], row["money_per_question"]) == ("0", "")


def test_a_row_a_question_that_can_be_scored_again(folder: Path) -> None:
    """Questions out of order, or a file that `search-rl score` does not read."""
    found = rows(folder / "questions.jsonl")
    assert [row["question"] for row in found] == [it.question.text for it in TRAJECTORIES]
    assert [row["evidence_found"] for row in found] == [1.0, None, None, None]
    read = read_predictions(folder / "questions.jsonl").predictions
    assert [(it.text, it.question) for it in read][:2] == [("Lima", "capital of Peru?"), ("a | b\nc", NASTY)]
    assert read[2].text is None


def test_a_result_is_what_was_asked_last(folder: Path) -> None:
    """The episodes of a longer question file, left by an earlier run, counted in a result that asked fewer."""
    kept = (folder / "questions.jsonl").read_text().splitlines(keepends=True)
    (folder / "questions.jsonl").write_text("".join(kept[2::-2]))
    assert [it.question.text for it in load_result(folder).outcomes] == ["who?", "capital of Peru?"]


@pytest.mark.parametrize("name", ["summary.json", "episodes.jsonl"])
def test_an_unfinished_result(folder: Path, name: str) -> None:
    """Figures of half an evaluation, or a traceback."""
    (folder / name).unlink()
    with pytest.raises(DataError, match="holds no finished evaluation"):
        load_result(folder)
    (folder / name).write_text("[]\n")
    with pytest.raises(DataError):
        load_result(folder)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_an_audit_that_somebody_edited(folder: Path, content: str) -> None:
    """A traceback in a report because of a file beside the result."""
    (folder / "audit.json").write_text(content)
    result = load_result(folder)
    with pytest.raises(DataError, match=r"audit\.json"):
        write_report(result, result.summary())
