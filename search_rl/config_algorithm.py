"""The config sections `algorithm` and `critic`, and the presets behind `algorithm.name`.

A preset fills the keys that the file leaves out. README of search_rl/training has the table with formulas and sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

AlgorithmName = Literal[
    "grpo",
    "grpo_no_std",
    "dr_grpo",
    "dapo",
    "rloo",
    "reinforce++",
    "reinforce++_baseline",
    "ppo",
    "gspo",
    "cispo",
]
Estimator = Literal["grpo", "grpo_no_std", "rloo", "reinforce++", "reinforce++_baseline", "gae"]

GROUP_ESTIMATORS: tuple[Estimator, ...] = ("grpo", "grpo_no_std", "rloo", "reinforce++_baseline")
"""Those that compare siblings, and so need at least two."""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {"estimator": "grpo"},
    "grpo_no_std": {"estimator": "grpo_no_std"},
    "dr_grpo": {"estimator": "grpo_no_std", "loss_average": "budget"},
    "dapo": {"estimator": "grpo", "clip_high": 0.28, "dynamic_sampling": True, "overlong_penalty": 1.0},
    "rloo": {"estimator": "rloo", "kl_in": "reward", "kl_estimator": "k1"},
    "reinforce++": {"estimator": "reinforce++", "kl_in": "reward", "kl_estimator": "k1"},
    "reinforce++_baseline": {"estimator": "reinforce++_baseline", "kl_estimator": "k2"},
    "ppo": {"estimator": "gae", "kl_in": "reward", "kl_estimator": "k1"},
    "gspo": {"estimator": "grpo", "loss": "gspo", "loss_average": "sequences", "clip_low": 3e-4, "clip_high": 4e-4},
    "cispo": {"estimator": "grpo", "loss": "cispo", "clip_low": 1.0, "clip_high": 0.28},
}


class AlgorithmSection(BaseModel):
    """The objective. `name` fills in every key that is not given; void episodes are in no statistic and no loss.

    `loss_average`: over the `tokens` of a mini-batch, over its `sequences` (each by its own length), or over sums of
    sequences by the response `budget`. `kl_coefficient` 0 means no reference policy. `importance_weights` correct for
    the policy that sampled, up to `importance_cap`. `dynamic_sampling` replaces groups whose rewards are all equal,
    until `max_generation_batches` times the step's questions were sampled. `overlong_penalty` weighs DAPO's penalty,
    which sets in with the last `overlong_buffer_share` of what the policy may write. `trained_samples` of each group's
    siblings are trained on, those whose rewards vary most; all of them where it is not given.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: AlgorithmName = "grpo"
    estimator: Estimator = "grpo"
    loss: Literal["clip", "gspo", "cispo"] = "clip"
    loss_average: Literal["tokens", "sequences", "budget"] = "tokens"
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = 0.2
    kl_coefficient: NonNegativeFloat = 0.0
    kl_in: Literal["loss", "reward"] = "loss"
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    entropy_coefficient: NonNegativeFloat = 0.0
    discount: float = Field(default=1.0, gt=0, le=1)
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    recompute_old_logprobs: bool = True
    importance_weights: Literal["none", "token", "sequence"] = "none"
    importance_cap: float = Field(default=2.0, gt=1)
    dynamic_sampling: bool = False
    max_generation_batches: PositiveInt = 10
    overlong_penalty: NonNegativeFloat = 0.0
    overlong_buffer_share: float = Field(default=0.2, gt=0, le=1)
    trained_samples: int | None = Field(default=None, ge=2)

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        name = given.get("name", "grpo")
        return {**PRESETS[name], **given} if isinstance(name, str) and name in PRESETS else given


class CriticSection(BaseModel):
    """PPO's critic: the policy's checkpoint with a value head, trained beside it. Unused without `estimator: gae`.

    The policy stands still for the first `warmup_steps`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    learning_rate: PositiveFloat = 1e-5
    warmup_steps: int = Field(default=0, ge=0)
    value_clip: PositiveFloat = 0.5
