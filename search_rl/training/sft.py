"""The warm-up: a few demonstrations through verl's SFT trainer, in a process of its own (torchrun)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from search_rl import records
from search_rl.agent.selection import protocol_for
from search_rl.codec import load_codec
from search_rl.config import Config
from search_rl.datasets.questions import read_questions
from search_rl.errors import DataError, TrainingError
from search_rl.search import SearchClient
from search_rl.training.algorithm_overrides import EXTERNAL_LIB
from search_rl.training.demonstrations import choose_rows, demonstrate
from search_rl.training.exports import cast_weights
from search_rl.training.launch import environment, first_error
from search_rl.training.overrides import limits_of
from search_rl.types import Rollout

STEP_LINE = re.compile(r"step:(\d+) .*?train/loss:([0-9.einf+-]+)")


def warm_up(config: Config, out: Path, *, on_step: Callable[[dict[str, Any]], None]) -> Path:
    """The folder of the warmed-up checkpoint, `out`/export; `on_step` gets each step's metrics.

    Raises TrainingError when the folder holds an earlier run or the trainer fails, DataError when too few questions
    can be demonstrated, RetrieverError when the retriever is away.
    """
    if out.exists() and any(out.iterdir()):
        raise TrainingError(f"{out} is not empty: choose another folder for the warm-up, or remove it")
    out.mkdir(parents=True, exist_ok=True)
    demonstrations = asyncio.run(_demonstrations(config))
    path = out / "demonstrations.jsonl"
    records.append(path, demonstrations)
    num_steps = len(demonstrations) // config.sft.batch_size
    if not num_steps:
        raise DataError(
            f"{len(demonstrations)} questions could be demonstrated, fewer than sft.batch_size={config.sft.batch_size}"
        )
    _train(config, path, out, num_steps, on_step)
    trained = out / "checkpoints" / f"global_step_{num_steps}" / "huggingface"
    export = out / "export"
    shutil.move(trained, export)
    cast_weights(export)
    shutil.rmtree(out / "checkpoints")
    return export


async def _demonstrations(config: Config) -> list[Rollout]:
    rows = [row for path in config.data.train for row in read_questions(path).rows]
    chosen = choose_rows(
        rows,
        relations=config.sft.relations,
        mix=config.sft.mix,
        count=config.sft.demonstrations,
        seed=config.run.seed,
    )
    retriever = config.retriever
    codec = load_codec(config.model.path)
    protocol = protocol_for(codec, **config.agent.conversation)
    async with SearchClient(**retriever.client_options) as client:
        await client.check()
        return await demonstrate(
            chosen,
            searcher=client,
            codec=codec,
            protocol=protocol,
            limits=limits_of(config.agent, retriever.top_k),
        )


def sft_overrides(config: Config, demonstrations: Path, out: Path, num_steps: int) -> list[str]:
    """The arguments of `verl.trainer.sft_trainer` for this config."""
    on_cpu = config.hardware.platform == "cpu"
    return [
        f"data.train_files={json.dumps(str(demonstrations.resolve()))}",
        "data.custom_cls.path=pkg://search_rl.training.demonstrations",
        "data.custom_cls.name=DemonstrationDataset",
        "data.pad_mode=no_padding",
        f"data.train_batch_size={config.sft.batch_size}",
        f"data.max_token_len_per_gpu={config.optimizer.micro_batch_tokens}",
        "data.num_workers=0",
        f"model.path={json.dumps(config.model.path)}",
        f"model.external_lib={EXTERNAL_LIB}",
        f"model.use_remove_padding={not on_cpu}",
        f"model.enable_gradient_checkpointing={config.model.gradient_checkpointing}",
        f"+model.override_config.attn_implementation={config.model.attention}",
        "engine.strategy=fsdp2",
        f"engine.use_torch_compile={not on_cpu}",
        "engine.model_dtype=fp32",
        f"engine.seed={config.run.seed}",
        f"optim.lr={config.sft.learning_rate}",
        f"optim.lr_warmup_steps={config.sft.warmup_steps}",
        "optim.lr_scheduler_type=cosine",
        f"optim.weight_decay={config.optimizer.weight_decay}",
        "checkpoint.save_contents=[hf_model]",
        f"trainer.default_local_dir={json.dumps(str((out / 'checkpoints').resolve()))}",
        "trainer.logger=[console]",
        f"trainer.total_training_steps={num_steps}",
        "trainer.total_epochs=1",
        f"trainer.seed={config.run.seed}",
        "trainer.resume_mode=disable",
        f"trainer.device={'cpu' if on_cpu else 'cuda'}",
        f"trainer.nnodes={config.hardware.nodes}",
        f"trainer.n_gpus_per_node={config.hardware.gpus_per_node}",
        f"hydra.run.dir={json.dumps(str(out.resolve()))}",
        "hydra.job.chdir=False",
    ]


def _train(
    config: Config, demonstrations: Path, out: Path, num_steps: int, on_step: Callable[[dict[str, Any]], None]
) -> None:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        f"--nproc_per_node={1 if config.hardware.platform == 'cpu' else config.hardware.gpus_per_node}",
        *("-m", "verl.trainer.sft_trainer"),
        *sft_overrides(config, demonstrations, out, num_steps),
    ]
    log_path = out / "train.log"
    variables = {**os.environ, **environment(config), "PYTHONUNBUFFERED": "1"}
    with (
        log_path.open("w") as log,
        subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                log.write(line)
                if step := STEP_LINE.search(line):
                    on_step({"step": int(step[1]), "num_steps": num_steps, "train/loss": float(step[2])})
        except BaseException:  # Whatever ends us, an interrupt above all, ends the trainer first.
            process.terminate()
            raise
    if process.returncode:
        raise TrainingError(f"the SFT trainer failed: {first_error(log_path.read_text())} (log in {log_path})")
