"""verl's trainers, with what a search run needs around a step: checks, records, metrics, signs of life."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import orjson
import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from search_rl.records import row_to_record
from search_rl.training import monitor
from search_rl.training.agent_loop import SETTINGS_KEY
from search_rl.training.checks import (
    Agreement,
    agreement,
    check_agreement,
    check_skipped_updates,
    check_void_share,
)
from search_rl.training.engines import CriticWorker
from search_rl.training.metrics import rollout_metrics
from search_rl.training.run_folder import RunFolder
from search_rl.types import Rollout

UPDATE_PATIENCE_SECONDS = 1800.0
"""How long an update or a checkpoint may take where no engine of ours beats in between (GPUs)."""


class SearchSteps(PPOTrainer):
    """One step: rollouts, checks, advantages, update, weight sync; what is new here stands around verl's own.

    Goes before one of verl's trainers in a class's bases.
    """

    mode = "sync"

    def __init__(self, config: DictConfig) -> None:
        with open_dict(config):
            config.trainer.v1.trainer_mode = self.mode
        super().__init__(config)
        self._settings = config.actor_rollout_ref.rollout.custom[SETTINGS_KEY]
        self._folder = RunFolder(Path(self._settings["run_folder"]))
        self._is_checked = False
        self._rollouts: list[Rollout] = []

    def on_init_end(self) -> None:
        """The rollout engine gets its first weights; a failure in there hangs, so this is watched."""
        monitor.beat("first weight sync")
        super().on_init_end()
        monitor.beat("start")

    def on_train_begin(self) -> None:
        """Metrics go to one file that a resumed run appends to; verl's own file tracker would empty it."""
        super().on_train_begin()
        self.logger.logger["run_folder"] = self._folder.metrics_log(self.global_steps)

    def on_step_begin(self) -> None:
        """A step begins with rollouts."""
        super().on_step_begin()
        self._rollouts = []
        monitor.beat("rollout")

    def on_sample_end(self) -> None:
        """Rollouts are done."""
        super().on_sample_end()
        monitor.beat("update", UPDATE_PATIENCE_SECONDS)

    def on_step_end(self) -> None:
        """The weights go to the rollout engine."""
        monitor.beat("weight sync")
        super().on_step_end()
        monitor.beat("metrics")

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        if self.use_critic:
            self.role_worker_mapping[Role.Critic] = ray.remote(CriticWorker)

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        settings = self._settings
        rollouts = self._read_rollouts(batch)
        self._rollouts += rollouts
        check_void_share(
            rollouts,
            step=self.global_steps,
            max_share=settings["max_void_share"],
            url=settings["retriever"]["url"],
        )
        if self._is_checked:
            return super()._compute_old_log_prob(batch, metrics)
        correction = self.config.algorithm.rollout_correction
        bypass, correction.bypass_mode = correction.bypass_mode, False
        batch = super()._compute_old_log_prob(batch, metrics)
        correction.bypass_mode = bypass
        found = self._measure_agreement(batch)
        if found is not None:
            check_agreement(found, min_pearson=settings["min_agreement_pearson"], max_gap=settings["max_agreement_gap"])
            metrics.update(found.metrics)
            self._is_checked = True
        return batch

    def _read_rollouts(self, batch: KVBatchMeta) -> list[Rollout]:
        data = tq.kv_batch_get(batch.keys, batch.partition_id, select_fields=["extra_fields"])
        fields = data.pop("extra_fields").tolist()
        real = [not tag.get("is_padding", False) for tag in batch.tags]
        return [
            row_to_record(orjson.loads(row["rollout"])).rollout
            for row, is_real in zip(fields, real, strict=True)
            if is_real
        ]

    def _measure_agreement(self, batch: KVBatchMeta) -> Agreement | None:
        """Over the episodes that the current weights sampled from end to end; None where there are none."""
        tagged = zip(batch.keys, batch.tags, strict=True)
        keys = [key for key, tag in tagged if tag["min_global_steps"] == self.global_steps - 1]
        if not keys:
            return None
        fields = ["response_mask", "rollout_log_probs", "old_log_probs"]
        data = tq.kv_batch_get(keys, batch.partition_id, select_fields=fields)
        mask, rollout, trainer = (data[name].values() for name in fields)
        return agreement(rollout, trainer, mask) if mask.any() else None

    def _compute_ref_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """verl's own; with adapters it leaves the wish for none on the batch, which the critic would then obey."""
        batch = super()._compute_ref_log_prob(batch, metrics)
        batch.extra_info.pop("no_lora_adapter", None)
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """verl's own whitening of GAE leaves values outside the mask; nothing of ours does."""
        batch = super()._compute_advantage(batch, metrics)
        if self.use_critic:
            data = tq.kv_batch_get(batch.keys, batch.partition_id, select_fields=["advantages", "response_mask"])
            advantages = data["advantages"]
            masked = advantages.values() * data.pop("response_mask").values()
            data["advantages"] = torch.nested.nested_tensor_from_jagged(masked, advantages.offsets())
            batch = tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=data)
        return batch

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        batch = super()._update_actor(batch, metrics)
        self._note_skipped("actor", "policy", len(batch), metrics)
        return batch

    def _update_critic(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        batch = super()._update_critic(batch, metrics)
        self._note_skipped("critic", "critic", len(batch), metrics)
        return batch

    def _note_skipped(self, role: str, what: str, num_rows: int, metrics: dict[str, Any]) -> None:
        """Count the updates that our engine skipped, and stop when there are too many in a row."""
        actor, rollout = self.config.actor_rollout_ref.actor, self.config.actor_rollout_ref.rollout
        num_updates = num_rows // (actor.ppo_mini_batch_size * rollout.n)
        metrics[f"{role}/skipped_updates_total"] = round(metrics.pop(f"{role}/skipped_share") * num_updates)
        check_skipped_updates(
            int(metrics[f"{role}/max_skipped_in_a_row"]), what=what, limit=self._settings["max_skipped_updates"]
        )

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict[str, Any], timing_raw: dict[str, float], **where: Any
    ) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, **where)
        metrics.update(rollout_metrics(self._rollouts))
        self._folder.write_rollouts(self.global_steps, self._rollouts)
        monitor.report({"step": self.global_steps, **_plain(metrics)})

    def _save_checkpoint(self) -> None:
        """verl's checkpoint, once the disk is known to have room; a half-written one is removed, the last one stays."""
        monitor.beat("checkpoint", UPDATE_PATIENCE_SECONDS)
        self._folder.check_disk_space()
        try:
            super()._save_checkpoint()
        except BaseException:
            shutil.rmtree(self._folder.checkpoint(self.global_steps), ignore_errors=True)
            raise
        self._folder.note_checkpoint(self.global_steps)


class SearchTrainer(SearchSteps, PPOTrainerSync):
    """`trainer.mode: sync`."""


class SearchTrainerColocateAsync(SearchSteps, PPOTrainerColocateAsync):
    """`trainer.mode: colocate_async`."""

    mode = "colocate_async"


class SearchTrainerSeparateAsync(SearchSteps, PPOTrainerSeparateAsync):
    """`trainer.mode: separate_async`."""

    mode = "separate_async"


def _plain(metrics: dict[str, Any]) -> dict[str, Any]:
    """Metrics as plain Python numbers; verl's counts by reward, for a table of its own, are left out."""
    figures = {name: value for name, value in metrics.items() if not isinstance(value, dict)}
    plain: dict[str, Any] = orjson.loads(orjson.dumps(figures, option=orjson.OPT_SERIALIZE_NUMPY))
    return plain
