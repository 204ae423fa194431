"""Outcomes and the rows they are reported in."""

from __future__ import annotations

from search_rl.evaluation.breakdowns import by_answer_read, by_evidence, by_searches
from search_rl.evaluation.outcomes import group, to_row
from search_rl.types import StopReason, Trajectory
from tests.search_rl.conftest import hit
from tests.search_rl.evaluation.told import ask, outcomes, told


def bridge(text: str, dataset: str = "hotpotqa", kind: str = "bridge") -> Trajectory:
    """An episode of a question of some set and kind."""
    return told(ask(text, "x", dataset=dataset, kind=kind), "x")


def names(*trajectories: Trajectory) -> dict[str, int]:
    """Rows with their sizes."""
    return {name: len(members) for name, members in group(outcomes(trajectories)).rows.items()}


def test_kinds_of_two_sets_are_not_mixed() -> None:
    """HotpotQA's and 2WikiMultihopQA's comparisons in one row, which no paper reports, and no row for a data set."""
    both = (
        bridge("a", kind="comparison"),
        bridge("b"),
        bridge("c", "2wikimultihopqa", "comparison"),
        bridge("d", "nq", ""),
    )
    assert names(*both) == {
        "all": 4,
        "2wikimultihopqa": 1,
        "hotpotqa": 2,
        "hotpotqa: comparison": 1,
        "hotpotqa: bridge": 1,
        "nq": 1,
    }


def test_one_set_goes_by_kind() -> None:
    """A row of the only set beside the row of all, which are the same."""
    assert names(bridge("a"), bridge("b", kind="comparison")) == {"all": 2, "comparison": 1, "bridge": 1}
    assert names(bridge("a", kind="")) == {"all": 1, "hotpotqa": 1}


def test_a_set_named_all_does_not_replace_all_questions() -> None:
    """The figures of a file all.jsonl printed as those of every question."""
    assert names(bridge("a", "all", ""), bridge("b", "nq", "")) == {"all": 2, "all (set)": 1, "nq": 1}


def test_an_outcome_is_what_the_episode_was() -> None:
    """A search that was not answered counted as one, the prompt counted as the policy's, or time of one turn only."""
    question = ask("capital of Peru?", "Lima", evidence=["Peru", "Chad"])
    trajectory = told(question, "lima", "Peru", "Peru capital", passages=[hit("Peru", "Capital: Lima.")])
    (outcome,) = outcomes([trajectory])
    assert (outcome.queries, outcome.num_searches) == (("Peru", "Peru capital"), 2)
    assert (outcome.evidence_found, outcome.is_answer_read) == (0.5, True)
    assert (outcome.policy_tokens, outcome.sequence_tokens, outcome.episode_seconds) == (6, 13, 2.25)
    row = to_row(outcome)
    assert (row["prediction"], row["exact_match"], row["id"]) == ("lima", 1.0, question.key)
    failed = outcomes([told(question, None, stop_reason=StopReason.SEARCH_FAILED)])[0]
    assert (failed.is_failed, failed.scores.exact_match, failed.is_answer_read) == (True, 0.0, False)


def test_yes_and_no_are_read_nowhere() -> None:
    """ "no" found in every passage as evidence that the answer was read."""
    (outcome,) = outcomes([told(ask("Same country?", "no"), "no", "q", passages=[hit("a", "There is no such thing.")])])
    assert outcome.is_answer_read is None
    assert outcome.evidence_found is None


def test_breakdowns() -> None:
    """Episodes under another number of searches, a share of evidence rounded to all, or questions that name none."""
    wanted = ask("a", "Lima", evidence=["Peru", "Chad"])
    passages = [hit("Peru", "Capital: Lima.")]
    found = outcomes(
        [
            told(wanted, "Lima", "q", passages=passages),
            told(wanted, "Cuzco", "q", "q", passages=[*passages, hit("Chad", "")]),
            told(wanted, "Lima"),
            told(ask("b", "Lima"), "Lima", *"123456"),
        ]
    )
    shown = {name: (interval.mean, interval.n) for name, interval in by_searches(found, "exact_match").items()}
    assert shown == {"0": (1.0, 1), "1": (1.0, 1), "2": (0.0, 1), "5 or more": (1.0, 1)}
    shown = {name: (interval.mean, interval.n) for name, interval in by_evidence(found, "exact_match").items()}
    assert shown == {"none": (1.0, 1), "some": (1.0, 1), "all": (0.0, 1)}
    shown = {name: (interval.mean, interval.n) for name, interval in by_answer_read(found, "exact_match").items()}
    assert shown == {"not read": (1.0, 2), "read": (0.5, 2)}
    assert by_evidence(found[3:], "exact_match") == {}
