"""How an answer is compared with the accepted ones by default, in rewards too: the profile search_r1, which is SQuAD's
normaliser and metrics. `search_rl.profiles` has the rules, and where ours differ.
"""

from __future__ import annotations

from search_rl.normalisers import squad as normalise
from search_rl.profiles import SEARCH_R1

exact_match = SEARCH_R1.exact_match
cover_exact_match = SEARCH_R1.cover_exact_match
f1 = SEARCH_R1.f1

__all__ = ["cover_exact_match", "exact_match", "f1", "normalise"]
