"""verl's trainers, with what a search run needs around a step: checks, records, metrics, signs of life."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from search_rl.agent.selection import protocol_for
from search_rl.algorithms.downsampling import most_varied
from search_rl.codec import TransformersCodec
from search_rl.errors import RetrieverOutage, TrainingError
from search_rl.training import monitor
from search_rl.training.agent_loop import SETTINGS_KEY
from search_rl.training.checks import (
    Agreement,
    agreement,
    check_agreement,
    check_skipped_updates,
    check_void_share,
    spread,
    turn_numbers,
)
from search_rl.training.engines import CriticWorker
from search_rl.training.exports import cast_weights
from search_rl.training.metrics import step_metrics
from search_rl.training.run_folder import RunFolder
from search_rl.training.step_episodes import StepEpisodes, step_episodes
from search_rl.training.validation import DevSteps
from search_rl.types import Rollout

POLL_SECONDS = 0.2
CHECKED_EPISODES = 16
"""Episodes of each worker whose log-probs are checked at the first step: a forward pass, which is long on a CPU."""
UPDATE_PATIENCE_SECONDS = 1800.0
"""How long an update or a checkpoint may take where no engine of ours beats in between (GPUs)."""


class SearchSteps(DevSteps):
    """One step: rollouts, checks, advantages, update, weight sync; what is new here stands around verl's own.

    Goes before one of verl's trainers in a class's bases.
    """

    mode = "sync"

    global_steps: int
    train_dataloader: Any

    def __init__(self, config: DictConfig) -> None:
        with open_dict(config):
            config.trainer.v1.trainer_mode = self.mode
        super().__init__(config)
        self._settings = config.actor_rollout_ref.rollout.custom[SETTINGS_KEY]
        self._folder = RunFolder(Path(self._settings["run_folder"]))
        self._is_checked = False
        self._episodes = StepEpisodes(())
        self._first_step = 1
        self._data_position: dict[str, Any] = {}

    def on_init_end(self) -> None:
        """The rollout engine gets its first weights; a failure in there hangs, so this is watched."""
        monitor.beat("first weight sync")
        super().on_init_end()
        monitor.beat("start")

    def on_train_begin(self) -> None:
        """Metrics go to one file that a resumed run appends to; verl's own file tracker would empty it."""
        super().on_train_begin()
        self.logger.logger["run_folder"] = self._folder.metrics_log(self.global_steps)
        self._first_step = self.global_steps

    def on_step_begin(self) -> None:
        """A step begins with rollouts."""
        super().on_step_begin()
        self._episodes = StepEpisodes(())
        monitor.beat("rollout")

    def prepare_step(self) -> dict[str, Any]:
        """The step's questions go out; where they were taken from is kept, for a step that may never be finished."""
        self._data_position = self.train_dataloader.state_dict()
        self._end_if_asked()
        prepared: dict[str, Any] = super().prepare_step()
        return prepared

    def on_sample_end(self) -> None:
        """Rollouts are done."""
        super().on_sample_end()
        monitor.beat("update", UPDATE_PATIENCE_SECONDS)

    def on_step_end(self) -> None:
        """The weights go to the rollout engine."""
        monitor.beat("weight sync")
        super().on_step_end()
        monitor.beat("metrics")

    def _build_replay_buffer(self) -> Any:
        """verl's, which looks for finished rollouts every two seconds: a step would lose one of them."""
        buffer = super()._build_replay_buffer()
        if self.mode != "separate_async":  # There the interval decides what counts as waiting, too.
            buffer.poll_interval = POLL_SECONDS
        return buffer

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        if self.use_critic:
            self.role_worker_mapping[Role.Critic] = ray.remote(CriticWorker)

    def _balance_batch(self, batch: KVBatchMeta, *arguments: Any, **options: Any) -> KVBatchMeta:
        """Only live episodes go on: no estimator, loss or denominator of verl's ever sees a void one (invariant 7), nor
        a sibling that `trained_samples` leaves out."""
        self._end_if_asked()
        found = self._read_episodes(batch)
        self._episodes += found
        self._check_episodes()
        is_kept = self._chosen(found.rollouts, batch.keys)
        left_out = [key for key, kept in zip(batch.keys, is_kept, strict=True) if not kept]
        if left_out:
            tq.kv_clear(keys=left_out, partition_id=batch.partition_id)
            batch = batch.select_keys([key for key in batch.keys if key not in set(left_out)])
        return super()._balance_batch(batch, *arguments, **options)

    def _chosen(self, rollouts: Sequence[Rollout], keys: Sequence[str]) -> list[bool]:
        count = self._settings["trained_samples"]
        if count is None:
            return [not rollout.is_void for rollout in rollouts]
        groups = [None if rollout.is_void else rollout.group_id for rollout in rollouts]
        siblings = [int(key.rsplit("_", 2)[1]) for key in keys]  # verl's keys are group_sibling_part
        return most_varied([rollout.reward.total for rollout in rollouts], groups, siblings, count)

    def _check_episodes(self) -> None:
        """Raises RetrieverOutage or TrainingError for a step that must not be trained on; nothing done so far is lost
        then."""
        step, settings = self.global_steps, self._settings
        try:
            if self._episodes.lost:
                limit_seconds = settings["retriever"]["outage_limit_seconds"]
                raise RetrieverOutage(f"{self._episodes.lost}: waited retriever.outage_limit_seconds={limit_seconds:g}")
            check_void_share(self._episodes.rollouts, step=step, max_share=settings["max_void_share"])
        except (RetrieverOutage, TrainingError) as error:
            self._folder.write_rollouts(step, self._episodes.rollouts)
            raise type(error)(f"{error}; {self._save_finished_steps()}") from error

    def _end_if_asked(self) -> None:
        """Raises TrainingError, with everything saved, when somebody asked the run to stop (SIGTERM)."""
        if monitor.is_stop_asked():
            raise TrainingError(f"stopped as asked; {self._save_finished_steps()}")

    def _save_finished_steps(self) -> str:
        """How to go on, after a checkpoint of the state after the last finished step, while the next is under way.

        No checkpoint is made where the next one has updated the weights already (`separate_async` with several updates
        a step).
        """
        finished = self.global_steps - 1
        if finished >= self._first_step and finished != self._folder.last_step and not self.local_trigger_step:
            self.global_steps = finished
            if self.mode == "sync":  # Elsewhere questions are taken ahead, and verl saves them with their place.
                self.train_dataloader = _Position(self._data_position)
            self._save_checkpoint()
        last = self._folder.last_step
        return "no step was finished" if last is None else f"step {last} is saved, go on with --resume"

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """verl's own; the trainer's log-probs are held against the rollout's, at the first step with consequences.

        Where the rollout's are the old ones (bypass) the trainer has none but those of a sample at the first step, and
        no step's ratio is to anything else.
        """
        correction = self.config.algorithm.rollout_correction
        if not correction.bypass_mode:
            batch = super()._compute_old_log_prob(batch, metrics)
            self._note_agreement(batch, metrics)
            return batch
        if not self._is_checked:
            correction.bypass_mode = False
            num_workers = self.config.trainer.nnodes * self.config.trainer.n_gpus_per_node
            sample = batch.select_keys(spread(batch.keys, CHECKED_EPISODES * num_workers))
            sample = super()._compute_old_log_prob(sample, metrics)
            correction.bypass_mode = True
            self._note_agreement(sample, metrics)
        return super()._compute_old_log_prob(batch, metrics)

    def _note_agreement(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> None:
        """Raises EngineError where sampler and trainer are not the same model when the run starts. Later they may drift
        apart by rounding, which the metrics show."""
        settings = self._settings
        found = self._measure_agreement(batch)
        if found is None:
            return
        metrics.update(found.metrics)
        if not self._is_checked:
            check_agreement(found, min_pearson=settings["min_agreement_pearson"], max_gap=settings["max_agreement_gap"])
            self._is_checked = True

    def _read_episodes(self, batch: KVBatchMeta) -> StepEpisodes:
        data = tq.kv_batch_get(batch.keys, batch.partition_id, select_fields=["extra_fields"])
        return step_episodes(data.pop("extra_fields").tolist())

    def _measure_agreement(self, batch: KVBatchMeta) -> Agreement | None:
        """Over the episodes that the current weights sampled from end to end; None where there are none."""
        tagged = zip(batch.keys, batch.tags, strict=True)
        keys = [key for key, tag in tagged if tag["min_global_steps"] == self.global_steps - 1]
        if not keys:
            return None
        fields = ["response_mask", "rollout_log_probs", "old_log_probs"]
        data = tq.kv_batch_get(keys, batch.partition_id, select_fields=fields)
        turns = torch.cat([turn_numbers(mask) for mask in data["response_mask"].unbind()])
        rollout, trainer = data["rollout_log_probs"].values(), data["old_log_probs"].values()
        return agreement(rollout, trainer, turns) if turns.any() else None

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
        num_updates = math.ceil(num_rows / (actor.ppo_mini_batch_size * rollout.n))
        metrics[f"{role}/skipped_updates_total"] = round(metrics.pop(f"{role}/skipped_share") * num_updates)
        check_skipped_updates(
            int(metrics[f"{role}/max_skipped_in_a_row"]), what=what, limit=self._settings["max_skipped_updates"]
        )

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict[str, Any], timing_raw: dict[str, float], **where: Any
    ) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, **where)
        codec = TransformersCodec(self.tokenizer)
        found = step_metrics(
            self._episodes.rollouts,
            stop=protocol_for(codec, **self._settings["conversation"]).stop,
            decode=codec.decode,
            step_seconds=timing_raw["step"],
        )
        metrics.update(found | self._episodes.metrics)
        self._folder.write_rollouts(self.global_steps, self._episodes.rollouts)
        monitor.report({"step": self.global_steps, **_plain(metrics)})

    def _save_checkpoint(self) -> None:
        """verl's checkpoint, once the disk is known to have room; a half-written one is removed, the last one stays."""
        monitor.beat("checkpoint", UPDATE_PATIENCE_SECONDS)
        step, folder = self.global_steps, self._folder
        folder.check_disk_space()
        try:
            super()._save_checkpoint()
            cast_weights(folder.model(step))
            folder.note_checkpoint(step, keep=self._settings["keep_checkpoints"])
        except BaseException:  # Also when the process is being stopped: half a checkpoint must not stay.
            if folder.fault(step):
                shutil.rmtree(folder.checkpoint(step), ignore_errors=True)
            raise


class SearchTrainer(SearchSteps, PPOTrainerSync):
    """`trainer.mode: sync`."""


class SearchTrainerColocateAsync(SearchSteps, PPOTrainerColocateAsync):
    """`trainer.mode: colocate_async`."""

    mode = "colocate_async"


class SearchTrainerSeparateAsync(SearchSteps, PPOTrainerSeparateAsync):
    """`trainer.mode: separate_async`."""

    mode = "separate_async"


@dataclass(frozen=True, slots=True)
class _Position:
    """A place in the data, where verl's checkpoint asks the loader for one."""

    state: dict[str, Any]

    def state_dict(self) -> dict[str, Any]:
        """The place."""
        return self.state


def _plain(metrics: dict[str, Any]) -> dict[str, Any]:
    """Metrics as plain Python numbers; verl's counts by reward, for a table of its own, are left out."""
    figures = {name: value for name, value in metrics.items() if not isinstance(value, dict)}
    plain: dict[str, Any] = orjson.loads(orjson.dumps(figures, option=orjson.OPT_SERIALIZE_NUMPY))
    return plain
