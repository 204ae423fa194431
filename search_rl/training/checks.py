"""What stops a run for its own good: too many void episodes, and an engine that is not the policy. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from search_rl.errors import EngineError, TrainingError
from search_rl.types import Rollout

_TURNS = ("1", "2", "3_or_more")


def check_void_share(rollouts: Sequence[Rollout], *, step: int, max_share: float) -> None:
    """Raises TrainingError when more than `max_share` of a step's episodes are void, or all (invariant 7)."""
    void = [rollout for rollout in rollouts if rollout.is_void]
    if not void:
        return
    num_searches = sum(rollout.trajectory.is_void for rollout in void)
    why = f" ({num_searches} lost a search, {len(void) - num_searches} their reward); the first: {void[0].failure}"
    check_void_counts(len(void), len(rollouts), step=step, max_share=max_share, why=why)


def check_void_counts(num_void: int, num_episodes: int, *, step: int, max_share: float, why: str) -> None:
    """Raises TrainingError, ending in `why`, when more than `max_share` of the episodes are void, or all of them."""
    share = num_void / num_episodes
    if share > max_share or share == 1:
        raise TrainingError(
            f"{share:.0%} of the episodes of step {step} are void, more than trainer.max_void_share={max_share}{why}"
        )


def check_skipped_updates(num_in_a_row: int, *, what: str, limit: int) -> None:
    """Raises TrainingError when `limit` updates in a row had a loss or gradient that is no finite number."""
    if num_in_a_row >= limit:
        raise TrainingError(
            f"{num_in_a_row} updates of the {what} in a row had a loss or gradient that is no finite number "
            f"(trainer.max_skipped_updates={limit}); all were skipped. Lower its learning rate or "
            f"optimizer.max_gradient_norm, look at the rewards, and start again with --resume"
        )


@dataclass(frozen=True, slots=True)
class Agreement:
    """How alike the rollout engine and the trainer score the same sampled tokens.

    `gap_by_turn` is the mean gap of first turns, of second ones and of all later ones, as far as there are any.
    """

    pearson: float
    mean_abs_gap: float
    gap_by_turn: tuple[float, ...] = ()

    @property
    def metrics(self) -> dict[str, float]:
        """The figures under their metric names."""
        by_turn = zip(_TURNS, self.gap_by_turn, strict=False)
        return {
            "agreement/pearson": self.pearson,
            "agreement/mean_abs_gap": self.mean_abs_gap,
            **{f"agreement/turn_{turn}_mean_abs_gap": gap for turn, gap in by_turn},
        }


def spread(items: Sequence[str], count: int) -> list[str]:
    """`count` of the items, evenly spaced, in their order; all of them where there are no more."""
    return [items[i * len(items) // count] for i in range(count)] if count < len(items) else list(items)


def turn_numbers(mask_T: torch.Tensor) -> torch.Tensor:
    """The turn of each token of one response, from 1; 0 where the environment wrote (invariant 3)."""
    mask_T = mask_T.bool()
    begins_T = mask_T & ~torch.cat([mask_T.new_zeros(1), mask_T[:-1]])
    return begins_T.cumsum(0) * mask_T


def agreement(rollout_T: torch.Tensor, trainer_T: torch.Tensor, turns_T: torch.Tensor) -> Agreement:
    """Pearson correlation of the probabilities and mean |log-prob gap| over policy tokens; inputs are log-probs (T,)
    and the tokens' `turn_numbers`.

    Probabilities that are all equal have no correlation: it is 1 when the two sides are equal too, else 0.
    """
    is_policy = turns_T > 0
    rollout, trainer, turns = rollout_T[is_policy].double(), trainer_T[is_policy].double(), turns_T[is_policy]
    gaps = (rollout - trainer).abs()
    gap = gaps.mean().item()
    by_turn = [gaps[turns == 1], gaps[turns == 2], gaps[turns > 2]]
    gap_by_turn = tuple(gaps.mean().item() for gaps in by_turn if len(gaps))
    pearson = torch.corrcoef(torch.stack([rollout.exp(), trainer.exp()]))[0, 1]
    return Agreement(pearson.item() if pearson.isfinite() else float(gap == 0), gap, gap_by_turn)


def check_agreement(found: Agreement, *, min_pearson: float, max_gap: float) -> None:
    """Raises EngineError when the engine samples from another policy than the one that is trained.

    This is how a lost weight update shows; nothing else does.
    """
    if not (found.pearson >= min_pearson and found.mean_abs_gap <= max_gap):
        raise EngineError(
            f"rollout engine and trainer disagree: Pearson {found.pearson:.4f} (at least {min_pearson}), mean log-prob "
            f"gap {found.mean_abs_gap:.4f} (at most {max_gap}): the engine does not sample from the trained policy"
        )
