"""Folders of documents: what a reader sees becomes passages that end where sentences do."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retriever_server.chunking import chunk, count_words
from retriever_server.corpus import CorpusReport, read_corpus
from retriever_server.errors import CorpusError
from retriever_server.schema import Passage

MOONS = "two moons.\nThey are small."
SENTENCES = "Dr. Smith saw 3.5 moons. Were they red? He said: no! Then he left"


def pdf_of(*pages: str, title: str = "") -> bytes:
    """A PDF of one line of ASCII a page."""
    contents = [f"BT /F1 12 Tf 72 720 Td ({page}) Tj ET" for page in pages]
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Kids[{kids}]/Count {len(pages)}>>",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    for number, content in enumerate(contents):
        resources = "/MediaBox[0 0 612 792]/Resources<</Font<</F1 3 0 R>>>>"
        objects.append(f"<</Type/Page/Parent 2 0 R{resources}/Contents {5 + 2 * number} 0 R>>")
        objects.append(f"<</Length {len(content)}>>\nstream\n{content}\nendstream")
    objects.append(f"<</Title({title})>>")
    body, offsets = "%PDF-1.4\n", []
    for number, item in enumerate(objects, start=1):
        offsets.append(len(body))
        body += f"{number} 0 obj\n{item}\nendobj\n"
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    trailer = f"trailer\n<</Size {len(objects) + 1}/Root 1 0 R/Info {len(objects)} 0 R>>\nstartxref\n{len(body)}\n%%EOF"
    return f"{body}xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}{trailer}".encode()


HTML = b"""<!doctype html><html><head><title>Moons &amp;
 more</title><style>p {}</style></head><body><!-- not seen --><nav>Home</nav><script>var x;</script>
<h1>Moons</h1><p>Mars has <b>two</b> moons.
They are small.</p><ul><li>Phobos<li>Deimos</ul><template>nor this</template></body></html>"""
MARKDOWN = "# Two *moons*\n\nMars has [two](http://x.y) moons.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"


@pytest.mark.parametrize(
    ("name", "content", "title", "text"),
    [
        ("a.txt", "\ufeffMars has\ntwo moons.\n\n\nThey are small.".encode(), "a", f"Mars has\n{MOONS}"),
        ("a.html", HTML, "Moons & more", "Home\nMoons\nMars has two moons. They are small.\nPhobos\nDeimos"),
        ("a.HTM", "<p>caf\xe9".encode("latin-1"), "a", "caf\xe9"),
        ("a.md", MARKDOWN.encode(), "Two moons", "Two moons\nMars has two moons.\na\nb\n1\n2"),
        ("a.pdf", pdf_of(*MOONS.split("\n"), title="On moons"), "On moons", MOONS),
        (
            "c.html",
            '<meta charset="cp1251"><p>\u041c\u0430\u0440\u0441'.encode("cp1251"),
            "c",
            "\u041c\u0430\u0440\u0441",
        ),
        ("sub/b.pdf", pdf_of("Mars."), "b", "Mars."),
    ],
)
def test_a_document_becomes_what_a_reader_sees(
    name: str, content: bytes, title: str, text: str, tmp_path: Path
) -> None:
    """Would catch scripts and tags in the text, words glued over a tag's bounds, pages lost, or a wrong title."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    assert list(read_corpus(tmp_path)) == [Passage(f"{name}#1", title, text)]


def test_passages_end_where_sentences_do(tmp_path: Path) -> None:
    """Would catch a cut after "Dr.", within "3.5", or within a sentence that would fit the next passage."""
    (tmp_path / "a.txt").write_text(SENTENCES)
    texts = [passage.text for passage in read_corpus(tmp_path, chunk_words=6)]
    assert texts == ["Dr. Smith saw 3.5 moons.", "Were they red? He said: no!", "Then he left"]
    (only,) = read_corpus(tmp_path / "a.txt")
    assert only == Passage("a.txt#1", "a", SENTENCES)


@settings(max_examples=50)
@given(st.lists(st.text(max_size=80), max_size=5), st.integers(1, 12))
def test_chunks_hold_each_word_once_and_in_order(paragraphs: list[str], max_words: int) -> None:
    """Would catch words lost, repeated or glued at a bound, and passages longer than asked."""
    texts = list(chunk(paragraphs, max_words))
    assert "".join("".join(texts).split()) == "".join("".join(paragraphs).split())
    assert all(text.strip() == text != "" for text in texts)
    assert all(count_words(text) <= max_words for text in texts)


@given(
    st.lists(st.lists(st.sampled_from(["Mars", "is", "red", "moons"]), min_size=1, max_size=9), min_size=1, max_size=9)
)
def test_only_a_sentence_that_is_too_long_is_cut(sentences: list[list[str]]) -> None:
    """Would catch passages that end within a sentence for no reason."""
    texts = list(chunk([" ".join(f"{' '.join(words).capitalize()}." for words in sentences)], 6))
    ends = sum(text.endswith(".") for text in texts)
    long_cuts = sum((len(words) - 1) // 6 for words in sentences)
    assert len(texts) - ends <= long_cuts


def test_a_run_without_spaces_is_cut_too(tmp_path: Path) -> None:
    """Would catch a Chinese text, or a megabyte of base64, that counts as one word."""
    (tmp_path / "a.txt").write_text("\u706b\u661f\u662f\u7ea2\u8272\u7684\u3002" * 10 + "\n\n" + "x" * 4000)
    texts = [passage.text for passage in read_corpus(tmp_path, chunk_words=20)]
    assert max(map(len, texts)) == 800
    assert texts[0] == "\u706b\u661f\u662f\u7ea2\u8272\u7684\u3002" * 2


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("a.txt", b"caf\xe9", "not UTF-8 (byte 0xe9 at 3)"),
        ("a.txt", b" \n ", "no text in it"),
        ("a.html", b"<html><script>x</script>", "no text in it"),
        ("a.pdf", pdf_of(), "no text in it"),
        ("a.pdf", pdf_of("Mars.")[:-20], "not a PDF that can be read (Stream has ended unexpectedly)"),
        ("a.html", b"<p>\x81", "in none of the encodings"),
        ("a.pdf", b"hello", "not a PDF that can be read"),
        ("a.pdf", b"", "not a PDF that can be read"),
    ],
)
def test_a_document_that_cannot_be_read_is_refused_or_skipped(
    name: str, content: bytes, fault: str, tmp_path: Path
) -> None:
    """Would catch one broken file among ten thousand that ends the build with a traceback, or vanishes in silence."""
    (tmp_path / name).write_bytes(content)
    (tmp_path / "z.txt").write_text("Mars is red.")
    with pytest.raises(CorpusError) as caught:
        list(read_corpus(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path / name}: {fault}")
    report = CorpusReport(skip_bad=True)
    assert [passage.id for passage in read_corpus(tmp_path, report=report)] == ["z.txt#1"]
    assert report.num_skipped.total() == 1


def test_a_file_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """Would catch an id that no JSON file can store."""
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")).write_text("Mars is red.")
    with pytest.raises(CorpusError, match="the file's name is not UTF-8"):
        list(read_corpus(tmp_path))


def test_a_large_text_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """Would catch a dump of gigabytes that is read into memory whole."""
    with (tmp_path / "a.txt").open("wb") as file:
        file.truncate(65 * 2**20)
    with pytest.raises(CorpusError, match="larger than 64 MiB"):
        list(read_corpus(tmp_path))


def test_a_page_of_many_paragraphs_is_read_in_a_moment(tmp_path: Path) -> None:
    """Would catch work that grows with the square of a page's blocks: 5,000 took 2 s."""
    (tmp_path / "a.html").write_text("<p>Mars is red.</p>" * 6_000)
    started = time.process_time()
    assert sum(passage.text.count("Mars") for passage in read_corpus(tmp_path)) == 6_000
    assert time.process_time() - started < 2
