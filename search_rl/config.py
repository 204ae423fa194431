"""The config file: typed, frozen sections read from YAML, with `--set section.key=value` on top.

An unknown key is an error that names the nearest known one. Components never see these sections: code
at the edge takes plain values out of them. Lengths are in tokens, durations in seconds unless the name says otherwise.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from retriever_server.schema import RetrieverName
from search_rl.config_algorithm import AlgorithmSection, CriticSection
from search_rl.errors import ConfigError
from search_rl.presets import DEFAULT, PRESETS, budgets_label


class Section(BaseModel):
    """A frozen part of the config that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RunSection(Section):
    """Where a run lives: `root/name`. `seed` feeds data order, sampling and initialisation."""

    name: str
    root: Path = Path("runs")
    seed: int = 1

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.root / self.name


class ModelSection(Section):
    """The policy: a Hugging Face checkpoint folder, or a hub id where a hub can be reached.

    With `lora_rank` above 0 only adapters on its linear layers are trained; exports have them merged in.
    """

    path: str
    lora_rank: int = Field(default=0, ge=0)
    lora_alpha: PositiveInt = 32
    gradient_checkpointing: bool = False
    attention: Literal["sdpa", "flash_attention_2"] = "sdpa"


class DataSection(Section):
    """Question files in Search-R1's parquet schema."""

    train: tuple[Path, ...]
    dev: tuple[Path, ...]
    shuffle: bool = True


class RetrieverSection(Section):
    """How the agent reaches `/retrieve`. A search that still fails after the retries voids its episode.

    `url` may be a list of services of the same index: they are asked in turn. One that failed `failures_to_open` times
    in a row is left alone until a probe finds it back; while all are, searches wait, and a training run stops once that
    took `outage_limit_seconds`. Each worker process keeps `cache_entries` answers. `token_file` holds the bearer token
    of a service that wants one, on every node.
    """

    url: str | tuple[str, ...] = "http://127.0.0.1:8000"
    top_k: PositiveInt = 3
    timeout_seconds: float = Field(default=30.0, gt=0)
    max_attempts: PositiveInt = 6
    failures_to_open: PositiveInt = 3
    outage_limit_seconds: float = Field(default=600.0, ge=0)
    cache_entries: int = Field(default=10_000, ge=0)
    token_file: Path | None = None

    @property
    def urls(self) -> tuple[str, ...]:
        """Every service."""
        return (self.url,) if isinstance(self.url, str) else self.url

    @property
    def client_options(self) -> dict[str, Any]:
        """What `SearchClient` takes."""
        return {"url": self.urls, **self.model_dump(exclude={"url", "top_k"})}


class ServiceSection(Section):
    """What `search-rl serve --config` serves, and what the demo builds: an index folder, and how it is searched.

    `rerank` is a CrossEncoder (hub id or folder) that orders the best 20 anew.
    """

    index: Path | None = None
    retriever: RetrieverName = "dense"
    rerank: str | None = None

    @property
    def built_for(self) -> RetrieverName:
        """What a folder must be built for, to be searched so: the controls look at no part of it."""
        return self.retriever if self.retriever in ("bm25", "hybrid") else "dense"


class AgentSection(Section):
    """The episode: protocol, wording, turns and token budgets, each as `preset` has it unless given.

    `max_turns` may search, with at most `max_queries` queries each; one more turn may only answer. Without
    `keep_reasoning` the policy does not see its earlier thoughts: for evaluation only.
    """

    protocol: Literal["tags", "tool_call"] = "tags"
    prompt: Literal["search_r1", "short"] = "search_r1"
    preset: Literal["default", "paper"] = "default"
    max_turns: PositiveInt = DEFAULT["agent"]["max_turns"]
    max_queries: PositiveInt = DEFAULT["agent"]["max_queries"]
    keep_reasoning: bool = True
    max_prompt_tokens: PositiveInt = DEFAULT["agent"]["max_prompt_tokens"]
    max_turn_tokens: PositiveInt = DEFAULT["agent"]["max_turn_tokens"]
    max_observation_tokens: PositiveInt = DEFAULT["agent"]["max_observation_tokens"]
    max_response_tokens: PositiveInt = DEFAULT["agent"]["max_response_tokens"]

    @property
    def conversation(self) -> dict[str, Any]:
        """What decides how the policy and the environment talk."""
        return {name: getattr(self, name) for name in ("protocol", "prompt", "max_queries", "keep_reasoning")}

    @property
    def budgets(self) -> dict[str, int]:
        """What an episode may spend."""
        names = ("max_turns", "max_turn_tokens", "max_observation_tokens", "max_prompt_tokens", "max_response_tokens")
        return {name: getattr(self, name) for name in names}

    def budgets_label(self, **others: object) -> str:
        """The preset, and what departs from it here and in `others` (top_k, temperature, top_p)."""
        return budgets_label(self.preset, **self.budgets, max_queries=self.max_queries, **others)

    @property
    def max_model_tokens(self) -> int:
        """The context that an episode can fill."""
        return self.max_prompt_tokens + self.max_response_tokens


class RolloutSection(Section):
    """A training step samples `prompts_per_step` questions, `samples_per_prompt` episodes each.

    With `reproducible` each request has a seed of its own, so that a step that is done again samples what it did before
    (`trainer.mode: sync` only). It takes time: vLLM samples seeded requests one by one, and caches no prefix.
    """

    prompts_per_step: PositiveInt = 512
    samples_per_prompt: PositiveInt = 5
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_concurrent_sequences: PositiveInt = 256
    gpu_memory_share: float = Field(default=0.6, gt=0, lt=1)
    tensor_parallel: PositiveInt = 1
    num_workers: PositiveInt = 8
    reproducible: bool = False


class OptimizerSection(Section):
    """AdamW on the policy. `mini_batch_prompts` counts questions, not episodes."""

    learning_rate: float = Field(default=1e-6, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.01, ge=0)
    max_gradient_norm: float = Field(default=1.0, gt=0)
    mini_batch_prompts: PositiveInt = 256
    micro_batch_tokens: PositiveInt = 16384


class TrainerSection(Section):
    """How long to train, what to keep, and when to stop for safety.

    `mode`: `sync` samples, then trains; `colocate_async` goes on sampling where it was interrupted, on newer weights;
    `separate_async` samples on devices of its own. Asynchronous modes start `warmup_batches` steps ahead and drop
    episodes older than `max_staleness_steps`. `max_skipped_updates` in a row for a loss or gradient that is no finite
    number end the run. metrics.jsonl is written whatever the `trackers`.

    Of the checkpoints the last `keep_checkpoints` stay; with 1 there is none to fall back to when that one is damaged.
    Every `eval_every_steps` (0: never) the first `eval_questions` of data.dev are answered greedily, and the export
    that got most of them right so far is kept as `best`, whatever becomes of its checkpoint.
    """

    total_steps: PositiveInt
    mode: Literal["sync", "colocate_async", "separate_async"] = "sync"
    warmup_batches: float = Field(default=1.0, ge=0)
    max_staleness_steps: PositiveInt = 4
    max_skipped_updates: PositiveInt = 3
    save_every_steps: PositiveInt = 50
    keep_checkpoints: PositiveInt = 2
    eval_every_steps: int = Field(default=0, ge=0)
    eval_questions: PositiveInt = 100
    trackers: tuple[Literal["console", "tensorboard", "wandb", "mlflow", "trackio"], ...] = ("console",)
    start_seconds: float = Field(default=900.0, gt=0)
    max_void_share: float = Field(default=0.2, ge=0, le=1)
    min_agreement_pearson: float = Field(default=0.99, ge=0, le=1)
    max_agreement_gap: float = Field(default=0.03, gt=0)

    @model_validator(mode="after")
    def _best_step_has_an_export(self) -> TrainerSection:
        if self.eval_every_steps % self.save_every_steps:
            raise ValueError(
                f"trainer.eval_every_steps={self.eval_every_steps} must be a multiple of trainer.save_every_steps="
                f"{self.save_every_steps}: the best step is kept by its export"
            )
        return self


class HardwareSection(Section):
    """Where training runs. `cpu` is one process group on this machine with bf16 matrix units where it has them.

    `memory_gib` is what one GPU has, and on a CPU the machine (all it has, unless given): a run that cannot fit is
    refused before it starts.
    `rollout_nodes` with `rollout_gpus_per_node` each are the second pool, for `trainer.mode: separate_async`.
    """

    platform: Literal["cpu", "gpu"] = "gpu"
    nodes: PositiveInt = 1
    gpus_per_node: PositiveInt = 8
    rollout_nodes: int = Field(default=0, ge=0)
    rollout_gpus_per_node: int = Field(default=0, ge=0)
    offload: bool = False
    ray_address: str | None = None
    kv_cache_gib: PositiveInt = 1
    memory_gib: PositiveFloat | None = None


class SftSection(Section):
    """Protocol demonstrations for the warm-up; budget by steps, not by seconds.

    `relations` empty means all. `mix` weighs the kinds of question, empty means equally: few that need a second search
    leave it to RL to learn when one is due.
    """

    relations: tuple[str, ...] = ()
    mix: dict[str, NonNegativeFloat] = Field(default_factory=dict)
    demonstrations: PositiveInt = 256
    batch_size: PositiveInt = 8
    learning_rate: float = Field(default=3e-4, gt=0)
    warmup_steps: int = Field(default=3, ge=0)


class EvalSection(Section):
    """Greedy evaluation; `questions` bounds the number of rows for quick runs, None is all.

    `corpus` is for systems that take passages from it: `oracle` and `random`. The demo asks the untrained model
    `before_questions`, or as many as the others where that is None.
    """

    test: tuple[Path, ...] = ()
    questions: PositiveInt | None = None
    before_questions: PositiveInt | None = None
    corpus: Path | None = None


class Config(Section):
    """A whole config file. `reward` maps a part of search_rl.rewards to its weight; `verl` is passed on unread."""

    run: RunSection
    model: ModelSection
    data: DataSection
    retriever: RetrieverSection = RetrieverSection()
    service: ServiceSection = ServiceSection()
    agent: AgentSection = AgentSection()
    reward: dict[str, float] = Field(default_factory=lambda: {"exact_match": 1.0})
    rollout: RolloutSection = RolloutSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    critic: CriticSection = CriticSection()
    optimizer: OptimizerSection = OptimizerSection()
    trainer: TrainerSection
    hardware: HardwareSection = HardwareSection()
    sft: SftSection = SftSection()
    eval: EvalSection = EvalSection()
    verl: tuple[str, ...] = ()

    @property
    def budgets_label(self) -> str:
        """The preset of the run, and what departs from it."""
        rollout = self.rollout
        return self.agent.budgets_label(
            top_k=self.retriever.top_k, temperature=rollout.temperature, top_p=rollout.top_p
        )

    @model_validator(mode="after")
    def _mini_batch_divides_step(self) -> Config:
        prompts, mini = self.rollout.prompts_per_step, self.optimizer.mini_batch_prompts
        if mini > prompts or prompts % mini:
            raise ValueError(f"optimizer.mini_batch_prompts={mini} must divide rollout.prompts_per_step={prompts}")
        return self


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The config in `path` with `section.key=value` overrides applied (values are YAML).

    Raises ConfigError with one line that names the key, the value and what would be right.
    """
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"no config file at {path}: give the path of a YAML file, e.g. configs/demo.yaml") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} holds a {type(tree).__name__}: a config is a mapping of sections")
    for override in _algorithm_first(tree, overrides):
        _apply_override(tree, override)
    _apply_preset(tree)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{path}: {_first_fault(error, tree)}") from error


def read_config(path: Path | None, overrides: Sequence[str]) -> Config | None:
    """The config file with overrides, None without a file. Raises ConfigError for overrides of no file."""
    if path is None and overrides:
        raise ConfigError(f"--set {overrides[0]} needs --config: there is no file to override")
    return load_config(path, overrides) if path else None


def _algorithm_first(tree: dict[str, Any], overrides: Sequence[str]) -> list[str]:
    """The overrides, `algorithm.name` first. Another algorithm starts from its own preset: the file's keys of that
    section were chosen for the file's algorithm."""
    first = [override for override in overrides if override.startswith("algorithm.name=")]
    section = tree.get("algorithm", {})
    if first and isinstance(section, dict) and section.get("name", "grpo") != first[-1].partition("=")[2].strip("\"'"):
        tree["algorithm"] = {}
    return [*first, *(override for override in overrides if override not in first)]


def _apply_override(tree: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise ConfigError(f"--set {override}: write it as section.key=value")
    *sections, key = dotted.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"--set {override}: {section} is a value, not a section")
    try:
        tree[key] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override}: the value is not YAML; quote it") from error


def _apply_preset(tree: dict[str, Any]) -> None:
    """Fill in what the named preset has and the file does not; an unknown name is left for the model to refuse."""
    agent = tree.get("agent")
    name = agent.get("preset", "default") if isinstance(agent, dict) else "default"
    for section, values in PRESETS.get(str(name), {}).items():
        given = tree.setdefault(section, {})
        if isinstance(given, dict):
            tree[section] = {**values, **given}


def _first_fault(error: ValidationError, tree: Mapping[str, Any]) -> str:
    fault = error.errors()[0]
    dotted = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(fault["loc"][-1]), _known_keys(fault["loc"][:-1]), n=1)
        hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(_known_keys(fault['loc'][:-1]))}"
        return f"unknown key {dotted}: {hint}"
    if fault["type"] == "missing":
        return f"missing key {dotted}: add it"
    given = "" if fault["type"] == "value_error" else f" (got {fault['input']!r})"
    return f"{dotted or 'config'}: {fault['msg'].removeprefix('Value error, ')}{given}"


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    section: Any = Config
    for part in location:
        section = section.model_fields[str(part)].annotation
    return list(section.model_fields)
