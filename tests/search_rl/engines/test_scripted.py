"""The scripted engine stops where a real one does."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_rl.agent.protocols import STOP
from search_rl.engines.base import Generation, Sampling
from search_rl.engines.scripted import ScriptedEngine
from search_rl.errors import EngineError
from tests.search_rl.conftest import ByteCodec

texts = st.lists(st.sampled_from(["<search>", "</search>", "</answer>", "a", "é", "日", " "]), min_size=1).map("".join)


@settings(max_examples=100)
@given(texts, st.integers(1, 60))
def test_it_stops_with_the_token_that_completes_a_stop_string(codec: ByteCodec, text: str, max_tokens: int) -> None:
    """Tests that pass on text which no real engine would give."""
    engine = ScriptedEngine([text], codec)
    generation = asyncio.run(engine.generate((1,), max_tokens=max_tokens, stop=STOP, request_id="r"))
    assert codec.encode(text)[: len(generation.token_ids)] == generation.token_ids
    assert len(generation.logprobs) == len(generation.token_ids) <= max_tokens
    before = codec.decode(generation.token_ids[:-1])
    assert not any(stop in before for stop in STOP)
    is_stopped = any(stop in codec.decode(generation.token_ids) for stop in STOP)
    assert is_stopped or len(generation.token_ids) in (max_tokens, len(codec.encode(text)))


def test_each_episode_plays_the_script_from_its_start(codec: ByteCodec) -> None:
    """Two episodes at once that take each other's replies."""
    engine = ScriptedEngine(["one", Generation((7,), (-0.25,))], codec)

    async def play() -> list[Generation]:
        return [await engine.generate((1,), max_tokens=9, stop=(), request_id=name) for name in ("a", "b", "a")]

    assert asyncio.run(play()) == [
        Generation(codec.encode("one"), (-0.5,) * len(codec.encode("one"))),
        Generation(codec.encode("one"), (-0.5,) * len(codec.encode("one"))),
        Generation((7,), (-0.25,)),
    ]


def test_a_script_that_ends_too_early_says_so(codec: ByteCodec) -> None:
    """An IndexError deep inside an episode."""
    with pytest.raises(EngineError, match="the script has 0 replies, turn 1 asked for another"):
        asyncio.run(ScriptedEngine([], codec).generate((1,), max_tokens=9, stop=(), request_id="a"))


def test_a_seed_differs_between_siblings_and_turns_and_not_between_runs() -> None:
    """Eight samples of one question that are all the same, or a seeded run that cannot be repeated."""
    sampling = Sampling(seed=1)
    seeds = {sampling.seed_of(name, length) for name in ("q/0", "q/1") for length in (10, 20)}
    assert len(seeds) == 4
    assert sampling.seed_of("q/0", 10) == Sampling(seed=1).seed_of("q/0", 10)
    assert sampling.seed_of("q/0", 10) != Sampling(seed=2).seed_of("q/0", 10)
    assert all(seed is not None and 0 <= seed < 2**31 for seed in seeds)
    assert Sampling().seed_of("q/0", 10) is None
