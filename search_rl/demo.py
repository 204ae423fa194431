"""The demo: the commands a user would type, one after the other, timed, with one table and one picture at the end.

Every stage is a `search-rl` command in a process of its own, so what runs here is what a user runs. The service is
stopped at the end, also when the demo is interrupted.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil

from search_rl.config import Config, load_config
from search_rl.errors import SearchRLError

FACTBOOK = Path("data/factbook")
SAMPLE_SECONDS = 5.0  # a sample walks every page table of the tree
SERVICE_SECONDS = 120.0


class DemoError(SearchRLError):
    """A stage of the demo failed; its own message stands above."""


@dataclass(slots=True)
class Stages:
    """Runs commands and keeps the seconds of each, by stage name; `current` is the stage that runs."""

    seconds: dict[str, float] = field(default_factory=dict)
    current: str = "start"

    def run(self, stage: str, *arguments: str) -> None:
        """Run one `search-rl` command to its end. Raises DemoError when it fails."""
        command = [sys.executable, "-m", "search_rl.cli.main", *arguments]
        print(f"\n[{stage}] search-rl {shlex.join(arguments)}", flush=True)
        with self.timed(stage), subprocess.Popen(command) as process:
            try:
                status = process.wait()
            except BaseException:  # Whatever ends the demo, an interrupt above all, ends the stage first.
                process.send_signal(signal.SIGINT)
                process.wait()
                raise
        if status:
            raise DemoError(f"stage {stage} failed with exit status {status}: see its message above")

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Count the seconds of a block to `stage`."""
        self.current = stage
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - started


class MemoryWatch(threading.Thread):
    """The peak memory of this process and everything below it in each stage; pages that are shared count once."""

    def __init__(self, stages: Stages) -> None:
        super().__init__(daemon=True)
        self.peak_bytes: dict[str, int] = {}
        self._stages = stages
        self._stop_event = threading.Event()

    def run(self) -> None:
        """Sample until stopped."""
        while not self._stop_event.wait(SAMPLE_SECONDS):
            stage = self._stages.current
            self.peak_bytes[stage] = max(self.peak_bytes.get(stage, 0), _tree_bytes())

    def stop(self) -> None:
        """End sampling."""
        self._stop_event.set()
        self.join()


def _tree_bytes() -> int:
    """Proportional set size of the process tree; a process that ends meanwhile counts nothing."""
    me = psutil.Process()
    total = 0
    for process in (me, *me.children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


@contextmanager
def serving(index: Path, url: str, *options: str) -> Iterator[None]:
    """The retrieval service at `url` for the length of a block. Raises DemoError when it does not come up."""
    arguments = ["serve", "--index", str(index), "--port", str(urlsplit(url).port or 80), *options]
    print(f"\n[serve] search-rl {' '.join(arguments)}", flush=True)
    with subprocess.Popen([sys.executable, "-m", "search_rl.cli.main", *arguments], start_new_session=True) as service:
        try:
            _await_health(service, url)
            yield
        finally:
            service.terminate()
            service.wait()


def _await_health(service: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + SERVICE_SECONDS
    while time.monotonic() < deadline:
        if service.poll() is not None:
            raise DemoError(f"the retrieval service ended with exit status {service.returncode}: see its message above")
        try:
            if httpx.get(f"{url}/health", timeout=2.0).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.3)
    raise DemoError(f"the retrieval service at {url} was not healthy within {SERVICE_SECONDS:.0f} s")


def run_demo(config_path: Path, overrides: Sequence[str]) -> Path:
    """The summary.json of a finished demo. Raises SearchRLError when a stage fails; SIGTERM ends it as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    config = load_config(config_path, overrides)
    options = ["--config", str(config_path), *(part for item in overrides for part in ("--set", item))]
    training = [str(config_path), *options[2:]]
    folder, warm = config.run.folder, config.run.folder.with_name(f"{config.run.name}-sft")
    for used in (folder, warm):
        if used.exists():
            raise DemoError(f"{used} holds an earlier demo: remove it, or give another name with --set run.name=NAME")
    stages = Stages()
    memory = MemoryWatch(stages)
    memory.start()
    _prepare(stages, config)
    with serving(_index_folder(config), config.retriever.urls[0], *options):
        evaluations = warm / "eval"
        limit = ["--limit", str(config.eval.before_questions)] if config.eval.before_questions else []
        stages.run("eval before", "eval", *options, *limit, "--out", str(evaluations / "before"))
        stages.run("sft", "sft", *training, "--out", str(warm / "warm-up"))
        model = str(warm / "warm-up" / "export")
        stages.run("eval sft", "eval", *options, "--model", model, "--out", str(evaluations / "sft"))
        stages.run("train", "train", *training, "--set", f"model.path={model}")
        stages.run(
            "eval after",
            "eval",
            *options,
            "--model",
            str(folder / "export"),
            "--out",
            str(evaluations / "after"),
        )
    memory.stop()
    return _report(config, evaluations, stages, memory.peak_bytes)


def _prepare(stages: Stages, config: Config) -> None:
    """Data, model and index, unless an earlier demo left them."""
    if not (FACTBOOK / "test.parquet").exists():
        stages.run("data", "data", "factbook", "--out", str(FACTBOOK))
    if not Path(config.model.path).exists():
        stages.run("model", "model", "smollm2-135m", "--out", config.model.path)
    index = _index_folder(config)
    if not index.exists():
        if config.service.index is not None:
            raise DemoError(f"service.index={index} does not exist: build it, or leave the key out")
        what = ("--corpus", str(FACTBOOK / "corpus.jsonl"), "--retriever", config.service.built_for)
        stages.run("index", "index", "build", *what, "--out", str(index))


def _index_folder(config: Config) -> Path:
    """The config's, or the demo's own: one for each thing that a folder can be built for."""
    built_for = config.service.built_for
    return config.service.index or FACTBOOK / ("index" if built_for == "dense" else f"index-{built_for}")


def _report(config: Config, evaluations: Path, stages: Stages, peak_bytes: dict[str, int]) -> Path:
    """Print the table and write summary.json and the learning curve."""
    from search_rl.evaluation.demo_summary import demo_summary
    from search_rl.evaluation.result_folder import load_evaluation
    from search_rl.evaluation.stages import Stage, paired_table, stages_table
    from search_rl.training.run_folder import read_metrics
    from search_rl.viewer.curves import Level, plot_learning_curve
    from search_rl.viewer.progress import wide_console

    folder = config.run.folder
    before, sft, after = (Stage(name, load_evaluation(evaluations / name)) for name in ("before", "sft", "after"))
    metrics = read_metrics(folder / "metrics.jsonl")
    summary = demo_summary(
        before=before,
        sft=sft,
        after=after,
        metrics=metrics,
        stage_seconds=stages.seconds,
        stage_peak_bytes=peak_bytes,
    )
    path = folder / "summary.json"
    path.write_text(json.dumps(summary, indent=2) + "\n")
    levels = [
        Level(name, *(summary[f"em_{name}"][key] for key in ("mean", "low", "high")))
        for name in ("before", "sft", "after")
    ]
    plot_learning_curve(metrics, levels, folder / "learning_curve.png")
    console = wide_console()
    console.print(stages_table([before, sft, after]))
    console.print(paired_table(sft, after))
    seconds = ", ".join(f"{stage} {value:.0f} s" for stage, value in stages.seconds.items())
    console.print(f"{seconds}; peak memory {summary['peak_memory_gib']:.1f} GiB")
    console.print(f"learning curve: {folder / 'learning_curve.png'}\nrun folder: {folder}\n{path}", soft_wrap=True)
    return path
