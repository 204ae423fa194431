"""Which rows go through the model together, and where the loss looks. Pure arithmetic; N is a loss position."""

from __future__ import annotations

import torch


def length_sorted_batches(lengths: list[int], max_padded_tokens: int) -> list[list[int]]:
    """Row indices in micro-batches, longest first, each of at most `max_padded_tokens` with padding.

    A row longer than that stands alone. Sorting keeps padding near zero; longest first shows a lack of memory early.
    """
    batches: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        width = lengths[batches[-1][0]] if batches else 0
        if batches and width * (len(batches[-1]) + 1) <= max_padded_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def loss_positions(input_lengths: list[int], masks: list[torch.Tensor]) -> torch.Tensor:
    """Indices (N,) into the packed sequences of the positions whose next token is in the loss.

    A mask may cover the whole sequence or only its end, as verl's response mask does. A sequence's first token is
    predicted from nothing and is never in the loss.
    """
    found, start = [], 0
    for length, mask in zip(input_lengths, masks, strict=True):
        targets = mask.nonzero().flatten() + (length - len(mask))
        found.append(targets[targets > 0] - 1 + start)
        start += length
    return torch.cat(found)
