"""Sampling with vLLM inside this program: one engine process, gone when the context ends.

On a CPU vLLM repacks the weights while it loads them, so this engine samples from the checkpoint as it was
opened; training goes through verl's server instead, which follows the trainer's weights.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil

from search_rl.allocator import allocator_environment
from search_rl.engines.base import Generation, Sampling
from search_rl.engines.vllm_cpu import CPU_ENGINE_ARGUMENTS
from search_rl.errors import EngineError, ModelError

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

_SHUTDOWN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class VllmEngine:
    """An engine over vLLM's AsyncLLM; make one with `open`."""

    _llm: AsyncLLM
    _sampling: Sampling

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        model_path: str | Path,
        sampling: Sampling,
        *,
        max_model_tokens: int,
        max_concurrent_requests: int = 32,
        seed: int = 0,
        dtype: str = "auto",
        cache_bytes: int | None = None,
    ) -> AsyncIterator[Self]:
        """The engine of a checkpoint folder or hub id, ready to sample; opening takes some ten seconds on a
        CPU.

        `cache_bytes` is the memory of the key-value cache (None: 1 GiB on a CPU, vLLM's own rule on a GPU).
        Raises ModelError when vLLM cannot load the model.
        """
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        _check_model(model_path)
        arguments = AsyncEngineArgs(
            model=str(model_path),
            max_model_len=max_model_tokens,
            max_num_seqs=max_concurrent_requests,
            seed=seed,
            dtype=dtype,
            kv_cache_memory_bytes=cache_bytes,
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",
            disable_log_stats=True,
            use_tqdm_on_load=False,
            **(_cpu_arguments(sampling) if current_platform.is_cpu() else {}),
        )
        before = _child_processes()
        variables = allocator_environment() if current_platform.is_cpu() else {}
        try:
            with _variables(variables):
                llm = AsyncLLM.from_engine_args(arguments)
        except (RuntimeError, ValueError, OSError) as error:
            raise ModelError(f"vLLM cannot load {model_path}: {_first_line(error)}") from error
        started = _child_processes() - before
        try:
            yield cls(llm, sampling)
        finally:
            llm.shutdown()
            _end(started)

    async def generate(
        self, prompt_ids: Sequence[int], *, max_tokens: int, stop: Sequence[str], request_id: str
    ) -> Generation:
        """See `Engine.generate`."""
        from vllm.exceptions import VLLMClientError
        from vllm.sampling_params import RequestOutputKind, SamplingParams
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        parameters = SamplingParams(
            temperature=self._sampling.temperature,
            top_p=self._sampling.top_p,
            top_k=self._sampling.top_k,
            seed=self._sampling.seed_of(request_id, len(prompt_ids)),
            max_tokens=max_tokens,
            stop=list(stop),
            include_stop_str_in_output=True,
            skip_special_tokens=False,
            logprobs=0,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        final: RequestOutput | None = None
        try:
            async for output in self._llm.generate(
                {"prompt_token_ids": list(prompt_ids)}, parameters, f"{request_id}-{len(prompt_ids)}"
            ):
                final = output
        except (EngineDeadError, EngineGenerateError, VLLMClientError, ValueError) as error:
            raise EngineError(f"vLLM failed: {_first_line(error)}") from error
        if final is None:
            raise EngineError(f"vLLM ended request {request_id} without an output")
        return _generation(final)

    async def forget_prefixes(self) -> None:
        """Empty the prefix cache; nothing may be in flight."""
        await self._llm.reset_prefix_cache()


def _cpu_arguments(sampling: Sampling) -> dict[str, Any]:
    """On a CPU vLLM 0.28 dies of a seeded request whose prompt does not fit into one step: such prompts are kept whole
    (`CPU Generator does not use offset`)."""
    return {**CPU_ENGINE_ARGUMENTS, **({} if sampling.seed is None else {"enable_chunked_prefill": False})}


@contextmanager
def _variables(added: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for the processes that the block starts, and for no later one."""
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _check_model(model_path: str | Path) -> None:
    """Raise ModelError for what is no model, before vLLM starts processes to find out."""
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(model_path)
    except (ValueError, OSError) as error:
        raise ModelError(f"vLLM cannot load {model_path}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def _child_processes() -> set[psutil.Process]:
    """All processes under this program, but for the bookkeeper that Python itself keeps until the end."""
    children = psutil.Process().children(recursive=True)
    return {child for child in children if "multiprocessing.resource_tracker" not in _command(child)}


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _end(processes: set[psutil.Process]) -> None:
    """Wait for processes to go, and kill those that take too long.

    vLLM's shutdown ends the engine, and leaves it to the engine's worker to find out.
    """
    _, alive = psutil.wait_procs(list(processes), timeout=_SHUTDOWN_SECONDS)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=_SHUTDOWN_SECONDS)


def _generation(output: RequestOutput) -> Generation:
    """The sampled tokens with the log-prob of each."""
    completion = output.outputs[0]
    token_ids = tuple(completion.token_ids)
    if completion.logprobs is None or len(completion.logprobs) != len(token_ids):
        raise EngineError(f"vLLM gave no log-prob for some of {len(token_ids)} tokens")
    logprobs = zip(token_ids, completion.logprobs, strict=True)
    return Generation(
        token_ids,
        tuple(position[token_id].logprob for token_id, position in logprobs),
        num_cached_tokens=output.num_cached_tokens or 0,
    )
