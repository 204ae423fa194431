"""The norm kernels that are offered to vLLM on a CPU, against vLLM's native forms."""

from __future__ import annotations

import pytest
import torch

from search_rl.engines.cpu_kernels import register
from search_rl.engines.vllm_cpu import CPU_ENGINE_ARGUMENTS, NORM_PROVIDER

pytestmark = pytest.mark.engine
EPSILON = 1e-5


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    register()
    register()  # vLLM loads its plug-ins more than once in a process


@pytest.mark.parametrize("num_tokens", [1, 7, 300])
def test_kernels_equal_the_native_forms(num_tokens: int) -> None:
    """Would catch swapped arguments, and a residual that is not the sum."""
    from vllm import ir

    generator = torch.Generator().manual_seed(num_tokens)
    x, residual = (torch.randn(num_tokens, 576, generator=generator).bfloat16() for _ in range(2))
    weight = torch.rand(576, generator=generator).bfloat16()
    for op, inputs in ((ir.ops.rms_norm, (x,)), (ir.ops.fused_add_rms_norm, (x, residual))):
        ours, native = (
            op.impls[provider].impl_fn(*(tensor.clone() for tensor in inputs), weight, EPSILON)
            for provider in (NORM_PROVIDER, "native")
        )
        torch.testing.assert_close(ours, native, atol=0.02, rtol=0.02)


def test_vllm_chooses_the_kernel_and_falls_back_to_native() -> None:
    """Would catch a priority that names no provider, and a kernel run on weights of another type."""
    from vllm import ir

    x, weight = torch.randn(2, 64).bfloat16(), torch.ones(64).bfloat16()
    with ir.ops.rms_norm.set_priority(CPU_ENGINE_ARGUMENTS["ir_op_priority"]["rms_norm"]):
        assert ir.ops.rms_norm.dispatch(x, weight, EPSILON, None).provider == NORM_PROVIDER
        assert ir.ops.rms_norm.dispatch(x, weight.float(), EPSILON, None).provider == "native"
        assert ir.ops.rms_norm.dispatch(x.T, weight, EPSILON, None).provider == "native"
