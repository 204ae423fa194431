"""How vLLM is opened on a CPU, by this program's engine and by verl's."""

from collections.abc import Mapping
from typing import Any

NORM_PROVIDER = "vllm_c_cpu"

CPU_ENGINE_ARGUMENTS: Mapping[str, Any] = {
    # The model runs inside vLLM's engine process. Apart, the engine waits for it by spinning on a core it needs.
    "distributed_executor_backend": "vllm.v1.executor.uniproc_executor.UniProcExecutor",
    # See cpu_kernels.py; the native forms serve what the kernels do not take.
    "ir_op_priority": {"rms_norm": [NORM_PROVIDER, "native"], "fused_add_rms_norm": [NORM_PROVIDER, "native"]},
    "enforce_eager": True,
    # Prompts of a hundred tokens fill no block of 128, vLLM's own size here: siblings would share nothing.
    "block_size": 32,
}
