"""The CPU engine's arithmetic; the engine itself is held against verl's in test_cpu_engine.py."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from search_rl.training.packing import length_sorted_batches, loss_positions


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 200))
def test_every_row_is_in_one_batch_and_batches_are_bounded(lengths: list[int], max_tokens: int) -> None:
    """Would catch a row that is lost or trained twice, and a micro-batch larger than memory was planned for."""
    batches = length_sorted_batches(lengths, max_tokens)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        width = max(lengths[row] for row in batch)
        assert len(batch) == 1 or width * len(batch) <= max_tokens


def test_equal_lengths_need_no_padding() -> None:
    """Would catch rows of unlike length in one micro-batch while sorted neighbours would fit."""
    assert length_sorted_batches([3, 9, 3, 9], 18) == [[1, 3], [0, 2]]


def test_positions_of_a_response_mask_are_counted_from_the_end() -> None:
    """Would catch a mask over the response read as if it began with the prompt."""
    mask = torch.tensor([1, 0, 1])
    assert loss_positions([5], [mask]).tolist() == [1, 3]


def test_positions_of_a_second_sequence_are_shifted() -> None:
    """Would catch positions that point into the sequence before."""
    masks = [torch.tensor([0, 1]), torch.tensor([0, 0, 0, 1])]
    assert loss_positions([2, 4], masks).tolist() == [0, 4]


def test_first_token_is_never_in_the_loss() -> None:
    """Would catch a position of -1, which reads the last logits of the sequence before."""
    assert loss_positions([2, 2], [torch.tensor([1, 1]), torch.tensor([1, 1])]).tolist() == [0, 2]


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=8), min_size=1, max_size=6))
def test_a_position_stands_for_each_masked_target(masks: list[list[bool]]) -> None:
    """Would catch a masked token without its logits, or logits for a token of the environment."""
    lengths = [len(mask) for mask in masks]
    flat = [bit for mask in masks for bit in mask]
    starts = {sum(lengths[:row]) for row in range(len(lengths))}
    expected = [index - 1 for index, bit in enumerate(flat) if bit and index not in starts]
    assert loss_positions(lengths, [torch.tensor(mask) for mask in masks]).tolist() == expected
