"""What goes over the wire of `POST /retrieve`: either dialect in, documents out (Search-R1, arXiv 2503.09516)."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, model_validator

from retriever_server.schema import Passage, ScoredPassage

Answers = list[list[ScoredPassage]]

# So many passages are made into JSON before other requests get their turn: about two milliseconds.
_PASSAGES_AT_ONCE = 1000


class RetrieveRequest(BaseModel):
    """Either dialect: `queries` (Search-R1, verl, slime) or `query` (SkyRL-gym); others are ignored."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["queries"], "properties": {"queries": {"type": "array"}}},
                {"required": ["query"], "properties": {"query": {"type": "string"}}},
            ]
        }
    )

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


class Document(BaseModel):
    """A passage, all fields always there: clients read `contents`, some also `url`."""

    id: str
    title: str
    text: str
    contents: str
    url: str


class Hit(BaseModel):
    """What stands in the list when scores are asked for."""

    document: Document
    score: Annotated[float, Field(allow_inf_nan=False)]


class RetrieveResponse(BaseModel):
    """A list for each query, in order, best first; without scores the documents stand bare in it."""

    result: list[list[Hit]] | list[list[Document]]


async def result_json(answers: Answers, *, with_scores: bool) -> bytes:
    """The body of an answer. A large one lets other requests have their turn meanwhile."""
    lists, num_passages = [], 0
    for hits in answers:
        lists.append(orjson.dumps([_hit(hit) if with_scores else _document(hit.passage) for hit in hits]))
        num_passages += len(hits)
        if num_passages >= _PASSAGES_AT_ONCE:
            num_passages = 0
            await asyncio.sleep(0)
    return b'{"result":[' + b",".join(lists) + b"]}"


def _hit(hit: ScoredPassage) -> dict[str, Any]:
    return {"document": _document(hit.passage), "score": hit.score}


def _document(passage: Passage) -> dict[str, str]:
    """Without scores documents stand bare in the list: slime and others read them so."""
    return {
        "id": passage.id,
        "title": passage.title,
        "text": passage.text,
        "contents": passage.contents,
        "url": passage.url,
    }
