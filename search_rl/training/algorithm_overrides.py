"""The parts of verl's overrides that say which algorithm runs, in which mode, and what is trained (verl 0.9.1)."""

from __future__ import annotations

from typing import Any

from search_rl.config import Config

ADVANTAGES = {
    "grpo": "search_rl_grpo",
    "grpo_no_std": "search_rl_grpo_no_std",
    "rloo": "search_rl_rloo",
    "reinforce++": "search_rl_reinforce_pp",
    "reinforce++_baseline": "search_rl_reinforce_pp_baseline",
    "gae": "gae",
}
"""Estimators by our name under the name they are registered with in verl; only GAE is verl's own."""
LOSSES = {"clip": "vanilla", "gspo": "gspo", "cispo": "cispo"}
AVERAGES = {"tokens": "token-mean", "sequences": "seq-mean-token-mean", "budget": "seq-mean-token-sum-norm"}
TRAINERS = {mode: f"search_rl_{mode}" for mode in ("sync", "colocate_async", "separate_async")}
EXTERNAL_LIB = "search_rl.training.plugin"


def algorithm_tree(config: Config) -> dict[str, Any]:
    """verl's `algorithm`."""
    algorithm = config.algorithm
    tree = {
        "adv_estimator": ADVANTAGES[algorithm.estimator],
        "gamma": algorithm.discount,
        "lam": algorithm.gae_lambda,
        "rollout_correction": _correction(config),
    }
    if algorithm.kl_coefficient and algorithm.kl_in == "reward":
        tree |= {
            "use_kl_in_reward": True,
            "kl_penalty": algorithm.kl_estimator,
            "kl_ctrl": {"kl_coef": algorithm.kl_coefficient},
        }
    if algorithm.dynamic_sampling:
        tree["filter_groups"] = {"enable": True}
    return tree


def _correction(config: Config) -> dict[str, Any]:
    algorithm = config.algorithm
    tree: dict[str, Any] = {"bypass_mode": not algorithm.recompute_old_logprobs}
    if algorithm.importance_weights != "none":
        tree |= {"rollout_is": algorithm.importance_weights, "rollout_is_threshold": algorithm.importance_cap}
    return tree


def loss_tree(config: Config) -> dict[str, Any]:
    """What verl's `actor` knows about the objective."""
    algorithm = config.algorithm
    has_kl_loss = algorithm.kl_coefficient > 0 and algorithm.kl_in == "loss"
    tree = {
        "clip_ratio_low": algorithm.clip_low,
        "clip_ratio_high": algorithm.clip_high,
        "policy_loss": {"loss_mode": LOSSES[algorithm.loss]},
        "loss_agg_mode": AVERAGES[algorithm.loss_average],
        "entropy_coeff": algorithm.entropy_coefficient,
        "use_kl_loss": has_kl_loss,
    }
    if has_kl_loss:
        tree |= {"kl_loss_coef": algorithm.kl_coefficient, "kl_loss_type": algorithm.kl_estimator}
    if algorithm.loss_average == "budget":
        tree["loss_scale_factor"] = config.agent.max_response_tokens
    return tree


def reference_tree(config: Config) -> dict[str, Any]:
    """verl's `ref`, the frozen policy that the KL is measured from; empty where there is none."""
    if not config.algorithm.kl_coefficient:
        return {}
    return {
        "ref": {
            "fsdp_config": {
                "param_offload": config.hardware.offload,
                "use_torch_compile": config.hardware.platform == "gpu",
            }
        }
    }


def critic_tree(config: Config) -> dict[str, Any]:
    """verl's `critic`, empty for an estimator without one. It takes its mini-batches from the actor."""
    if config.algorithm.estimator != "gae":
        return {}
    optimizer, on_cpu = config.optimizer, config.hardware.platform == "cpu"
    engine = {
        "model_dtype": "fp32",
        "param_offload": config.hardware.offload,
        "optimizer_offload": config.hardware.offload,
        "use_torch_compile": not on_cpu,
        "seed": config.run.seed,
    }
    tree = {
        "strategy": "fsdp2",
        "model": model_tree(config),
        "fsdp": engine,
        "optim": {
            "lr": config.critic.learning_rate,
            "lr_warmup_steps": optimizer.warmup_steps,
            "weight_decay": optimizer.weight_decay,
            "clip_grad": optimizer.max_gradient_norm,
            "+override_optimizer_config": {"fused": True},
        },
        "+ppo_infer_max_token_len_per_gpu": optimizer.micro_batch_tokens,
        "data_loader_seed": config.run.seed,
        "cliprange_value": config.critic.value_clip,
        "loss_agg_mode": "token-mean",
        "checkpoint": {"save_contents": ["model", "optimizer", "extra"]},
    }
    return {"critic": tree}


def critic_trainer_tree(config: Config) -> dict[str, Any]:
    """What verl's `trainer` knows about the critic. verl updates the policy from step `critic_warmup` on."""
    if config.algorithm.estimator != "gae":
        return {}
    return {"critic_warmup": config.critic.warmup_steps + 1}


def model_tree(config: Config) -> dict[str, Any]:
    """What actor, reference and critic know about the model."""
    on_cpu = config.hardware.platform == "cpu"
    return {
        "path": config.model.path,
        "external_lib": EXTERNAL_LIB,
        "use_remove_padding": not on_cpu,
        "enable_gradient_checkpointing": config.model.gradient_checkpointing,
        "+override_config": {"attn_implementation": config.model.attention},
    }


def lora_tree(config: Config) -> dict[str, Any]:
    """Adapters; vLLM gets them as such on GPUs, and merged into the weights on a CPU."""
    if not config.model.lora_rank:
        return {}
    on_cpu = config.hardware.platform == "cpu"
    return {
        "lora_rank": config.model.lora_rank,
        "lora_alpha": config.model.lora_alpha,
        "target_modules": "all-linear",
        "lora": {"merge": on_cpu},
    }


def mode_tree(config: Config) -> dict[str, Any]:
    """verl's `trainer.v1`: the mode, and what decides which groups a step is made of."""
    trainer, algorithm = config.trainer, config.algorithm
    tree: dict[str, Any] = {"trainer_mode": TRAINERS[trainer.mode]}
    sampler: dict[str, Any] = {}
    if trainer.mode != "sync":
        tree[trainer.mode] = {"num_warmup_batches": trainer.warmup_batches}
        sampler["max_off_policy_threshold"] = trainer.max_staleness_steps + 1  # verl counts the current step too.
    if trainer.mode == "separate_async":
        num_updates = config.rollout.prompts_per_step // config.optimizer.mini_batch_prompts
        tree[trainer.mode]["parameter_sync_step"] = num_updates
    if algorithm.dynamic_sampling:
        sampler |= {
            "custom_sampler": {
                "path": "pkg://search_rl.training.sampling",
                "name": "LiveReplayBuffer" if trainer.mode == "sync" else "LiveReplayBufferAsync",
            },
            "+sampler_kwargs": {
                "prompts_per_step": config.rollout.prompts_per_step,
                "max_generation_batches": algorithm.max_generation_batches,
                "max_void_share": trainer.max_void_share,
                "retrievers": ", ".join(config.retriever.urls),
            },
        }
    return tree | ({"sampler": sampler} if sampler else {})


def rollout_extras(config: Config) -> dict[str, Any]:
    """More of verl's `rollout`: the second pool of devices, and real weights for vLLM to put adapters on."""
    tree: dict[str, Any] = {}
    if config.trainer.mode == "separate_async":
        tree |= {"nnodes": config.hardware.rollout_nodes, "n_gpus_per_node": config.hardware.rollout_gpus_per_node}
    if config.model.lora_rank and config.hardware.platform == "gpu":
        tree["load_format"] = "safetensors"
    return tree


def overlong_settings(config: Config) -> dict[str, Any]:
    """The overlong penalty for the agent loop; its limit is the most that the policy can write."""
    agent, algorithm = config.agent, config.algorithm
    limit_tokens = min((agent.max_turns + 1) * agent.max_turn_tokens, agent.max_response_tokens)
    return {
        "weight": algorithm.overlong_penalty,
        "limit_tokens": limit_tokens,
        "buffer_tokens": max(round(algorithm.overlong_buffer_share * limit_tokens), 1),
    }
