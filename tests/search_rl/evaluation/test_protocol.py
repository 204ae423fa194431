"""The protocol file: what it holds, and that whatever moves a score shows as a difference."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from search_rl.agent.protocols import protocol_named
from search_rl.codec import Message, Tool
from search_rl.errors import DataError
from search_rl.evaluation import protocol as protocols
from search_rl.evaluation.protocol import read_protocol
from search_rl.normalisers import triviaqa
from search_rl.profiles import SEARCH_R1
from search_rl.types import Question
from tests.search_rl.conftest import ByteCodec, FixedSearcher, hit
from tests.search_rl.evaluation.told import ask, protocol

SHORT = protocol_named("short")


class OtherTemplate(ByteCodec):
    """The same tokenizer under another chat template."""

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """See Codec."""
        return self.encode("".join(f"<{message['role']}>{message['content']}" for message in messages))


def test_it_comes_back_as_it_was_written(tmp_path: Path) -> None:
    """A protocol that differs from itself after a visit to the disk."""
    mine = protocol(versions={"vllm": "0.28.0"}, retriever={"canaries": ["a", "b"], "index": None})
    mine.write(tmp_path)
    stored = read_protocol(tmp_path)
    assert stored is not None
    assert stored.differences(mine) == ()
    assert stored.rules_sha256 == mine.rules_sha256
    assert read_protocol(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"version": 1}', '{"version": 9, "system": {}, "rules": {}, "circumstances": {}}']
)
def test_a_file_that_is_none(tmp_path: Path, content: str) -> None:
    """A traceback, or rules that are taken as equal because neither can be read."""
    (tmp_path / "protocol.json").write_text(content)
    with pytest.raises(DataError, match=str(tmp_path / "protocol.json")):
        read_protocol(tmp_path)


def test_differences_are_named_and_short() -> None:
    """A difference that names no key, or a digest that fills the screen."""
    first, second = protocol(limits={"top_k": 3}), protocol(limits={"top_k": 5, "max_turns": 4}, sha="f" * 64)
    assert [str(difference) for difference in first.differences(second)] == [
        "limits.max_turns: None against 4",
        "limits.top_k: 3 against 5",
        f"sha: None against {'f' * 40}…",
    ]
    assert first.rules_sha256 != second.rules_sha256
    other_model = dataclasses.replace(first, system={"model": "another"}, circumstances={"concurrency": 64})
    assert first.differences(other_model) == ()


def test_a_group_that_one_lacks_is_one_difference() -> None:
    """Thirty lines about an index where the whole difference is that a control has none."""
    served = protocol(retriever={"answered_by": "served", "index": {"kind": "flat", "files": {"a": "1", "b": "2"}}})
    control = protocol(retriever={"answered_by": "random"})
    assert [str(difference) for difference in served.differences(control)] == [
        "retriever.answered_by: served against random",
        "retriever.index: 3 rules against None",
    ]


def test_a_word_of_the_prompt_or_the_template_shows(codec: ByteCodec) -> None:
    """A correction, a closing tag or a chat template that moves scores and no digest."""
    rules = protocols.prompt_rules(SHORT, codec)
    assert rules["text"].startswith("user: Answer the question.")
    for changed in (
        dataclasses.replace(SHORT, instructions=SHORT.instructions + " "),
        dataclasses.replace(SHORT, max_queries=2),
        dataclasses.replace(SHORT, stop=("</search>",)),
    ):
        assert protocols.prompt_rules(changed, codec)["sha256"] != rules["sha256"]
    templated = protocols.prompt_rules(SHORT, OtherTemplate(codec.tokenizer))
    assert templated["template_sha256"] != rules["template_sha256"]


def test_a_scorer_that_is_changed_under_its_name_shows() -> None:
    """Another normaliser under the same profile name."""
    changed = dataclasses.replace(SEARCH_R1, normalise=triviaqa)
    assert protocols.scorer_rules(SEARCH_R1)["normaliser"] == "squad"
    assert protocols.scorer_rules(changed) != protocols.scorer_rules(SEARCH_R1)


def test_data_sets_are_told_by_what_was_asked() -> None:
    """A subset, a changed accepted answer or a changed question under the digest of the whole; an order that counts."""
    questions = [ask("a", "x"), ask("b", "y"), ask("c", "z", dataset="popqa")]
    rules = protocols.dataset_rules(questions)
    assert {name: found["num_questions"] for name, found in rules.items()} == {"nq": 2, "popqa": 1}
    assert protocols.dataset_rules(questions[::-1])["nq"] == rules["nq"]
    for changed in (
        [questions[0]],
        [questions[0], Question("b", "b!", ("y",), "nq")],
        [questions[0], ask("b", "y", "Y")],
        [questions[0], Question("b", "b", ("y",), "nq", evidence_titles=("B",))],
    ):
        assert protocols.dataset_rules(changed)["nq"]["sha256"] != rules["nq"]["sha256"]
    before_titles = "3997429d56bfd66171f177f915bb8a04a1d8a4809729b0f99744cc920fe85f0c"
    assert rules["nq"]["sha256"] == before_titles


def test_a_retriever_is_told_by_what_it_finds() -> None:
    """A control that finds nothing under the manifest of the index that it stands before; or two k."""
    questions = [ask(str(number), "x") for number in range(20)]
    searcher, empty = FixedSearcher((hit("Paris", "a"), hit("Lyon", "b"))), FixedSearcher()
    info = {"index": {"corpus_sha256": "abc"}, "limits": {"max_top_k": 1000}}

    def rules(of: FixedSearcher, top_k: int = 2) -> dict[str, object]:
        return asyncio.run(protocols.retriever_rules(of, questions, top_k=top_k, info=info))

    found = rules(searcher)
    assert found["index"] == {"corpus_sha256": "abc"}
    assert len(searcher.queries) == found["num_probes"] == 8
    assert found == rules(FixedSearcher((hit("Paris", "other text"), hit("Lyon", ""))))
    assert found["probes_sha256"] != rules(searcher, top_k=1)["probes_sha256"]
    assert found["probes_sha256"] != rules(empty)["probes_sha256"]


def test_weights_are_told_by_their_bytes(tmp_path: Path) -> None:
    """Two trainings exported to one folder, one after the other, taken for one model."""
    (tmp_path / "model.safetensors").write_bytes(b"one")
    before = protocols.weights_sha256(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert protocols.weights_sha256(str(tmp_path)) == before
    (tmp_path / "model.safetensors").write_bytes(b"two")
    assert protocols.weights_sha256(str(tmp_path)) != before
    assert protocols.weights_sha256("Qwen/Qwen2.5-3B") is None


def test_versions_of_what_computes_elsewhere_are_not_ours() -> None:
    """Two results of one server called unlike because torch differs on the clients."""
    assert {"search-rl", "torch", "transformers"} <= protocols.installed_versions(is_engine_here=True).keys()
    assert "torch" not in protocols.installed_versions(is_engine_here=False)
