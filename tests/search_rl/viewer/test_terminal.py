"""An episode as people see it."""

from __future__ import annotations

import asyncio
import io

import pytest
from rich.console import Console

from search_rl.agent.episode import Limits
from search_rl.agent.protocols import protocol_named
from search_rl.engines.scripted import ScriptedEngine
from search_rl.types import Question, Trajectory
from search_rl.viewer.live import watch_episode
from search_rl.viewer.terminal import show
from tests.search_rl.conftest import ByteCodec, FixedSearcher

LIMITS = Limits(
    max_turns=2,
    max_turn_tokens=60,
    max_observation_tokens=120,
    max_prompt_tokens=400,
    max_response_tokens=400,
)
REPLIES = ("no tag [bold] here", "<search>capital of France</search>", "<answer>Paris</answer>")


def watch(
    codec: ByteCodec, searcher: FixedSearcher, question: Question, replies: tuple[str, ...] = REPLIES
) -> tuple[Trajectory, str]:
    """The episode and what was shown of it."""
    console = Console(file=io.StringIO(), width=100, record=True)
    trajectory = asyncio.run(
        watch_episode(
            question,
            console,
            engine=ScriptedEngine(replies, codec),
            searcher=searcher,
            codec=codec,
            protocol=protocol_named("short"),
            limits=LIMITS,
        )
    )
    return trajectory, console.export_text()


def test_every_turn_is_shown(codec: ByteCodec, searcher: FixedSearcher, question: Question) -> None:
    """A turn, passage or verdict left out, or the policy's text read as markup."""
    _, text = watch(codec, searcher, question)
    pieces = [
        "what is the capital of France",
        "Turn 1",
        "no tag [bold] here",
        "malformed: no search and no answer",
        "Turn 2",
        "<search>capital of France</search>",
        "Search  capital of France  2 passages",
        "1.000  Paris  Paris is the capital of France.",
        "Turn 3",
        "Answer  Paris",
        "stopped by answered · 3 turns · 1 searches",
    ]
    places = [text.find(piece) for piece in pieces]
    assert -1 not in places, dict(zip(pieces, places, strict=True))
    assert places == sorted(places)


def test_stored_episode_looks_like_the_live_one(codec: ByteCodec, searcher: FixedSearcher, question: Question) -> None:
    """Two views of one episode that tell different stories (times apart)."""
    trajectory, live = watch(codec, searcher, question)
    console = Console(file=io.StringIO(), width=100, record=True)
    show(trajectory, console)
    assert _without_times(console.export_text()) == _without_times(live)


def _without_times(text: str) -> list[str]:
    return [line.rpartition(", ")[0] if line.endswith(" s") else line for line in text.splitlines()]


@pytest.mark.parametrize(("reply", "line"), [("<answer>Lyon</answer>", "Answer  Lyon"), ("hm", "Answer  none")])
def test_wrong_and_missing_answers(
    codec: ByteCodec, searcher: FixedSearcher, question: Question, reply: str, line: str
) -> None:
    """A crash where nothing was answered."""
    _, text = watch(codec, searcher, question, (reply,) * 3)
    assert line in text


def test_failed_search(codec: ByteCodec, question: Question) -> None:
    """A void episode that looks like one that found nothing."""
    _, text = watch(codec, FixedSearcher(error="down"), question, REPLIES[1:])
    assert "stopped by search_failed" in text
