"""Several seeds together."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest import approx

from search_rl.errors import ConfigError
from search_rl.evaluation.results import Result, load_result
from search_rl.evaluation.seeds import spread_over
from tests.search_rl.evaluation.told import ask, protocol, told, write

QUESTIONS = [ask(f"nq {number}", "red") for number in range(4)]


def sampled(folder: Path, seed: int, answers: str, temperature: float = 1.0) -> Result:
    """A letter a question: r right, w wrong."""
    words = {"r": "red", "w": "blue"}
    rules = protocol(sampling={"temperature": temperature, "seed": seed})
    episodes = [told(question, words[letter]) for question, letter in zip(QUESTIONS, answers, strict=False)]
    return load_result(write(folder / str(seed), episodes, rules=rules))


def test_spread_by_hand(tmp_path: Path) -> None:
    """Samples of different questions put together, a population deviation for a sample's, or pass@k over seeds."""
    spread = spread_over([sampled(tmp_path, seed, answers) for seed, answers in enumerate(("rrww", "rwrw", "rwww"))])
    assert list(spread.means.values()) == [0.5, 0.5, 0.25]
    assert spread.deviation == approx((1 / 48) ** 0.5)
    every = spread.rows["all"]
    assert every.mean.mean == approx(5 / 12)
    assert every.mean.n == 4
    assert {k: found.mean for k, found in every.pass_at.items()} == {
        1: approx(5 / 12),
        2: approx((1 + 2 / 3 + 2 / 3 + 0) / 4),
        3: 0.75,
    }
    assert (every.never, every.sometimes, every.always) == (0.25, 0.5, 0.25)


def test_only_the_seed_may_differ(tmp_path: Path) -> None:
    """A spread over temperatures called a spread over seeds."""
    first = sampled(tmp_path, 0, "rrww")
    with pytest.raises(ConfigError, match=r"differ in more than the seed: sampling.temperature: 1.0 against 0.5"):
        spread_over([first, sampled(tmp_path, 1, "rwww", temperature=0.5)])
    with pytest.raises(ConfigError, match="at least two"):
        spread_over([first])
    with pytest.raises(ConfigError, match="named twice"):
        spread_over([first, first])


def test_all_must_have_been_asked_the_same(tmp_path: Path) -> None:
    """A mean over the questions of one result alone."""
    with pytest.raises(ConfigError, match="not asked the same questions"):
        spread_over([sampled(tmp_path, 0, "rrww"), sampled(tmp_path, 1, "rrw")])
