"""The workspace of the whole runs; verl chooses its platform when it is first imported: in these tests, the CPU."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import log
from pathlib import Path

import httpx
import psutil
import pytest
from tokenizers import AddedToken

from search_rl import records
from search_rl.agent.protocols import PROTOCOLS, AgentProtocol
from search_rl.agent.selection import protocol_for
from search_rl.codec import load_codec
from search_rl.datasets.questions import QuestionRow, write_questions
from search_rl.models import export_tiny
from search_rl.training.run_folder import RunFolder
from search_rl.types import Question, Rollout

os.environ["VERL_PLATFORM"] = "cpu"
COUNTRIES = ["Peru", "Chad", "Mali", "Fiji", "Oman", "Cuba", "Iran", "Togo", "Laos", "Iraq", "Niue", "Guam"]
START_SECONDS, STEP_SECONDS = 300.0, 120.0
VOCABULARY_SIZE = 49152
SURE_LOGIT = 34.0


@dataclass(frozen=True)
class Workspace:
    """A config with its model, questions and live service, and the commands that a user would run on it."""

    folder: Path
    config: Path
    name: str = "whole"

    @property
    def run_folder(self) -> RunFolder:
        return RunFolder(self.folder / "runs" / self.name)

    @property
    def countries(self) -> list[str]:
        return COUNTRIES

    def rollouts(self, step: int) -> list[Rollout]:
        path = self.run_folder.root / "rollouts" / f"step_{step:06d}.jsonl"
        return [record.rollout for record in records.read(path)]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of ours to its end."""
        return subprocess.run(
            _search_rl(*arguments),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )

    @contextmanager
    def serving(self, port: int) -> Iterator[subprocess.Popen[bytes]]:
        """A service over the index of the workspace, healthy, and gone at the end."""
        command = _search_rl("serve", "--index", str(self.folder / "index"), "--port", str(port))
        with subprocess.Popen(command) as service:
            try:

                def is_up() -> bool:
                    assert service.poll() is None, "the service ended by itself"
                    return _is_healthy(f"http://127.0.0.1:{port}")

                _await(is_up, START_SECONDS, "the service is healthy")
                yield service
            finally:
                service.kill()

    @contextmanager
    def start_training(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """`search-rl train` in a session of its own, which a failed assertion ends."""
        command = _search_rl("train", str(self.config), "--set", f"run.name={self.name}", *arguments)
        with subprocess.Popen(
            command, cwd=self.folder, start_new_session=True, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def await_in(
        self, process: subprocess.Popen[str], condition: Callable[[], bool], what: str
    ) -> list[psutil.Process]:
        """Wait until `condition` holds while `process` lives; its descendants at that time."""

        def holds() -> bool:
            assert process.poll() is None, f"the run ended by itself before: {what}"
            return condition()

        _await(holds, START_SECONDS + 2 * STEP_SECONDS, what)
        return psutil.Process(process.pid).children(recursive=True)


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _search_rl(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "search_rl.cli.main", *arguments]


def _await(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.5)


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _write_data(folder: Path) -> None:
    rows = [
        QuestionRow(
            Question(
                f"capital/{name}",
                f"What is the capital of {name}?",
                (f"{name}ville",),
                "toy",
                "one_hop",
                (name,),
            ),
            relation="capital",
            oracle_queries=(f"{name} capital",),
        )
        for name in COUNTRIES
    ]
    write_questions(folder / "train.parquet", rows, split="train")
    corpus = [{"id": name, "title": f"{name}: Capital", "text": f"The capital is {name}ville."} for name in COUNTRIES]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in corpus))


def _pad_with_the_end_token(model: Path) -> None:
    """As many checkpoints have it: whoever masks padding by its id masks the end of each turn too."""
    for name, key in (
        ("config", "pad_token_id"),
        ("generation_config", "pad_token_id"),
        ("tokenizer_config", "pad_token"),
    ):
        path = model / f"{name}.json"
        settings = json.loads(path.read_text())
        settings[key] = settings[key.replace("pad", "eos")]
        path.write_text(json.dumps(settings))


def _write_config(folder: Path, url: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(
        f"""
run: {{name: whole, root: {folder}/runs, seed: 3}}
model: {{path: {folder}/tiny}}
data: {{train: [{folder}/train.parquet], dev: [{folder}/train.parquet]}}
retriever: {{url: "{url}"}}
agent: {{prompt: short, max_turns: 1, max_prompt_tokens: 160, max_turn_tokens: 24, max_observation_tokens: 100,
        max_response_tokens: 180}}
rollout: {{prompts_per_step: 4, samples_per_prompt: 2, num_workers: 1, max_concurrent_sequences: 16, reproducible: true,
          gpu_memory_share: 0.2}}
algorithm: {{entropy_coefficient: 0.01, recompute_old_logprobs: false}}
optimizer: {{mini_batch_prompts: 4, micro_batch_tokens: 1024, learning_rate: 1.0e-2, warmup_steps: 2}}
trainer: {{total_steps: 3, save_every_steps: 1, trackers: [console, tensorboard]}}
hardware: {{platform: cpu, gpus_per_node: 1}}
sft: {{demonstrations: 12, batch_size: 4, learning_rate: 1.0e-2}}
"""
    )
    return path


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    folder = tmp_path_factory.mktemp("whole")
    export_tiny(folder / "tiny")
    _pad_with_the_end_token(folder / "tiny")
    _write_data(folder)
    port = free_port()
    workspace = Workspace(folder, _write_config(folder, f"http://127.0.0.1:{port}"))
    built = workspace.run("index", "build", "--corpus", str(folder / "corpus.jsonl"), "--out", str(folder / "index"))
    assert built.returncode == 0, built.stderr
    with workspace.serving(port):
        yield workspace


@pytest.fixture(scope="session")
def searching_model(workspace: Workspace) -> Path:
    """A checkpoint that searches in its first turn, whatever is asked: what it says next depends on the last token."""
    reply = ("<search>", "the capital", "</search>")
    return _saying_model(workspace, PROTOCOLS["short"], reply, logit=SURE_LOGIT)


@pytest.fixture(scope="session")
def calling_model(workspace: Workspace) -> Path:
    """The same in the words of `agent.protocol: tool_call`, in every other turn: the others are random tokens."""
    codec = load_codec(workspace.folder / "tiny")
    protocol = protocol_for(codec, protocol="tool_call", prompt="short", max_queries=1, keep_reasoning=True)
    reply = ("<tool_call>", '{"name": "search", "arguments": {"query": "the capital"}}', "</tool_call>")
    return _saying_model(workspace, protocol, reply, logit=log(VOCABULARY_SIZE))


def _saying_model(workspace: Workspace, protocol: AgentProtocol, reply: Sequence[str], *, logit: float) -> Path:
    """A checkpoint that begins a turn with `reply` at the odds of `logit` against zeros; all else is random tokens.

    The pieces of the reply are tokens of its own, each of which says what comes next: the model sees no further back.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    source, out = workspace.folder / "tiny", workspace.folder / f"saying-{protocol.stop[0].strip('</>')}"
    shutil.copytree(source, out)
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.add_tokens([AddedToken(piece, normalized=False, special=False) for piece in reply])
    tokenizer.save_pretrained(out)
    prompt_end = protocol.prompt_ids(load_codec(out), Question("1", "?", (), "toy"))[-1]
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source, tie_word_embeddings=False))
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()
        for last, following in pairwise((prompt_end, *tokenizer.convert_tokens_to_ids(list(reply)))):
            embedding = model.model.embed_tokens.weight[last]
            height = logit if last == prompt_end else SURE_LOGIT  # The last norm makes a vector sqrt(its size) long.
            model.lm_head.weight[following] += height * embedding / embedding.norm() / len(embedding) ** 0.5
    model.to(torch.bfloat16).save_pretrained(out)
    return out


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    export_tiny(folder)
    return folder


@pytest.fixture(scope="module")
def process_group() -> Iterator[None]:
    import torch
    from verl.utils.net_utils import get_free_port

    port, _ = get_free_port("127.0.0.1")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}
    torch.distributed.init_process_group("cpu:gloo")
    yield
    torch.distributed.destroy_process_group()
