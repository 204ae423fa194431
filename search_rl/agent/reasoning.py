"""What the policy sees of its earlier reasoning.

Kept (the default): each prompt is all that came before, so one sequence holds the whole episode and can be trained
on. Dropped: the thoughts of earlier turns are left out of the prompt, which saves context; what was sampled is then
no longer a continuation of one sequence, so such episodes are for evaluation, and training refuses them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from search_rl.codec import Codec

_OPEN, _CLOSE = "<think>", "</think>"


def without_reasoning(codec: Codec, token_ids: Sequence[int]) -> tuple[int, ...]:
    """The tokens of a turn less all up to the first `</think>` and the line breaks behind it.

    A closing tag whose opening tag stands in the prompt stays, and so the thought is an empty one. Of the token that
    holds the end of the tag, what stands behind the tag is kept. A turn that never closes a thought stays whole.
    """
    token_ids = tuple(token_ids)
    if _CLOSE not in codec.decode(token_ids):
        return token_ids
    end = bisect_left(range(len(token_ids)), True, key=lambda num: _CLOSE in codec.decode(token_ids[:num]))
    thought, _, rest = codec.decode(token_ids[:end]).partition(_CLOSE)
    if _OPEN not in thought:
        return codec.encode(_CLOSE + rest) + token_ids[end:]
    rest = rest.lstrip("\n")
    while not rest and end < len(token_ids) and not codec.decode(token_ids[end : end + 1]).strip("\n"):
        end += 1
    return codec.encode(rest) + token_ids[end:]
