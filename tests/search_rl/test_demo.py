"""What the demo leaves behind when it is ended from outside."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.retriever_server.bag_of_words import PLANETS, BagOfWordsEncoder
from tests.retriever_server.conftest import write_corpus

DEMO = """
import signal, sys, time
from pathlib import Path
from search_rl import demo

def stages(config, options):
    with demo.serving(Path(sys.argv[1]), f"http://127.0.0.1:{sys.argv[2]}", "--retriever", "empty"):
        print("serving", flush=True)
        time.sleep(60)

demo.load_config = stages  # The first thing that a demo does, once it knows how it is to end.
demo.run_demo(Path("none"), ())
"""


@pytest.mark.slow
def test_sigterm_leaves_no_service_behind(tmp_path: Path) -> None:
    """A demo that a scheduler or `timeout` ended left its retrieval service on the port, and the next one failed."""
    from retriever_server.index import build_index
    from tests.search_rl.training.conftest import free_port

    index = tmp_path / "index"
    build_index(write_corpus(tmp_path / "corpus.jsonl", PLANETS), index, BagOfWordsEncoder())
    command = [sys.executable, "-c", DEMO, str(index), str(free_port())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline().strip() != "serving":
            assert process.poll() is None
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
    assert children
    assert psutil.wait_procs(children, timeout=10)[1] == []
