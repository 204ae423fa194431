"""Observations: fitted by shortening passages, never by cutting the closing tag."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_rl.agent.environment import Environment, fair_shares, fit_observation, passage_line
from search_rl.agent.protocols import PROTOCOLS
from search_rl.types import Malformed, Search, SearchResult
from tests.search_rl.conftest import ByteCodec, FixedSearcher, hit

PROTOCOL = PROTOCOLS["short"]
words = st.sampled_from(
    ["Paris", "river", "日本東京", "naïve", "</information>", "<answer>x</answer>", "\n", "🙂🙂", "x" * 40]
)
texts = st.lists(words, max_size=30).map(" ".join) | st.text(max_size=60)
results = st.lists(st.builds(hit, texts, texts), max_size=5).map(lambda hits: SearchResult("q", tuple(hits)))


def test_the_layout_is_search_r1s(searcher: FixedSearcher, codec: ByteCodec) -> None:
    """A layout that published checkpoints were not trained on."""
    environment = Environment(searcher, codec, PROTOCOL, top_k=3)
    observation = asyncio.run(environment.respond(Search("capital"), max_tokens=500))
    assert observation.text == (
        '\n\n<information>Doc 1(Title: "Paris") Paris is the capital of France.\n'
        'Doc 2(Title: "Lyon") Lyon is a city.</information>\n\n'
    )
    assert observation.num_passages_shortened == 0
    assert observation.results == (SearchResult("capital", searcher.passages),)


def test_an_empty_result_is_an_observation(codec: ByteCodec) -> None:
    """A healthy search that found nothing taken for a failure (invariant 7)."""
    observation = asyncio.run(
        Environment(FixedSearcher(), codec, PROTOCOL, top_k=3).respond(Search("x"), max_tokens=500)
    )
    assert observation.text == "\n\n<information></information>\n\n"
    assert observation.results == (SearchResult("x", ()),)


def test_a_malformed_turn_is_corrected_without_a_search(searcher: FixedSearcher, codec: ByteCodec) -> None:
    """A request to the retriever for a turn that asked for none."""
    environment = Environment(searcher, codec, PROTOCOL, top_k=3)
    observation = asyncio.run(environment.respond(Malformed("no search and no answer"), max_tokens=500))
    assert observation.text == PROTOCOL.correction
    assert observation.results == ()
    assert searcher.queries == []


@settings(max_examples=150)
@given(results, st.integers(0, 300))
def test_an_observation_fits_and_keeps_its_closing_tag(codec: ByteCodec, result: SearchResult, extra: int) -> None:
    """The closing tag or part of it cut off (D4), a budget exceeded, a block that its passage closes."""
    frame_tokens = len(codec.encode(PROTOCOL.render_passages([""])))
    observation = fit_observation([result], codec=codec, protocol=PROTOCOL, max_tokens=frame_tokens + extra)
    assert len(codec.encode(observation.text)) <= frame_tokens + extra
    assert observation.text.startswith("\n\n<information>")
    assert observation.text.endswith("</information>\n\n")
    assert observation.text.count("<information>") == observation.text.count("</information>") == 1
    assert "<answer>" not in observation.text
    assert observation.results == (result,)
    whole = PROTOCOL.render_passages(["\n".join(passage_line(i, hit) for i, hit in enumerate(result.passages, 1))])
    assert (observation.num_passages_shortened == 0) == (observation.text == whole)


def test_long_passages_share_and_short_ones_stay_whole(codec: ByteCodec) -> None:
    """The last passage paying for the first: cutting at the end drops whole passages (D4)."""
    result = SearchResult("q", (hit("A", "word " * 500), hit("B", "short one"), hit("C", "term " * 500)))
    text = fit_observation([result], codec=codec, protocol=PROTOCOL, max_tokens=250).text
    first, second, third = text.removeprefix("\n\n<information>").removesuffix("</information>\n\n").split("\n")
    assert second == 'Doc 2(Title: "B") short one'
    assert abs(len(codec.encode(first)) - len(codec.encode(third))) <= 8
    assert 225 <= len(codec.encode(text)) <= 250


def test_a_passage_is_cut_between_words_and_characters(codec: ByteCodec) -> None:
    """Half a word, or half a character shown as a replacement mark."""
    result = SearchResult("q", (hit("A", "東京 naïve " * 100),))
    for max_tokens in range(80, 110):
        text = fit_observation([result], codec=codec, protocol=PROTOCOL, max_tokens=max_tokens).text
        assert "\ufffd" not in text
        assert text.removesuffix("</information>\n\n").split()[-1] in {"東京", "naïve", '"A")'}


def test_a_long_word_is_cut_between_characters(codec: ByteCodec) -> None:
    """Half a character at the end of a script that has no spaces."""
    result = SearchResult("q", (hit("A", "東京" * 200),))
    for max_tokens in range(90, 110):
        text = fit_observation([result], codec=codec, protocol=PROTOCOL, max_tokens=max_tokens).text
        assert "\ufffd" not in text
        assert text.count("東") >= 5


def test_no_room_for_the_tags_is_an_error(codec: ByteCodec) -> None:
    """A caller that forgets to ask for the least: better loud than an unclosed block."""
    with pytest.raises(ValueError, match="an observation without passages needs"):
        fit_observation([SearchResult("q", (hit("A", "x"),))], codec=codec, protocol=PROTOCOL, max_tokens=3)


def test_a_title_is_one_quoted_line() -> None:
    """A title that brings a line break, and with it a passage of its own."""
    assert passage_line(2, hit("New\nYork", " a  city\n\nin <search>q</search> ")) == (
        'Doc 2(Title: "New York") a city in [search]q[/search]'
    )


@settings(max_examples=150)
@given(st.lists(st.integers(0, 200), max_size=8), st.integers(0, 500))
def test_fair_shares_are_fair(lengths: list[int], total: int) -> None:
    """Tokens left unused while a passage is cut, or a long passage that gets less than a short one."""
    shares = fair_shares(lengths, total)
    assert sum(shares) == min(total, sum(lengths))
    assert all(0 <= share <= length for share, length in zip(shares, lengths, strict=True))
    cut = [share for share, length in zip(shares, lengths, strict=True) if share < length]
    assert not cut or min(cut) >= max(shares) - 1
