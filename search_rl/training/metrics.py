"""What a step's rollouts say about the policy and its searches, under stable names (README.md, "Metrics")."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from math import ceil
from statistics import fmean

from search_rl import rewards
from search_rl.engines.base import length_to_stop
from search_rl.evidence import evidence_of
from search_rl.types import Malformed, Rollout, Search, StopReason, Trajectory, Turn

_ACTION = re.compile(r"<(?:search|answer|tool_call)>")
_LIVE_STOPS = (StopReason.ANSWERED, StopReason.MAX_TURNS, StopReason.MAX_TOKENS, StopReason.MALFORMED)


def step_metrics(
    rollouts: Sequence[Rollout],
    *,
    stop: Sequence[str],
    decode: Callable[[Sequence[int]], str],
    step_seconds: float,
) -> dict[str, float]:
    """All metrics of one step's episodes. Void ones are in the `agent/void_…` shares and in the waste, nowhere else."""
    live = [rollout for rollout in rollouts if not rollout.is_void]
    metrics = void_metrics(rollouts) | waste_metrics(rollouts, stop=stop, decode=decode)
    if not live:
        return metrics
    trajectories = [rollout.trajectory for rollout in live]
    return (
        metrics
        | reward_metrics(live)
        | agent_metrics(trajectories)
        | search_time_metrics(trajectories, step_seconds=step_seconds)
        | group_metrics(live)
    )


def void_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Shares of all episodes."""
    return {
        "agent/void_share": fmean(rollout.is_void for rollout in rollouts),
        "agent/void_search_share": fmean(rollout.trajectory.is_void for rollout in rollouts),
        "agent/void_reward_share": fmean(bool(rollout.reward.failure) for rollout in rollouts),
    }


def waste_metrics(
    rollouts: Sequence[Rollout], *, stop: Sequence[str], decode: Callable[[Sequence[int]], str]
) -> dict[str, float]:
    """Sampled tokens that led nowhere: in void episodes, in malformed turns of the others, behind a turn's stop."""
    tokens = {"void": 0, "malformed": 0, "behind_stop": 0}
    num_sampled = 0
    for rollout in rollouts:
        for turn in rollout.trajectory.turns:
            token_ids = turn.policy.token_ids
            num_sampled += len(token_ids)
            if rollout.is_void:
                tokens["void"] += len(token_ids)
            elif isinstance(turn.action, Malformed):
                tokens["malformed"] += len(token_ids)
            else:
                tokens["behind_stop"] += len(token_ids) - length_to_stop(token_ids, stop, decode)
    share = sum(tokens.values()) / max(num_sampled, 1)
    return {"waste/token_share": share} | {f"waste/{kind}_tokens": count for kind, count in tokens.items()}


def reward_metrics(live: Sequence[Rollout]) -> dict[str, float]:
    """The mean of each reward part, unweighted, and of their weighted sum."""
    parts = {f"reward/{name}": fmean(rollout.reward.parts[name] for rollout in live) for name in live[0].reward.parts}
    return {"reward/total": fmean(rollout.reward.total for rollout in live), **parts}


def agent_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """What the policy did. `evidence_hit` is there when a question names its evidence."""
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    seen = [turn.observation for turn in turns if turn.observation is not None]
    shortened = [observation.num_passages_shortened for observation in seen if observation.results]
    with_evidence = [trajectory for trajectory in trajectories if evidence_of(trajectory.question)]
    metrics = {
        **{f"agent/stop_{reason}": fmean(t.stop_reason is reason for t in trajectories) for reason in _LIVE_STOPS},
        **_search_counts(trajectories),
        "agent/format_rate": fmean(rewards.format(t) for t in trajectories),
        "agent/valid_action_share": fmean(_is_valid(turn) for turn in turns),
        "agent/policy_tokens": fmean(sum(t.response_mask) for t in trajectories),
        "agent/sequence_tokens": fmean(len(t.prompt.token_ids) + len(t.response_ids) for t in trajectories),
        "agent/reasoning_characters": fmean(len(reasoning_of(turn.text)) for turn in turns),
        "agent/repeated_query_share": fmean(rewards.repeated_query(t) > 0 for t in trajectories),
        "agent/passages_shortened": sum(shortened) / max(len(shortened), 1),
        "agent/observations_shortened_share": sum(num > 0 for num in shortened) / max(len(shortened), 1),
        "agent/entropy_estimate": -fmean(logprob for turn in turns for logprob in turn.policy.logprobs),
    }
    if with_evidence:
        metrics["agent/evidence_hit"] = fmean(rewards.evidence_hit(t) for t in with_evidence)
    return metrics


def _search_counts(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    counts = [trajectory.num_searches for trajectory in trajectories]
    few = {f"agent/searches_{num}_share": fmean(count == num for count in counts) for num in range(3)}
    return {
        "agent/searches_per_question": fmean(counts),
        **few,
        "agent/searches_3_or_more_share": fmean(count >= 3 for count in counts),
    }


def _is_valid(turn: Turn) -> bool:
    """True for an answer and for a search that was answered; Search-R1 counts one asked for in the final turn too."""
    is_search = isinstance(turn.action, Search)
    return turn.observation is not None if is_search else not isinstance(turn.action, Malformed)


def reasoning_of(text: str) -> str:
    """The thought of a turn: what stands before `</think>`, or where there is no such tag before the action's tag."""
    thought, closing, _ = text.partition("</think>")
    if not closing:
        action = _ACTION.search(text)
        thought = text[: action.start()] if action else ""
    return thought.strip().removeprefix("<think>").strip()


def search_time_metrics(trajectories: Sequence[Trajectory], *, step_seconds: float) -> dict[str, float]:
    """How long turns waited for their searches; the share is that of a mean episode, and episodes wait side by side."""
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    waits = sorted(turn.search_seconds for turn in turns if turn.observation is not None and turn.observation.results)
    return {
        "search/seconds_mean": fmean(waits) if waits else 0.0,
        "search/seconds_p95": waits[ceil(0.95 * len(waits)) - 1] if waits else 0.0,
        "search/share_of_step": sum(waits) / len(trajectories) / step_seconds,
    }


def group_metrics(live: Sequence[Rollout]) -> dict[str, float]:
    """Shares of groups by what their rewards are. Only mixed ones teach GRPO anything."""
    groups: dict[str, set[float]] = defaultdict(set)
    for rollout in live:
        groups[rollout.group_id].add(rollout.reward.total)
    return {
        "group/mixed_share": fmean(len(totals) > 1 for totals in groups.values()),
        "group/all_zero_share": fmean(totals == {0.0} for totals in groups.values()),
        "group/all_one_share": fmean(totals == {1.0} for totals in groups.values()),
    }
