"""Search-R1's wire format: what is asked, and what a reply must look like to be believed."""

from __future__ import annotations

import json
from collections.abc import Sequence

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from search_rl.errors import RetrieverError
from search_rl.types import Passage, ScoredPassage, SearchResult


class Rejected(RetrieverError):
    """A 4xx: the same request would be refused again."""


def request_body(queries: Sequence[str], top_k: int) -> bytes:
    """The JSON of a request, in ASCII: a query that is no valid Unicode is the server's to refuse, not ours to crash
    on."""
    return json.dumps({"queries": list(queries), "topk": top_k, "return_scores": True}).encode()


def parse_reply(response: httpx.Response, *, url: str, queries: Sequence[str], top_k: int) -> list[SearchResult]:
    """One result a query. Raises Rejected for a 4xx, RetrieverError for anything but a well-formed reply."""
    if 400 <= response.status_code < 500:
        raise Rejected(f"{url}/retrieve refused: status {response.status_code} {response.text[:200]}")
    if response.status_code != httpx.codes.OK:
        raise RetrieverError(f"{url}/retrieve answered with status {response.status_code}")
    try:
        rows = _Reply.model_validate_json(response.content).result
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise RetrieverError(f"{url}/retrieve answered nonsense: {where} {fault['msg']}".replace("  ", " ")) from error
    if len(rows) != len(queries):
        raise RetrieverError(f"{url}/retrieve answered {len(queries)} queries with {len(rows)} lists")
    return [
        SearchResult(query, tuple(hit.scored_passage() for hit in hits[:top_k]))
        for query, hits in zip(queries, rows, strict=True)
    ]


class _Document(BaseModel):
    """The part of a corpus row that counts: line one of `contents` is the title, the rest is the text."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    contents: str
    id: str = ""
    url: str | None = None


class _Hit(BaseModel):
    """Online servers of the Search-R1 family give no score."""

    document: _Document
    score: float = Field(0.0, allow_inf_nan=False)

    def scored_passage(self) -> ScoredPassage:
        """Contents without a line break are all text: a title alone would tell the policy nothing."""
        first, newline, rest = self.document.contents.partition("\n")
        title, text = (first, rest) if newline else ("", first)
        return ScoredPassage(
            Passage(self.document.id, _unquoted(title.strip()), text, self.document.url or ""), self.score
        )


class _Reply(BaseModel):
    """The body of a good reply: a list of hits for each query."""

    result: list[list[_Hit]]


def _unquoted(title: str) -> str:
    is_quoted = len(title) >= 2 and title.startswith('"') and title.endswith('"')
    return title[1:-1] if is_quoted else title
