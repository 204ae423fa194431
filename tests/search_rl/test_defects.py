"""Defects D1 to D8 of Search-R1's reference code: tokens and budgets. D9 to D16: evaluation/test_defects_of_runs.py."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from search_rl.agent.episode import MIN_TURN_TOKENS, run_episode
from search_rl.agent.protocols import STOP
from search_rl.engines.base import Generation
from search_rl.engines.endpoint import Endpoint
from search_rl.engines.http_engine import HttpEngine
from search_rl.errors import DataError
from search_rl.evaluation.assemble import GREEDY
from search_rl.evaluation.runner import evaluate
from search_rl.rewards import score
from search_rl.training.metrics import step_metrics
from search_rl.types import Answer, Question, Rollout, Search, StopReason, Trajectory
from tests.search_rl.agent.families import llama3_1, qwen2_5, tekken_base
from tests.search_rl.agent.test_episode import ANSWER, CODEC, LIMITS, PROTOCOL, QUESTION, SEARCH, play
from tests.search_rl.agent.test_tokenizers import play as play_with
from tests.search_rl.agent.test_tokenizers import sampled
from tests.search_rl.conftest import FixedSearcher, hit


@dataclasses.dataclass(slots=True)
class Overrunning:
    """An engine that knows no stop strings: reply i is turn i, whole."""

    replies: Sequence[str]
    turn: int = 0

    async def generate(
        self, prompt_ids: Sequence[int], *, max_tokens: int, stop: Sequence[str], request_id: str
    ) -> Generation:
        """See `Engine.generate`."""
        token_ids = CODEC.encode(self.replies[self.turn])[:max_tokens]
        self.turn += 1
        return Generation(token_ids, (-0.5,) * len(token_ids))


def metrics_of(*trajectories: Trajectory) -> dict[str, float]:
    """What a training step would say of these episodes."""
    rollouts = [Rollout(trajectory, score(trajectory), "g") for trajectory in trajectories]
    return step_metrics(rollouts, stop=STOP, decode=CODEC.decode, step_seconds=1.0)


def test_d01_sampled_ids_are_trained_as_they_are() -> None:
    """Text that is decoded and encoded again: other ids are trained than those that were sampled."""
    spelled = tuple(token_id for letter in SEARCH for token_id in CODEC.encode(letter))
    assert spelled != CODEC.encode(SEARCH)
    trajectory, engine = play([sampled(spelled), ANSWER])
    assert trajectory.turns[0].action == Search("capital of France")
    assert trajectory.response_ids[: len(spelled)] == spelled
    observation = trajectory.turns[0].environment
    assert observation is not None
    assert engine.calls[1].prompt_ids == (*trajectory.prompt.token_ids, *spelled, *observation.token_ids)
    assert trajectory.response_logprobs[: len(spelled)] == (-0.5,) * len(spelled)


def test_d02_generation_stops_at_the_closing_tag_and_keeps_it() -> None:
    """No stop strings: a fifth of the tokens is sampled behind the closing tag, and in some ports trained on."""
    junk = " and then I would go on and on"
    trajectory, _ = play([SEARCH + junk, ANSWER + junk])
    assert [turn.text for turn in trajectory.turns] == [SEARCH, ANSWER]
    assert metrics_of(trajectory)["waste/behind_stop_tokens"] == 0
    overrun = run_episode(
        QUESTION,
        engine=Overrunning([ANSWER + junk]),
        searcher=FixedSearcher(),
        codec=CODEC,
        protocol=PROTOCOL,
        limits=LIMITS,
    )
    num_junk = len(CODEC.encode(ANSWER + junk)) - len(CODEC.encode(ANSWER))
    assert metrics_of(asyncio.run(overrun))["waste/behind_stop_tokens"] == num_junk > 5


def test_d03_every_turn_of_an_evaluation_is_greedy(tmp_path: Path) -> None:
    """Flags lost once a part of the batch has ended: later turns of a validation were sampled at temperature 1."""
    bodies: list[dict[str, Any]] = []
    scripts = {"short": [ANSWER], "long": [SEARCH, SEARCH, ANSWER]}

    def handler(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        bodies.append(body)
        text = CODEC.decode(body["prompt"])
        script = scripts["long" if "long" in text else "short"]
        token_ids = list(CODEC.encode(script[text.count("</information>")]))
        choice = {"token_ids": token_ids, "logprobs": {"token_logprobs": [-0.5] * len(token_ids)}}
        return httpx.Response(200, json={"choices": [choice]})

    async def run() -> list[StopReason]:
        questions = [Question(name, f"{name} one", ("Paris",), "demo") for name in scripts]
        searcher = FixedSearcher((hit("Paris", "Paris is a city."),))
        async with Endpoint("http://e", transport=httpx.MockTransport(handler)) as endpoint:
            ask = partial(
                run_episode,
                engine=HttpEngine(endpoint, "m", GREEDY),
                searcher=searcher,
                codec=CODEC,
                protocol=dataclasses.replace(PROTOCOL, instructions="Search, then answer."),
                limits=LIMITS,
            )
            evaluation = await evaluate(
                questions,
                ask=ask,
                concurrency=2,
                out_path=tmp_path / "episodes.jsonl",
            )
        return [rollout.trajectory.stop_reason for rollout in evaluation.rollouts]

    assert asyncio.run(run()) == [StopReason.ANSWERED] * 2
    assert [body["temperature"] for body in bodies] == [0.0] * 4
    assert all(body["stop"] == list(STOP) and body["include_stop_str_in_output"] for body in bodies)


def test_d04_an_observation_too_long_keeps_its_closing_tag_and_every_passage() -> None:
    """Observations cut on the right: an unclosed block, and a limit that silently decides how many passages count."""
    searcher = FixedSearcher(tuple(hit(name, f"{name} word " * 100) for name in ("A", "B", "C")))
    trajectory, _ = play([SEARCH, ANSWER], searcher=searcher)
    observation = trajectory.turns[0].environment
    assert observation is not None
    text = CODEC.decode(observation.token_ids)
    assert len(observation.token_ids) <= LIMITS.max_observation_tokens
    assert text.startswith("\n\n<information>") and text.endswith("</information>\n\n")
    assert [f'Doc {i}(Title: "{name}") {name} word' in text for i, name in enumerate("ABC", 1)] == [True] * 3
    assert metrics_of(trajectory)["agent/passages_shortened"] == 3


def test_d05_an_answer_that_comes_first_ends_the_episode() -> None:
    """A search tag that wins over an earlier answer: what follows the answer is trained on and may replace it."""
    both = f"{ANSWER} <search>more</search> <answer>Lyon</answer>"
    stopped, _ = play([both])
    searcher = FixedSearcher((hit("Lyon", "text"),))
    whole = asyncio.run(
        run_episode(
            QUESTION, engine=Overrunning([both]), searcher=searcher, codec=CODEC, protocol=PROTOCOL, limits=LIMITS
        )
    )
    for trajectory in (stopped, whole):
        assert trajectory.stop_reason is StopReason.ANSWERED
        assert (trajectory.answer, score(trajectory).total) == ("Paris", 1.0)
    assert CODEC.decode(stopped.response_ids) == ANSWER
    assert searcher.queries == []


def test_d06_the_end_token_is_kept_and_trained() -> None:
    """An end token that is removed, or masked because it is also the padding: nobody learns to stop."""
    for codec, end in ((tekken_base(), "</s>"), (qwen2_5(), "<|endoftext|>"), (llama3_1(), "<|eot_id|>")):
        end_id = codec.special_tokens[end]
        token_ids = (*codec.encode("I do not know."), end_id)
        trajectory = play_with(codec, [sampled(token_ids), sampled((*codec.encode("<answer>x</answer>"), end_id))])
        assert trajectory.turns[0].policy.token_ids == token_ids
        assert trajectory.response_mask[: len(token_ids)] == (True,) * len(token_ids)
        assert trajectory.turns[1].action == Answer("x")


def test_d07_the_question_never_falls_off_the_left() -> None:
    """A context that is cut on the left: instructions and question are gone when the answer is due."""
    limits = dataclasses.replace(LIMITS, max_turns=6, max_response_tokens=1200)
    searcher = FixedSearcher((hit("Paris", "Paris is a city. " * 100),))
    trajectory, engine = play([SEARCH] * 6 + [ANSWER], searcher=searcher, limits=limits)
    assert len(trajectory.response_ids) > 2 * LIMITS.max_prompt_tokens
    assert len(engine.calls) == 7
    for call in engine.calls:
        assert call.prompt_ids[: len(trajectory.prompt.token_ids)] == trajectory.prompt.token_ids
    assert f"Question: {QUESTION.text}?" in CODEC.decode(trajectory.prompt.token_ids)
    question = dataclasses.replace(QUESTION, text="why " * 500)
    with pytest.raises(DataError, match=r"question 4:demo/q1: its prompt has \d+ tokens, .*max_prompt_tokens=400"):
        play([ANSWER], question=question)


@pytest.mark.parametrize("extra_tokens", range(0, 200, 20))
def test_d08_the_answer_never_falls_off_the_right(extra_tokens: int) -> None:
    """A response cut on the right: the final answer is lost and right episodes earn 0."""
    limits = dataclasses.replace(LIMITS, max_turns=4, max_response_tokens=LIMITS.min_response_tokens + extra_tokens)
    searcher = FixedSearcher((hit("Paris", "Paris is a city. " * 100),))
    answer_tokens = len(CODEC.encode(ANSWER))
    assert answer_tokens <= MIN_TURN_TOKENS
    for num_searches in range(5):
        trajectory, engine = play([SEARCH] * num_searches + [ANSWER], searcher=searcher, limits=limits)
        assert len(trajectory.response_ids) <= limits.max_response_tokens
        assert all(call.max_tokens >= MIN_TURN_TOKENS for call in engine.calls)
        if trajectory.stop_reason is StopReason.MAX_TOKENS:
            assert trajectory.turns[-1].action == Search("capital of France")
        else:
            assert trajectory.response_ids[-answer_tokens:] == CODEC.encode(ANSWER)
            assert score(trajectory).total == 1.0
