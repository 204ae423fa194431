"""Where published files come from: the hub (as a server on loopback), an installed package, and a merge of two."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from search_rl.cli.data import app
from search_rl.datasets.benchmarks import benchmark_named
from search_rl.datasets.foreign import parse_mapping
from search_rl.datasets.get import get_benchmark, get_file
from search_rl.datasets.questions import read_questions
from search_rl.errors import DataError
from search_rl.types import Question

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BAMBOOGLE = b"".join(
    json.dumps({"id": f"test_{number}", "question": f"Who was {number}?", "golden_answers": ["Ada"]}).encode() + b"\n"
    for number in range(125)
)


class Hub(BaseHTTPRequestHandler):
    """The part of the hub that a download needs: one file under two revisions, kept as a large file is."""

    asked: list[str]

    def do_HEAD(self) -> None:
        """The file's commit, digest and size, and where its bytes are."""
        self._answer(with_body=False)

    def do_GET(self) -> None:
        """The bytes."""
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        self.asked.append(f"{self.command} {self.path}")
        repository = "/datasets/RUC-NLPIR/FlashRAG_datasets/resolve"
        if self.path in (f"{repository}/{revision}/bamboogle/test.jsonl" for revision in ("main", COMMIT)):
            self.send_response(HTTPStatus.FOUND)
            port = self.headers["Host"].partition(":")[2]
            self.send_header("Location", f"http://localhost:{port}/large/file")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("X-Linked-Size", str(len(BAMBOOGLE)))
            self.send_header("X-Linked-Etag", f'"{hashlib.sha256(BAMBOOGLE).hexdigest()}"')
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path == "/large/file":
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Length", str(len(BAMBOOGLE)))
            self.end_headers()
            if with_body:
                self.wfile.write(BAMBOOGLE)
        else:
            self.send_response(HTTPStatus.NOT_FOUND)
            self.send_header("X-Error-Code", "RevisionNotFound")
            self.send_header("X-Error-Message", "Invalid rev id: nowhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    """The URL of a hub on loopback, and what it was asked."""
    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("AskedHub", (Hub,), {"asked": asked}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def data_get(url: str, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: the hub's client reads its settings once, when it is imported."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith("HF_") and name != "no_proxy"}
    settings |= {"HF_ENDPOINT": url, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1,localhost"}
    command = [sys.executable, "-m", "search_rl.cli.main", "data", "get", *arguments]
    return subprocess.run(command, env=settings, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.slow
def test_a_set_is_downloaded_from_the_hub(hub: tuple[str, list[str]], tmp_path: Path) -> None:
    """A download that only works in a test without a network: another repository, another path, a revision that is not
    sent, or a card that tells another file than the one that was read."""
    url, asked = hub
    out = tmp_path / "out"
    got = data_get(url, tmp_path / "home", "bamboogle", "--out", str(out))
    assert got.returncode == 0, got.stderr
    assert "bamboogle.parquet: 125 bamboogle; 0 name evidence; 0 bad rows skipped" in got.stdout
    assert [question.id for question in read_questions(out / "bamboogle.parquet").questions][::124] == [
        "test_0",
        "test_124",
    ]
    card = json.loads((out / "bamboogle.card.json").read_text())
    assert card["sources"] == [
        {
            "name": "RUC-NLPIR/FlashRAG_datasets/bamboogle/test.jsonl",
            "sha256": hashlib.sha256(BAMBOOGLE).hexdigest(),
            "num_rows": 125,
            "bad_rows": [],
            "commit": COMMIT,
        }
    ]
    assert asked.count("GET /large/file") == 1
    again = data_get(url, tmp_path / "home", "bamboogle", "--out", str(out), "--revision", COMMIT)
    assert again.returncode == 0, again.stderr
    assert asked.count("GET /large/file") == 1, "what was downloaded once is not downloaded again"
    assert json.loads((out / "bamboogle.card.json").read_text()) == card | {"revision": COMMIT}


@pytest.mark.slow
def test_a_revision_that_the_hub_lacks_is_one_line(hub: tuple[str, list[str]], tmp_path: Path) -> None:
    """A traceback of the hub's client, or the newest revision in place of the one that was asked for."""
    got = data_get(hub[0], tmp_path / "home", "bamboogle", "--out", str(tmp_path / "out"), "--revision", "nowhere")
    assert (got.returncode, got.stdout) == (2, "")
    assert got.stderr.startswith("search-rl: cannot download bamboogle/test.jsonl of RUC-NLPIR/FlashRAG_datasets: ")
    assert got.stderr.count("\n") == 1
    assert "/resolve/nowhere/bamboogle/test.jsonl" in hub[1][-1]
    assert not (tmp_path / "out").exists()


def test_a_parquet_of_ones_own_with_columns_called_as_ours(tmp_path: Path) -> None:
    """Columns that are large in Search-R1's files and left out there, `prompt` and `metadata`: in a file of the user's
    own they may be the question."""
    row = {"uid": 7, "prompt": "Who?", "answer": ["Ada", "Byron"], "metadata": {"level": "hard", "title": "Ada"}}
    path = tmp_path / "mine.parquet"
    pq.write_table(pa.Table.from_pylist([row]), path)
    pairs = ["id=uid", "question=prompt", "golden_answers=answer", "kind=metadata.level"]
    get_file(path, tmp_path / "out", mapping=parse_mapping(pairs, None), name="mine", split="test")
    (question,) = read_questions(tmp_path / "out/mine.parquet").questions
    assert question == Question("7", "Who?", ("Ada", "Byron"), "mine", kind="hard")
    with pytest.raises(DataError, match=r"row 1: no 'metadata\.levle' among uid, prompt, answer, metadata"):
        get_file(path, tmp_path, mapping=parse_mapping([*pairs, "kind=metadata.levle"], None), name="x", split="test")


FANOUT_ROW = {"id": "a", "question": "Which?", "answer": ["Burrell", "Mulder"], "decomposition": []}


def install(folder: Path, name: str, files: dict[str, str]) -> None:
    """A package that cannot be imported, only found."""
    (folder / name / "data").mkdir(parents=True)
    (folder / name / "__init__.py").write_text("raise ImportError('needs spaCy')\n")
    for path, text in files.items():
        (folder / name / path).write_text(text)


def test_fanoutqa_is_read_out_of_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import of the package, which needs spaCy; a file beside the package; or one that is taken unchecked."""
    install(tmp_path / "site", "fanoutqa", {"data/fanout-final-dev.json": json.dumps([FANOUT_ROW])})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    fanoutqa = benchmark_named("fanoutqa")
    with pytest.raises(DataError, match=r"fanoutqa/data/fanout-final-dev.json has 1 usable rows, known are 310"):
        get_benchmark(fanoutqa, tmp_path / "out")
    card = get_benchmark(fanoutqa, tmp_path / "out", allow_other_size=True)
    digest = hashlib.sha256(json.dumps([FANOUT_ROW]).encode()).hexdigest()
    found = [(source.name, source.sha256, source.commit) for source in card.sources]
    assert found == [("fanoutqa/data/fanout-final-dev.json", digest, None)]
    (question,) = read_questions(tmp_path / "out/fanoutqa.parquet").questions
    assert question.golden_answers == ("Burrell, Mulder",)


def test_a_package_without_its_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback where the package is not installed, or is another one of that name."""
    install(tmp_path / "site", "fanoutqa", {})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with pytest.raises(DataError, match=r"fanoutqa is not installed: `pip install --no-deps fanoutqa==1.1.1`, or give"):
        get_benchmark(benchmark_named("fanoutqa"), tmp_path / "out")


def write_train(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """A training file, laid out as FlashRAG's collection is."""
    (folder / name).mkdir(parents=True)
    (folder / name / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def train_rows(name: str, count: int) -> list[dict[str, Any]]:
    """So many questions; each set counts its ids from 0."""
    return [
        {"id": f"train_{number}", "question": f"{name} {number}", "golden_answers": [name]} for number in range(count)
    ]


def test_the_training_set_is_nq_then_hotpotqa(tmp_path: Path) -> None:
    """One of the two sets left out or overwritten by the other, whose ids are the same; or counts of the wrong set."""
    write_train(tmp_path / "hub", "nq", train_rows("nq", 3))
    write_train(tmp_path / "hub", "hotpotqa", train_rows("hotpotqa", 2))
    options = ["--from", str(tmp_path / "hub"), "--out", str(tmp_path / "out")]
    refused = CliRunner().invoke(app, ["get", "search_r1_train", *options])
    assert "nq/train.jsonl has 3 usable rows, known are 79,168" in str(refused.exception)
    assert not (tmp_path / "out").exists()
    result = CliRunner().invoke(app, ["get", "search_r1_train", *options, "--allow-other-size"])
    assert result.exit_code == 0, result.output
    assert "search_r1_train.parquet: 2 hotpotqa, 3 nq; 0 name evidence; 0 bad rows skipped" in result.output
    questions = read_questions(tmp_path / "out/search_r1_train.parquet").questions
    assert [(question.dataset, question.text) for question in questions] == [
        *(("nq", f"nq {number}") for number in range(3)),
        *(("hotpotqa", f"hotpotqa {number}") for number in range(2)),
    ]
    assert len({question.id for question in questions}) == 3
    assert len({question.key for question in questions}) == 5
    card = json.loads((tmp_path / "out/search_r1_train.card.json").read_text())
    assert (card["split"], card["num_questions"], card["num_by_dataset"]) == ("train", 5, {"hotpotqa": 2, "nq": 3})
    assert [source["num_rows"] for source in card["sources"]] == [3, 2]
    with (tmp_path / "hub/nq/train.jsonl").open("a") as file:
        file.write(json.dumps(train_rows("nq", 1)[0]) + "\n")
    twice = CliRunner().invoke(app, ["get", "search_r1_train", *options, "--allow-other-size"])
    assert "nq/train.jsonl row 4: id 'train_0' was used by row 1" in str(twice.exception)
