"""Corpus files in, passages out; a bad row is named."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retriever_server.corpus import parse_row, read_corpus
from retriever_server.errors import CorpusError
from retriever_server.schema import Passage
from retriever_server.store import PassageStore, write_passages
from tests.retriever_server.bag_of_words import PLANETS
from tests.retriever_server.conftest import write_corpus

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
titles = texts.map(lambda title: " ".join(title.split()))
passages = st.builds(Passage, id=texts.filter(bool), title=titles, text=texts.map(str.strip).filter(bool), url=texts)
corpora = st.lists(passages, max_size=8, unique_by=lambda passage: passage.id)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"id": "1", "title": "T", "text": "a\nb", "url": "u"}, Passage("1", "T", "a\nb", "u")),
        (
            {"id": "1", "contents": '"A "quoted" title"\ntext\nmore'},
            Passage("1", 'A "quoted" title', "text\nmore"),
        ),
        ({"id": "1", "contents": "plain title\r\ntext"}, Passage("1", "plain title", "text")),
        ({"id": "1", "contents": "one line only"}, Passage("1", "", "one line only")),
        ({"id": "1", "title": "T", "contents": '"X"\ntext'}, Passage("1", "T", "text")),
        ({"id": "1", "title": None, "text": "text", "url": None, "other": []}, Passage("1", "", "text")),
        ({"id": "1", "title": "two\nlines", "text": "x"}, Passage("1", "two lines", "x")),
        ({"id": 7, "title": "only a title"}, Passage("7", "only a title", "")),
    ],
)
def test_rows_of_every_known_layout_become_passages(row: dict[str, Any], expected: Passage, tmp_path: Path) -> None:
    """Would catch a lost title, quotes left in it, or a one-line passage taken for a title."""
    assert list(read_corpus(write_corpus(tmp_path / "c.jsonl", [row]))) == [expected]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"{", "not valid JSON"),
        (b"[1]", "expected a JSON object, got list"),
        (b'{"title": "T"}', "id must be a non-empty string, got None"),
        (b'{"id": "", "title": "T"}', "id must be a non-empty string, got ''"),
        (b'{"id": true, "title": "T"}', "id must be a non-empty string, got True"),
        (b'{"id": "x", "text": 5}', "text must be a string, got int"),
        (b'{"id": "x", "text": " ", "title": ""}', "no passage"),
        (b'{"id": "x"}', "no passage"),
        (b'{"id": "a", "text": "again"}', "id 'a' was already used in line 1"),
        (b'{"id": "x", "text": "\xff"}', "not valid JSON"),
        (b'{"id": "x", "text": "\\ud800"}', "not valid JSON"),
    ],
)
def test_a_bad_row_is_refused_with_file_line_and_fault(line: bytes, fault: str, tmp_path: Path) -> None:
    """Would catch a row that is dropped in silence, or a message that names the wrong line."""
    path = tmp_path / "c.jsonl"
    path.write_bytes(b'{"id": "a", "text": "first"}\n\n' + line + b"\n")
    with pytest.raises(CorpusError) as caught:
        list(read_corpus(path))
    assert caught.value.line_number == 3
    assert str(caught.value).startswith(f"{path}, line 3: {fault}")


def test_a_gzip_corpus_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    """Would catch a half-downloaded corpus that is indexed as if it were whole."""
    rows = b"".join(b'{"id": "%d", "text": "passage number %d"}\n' % (i, i * 7919) for i in range(2000))
    whole = gzip.compress(rows)
    (tmp_path / "whole.jsonl.gz").write_bytes(whole)
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    assert len(list(read_corpus(tmp_path / "whole.jsonl.gz"))) == 2000
    with pytest.raises(CorpusError, match="damaged or cut short"):
        list(read_corpus(tmp_path / "cut.jsonl.gz"))


@pytest.mark.parametrize(
    ("name", "fault"),
    [("no.jsonl", "No such file"), ("c.csv", "must end in .jsonl"), ("d.jsonl", "directory")],
)
def test_a_file_that_is_no_corpus_is_refused(name: str, fault: str, tmp_path: Path) -> None:
    """Would catch a traceback in place of one line."""
    (tmp_path / "d.jsonl").mkdir()
    with pytest.raises(CorpusError, match=fault):
        list(read_corpus(tmp_path / name))


@given(corpora)
def test_a_corpus_comes_back_from_file_and_store(corpus: list[Passage]) -> None:
    """Would catch separators inside texts (U+2028, carriage returns, quotes) that split or change a row."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        assert list(read_corpus(write_corpus(folder / "c.jsonl", corpus))) == corpus
        write_passages(corpus, folder)
        if corpus:
            store = PassageStore(folder)
            assert list(store) == corpus
            assert store[len(corpus) - 1] == corpus[-1]


@given(passages)
def test_contents_alone_carry_title_and_text(passage: Passage) -> None:
    """Would catch a contents-only corpus (wiki-18) that loses or moves the line between title and text."""
    import orjson

    row = {"id": passage.id, "contents": passage.contents}
    parsed = parse_row(orjson.dumps(row))
    assert (parsed.title, parsed.text) == (passage.title, passage.text)


@pytest.mark.parametrize("row", [-1, len(PLANETS)])
def test_a_row_outside_the_store_is_an_error(row: int, tmp_path: Path) -> None:
    """Would catch row -1 answered with the last passage, as in the reference server."""
    write_passages(PLANETS, tmp_path)
    with pytest.raises(IndexError):
        PassageStore(tmp_path)[row]


@given(st.binary(max_size=60))
def test_any_line_is_a_passage_or_a_named_fault(line: bytes) -> None:
    """Would catch bytes that end in a traceback."""
    try:
        passage = parse_row(line)
    except ValueError as fault:
        assert str(fault)
    else:
        assert passage.id and (passage.title or passage.text)
