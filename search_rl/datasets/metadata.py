"""What the `metadata` of FlashRAG's rows, and so of Search-R1's merged files, tells of a question, read by its shape.

HotpotQA (1809.09600) and 2WikiMultihopQA (2011.01060) name the articles of their supporting sentences, MuSiQue
(2108.00573) has a paragraph for each step of its decomposition. NQ, TriviaQA, PopQA and Bamboogle name no evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from search_rl.datasets.rows import plain

COLUMNS = ("type", "supporting_facts.title", "question_decomposition")
"""What is read of it. Its `context`, the paragraphs that a reader was given, is many times as large."""


def kind_of(metadata: Any) -> str:
    """The type of a question, which HotpotQA and 2Wiki name; of MuSiQue's the hops are counted."""
    match metadata:
        case {"type": str(kind)}:
            return kind
    hops = _steps(metadata)
    return f"{len(hops)}hop" if hops else ""


def titles_of(metadata: Any) -> tuple[str, ...]:
    """The titles of the supporting articles, each once, in order; none where none are named."""
    return tuple(dict.fromkeys(title for title in _titles(metadata) if isinstance(title, str) and title.strip()))


def _titles(metadata: Any) -> Iterator[Any]:
    match metadata:
        case {"supporting_facts": {"title": titles}}:
            yield from _listed(titles)
    for step in _steps(metadata):
        match step:
            case {"support_paragraph": {"title": title}}:
                yield title


def _steps(metadata: Any) -> list[Any]:
    return _listed(metadata.get("question_decomposition")) if isinstance(metadata, Mapping) else []


def _listed(value: Any) -> list[Any]:
    value = plain(value)
    return list(value) if isinstance(value, list | tuple) else []
