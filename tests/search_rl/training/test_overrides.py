"""The verl command of each config, held as a golden file: a change of one key shows as a diff of one line."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import get_args

import pytest

from search_rl.config import load_config
from search_rl.config_algorithm import AlgorithmName
from search_rl.errors import ConfigError
from search_rl.training.overrides import verl_command, verl_overrides

GOLDEN = Path(__file__).with_name("golden")


@pytest.mark.parametrize("name", ["demo", "qwen2.5-3b-grpo-8gpu"])
def test_verl_command_is_as_recorded(name: str) -> None:
    """Would catch a training setting that changes without being meant to."""
    command = verl_command(load_config(Path(f"configs/{name}.yaml"))).replace(str(Path.cwd()), "ROOT")
    assert command + "\n" == (GOLDEN / f"{name}.sh").read_text()


def test_strings_are_quoted_where_hydra_needs_it() -> None:
    """Would catch a path or a number-like name that Hydra reads as something else."""
    config = load_config(Path("configs/demo.yaml"), ["model.path=dir with space/a,b", "run.name='true'"])
    lines = verl_overrides(config)
    assert 'actor_rollout_ref.model.path="dir with space/a,b"' in lines
    assert 'trainer.experiment_name="true"' in lines


def test_reproducible_run_depends_on_no_cache() -> None:
    """A step after a resume had other log-probs: of two siblings the later one found its prompt's prefix in the cache,
    computed in another shape."""
    lines = verl_overrides(load_config(Path("configs/demo.yaml"), ["rollout.reproducible=true"]))
    assert "actor_rollout_ref.rollout.enable_prefix_caching=False" in lines
    assert "actor_rollout_ref.rollout.enable_chunked_prefill=False" in lines


def test_half_of_the_siblings_is_half_an_update() -> None:
    """Would catch updates of twice the questions that the config says: verl multiplies by all samples."""
    overrides = ["algorithm.trained_samples=4", "optimizer.mini_batch_prompts=4"]
    assert "actor_rollout_ref.actor.ppo_mini_batch_size=2" in verl_overrides(
        load_config(Path("configs/demo.yaml"), overrides)
    )


def test_extra_verl_overrides_come_last() -> None:
    """Would catch a user's own override that a default overrules."""
    config = load_config(Path("configs/demo.yaml"), ["verl=[trainer.balance_batch=False]"])
    assert verl_overrides(config)[-1] == "trainer.balance_batch=False"


def lines(*overrides: str, name: str = "demo") -> list[str]:
    return verl_overrides(load_config(Path(f"configs/{name}.yaml"), overrides))


def test_kl_goes_where_it_is_asked_for() -> None:
    """Would catch a KL in both places, and a reference policy that is loaded for nothing."""
    plain, in_loss, in_reward = (
        [line for line in lines(*overrides) if "kl" in line or ".ref." in line]
        for overrides in (
            (),
            ("algorithm.kl_coefficient=0.01",),
            ("algorithm.name=ppo", "algorithm.kl_coefficient=0.01"),
        )
    )
    assert plain == ["actor_rollout_ref.actor.use_kl_loss=False"]
    assert "actor_rollout_ref.actor.kl_loss_coef=0.01" in in_loss
    assert "actor_rollout_ref.actor.kl_loss_type=k3" in in_loss
    assert not any("kl_in_reward" in line for line in in_loss)
    assert {"algorithm.use_kl_in_reward=True", "algorithm.kl_penalty=k1", "algorithm.kl_ctrl.kl_coef=0.01"} <= set(
        in_reward
    )
    assert "actor_rollout_ref.actor.use_kl_loss=False" in in_reward


def test_dev_questions_are_asked_greedily_and_only_when_wanted() -> None:
    """Would catch dev questions sampled as in training, and a validation that nobody asked for."""
    assert "trainer.test_freq=-1" in lines()
    found = lines("trainer.save_every_steps=10", "trainer.eval_every_steps=20")
    assert "trainer.test_freq=20" in found
    greedy = {"temperature=0", "top_p=1.0", "top_k=-1", "n=1"}
    assert {f"actor_rollout_ref.rollout.val_kwargs.{line}" for line in greedy} <= set(found)


def test_critic_stands_first_for_the_steps_asked() -> None:
    """Would catch verl's count: its policy moves from step `critic_warmup` on."""
    assert "trainer.critic_warmup=6" in lines("algorithm.name=ppo", "critic.warmup_steps=5")
    assert not any(line.startswith("critic.") for line in lines())


def test_overlong_limit_is_what_the_policy_can_write() -> None:
    """Would catch a limit that counts retrieved tokens: 4 turns of 48 tokens are 192, a fifth of them 38."""
    found = [line for line in lines("algorithm.name=dapo") if ".overlong." in line]
    assert [line.rpartition(".")[2] for line in found[1:]] == ["limit_tokens=192", "buffer_tokens=38"]


ALGORITHMS = [
    *((f"algorithm.name={name}", "algorithm.kl_coefficient=0.1") for name in get_args(AlgorithmName)),
    ("trainer.mode=colocate_async", "model.lora_rank=8"),
    ("algorithm.name=dapo", "trainer.mode=colocate_async", "algorithm.importance_weights=token"),
]


@pytest.mark.slow
@pytest.mark.parametrize("overrides", ALGORITHMS, ids=" ".join)
def test_verl_accepts_every_algorithm(overrides: tuple[str, ...], model_path: Path) -> None:
    """Would catch a key of an algorithm that this verl does not know."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy

    from search_rl.training.launch import compose

    config = load_config(Path("configs/demo.yaml"), [*overrides, f"model.path={model_path}"])
    tree = compose(config, resume=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # verl warns of the critic that is not there
        has_critic = need_critic(tree)
    assert has_critic is (config.algorithm.estimator == "gae")
    assert need_reference_policy(tree) is bool(config.algorithm.kl_coefficient)


@pytest.mark.slow
def test_top_k_of_verl_is_refused_too(model_path: Path) -> None:
    """Would catch a way round our own check, by the key that verl has and we do not."""
    from search_rl.training.launch import compose

    overrides = ["verl=[actor_rollout_ref.rollout.top_k=50]", f"model.path={model_path}"]
    with pytest.raises(ConfigError, match=r"rollout.top_k=50 leaves out tokens"):
        compose(load_config(Path("configs/demo.yaml"), overrides), resume=False)


@pytest.mark.slow
def test_gradient_clip_reaches_the_optimiser(model_path: Path) -> None:
    """The clip was under `actor.grad_clip`, which verl takes and never reads, so max_gradient_norm did nothing."""
    from verl.utils.config import omega_conf_to_dataclass

    from search_rl.training.launch import compose

    config = load_config(
        Path("configs/demo.yaml"),
        ["optimizer.max_gradient_norm=0.25", "algorithm.name=ppo", f"model.path={model_path}"],
    )
    tree = compose(config, resume=False)
    assert omega_conf_to_dataclass(tree.actor_rollout_ref.actor).optim.clip_grad == 0.25
    assert omega_conf_to_dataclass(tree.critic).optim.clip_grad == 0.25


@pytest.mark.slow
def test_verl_accepts_a_second_pool() -> None:
    """Would catch keys of the mode that we cannot run that verl does not know."""
    config = load_config(
        Path("configs/qwen2.5-3b-grpo-8gpu.yaml"),
        [
            *("trainer.mode=separate_async", "algorithm.recompute_old_logprobs=false"),
            *("hardware.rollout_nodes=1", "hardware.rollout_gpus_per_node=4"),
        ],
    )
    from search_rl.training.launch import compose

    tree = compose(config, resume=False)
    separate = tree.trainer.v1.separate_async
    assert tree.data.train_batch_size == separate.parameter_sync_step * tree.actor_rollout_ref.actor.ppo_mini_batch_size
    assert (tree.actor_rollout_ref.rollout.nnodes, tree.actor_rollout_ref.rollout.n_gpus_per_node) == (1, 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["demo", "qwen2.5-3b-grpo-8gpu"])
def test_verl_accepts_every_override(name: str) -> None:
    """Would catch a key that this verl does not know, or one it needs."""
    from search_rl.training.launch import compose

    config = load_config(Path(f"configs/{name}.yaml"))
    config = config.model_copy(update={"reward": {"exact_match": 1.0, "my.rewards:short": -0.5}})
    settings = compose(config, resume=False).actor_rollout_ref.rollout.custom.search_rl
    assert settings.limits.top_k == 3
    assert json.loads(settings.reward) == config.reward
    assert list(settings.retriever.url) == list(config.retriever.urls)
