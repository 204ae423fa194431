"""A small chat-completions server whose model compares texts, and fails as real ones do when an answer says so."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse


class JudgingApp:
    """`app` is the server; `requests` keeps the bodies it got. `token`, when set, must be sent."""

    def __init__(self, token: str = "") -> None:
        self.app = FastAPI()
        self.requests: list[dict[str, Any]] = []
        self._token = token
        self._seen: Counter[str] = Counter()
        self.app.post("/v1/chat/completions")(self.complete)

    async def complete(self, request: Request) -> Response:
        """A verdict, or a failure."""
        if self._token and request.headers.get("Authorization") != f"Bearer {self._token}":
            return JSONResponse({"error": "no such key"}, status_code=401)
        body = await request.json()
        self.requests.append(body)
        golds, answer = _texts(body["messages"][0]["content"])
        self._seen[answer] += 1
        if answer.startswith("busy") and self._seen[answer] <= 2:
            return JSONResponse({"error": "slow down"}, status_code=429, headers={"Retry-After": "0"})
        if answer.startswith("never"):
            return JSONResponse({"error": "overloaded"}, status_code=503)
        if answer.startswith("refused"):
            return JSONResponse({"error": "content policy"}, status_code=400)
        if answer.startswith("nonsense"):
            return JSONResponse({"choices": []})
        return JSONResponse({"choices": [{"message": {"content": _verdict(golds, answer)}}]})


def _texts(prompt: str) -> tuple[list[str], str]:
    golds = re.search(r"^Accepted answers: (.*)$", prompt, re.MULTILINE)
    answer = re.search(r"^Answer to judge: (.*)$", prompt, re.MULTILINE)
    assert golds and answer
    return json.loads(golds.group(1)), json.loads(answer.group(1))


def _verdict(golds: list[str], answer: str) -> str:
    if answer.startswith("odd"):
        return "I would say that it is partly correct, but not entirely."
    words = answer.lower().removeprefix("busy ")
    is_right = any(gold.lower() in words for gold in golds)
    return f"<think>Is it incorrect? Let me see.</think>\n\n**{'Correct' if is_right else 'Incorrect'}.**"
