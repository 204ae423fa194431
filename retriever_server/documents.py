"""Documents (`.txt`, `.md`, `.html`, `.pdf`) in, passages or a fault out; one document in memory at a time."""

from __future__ import annotations

import contextlib
import logging
import re
import struct
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from retriever_server.rows import Found, RowFault
from retriever_server.schema import Passage

if TYPE_CHECKING:
    from bs4 import BeautifulSoup

_MAX_BYTES = 64 * 2**20
_BREAK_TAGS = ("br", "hr")
_UNREAD_TAGS = ("head", "script", "style", "noscript", "template")
_BLOCK_TAGS = (
    *("address", "article", "aside", "blockquote", "caption", "dd", "div", "dl", "dt", "fieldset", "figcaption"),
    *("figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "li", "main", "nav", "ol", "p"),
    *("pre", "section", "table", "td", "th", "tr", "ul"),
)


def document_passages(path: Path, name: str, chunk_words: int) -> Iterator[Found]:
    """The chunks of a document, their ids `name#1`, `name#2`, …; or one fault."""
    from retriever_server.chunking import chunk

    try:
        name.encode()
        title, paragraphs = _read(path)
    except UnicodeEncodeError:
        yield None, RowFault("the file's name is not UTF-8")
        return
    except RowFault as fault:
        yield None, fault
        return
    except OSError as error:
        yield None, RowFault(f"cannot be read ({error.strerror or error})")
        return
    title = " ".join(_storable(title).split()) or path.stem
    number = 0
    for number, text in enumerate(chunk(map(_storable, paragraphs), chunk_words), start=1):
        yield None, Passage(f"{name}#{number}", title, text)
    if number == 0:
        yield None, RowFault("no text in it", "empty")


def _read(path: Path) -> tuple[str, list[str]]:
    """Title, perhaps empty, and paragraphs."""
    suffix = path.suffix.lower()
    if suffix == ".pdf":
        return _read_pdf(path)
    if path.stat().st_size > _MAX_BYTES:
        raise RowFault(f"larger than {_MAX_BYTES // 2**20} MiB; split it, or make it rows of a .jsonl file")
    match suffix:
        case ".md":
            return _read_markdown(path)
        case ".html" | ".htm":
            return _read_html(_html_markup(path.read_bytes()))
    return "", _paragraphs(_text(path))


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RowFault(f"not UTF-8 (byte {error.object[error.start]:#04x} at {error.start})") from error


def _read_markdown(path: Path) -> tuple[str, list[str]]:
    from markdown_it import MarkdownIt

    return _read_html(MarkdownIt("commonmark").enable("table").render(_text(path)))


def _read_html(markup: str) -> tuple[str, list[str]]:
    from bs4 import BeautifulSoup
    from bs4.exceptions import ParserRejectedMarkup

    try:
        with warnings.catch_warnings():  # That it might be XML, or a file name.
            warnings.simplefilter("ignore", UserWarning)
            soup = BeautifulSoup(markup, "html.parser")
        title = _html_title(soup)
        return title, [" ".join(paragraph.split()) for paragraph in _paragraphs(_html_text(soup))]
    except (ParserRejectedMarkup, RecursionError) as error:
        raise RowFault(f"not HTML that can be parsed ({type(error).__name__})") from error


def _html_markup(data: bytes) -> str:
    """By UTF-8, the encoding that it declares, or what browsers take for the rest; never by a guess."""
    from bs4.dammit import EncodingDetector

    declared = EncodingDetector.find_declared_encoding(data, is_html=True)
    for encoding in ("utf-8-sig", declared or "ascii", "windows-1252"):
        with contextlib.suppress(UnicodeDecodeError, LookupError):
            return data.decode(encoding)
    raise RowFault("in none of the encodings that it may have (UTF-8, the declared one, Windows-1252)")


def _html_title(soup: BeautifulSoup) -> str:
    tag = soup.title or soup.h1
    return tag.get_text() if tag is not None else ""


def _html_text(soup: BeautifulSoup) -> str:
    """What a reader sees, a blank line between the texts of two blocks."""
    from bs4.element import CData, NavigableString, Tag

    # The block that each tag is in, None where nothing is read; a tag comes before those in it.
    blocks: dict[int, Tag | None] = {id(soup): soup}
    pieces: list[str] = []
    last: Tag | None = None
    for node in soup.descendants:
        block = blocks[id(node.parent)]
        if isinstance(node, Tag):
            is_read = block is not None and node.name not in _UNREAD_TAGS
            blocks[id(node)] = (node if node.name in _BLOCK_TAGS else block) if is_read else None
            pieces += ["\n\n"] if node.name in _BREAK_TAGS else []
        elif block is not None and type(node) in (NavigableString, CData):  # Not comments.
            pieces += [str(node)] if block is last else ["\n\n", str(node)]
            last = block
    return "".join(pieces)


def _read_pdf(path: Path) -> tuple[str, list[str]]:
    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # It tells each fault that it could mend.
    paragraphs: list[str] = []
    page_number = 0
    try:
        with PdfReader(path) as reader:
            title = reader.metadata.title if reader.metadata is not None else None
            for page in reader.pages:
                page_number += 1
                paragraphs += _paragraphs(page.extract_text())
    except OSError:
        raise
    except _pdf_faults() as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        where = f"page {page_number}: " if page_number else ""
        raise RowFault(f"{where}not a PDF that can be read ({reason})") from error
    return title or "", paragraphs


def _pdf_faults() -> tuple[type[Exception], ...]:
    """What pypdf raises: its documentation says that broken files cause other exceptions than its own."""
    from pypdf.errors import DependencyError, PyPdfError

    own = (PyPdfError, DependencyError)
    others = (
        ArithmeticError,
        AssertionError,
        AttributeError,
        EOFError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    )
    return (*own, *others, MemoryError, struct.error, zlib.error)


def _paragraphs(text: str) -> list[str]:
    """What stands between blank lines."""
    return [paragraph.strip() for paragraph in re.split(r"\n\s*\n", text) if paragraph.strip()]


def _storable(text: str) -> str:
    """The text without halves of surrogate pairs, which some PDFs hold and no file can store."""
    return text.encode("utf-8", "replace").decode()
