"""The scripts for Ray and Slurm, with stand-ins for the programs of a cluster: what they start, and how they end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
RECORD = 'echo "$(basename "$0") $*" >> "$CALLS"\n'
STAYING = "#!/usr/bin/env bash\n" + RECORD + "exec sleep 60\n"
RUN = (
    "#!/usr/bin/env bash\n"
    + RECORD
    + "[[ $1 == train ]] || exec sleep 60\ntrap 'echo saved >> \"$CALLS\"; exit 2' TERM\nsleep 60 &\nwait\n"
)
SRUN = (
    "#!/usr/bin/env bash\n"
    + RECORD
    + "while [[ $1 == --* ]]; do shift; done\n"
    # srun passes the signal of its own on to what it runs.
    + 'exec "$@"\n'
)


class Cluster:
    """A copy of the scripts with a stand-in for each program that they call; `calls` is what was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []
        (folder / "scripts").mkdir()
        for name in ("ray_node", "slurm_train"):
            shutil.copy(SCRIPTS / name, folder / "scripts" / name)
        self.write(".venv/bin/ray", STAYING)
        self.write(".venv/bin/search-rl", RUN)
        self.write("bin/srun", SRUN)
        self.write("bin/scontrol", "#!/usr/bin/env bash\nprintf 'node1\\nnode2\\nnode3\\n'\n")
        self.write("bin/curl", "#!/usr/bin/env bash\n" + RECORD + "grep --quiet 'search-rl serve' \"$CALLS\"\n")
        self.write("bin/sleep", "#!/usr/bin/env bash\nexec /bin/sleep $(($1 == 60 ? 60 : 0))\n")

    def write(self, name: str, text: str) -> None:
        """A program of the cluster."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        log = self.folder / "calls"
        return log.read_text().splitlines() if log.exists() else []

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        """A script of the project, in a session of its own that the fixture ends."""
        environment = {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "CALLS": str(self.folder / "calls"),
            **variables,
        }
        process = subprocess.Popen(
            command, cwd=self.folder, env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True
        )
        self.processes.append(process)
        return process

    def await_calls(self, condition: Callable[[list[str]], bool]) -> None:
        """Return once it holds for the calls."""
        deadline = time.monotonic() + 20
        while not condition(self.calls):
            assert time.monotonic() < deadline, self.calls
            time.sleep(0.02)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    for process in made.processes:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        finally:
            process.communicate()


def members(session: int) -> list[str]:
    """The command lines of a session's processes, but for those that only wait to be collected."""
    listed = subprocess.run(["ps", "-o", "args=", "-s", str(session)], capture_output=True, text=True, check=False)
    return [line for line in listed.stdout.splitlines() if not line.endswith("<defunct>")]


@pytest.mark.parametrize(
    ("arguments", "joined"),
    [
        (("head", "an index"), "ray start --head --port=6379 --block"),
        (("worker", "node1:6379", "an index"), "ray start --address=node1:6379 --block"),
    ],
)
def test_a_node_joins_and_serves_its_own_index_until_it_is_ended(
    cluster: Cluster, arguments: tuple[str, ...], joined: str
) -> None:
    """Would catch a node without its retriever, an index with a space in its path, a service that outlives its node."""
    process = cluster.start("scripts/ray_node", *arguments, "--config", "a file")
    cluster.await_calls(lambda calls: len(calls) == 2)
    assert sorted(cluster.calls) == [joined, "search-rl serve --index an index --port 8000 --config a file"]
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=10)
    assert members(process.pid) == []


def test_a_node_ends_with_its_service(cluster: Cluster) -> None:
    """Would catch a node that stays in the cluster with nobody to ask."""
    cluster.write(".venv/bin/search-rl", "#!/usr/bin/env bash\nexit 3\n")
    process = cluster.start("scripts/ray_node", "head", "index")
    assert process.wait(timeout=10) == 3
    assert members(process.pid) == []


@pytest.mark.parametrize("arguments", [(), ("worker",), ("worker", "index"), ("tail",)])
def test_a_node_without_a_role_says_how_it_is_called(cluster: Cluster, arguments: tuple[str, ...]) -> None:
    """Would catch a worker that takes an index for an address."""
    process = cluster.start("scripts/ray_node", *arguments)
    _, error = process.communicate(timeout=10)
    assert process.returncode == 2
    assert "scripts/ray_node head | worker HOST:PORT [INDEX" in error
    assert cluster.calls == []


def slurm(cluster: Cluster, num_nodes: int) -> subprocess.Popen[str]:
    return cluster.start(
        *("bash", "scripts/slurm_train", "configs/c.yaml", "index", "--set", "run.name=a b"),
        SLURM_SUBMIT_DIR=str(cluster.folder),
        SLURM_JOB_NODELIST="node[1-3]",
        SLURM_JOB_NUM_NODES=str(num_nodes),
    )


@pytest.mark.parametrize("num_nodes", [1, 3])
def test_a_job_starts_its_nodes_then_the_run_and_passes_the_end_on(cluster: Cluster, num_nodes: int) -> None:
    """Would catch workers on the head's machine, a run of another size than its nodes, and one that is not asked to
    save before the time is up. A list of nodes cut short by `head -1` ended the job now and then (pipefail)."""
    process = slurm(cluster, num_nodes)
    num_steps = 3 if num_nodes == 1 else 4
    cluster.await_calls(
        lambda calls: (
            any(call.startswith("search-rl train") for call in calls)
            and sum(call.startswith("srun") for call in calls) == num_steps
        )
    )
    steps = [call for call in cluster.calls if call.startswith("srun")]
    on_head = "srun --nodes=1 --ntasks=1 --nodelist=node1 --overlap"
    assert f"{on_head} scripts/ray_node head index --config configs/c.yaml" in steps
    on_others = "srun --nodes=2 --ntasks-per-node=1 --exclude=node1 --overlap"
    workers = f"{on_others} scripts/ray_node worker node1:6379 index --config configs/c.yaml"
    assert [step for step in steps if "worker" in step] == ([workers] if num_nodes > 1 else [])
    training = f"train configs/c.yaml --set hardware.ray_address=auto --set hardware.nodes={num_nodes}"
    assert f"{on_head} .venv/bin/search-rl {training} --set run.name=a b" in steps
    waited = {call for call in cluster.calls if call.startswith("curl")}
    assert waited == {"curl --silent --fail http://127.0.0.1:8000/ready"}
    first = next(call.split(" --")[0] for call in cluster.calls if call.startswith("search-rl"))
    assert first == "search-rl serve", "the run waits for its retriever"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 2, "what the run ended with"
    assert "saved" in cluster.calls


def test_a_job_without_an_index_says_so(cluster: Cluster) -> None:
    """Would catch nodes that are started for nothing."""
    process = cluster.start("bash", "scripts/slurm_train", "c.yaml", SLURM_SUBMIT_DIR=str(cluster.folder))
    _, error = process.communicate(timeout=10)
    assert process.returncode == 1
    assert "INDEX is missing" in error
    assert cluster.calls == []
