"""A whole evaluation with vLLM in process: killed in its middle, resumed, compared, and every file of the report."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner, Result

from search_rl.cli.main import app
from search_rl.models import export_tiny

pytestmark = pytest.mark.engine

NUM_QUESTIONS = 40
FILES = {"episodes.jsonl", "questions.jsonl", "summary.json", "protocol.json", "settings.json"}
FILES |= {"report.md", "report.html", "row.csv"}
CONFIG = """
run: {name: eval}
model: {path: TINY}
data: {train: [unused.parquet], dev: [unused.parquet]}
trainer: {total_steps: 1}
retriever: {url: "URL"}
agent: {prompt: short, max_turns: 1, max_prompt_tokens: 200, max_turn_tokens: 24, max_observation_tokens: 100,
        max_response_tokens: 180}
hardware: {platform: cpu, gpus_per_node: 1, kv_cache_gib: 1}
"""

Command = Callable[..., list[str]]


@pytest.fixture
def command(tmp_path: Path, service: str) -> Command:
    """The arguments of a suite of two systems on forty questions, with a model that writes at random."""
    export_tiny(tmp_path / "tiny")
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.replace("TINY", str(tmp_path / "tiny")).replace("URL", service))
    questions = tmp_path / "demo.jsonl"
    rows = (
        {
            "id": str(number),
            "question": f"capital of country {number}?",
            "golden_answers": ["Paris"],
            "extra_info": {"evidence_titles": ["Paris"]},
        }
        for number in range(NUM_QUESTIONS)
    )
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"systems": "rag,agent", "config": config, "questions": questions, "concurrency": 2}

    def command(*flags: str, out: Path) -> list[str]:
        return ["eval", *(f"--{name}={value}" for name, value in given.items()), f"--out={out}", *flags]

    return command


def run(*arguments: str | Path) -> Result:
    """A command to its end, in this process."""
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "160"})


def kill_after(rows: int, path: Path, arguments: list[str]) -> bytes:
    """Start the command and kill it once the file has so many rows; what the file holds then."""
    with subprocess.Popen([sys.executable, "-m", "search_rl.cli.main", *arguments], stderr=subprocess.DEVNULL) as child:
        deadline = time.monotonic() + 300
        while not path.exists() or path.read_bytes().count(b"\n") < rows:
            assert child.poll() is None, "the evaluation ended by itself"
            assert time.monotonic() < deadline, "the evaluation asked too few questions"
            time.sleep(0.02)
        tree = psutil.Process(child.pid).children(recursive=True)
        child.kill()
    _, alive = psutil.wait_procs(tree, timeout=30)
    assert [survivor.name() for survivor in alive] == [], "a kill leaves an engine that nobody asks"
    return path.read_bytes()


def test_a_killed_evaluation_goes_on(command: Command, tmp_path: Path) -> None:
    """Questions that are paid for twice, rows lost to a kill, or a report that a real engine's result breaks."""
    out = tmp_path / "out"
    episodes = out / "rag" / "episodes.jsonl"
    before = kill_after(5, episodes, command(out=out))
    whole = before[: before.rfind(b"\n") + 1]
    assert 5 <= whole.count(b"\n") < NUM_QUESTIONS and not (out / "rag" / "summary.json").exists()
    refused = run(*command(out=out))
    assert refused.exit_code == 2 and "--resume goes on with it" in refused.output
    resumed = run(*command("--resume", out=out))
    assert resumed.exit_code == 0, resumed.output
    assert episodes.read_bytes().startswith(whole), "rows of before the kill were written anew"
    for system in ("rag", "agent"):
        folder = out / system
        keys = [json.loads(line)["question"]["id"] for line in (folder / "episodes.jsonl").read_text().splitlines()]
        assert sorted(keys, key=int) == [str(number) for number in range(NUM_QUESTIONS)]
        assert {path.name for path in folder.iterdir()} == FILES
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["cost"]["engine_seconds"] > 0 and summary["num_failed"] == 0
        with (folder / "row.csv").open(newline="") as file:
            (row,) = csv.DictReader(file)
        assert float(row["exact_match/all"]) == summary["kinds"]["all"]["exact_match"]["mean"]
        assert f"| all | {NUM_QUESTIONS} |" in (folder / "report.md").read_text()
    rag = json.loads((out / "rag" / "summary.json").read_text())
    assert rag["retrieval"]["all"]["evidence_recall"]["mean"] == 1.0
    versions = json.loads((out / "agent" / "protocol.json").read_text())["rules"]["versions"]
    assert {"search-rl", "torch", "transformers"} < versions.keys()
    unlike = run("eval", "compare", out / "rag", out / "agent")
    assert unlike.exit_code == 2 and "not measured alike" in unlike.output
    forced = run("eval", "compare", out / "rag", out / "agent", "--force")
    assert forced.exit_code == 0 and "prompt.text" in forced.output
    report = (out / "rag" / "report.html").read_bytes()
    assert run("eval", "report", out / "rag").exit_code == 0
    assert (out / "rag" / "report.html").read_bytes() == report
