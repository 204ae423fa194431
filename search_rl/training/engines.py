"""Our engines in verl's registry, for whatever process imports this."""

from __future__ import annotations

from verl.utils.device import get_device_name, get_vendor
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine_workers import TrainingWorker

from search_rl.training.patches import is_cpu_platform

if is_cpu_platform():
    from search_rl.training.cpu_engine import CpuCritic as Critic
    from search_rl.training.cpu_engine import CpuEngine as Policy

    _vendor = None
else:
    from search_rl.training.gpu_engine import GpuCritic as Critic
    from search_rl.training.gpu_engine import GpuEngine as Policy

    _vendor = get_vendor()

for _model_type, _engine in (("language_model", Policy), ("value_model", Critic)):
    EngineRegistry.register(
        model_type=_model_type, backend=["fsdp", "fsdp2"], device=[get_device_name()], vendor=_vendor
    )(_engine)


class CriticWorker(TrainingWorker):
    """verl's worker of the critic, from a module that registers our engines.

    verl builds the critic's config on the driver alone, so `external_lib` is not imported where the critic lives.
    """
