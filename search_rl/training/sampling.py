"""Dynamic sampling (DAPO, 2503.14476): which groups a step is made of, void episodes left out of the question.

verl makes these buffers as its `custom_sampler`. Its own one judges a group by all its rewards: the 0 of a void episode
makes a group of equal rewards look mixed, and in an outage it would replace void groups for ever.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from search_rl.errors import TrainingError
from search_rl.training.checks import check_void_counts


def shared_reward(live_rewards: Iterable[float]) -> float | None:
    """The one reward of a group that teaches nothing (0.0 without a live episode), None for rewards that differ."""
    different = set(live_rewards)
    return None if len(different) > 1 else next(iter(different), 0.0)


class _LiveGroups(ReplayBuffer):
    """Goes before one of verl's buffers; a group whose live rewards are all equal is replaced."""

    def __init__(self, *, sampler_kwargs: Any, **arguments: Any) -> None:
        self._settings = sampler_kwargs
        self._num_groups = self._num_void = self._num_episodes = self._step = 0
        is_sync = arguments["trainer_mode"] == "sync"
        bounds = {"train_batch_size": sampler_kwargs["prompts_per_step"], "gen_batch_size": 1} if is_sync else {}
        super().__init__(sampler_kwargs=sampler_kwargs, filter_groups_metric="reward", **bounds, **arguments)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        """See verl's buffer. Raises TrainingError when the allowance is spent, or too many episodes are void."""
        self._num_groups = self._num_void = self._num_episodes = 0
        self._step = global_steps
        return super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)

    def _dapo_filtered_keys(self, partition_id: str) -> tuple[set[str], Counter[float]]:
        if partition_id == "val":
            return set(), Counter()
        finished = self.finished_keys[partition_id]
        known: dict[str, float | None] = self._dapo_classification_cache[partition_id]
        for gone in known.keys() - finished:
            del known[gone]
        new = finished - known.keys()
        if new:
            keys = [key for key in self.partitions[partition_id] if key.split("_")[0] in new]
            rewards = self._live_rewards(partition_id, keys)
            known |= {uid: shared_reward(rewards[uid]) for uid in new}
            self._check(len(new), num_informative=sum(reward is None for reward in known.values()))
        equal = {uid: reward for uid, reward in known.items() if reward is not None}
        return set(equal), Counter(equal.values())

    def _live_rewards(self, partition_id: str, keys: list[str]) -> dict[str, list[float]]:
        rewards: dict[str, list[float]] = defaultdict(list)
        data = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["rm_scores", "response_mask"])
        for key, scores, mask in zip(keys, data["rm_scores"], data["response_mask"], strict=True):
            self._num_episodes += 1
            if mask.any():
                rewards[key.split("_")[0]].append(float(scores.sum()))
            else:
                self._num_void += 1
        return rewards

    def _check(self, num_new: int, *, num_informative: int) -> None:
        """Both checks wait for as many groups as a step has, so that one bad group ends nothing."""
        settings = self._settings
        self._num_groups += num_new
        wanted = settings["prompts_per_step"]
        if self._num_groups >= wanted:
            check_void_counts(
                self._num_void,
                self._num_episodes,
                step=self._step,
                max_share=settings["max_void_share"],
                why=f"; are the retrievers up and fast enough: {settings['retrievers']}?",
            )
        if num_informative < wanted and self._num_groups >= wanted * settings["max_generation_batches"]:
            raise TrainingError(
                f"dynamic sampling found {num_informative} questions with different rewards among {self._num_groups}, "
                f"and step {self._step} needs {wanted}: take questions that the policy solves sometimes, raise "
                f"algorithm.max_generation_batches={settings['max_generation_batches']}, or set "
                f"algorithm.dynamic_sampling: false"
            )


class LiveReplayBuffer(_LiveGroups, ReplayBuffer):
    """For `trainer.mode: sync`."""


class LiveReplayBufferAsync(_LiveGroups, ReplayBufferAsync):
    """For the asynchronous modes."""
