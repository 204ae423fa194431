"""Corpus files in, passages out; a bad row is named."""

from __future__ import annotations

import gzip
import io
import tempfile
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retriever_server.corpus import CorpusReport, read_corpus
from retriever_server.errors import CorpusError
from retriever_server.rows import parse_row
from retriever_server.schema import Passage
from retriever_server.seen_ids import SeenIds
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


def zstd(data: bytes) -> bytes:
    """A zstd frame."""
    return bytes(pyarrow.compress(data, codec="zstd", asbytes=True))


def parquet(rows: list[dict[str, Any]], **options: Any) -> bytes:
    """A parquet file."""
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file, **options)
    return file.getvalue()


PACKED = {".jsonl.gz": gzip.compress, ".jsonl.zst": zstd, ".JSONL.ZST": zstd}


@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize("num_members", [1, 2])
def test_a_packed_corpus_is_read_to_its_end_or_refused(suffix: str, num_members: int, tmp_path: Path) -> None:
    """Would catch a half-downloaded corpus that is indexed as if it were whole, or the second of joined files lost."""
    rows = [b'{"id": "%d", "text": "passage number %d"}\n' % (i, i * 7919) for i in range(2000)]
    half = 2000 // num_members
    whole = b"".join(PACKED[suffix](b"".join(rows[start : start + half])) for start in range(0, 2000, half))
    path = tmp_path / f"corpus{suffix}"
    path.write_bytes(whole)
    assert [passage.id for passage in read_corpus(path)] == [str(number) for number in range(2000)]
    for damaged in (whole[: len(whole) // 3], whole[:-1], whole + b"rubbish"):
        path.write_bytes(damaged)
        with pytest.raises(CorpusError, match="damaged or cut short") as caught:
            list(read_corpus(path))
        assert "\n" not in str(caught.value)


def test_parquet_rows_become_passages_by_row_group(tmp_path: Path) -> None:
    """Would catch row groups after the first that are lost, or columns beyond ours that break the reading."""
    rows = [{"id": number, "contents": f'"T{number}"\ntext {number}', "other": [1]} for number in range(2500)]
    (tmp_path / "c.parquet").write_bytes(parquet(rows, row_group_size=700))
    found = list(read_corpus(tmp_path / "c.parquet"))
    assert found == [Passage(str(number), f"T{number}", f"text {number}") for number in range(2500)]


BROKEN_TEXT = pyarrow.array([b"fine", b"\xff"]).cast(pyarrow.binary()).view(pyarrow.utf8())


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (parquet([{"id": "a", "text": "x"}, {"id": "a", "text": "y"}]), "row 2: id 'a' was already used in row 1"),
        (parquet([{"id": "a", "text": 1.5}]), "row 1: text must be a string, got float"),
        (parquet([{"id": "a", "text": None}]), "row 1: no passage"),
        (parquet([{"id": None, "text": "x"}]), "row 1: id must be a non-empty string, got None"),
        (parquet([{"docid": "a", "text": "x"}]), "no column 'id'; the columns are docid, text"),
        (parquet([{"id": "a", "text": "x"}])[:-20], "not a parquet file, damaged or cut short"),
        (b"", "not a parquet file, damaged or cut short"),
        (b"PAR1" * 9, "not a parquet file, damaged or cut short"),
    ],
)
def test_a_bad_parquet_file_is_refused_with_file_row_and_fault(content: bytes, fault: str, tmp_path: Path) -> None:
    """Would catch a traceback of the parquet library, or a row that is dropped in silence."""
    path = tmp_path / "c.parquet"
    path.write_bytes(content)
    with pytest.raises(CorpusError) as caught:
        list(read_corpus(path))
    assert str(caught.value).startswith(str(path)) and fault in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_parquet_text_that_is_no_text_is_one_bad_row(tmp_path: Path) -> None:
    """Would catch bytes in a text column that end the reading with a UnicodeDecodeError."""
    table = pyarrow.table({"id": ["a", "b"], "text": BROKEN_TEXT})
    pyarrow.parquet.write_table(table, tmp_path / "c.parquet")
    report = CorpusReport(skip_bad=True)
    assert [passage.id for passage in read_corpus(tmp_path / "c.parquet", report=report)] == ["a"]
    assert report.faults == [f"{tmp_path / 'c.parquet'}, row 2: text that is not UTF-8 (invalid start byte)"]


def test_skipped_rows_are_counted_by_kind_and_told(tmp_path: Path) -> None:
    """Would catch rows that vanish without a number, or a list of a million faults."""
    bad = b'{\n{"id": "a", "text": "again"}\n{"id": "b", "text": " "}\n' + b'{"id": "a", "text": "x"}\n' * 40
    (tmp_path / "c.jsonl").write_bytes(b'{"id": "a", "text": "first"}\n' + bad + b'{"id": "z", "text": "last"}')
    report = CorpusReport(skip_bad=True)
    assert [passage.id for passage in read_corpus(tmp_path / "c.jsonl", report=report)] == ["a", "z"]
    assert report.num_skipped == {"malformed": 1, "duplicate": 41, "empty": 1}
    assert len(report.faults) == 20
    assert report.faults[1] == f"{tmp_path / 'c.jsonl'}, line 3: id 'a' was already used in line 1"
    assert report.summary == "passages: 2; files: 1; rows skipped: 41 duplicate, 1 empty, 1 malformed"


def test_a_folder_is_read_by_name_and_ids_are_of_all_its_files(tmp_path: Path) -> None:
    """Would catch shards in another order at each build, hidden files read, or one id for two passages."""
    (tmp_path / "b" / ".hidden").mkdir(parents=True)
    write_corpus(tmp_path / "b" / "2.jsonl", [PLANETS[2]])
    write_corpus(tmp_path / "b" / "1.jsonl", [PLANETS[1]])
    (tmp_path / "a.parquet").write_bytes(parquet([{"id": "mercury", "text": "first"}]))
    for name in (".x.jsonl", "b/.hidden/y.jsonl", "notes.csv"):
        (tmp_path / name).write_text("not a row")
    report = CorpusReport()
    found = [passage.id for passage in read_corpus(tmp_path, report=report)]
    assert found == ["mercury", "venus", "earth"]
    assert report.summary == "passages: 3; files: 3; rows skipped: none; files of other kinds left out: 1"
    write_corpus(tmp_path / "c.jsonl", [PLANETS[0]])
    with pytest.raises(CorpusError, match=r"c\.jsonl, line 1: id 'mercury' was already used in .*a\.parquet, row 1"):
        list(read_corpus(tmp_path))


def test_ids_that_are_taken_are_duplicates(tmp_path: Path) -> None:
    """Would catch a passage that an index gets twice."""
    path = write_corpus(tmp_path / "c.jsonl", PLANETS[:2])
    with pytest.raises(CorpusError, match="line 2: id 'venus' is in the index already"):
        list(read_corpus(path, taken_ids=["venus"]))


def test_a_number_of_words_is_refused_for_rows(tmp_path: Path) -> None:
    """Would catch an option that does nothing."""
    with pytest.raises(CorpusError, match="rows are passages already"):
        list(read_corpus(write_corpus(tmp_path / "c.jsonl", PLANETS), chunk_words=50))


def test_a_line_without_an_end_is_one_bad_line(tmp_path: Path) -> None:
    """Would catch a file of one endless line that is read into memory whole."""
    path = tmp_path / "c.jsonl"
    with path.open("wb") as file:
        file.truncate(65 * 2**20)  # A hole: zeros that take no disk.
        file.seek(0, 2)
        file.write(b'\n{"id": "a", "text": "x"}\n')
    report = CorpusReport(skip_bad=True)
    assert [passage.id for passage in read_corpus(path, report=report)] == ["a"]
    assert report.faults == [f"{path}, line 1: longer than 64 MiB"]


@given(st.lists(st.integers(0, 300).map(str), max_size=600))
def test_ids_are_claimed_once(ids: list[str]) -> None:
    """Would catch an id that is taken for another, or forgotten when the table grows."""
    seen, expected = SeenIds(), dict[str, int]()
    for place, passage_id in enumerate(ids):
        assert seen.claim(passage_id, place) == expected.get(passage_id)
        expected.setdefault(passage_id, place)


def test_many_ids_are_told_apart() -> None:
    """Would catch ids that collide, or a table that slows down as it fills."""
    seen = SeenIds()
    assert all(seen.claim(str(number), number) is None for number in range(20_000))
    assert all(seen.claim(str(number), -1) == number for number in range(20_000))


SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet", ".txt", ".md", ".html", ".pdf")
PIECES = (
    b"{",
    b'{"id": "a", "text": "x"}',
    b"\n",
    b"%PDF-1.7\n",
    b"trailer<</Root 1 0 R>>",
    b"PAR1",
    b"<p>",
    b"<!--",
    b"#",
)


@settings(max_examples=60)
@given(st.sampled_from(SUFFIXES), st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=20)), max_size=8))
def test_any_bytes_are_passages_or_one_clear_error(suffix: str, pieces: list[bytes]) -> None:
    """Would catch a file that ends in a traceback, whatever is in it."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, f"corpus{suffix}")
        path.write_bytes(b"".join(pieces))
        try:
            for passage in read_corpus(path):
                assert passage.id and (passage.title or passage.text)
                passage.contents.encode()
        except CorpusError as error:
            assert str(error).startswith(str(path)) and "\n" not in str(error)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("no.jsonl", "No such file"),
        ("no.parquet", "No such file"),
        ("no.txt", "No such file"),
        ("c.csv", "must end in .jsonl"),
        ("d.jsonl", "no file in the folder ends in .jsonl"),
    ],
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
