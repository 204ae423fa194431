"""What a step's rollouts say about the policy, under stable names. Shares are of live (not void) episodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import fmean

from search_rl import rewards
from search_rl.types import Rollout, Search, StopReason


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Metrics of one training step; `agent/void_…` are shares of all episodes, everything else is of the live ones."""
    live = [rollout for rollout in rollouts if not rollout.is_void]
    metrics = {
        "agent/void_share": 1 - len(live) / len(rollouts),
        "agent/void_search_share": fmean(rollout.trajectory.is_void for rollout in rollouts),
        "agent/void_reward_share": fmean(bool(rollout.reward.failure) for rollout in rollouts),
    }
    if not live:
        return metrics
    trajectories = [rollout.trajectory for rollout in live]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    queries = [
        [query for turn in t.turns if isinstance(turn.action, Search) for query in turn.action.queries]
        for t in trajectories
    ]
    logprobs = [logprob for turn in turns for logprob in turn.policy.logprobs]
    for name in live[0].reward.parts:
        metrics[f"reward/{name}"] = fmean(rollout.reward.parts[name] for rollout in live)
    metrics |= {f"agent/stop_{reason}": fmean(t.stop_reason is reason for t in trajectories) for reason in StopReason}
    return metrics | {
        "agent/format_rate": fmean(rewards.format(t) for t in trajectories),
        "agent/searches_per_question": fmean(t.num_searches for t in trajectories),
        "agent/policy_tokens": fmean(sum(t.response_mask) for t in trajectories),
        "agent/sequence_tokens": fmean(len(t.prompt.token_ids) + len(t.response_ids) for t in trajectories),
        "agent/repeated_query_share": fmean(len(set(asked)) < len(asked) for asked in queries),
        "agent/passages_shortened": fmean(
            turn.observation.num_passages_shortened if turn.observation else 0 for turn in turns
        ),
        "agent/entropy_estimate": -fmean(logprobs),
        "agent/search_seconds_mean": fmean(turn.search_seconds for turn in turns),
        "group/mixed_share": _mixed_share(live),
    }


def _mixed_share(rollouts: Sequence[Rollout]) -> float:
    """Share of groups whose rewards differ: the only ones that teach GRPO anything."""
    ordered = sorted(rollouts, key=lambda rollout: rollout.group_id)
    groups = [
        {rollout.reward.total for rollout in members}
        for _, members in groupby(ordered, key=lambda rollout: rollout.group_id)
    ]
    return fmean(len(rewards) > 1 for rewards in groups)
