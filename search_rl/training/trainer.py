"""verl's synchronous trainer, with what a search run needs around a step: checks, records, metrics, signs of life."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import orjson
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from search_rl.records import row_to_record
from search_rl.training import monitor
from search_rl.training.agent_loop import SETTINGS_KEY
from search_rl.training.checks import Agreement, agreement, check_agreement, check_void_share
from search_rl.training.exports import cast_weights
from search_rl.training.metrics import rollout_metrics
from search_rl.training.run_folder import RunFolder
from search_rl.types import Rollout

UPDATE_PATIENCE_SECONDS = 1800.0
"""How long an update or a checkpoint may take where no engine of ours beats in between (GPUs)."""


class SearchTrainer(PPOTrainerSync):
    """One step: rollouts, checks, advantages, update, weight sync; what is new here stands around verl's own."""

    def __init__(self, config: DictConfig) -> None:
        with open_dict(config):
            config.trainer.v1.trainer_mode = "sync"
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

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        settings = self._settings
        self._rollouts = self._read_rollouts(batch)
        check_void_share(
            self._rollouts,
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

    def _measure_agreement(self, batch: KVBatchMeta) -> Agreement:
        fields = ["response_mask", "rollout_log_probs", "old_log_probs"]
        data = tq.kv_batch_get(batch.keys, batch.partition_id, select_fields=fields)
        mask, rollout, trainer = (data[name].values() for name in fields)
        return agreement(rollout, trainer, mask)

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
        cast_weights(self._folder.model(self.global_steps))
        self._folder.note_checkpoint(self.global_steps)


def _plain(metrics: dict[str, Any]) -> dict[str, Any]:
    """Metrics as plain Python numbers."""
    plain: dict[str, Any] = orjson.loads(orjson.dumps(metrics, option=orjson.OPT_SERIALIZE_NUMPY))
    return plain
