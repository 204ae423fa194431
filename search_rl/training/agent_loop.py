"""The episode as a verl agent loop: verl's server samples, `run_episode` decides, the trajectory goes back as ids."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import orjson
import ray
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from search_rl.agent.episode import Limits, run_episode
from search_rl.agent.selection import protocol_for
from search_rl.algorithms.overlong import overlong_penalty
from search_rl.codec import TransformersCodec
from search_rl.datasets.questions import question_row
from search_rl.engines.base import Generation, Sampling, length_to_stop
from search_rl.errors import EngineError, SearchRLError
from search_rl.records import rollout_to_row
from search_rl.rewards import score_or_void
from search_rl.search import SearchClient
from search_rl.training import monitor
from search_rl.training.dev_set import dev_scores
from search_rl.types import Reward, Rollout, Trajectory

SETTINGS_KEY = "search_rl"
"""Where `rollout.custom` carries this project's settings to every worker."""


@cache
def _client(options_json: bytes) -> SearchClient:
    """One client, so one connection pool, one queue of queries and one cache, for all episodes of a worker process."""
    options = orjson.loads(options_json)
    token_file = options.pop("token_file")
    # A pause beats at every probe, and a probe may take as long as any request.
    patience_seconds = monitor.DEFAULT_PATIENCE_SECONDS + options["timeout_seconds"]
    return SearchClient(
        **options,
        token_file=Path(token_file) if token_file else None,
        on_pause=partial(monitor.pause, patience_seconds=patience_seconds),
    )


class ServerEngine:
    """verl's rollout servers as an engine; keeps the weight versions that sampled the episode."""

    def __init__(
        self,
        client: Any,
        sampling_params: Mapping[str, Any],
        decode: Callable[[Sequence[int]], str],
        *,
        seed: int | None = None,
    ) -> None:
        self._client = client
        self._decode = decode
        self._sampling = Sampling(seed=seed)
        self._sampling_params = dict(sampling_params)
        self.versions: list[dict[str, Any]] = []
        self.num_preempted = 0

    async def generate(
        self, prompt_ids: Sequence[int], *, max_tokens: int, stop: Sequence[str], request_id: str
    ) -> Generation:
        """See `Engine.generate`."""
        sampling_params = {
            **self._sampling_params,
            "max_tokens": max_tokens,
            "stop": list(stop),
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
        }
        seed = self._sampling.seed_of(request_id, len(prompt_ids))
        if seed is not None:
            sampling_params["seed"] = seed
        try:
            output = await self._client.generate(
                request_id=request_id, prompt_ids=list(prompt_ids), sampling_params=sampling_params
            )
        except ray.exceptions.RayError as error:
            raise EngineError(f"the rollout engine failed: {_last_line(error)}") from error
        monitor.beat("rollout")
        self.versions.append(output.extra_fields)
        self.num_preempted += max(output.num_preempted or 0, 0)
        num_tokens = len(output.token_ids)
        if output.extra_fields["min_global_steps"] != output.extra_fields["max_global_steps"]:
            # It was interrupted for new weights and went on as a new request, which cannot know of half a stop string.
            num_tokens = length_to_stop(output.token_ids, stop, self._decode)
        return Generation(tuple(output.token_ids[:num_tokens]), tuple((output.log_probs or ())[:num_tokens]))

    @property
    def weight_versions(self) -> dict[str, int]:
        """The training steps whose weights sampled the first and the last token, under verl's names."""
        return {
            "min_global_steps": min(fields["min_global_steps"] for fields in self.versions),
            "max_global_steps": max(fields["max_global_steps"] for fields in self.versions),
        }


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


class SearchAgentLoop(AgentLoopBase):
    """One episode, scored here so that only the policy's own text can earn a reward (invariant 6)."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """The trajectory of one sibling. A void episode comes back with an empty mask: no loss, no statistics.

        One that raises (a dead engine, a fault of ours) ends the run: verl would train on what is left of
        its group. The driver knows why before verl knows that, and this worker's log has the traceback.
        """
        try:
            return await self._run_episode(sampling_params, row)
        except Exception as error:
            reason = str(error) if isinstance(error, SearchRLError) else f"{type(error).__name__}: {_last_line(error)}"
            traceback.print_exc()
            await monitor.fail(f"an episode of question {row.get('id')} failed: {reason}")
            raise

    async def _run_episode(self, sampling_params: dict[str, Any], row: dict[str, Any]) -> AgentLoopOutput:
        settings = self.rollout_config.custom[SETTINGS_KEY]
        codec = TransformersCodec(self.tokenizer)
        question = question_row(row).question
        engine = ServerEngine(self.server_manager, sampling_params, codec.decode, seed=settings["seed"])
        client = _client(orjson.dumps(OmegaConf.to_container(settings["retriever"])))
        trajectory = await run_episode(
            question,
            engine=engine,
            searcher=client,
            codec=codec,
            protocol=protocol_for(codec, **settings["conversation"]),
            limits=Limits(**settings["limits"]),
            request_id=f"{row['global_steps']}/{question.key}/{row['session_id']}",
        )
        reward = score_or_void(trajectory, orjson.loads(settings["reward"]))
        rollout = Rollout(trajectory, shaped(reward, trajectory, **settings["overlong"]), group_id=row["uid"])
        return agent_loop_output(
            rollout,
            engine.weight_versions,
            num_preempted=engine.num_preempted,
            retriever={"lost": client.lost, "counts": asdict(client.take_counts())},
        )


def shaped(reward: Reward, trajectory: Trajectory, *, weight: float, limit_tokens: int, buffer_tokens: int) -> Reward:
    """The reward with DAPO's penalty for length as one more part, `overlong`; as it is where the weight is 0."""
    if not weight:
        return reward
    num_tokens = sum(trajectory.response_mask)
    penalty = overlong_penalty(num_tokens, limit_tokens=limit_tokens, buffer_tokens=buffer_tokens)
    return replace(reward, total=reward.total + weight * penalty, parts={**reward.parts, "overlong": penalty})


def agent_loop_output(
    rollout: Rollout,
    weight_versions: Mapping[str, int],
    *,
    num_preempted: int = 0,
    retriever: Mapping[str, Any] | None = None,
) -> AgentLoopOutput:
    """A rollout in verl's terms, id for id (invariant 1), with the whole record along for the run folder.

    `retriever` is what this worker's client has seen since the last episode that ended (`step_episodes.py`).
    """
    trajectory = rollout.trajectory
    return AgentLoopOutput(
        prompt_ids=list(trajectory.prompt.token_ids),
        response_ids=list(trajectory.response_ids),
        response_mask=trainable_mask(rollout),
        response_logprobs=list(trajectory.response_logprobs),
        reward_score=rollout.reward.total,
        num_turns=len(trajectory.turns),
        metrics=AgentLoopMetrics(
            generate_sequences=sum(turn.generate_seconds for turn in trajectory.turns),
            tool_calls=sum(turn.search_seconds for turn in trajectory.turns),
            num_preempted=num_preempted,
        ),
        extra_fields={
            "rollout": orjson.dumps(rollout_to_row(rollout, {})).decode(),
            "retriever": dict(retriever or {}),
            "reward_extra_info": dev_scores(rollout),
            **weight_versions,
        },
    )


def trainable_mask(rollout: Rollout) -> list[int]:
    """1 where the policy sampled the token, as verl wants it; all 0 for a void episode (invariants 2 and 7)."""
    return [int(is_policy and not rollout.is_void) for is_policy in rollout.trajectory.response_mask]
