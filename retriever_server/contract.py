"""What goes over the wire of `POST /retrieve`: either dialect in, documents out (Search-R1, arXiv 2503.09516)."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, model_validator

from retriever_server.schema import Passage, ScoredPassage

Answers = list[list[ScoredPassage]]


class RetrieveRequest(BaseModel):
    """Either dialect: `queries` (Search-R1, verl, slime) or `query` (SkyRL-gym); others are ignored."""

    queries: list[str] | None = None
    query: str | None = None
    topk: Annotated[int, Field(ge=0)] | None = None
    return_scores: bool = False

    @model_validator(mode="after")
    def _has_one_dialect(self) -> Self:
        if (self.queries is None) == (self.query is None):
            raise ValueError("give exactly one of `queries` (a list) and `query` (a string)")
        return self

    @property
    def texts(self) -> list[str]:
        """The queries as they came, one or many."""
        return self.queries if self.queries is not None else [self.query or ""]


def searchable(query: str, max_characters: int) -> str:
    """The query, cut to its first characters; half a surrogate pair, which is no text, becomes `?`."""
    return query[:max_characters].encode(errors="replace").decode()


def result(answers: Answers, *, with_scores: bool) -> list[list[dict[str, Any]]]:
    """Without scores the documents stand bare in the list: slime and others read them so."""
    if with_scores:
        return [[{"document": _document(hit.passage), "score": hit.score} for hit in hits] for hits in answers]
    return [[_document(hit.passage) for hit in hits] for hits in answers]


def _document(passage: Passage) -> dict[str, str]:
    return {
        "id": passage.id,
        "title": passage.title,
        "text": passage.text,
        "contents": passage.contents,
        "url": passage.url,
    }
