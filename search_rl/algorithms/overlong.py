"""DAPO's soft penalty for long answers."""

from __future__ import annotations


def overlong_penalty(num_tokens: int, *, limit_tokens: int, buffer_tokens: int) -> float:
    """0.0 up to `limit_tokens - buffer_tokens`, from there linear down to -1.0 at `limit_tokens` and beyond.

    Source: DAPO, 2503.14476, eq. 13. Meant for the tokens that the policy wrote: verl 0.9.1 counts the retrieved ones
    too.
    """
    over_tokens = num_tokens - (limit_tokens - buffer_tokens)
    return -min(max(over_tokens / buffer_tokens, 0.0), 1.0)
