"""Each system: what it reads, how often it searches, and how much it may write."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from search_rl.agent.episode import Limits
from search_rl.agent.protocols import protocol_named
from search_rl.engines.scripted import ScriptedEngine
from search_rl.errors import ConfigError, DataError, RetrieverError
from search_rl.evaluation.controls import RandomSearcher, check_evidence, sample_corpus
from search_rl.evaluation.retrieval_figures import retrieval_row
from search_rl.evaluation.systems import SYSTEMS, Parts, answer, needs_service, systems_named
from search_rl.profiles import SEARCH_R1
from search_rl.types import Passage, Question, StopReason, Trajectory
from tests.search_rl.conftest import ByteCodec, FixedSearcher, hit

LIMITS = Limits(
    max_turns=2,
    max_turn_tokens=80,
    max_observation_tokens=120,
    max_prompt_tokens=500,
    max_response_tokens=700,
    top_k=2,
)
QUESTION = Question("q1", "what is the capital of Peru", ("Lima",), "demo", "one_hop", ("Peru", "Lima"))
CORPUS = [Passage(name, name, f"{name} is in South America.") for name in ("Chile", "Lima", "Quito", "Peru")]
SEARCH, ANSWER = "<search>Peru</search>", "<answer>Lima</answer>"


def run(
    name: str, replies: Sequence[str], codec: ByteCodec, searcher: FixedSearcher, limits: Limits = LIMITS
) -> tuple[Trajectory, ScriptedEngine]:
    """One episode of the system."""
    engine = ScriptedEngine(replies, codec)
    parts = Parts(engine, searcher, codec, protocol_named("short"), limits, sample_corpus(CORPUS, [QUESTION]))
    return asyncio.run(answer(SYSTEMS[name], QUESTION, parts)), engine


@pytest.fixture
def searcher() -> FixedSearcher:
    """Knows Peru, and something else."""
    return FixedSearcher((hit("Peru", "Peru's capital is Lima."), hit("Chile", "Chile is long.")))


@pytest.mark.parametrize("name", ["direct", "cot"])
def test_closed_book_systems_search_nothing(name: str, codec: ByteCodec, searcher: FixedSearcher) -> None:
    """A closed-book baseline that reads passages all the same."""
    episode, engine = run(name, ["So the answer is: Lima"], codec, searcher)
    assert (episode.answer, episode.stop_reason) == ("Lima", StopReason.ANSWERED)
    assert (searcher.queries, episode.passages_read, episode.given) == ([], (), None)
    assert [call.max_tokens for call in engine.calls] == [{"direct": 80, "cot": 240}[name]]


def test_rag_reads_what_the_question_finds(codec: ByteCodec, searcher: FixedSearcher) -> None:
    """Another query than the question, passages that the prompt lacks, or a search that does not count."""
    episode, engine = run("rag", ["Lima"], codec, searcher)
    assert searcher.queries == [QUESTION.text]
    assert episode.answer == "Lima"
    assert (episode.num_searches, [passage.id for passage in episode.passages_read]) == (1, ["Peru", "Chile"])
    prompt = codec.decode(engine.calls[0].prompt_ids)
    assert "Peru's capital is Lima." in prompt and prompt.index("Chile is long.") < prompt.index("Question: ")
    assert episode.prompt.token_ids == engine.calls[0].prompt_ids


def test_a_rag_search_that_fails_is_no_answer(codec: ByteCodec) -> None:
    """A baseline that answers from nothing while the retriever is down, and is scored for it."""
    with pytest.raises(RetrieverError, match="down"):
        run("rag", ["Lima"], codec, FixedSearcher(error="down"))


def test_the_oracle_reads_the_evidence_alone(codec: ByteCodec, searcher: FixedSearcher) -> None:
    """Evidence in another order or searched for; or passages that were handed over counted as a search."""
    episode, engine = run("oracle", ["Lima"], codec, searcher)
    assert (searcher.queries, episode.num_searches) == ([], 0)
    assert [passage.id for passage in episode.passages_read] == ["Peru", "Lima"]
    assert "Peru is in South America." in codec.decode(engine.calls[0].prompt_ids)


def test_the_oracle_needs_evidence_that_the_corpus_has() -> None:
    """An oracle that reads nothing for some questions and is quoted as a bound for all."""
    with pytest.raises(ConfigError, match="1 of 2 questions name none, such as 4:demo/q2"):
        check_evidence([QUESTION, replace(QUESTION, id="q2", evidence_ids=())])
    with pytest.raises(DataError, match="2 evidence passages are not in the corpus, such as 'Lima'"):
        sample_corpus(CORPUS[:1], [QUESTION])
    with pytest.raises(DataError, match="no passage"):
        sample_corpus([], [])


ARTICLES = [
    Passage("1", '"Peru"', "Peru is in South America."),
    Passage("2", "Chile", "Chile is long."),
    Passage("3", '"Peru"', "Its capital is Lima."),
    Passage("4", '"Peru"', "Lima has a port."),
    Passage("5", "Quito", "Quito is high."),
]


def test_the_oracle_reads_articles_by_title(codec: ByteCodec, searcher: FixedSearcher) -> None:
    """No oracle for the multi-hop benchmarks, whose evidence has titles and no ids; or one that is handed the beginning
    of an article while the answer stands in its third passage."""
    question = replace(QUESTION, evidence_ids=(), evidence_titles=("Quito", "peru", "Atlantis", "Peru"))
    yes = replace(question, id="q2", golden_answers=("yes",), evidence_titles=("Peru",))
    sample = sample_corpus(ARTICLES, [question, yes])
    assert (sample.num_titles, sample.num_titles_missing) == (3, 1)
    assert [hit.passage.id for hit in sample.gold(question).passages] == ["5", "3"]
    assert [hit.passage.id for hit in sample.gold(yes).passages] == ["1"]
    assert [passage.id for passage in sample.evidence_passages] == ["5", "3", "1"]
    parts = Parts(ScriptedEngine(["Lima"], codec), searcher, codec, protocol_named("short"), LIMITS, sample)
    episode = asyncio.run(answer(SYSTEMS["oracle"], question, parts))
    assert [passage.id for passage in episode.passages_read] == ["5", "3"]
    row = retrieval_row(episode, SEARCH_R1)
    assert row.num_evidence == 3
    assert row.evidence_after(1) == pytest.approx(2 / 3)
    with pytest.raises(DataError, match=r"a passage of none of the 3 articles .*, such as 'atlantis'"):
        sample_corpus(ARTICLES[1:2], [question])


def test_ircot_searches_with_each_sentence(codec: ByteCodec, searcher: FixedSearcher) -> None:
    """Sentences that are not queries, an answer that does not end it, or ids that are not what the engine was sent."""
    replies = ["Peru is a state.\n", "So the answer is: Lima."]
    episode, engine = run("ircot", replies, codec, searcher)
    assert searcher.queries == [QUESTION.text, "Peru is a state."]
    assert (episode.answer, episode.num_searches, len(episode.turns)) == ("Lima", 2, 2)
    first, second = engine.calls
    observed = episode.turns[0].environment
    assert observed is not None
    assert second.prompt_ids == (*first.prompt_ids, *episode.turns[0].policy.token_ids, *observed.token_ids)


def test_ircot_closes_with_the_answer(codec: ByteCodec, searcher: FixedSearcher) -> None:
    """A baseline without an answer because its sentences were used up; or a token lost or doubled at the seam."""
    replies = ["Peru is a state.\n", "It has a capital.\n", " Lima\n"]
    episode, engine = run("ircot", replies, codec, searcher)
    assert searcher.queries == [QUESTION.text, "Peru is a state."]
    assert (episode.answer, episode.stop_reason, len(episode.turns)) == ("Lima", StopReason.ANSWERED, 3)
    sent = (*episode.prompt.token_ids, *episode.response_ids)
    assert sent[: -len(episode.turns[-1].policy.token_ids)] == engine.calls[-1].prompt_ids
    assert codec.decode(engine.calls[-1].prompt_ids).endswith("It has a capital.\n\nSo the answer is:")
    assert len(sent) <= LIMITS.max_context_tokens


def test_controls_are_the_agent_over_other_passages(codec: ByteCodec, searcher: FixedSearcher) -> None:
    """A control that asks the real retriever, or that prompts otherwise than the agent."""
    episodes = {name: run(name, [SEARCH, ANSWER], codec, searcher)[0] for name in ("agent", "random", "empty")}
    assert searcher.queries == ["Peru"]
    assert len({episode.prompt for episode in episodes.values()}) == 1
    assert [len(episode.passages_read) for episode in episodes.values()] == [2, 2, 0]
    assert [episode.num_searches for episode in episodes.values()] == [1, 1, 1]
    assert [passage.id for passage in episodes["agent"].passages_read] == ["Peru", "Chile"]


def test_random_passages_depend_on_the_query_alone() -> None:
    """A control that cannot be repeated, or that gives every query the same passages."""
    searcher = RandomSearcher([Passage(str(number), "", "x") for number in range(500)])

    def drawn(query: str) -> list[str]:
        return [hit.passage.id for hit in asyncio.run(searcher.search(query, 3)).passages]

    assert drawn("a") == drawn("a")
    assert len(set(drawn("a"))) == 3
    assert drawn("a") != drawn("b")


def test_a_corpus_is_sampled_evenly() -> None:
    """The first 2,000 passages, all from one country, taken for random ones; or a corpus held in memory whole."""
    corpus = (Passage(str(number), "", "x") for number in range(10_000))
    drawn = [int(passage.id) for passage in sample_corpus(corpus, []).drawn]
    assert (len(drawn), len(set(drawn))) == (2000, 2000)
    assert 4500 < sum(drawn) / len(drawn) < 5500


@pytest.mark.parametrize("name", SYSTEMS)
def test_no_system_has_more_room_than_the_agent(name: str) -> None:
    """A context that the engine, opened for the agent, cannot hold; or a baseline that may write more."""
    limits = SYSTEMS[name].limits(LIMITS)
    assert limits.max_context_tokens <= LIMITS.max_context_tokens
    assert (limits.max_turns + 1) * limits.max_turn_tokens <= (LIMITS.max_turns + 1) * LIMITS.max_turn_tokens


def test_limits_too_small_for_a_system_say_which() -> None:
    """An error about numbers that the user never wrote."""
    tight = Limits(max_turn_tokens=80, max_observation_tokens=120, max_response_tokens=216)
    assert SYSTEMS["rag"].limits(tight).max_response_tokens == 80
    with pytest.raises(ConfigError, match="system ircot has too little room: max_response_tokens"):
        SYSTEMS["ircot"].limits(tight)


def test_systems_by_name() -> None:
    """A misspelt system left out in silence, or one that is run twice."""
    assert [system.name for system in systems_named(["rag", "rag", "direct"])] == ["rag", "direct"]
    assert [system.name for system in systems_named(["all"])] == list(SYSTEMS)
    with pytest.raises(ConfigError, match="did you mean 'oracle'"):
        systems_named(["orcale"])
    assert [name for name, system in SYSTEMS.items() if needs_service([system])] == ["agent", "rag", "ircot"]
