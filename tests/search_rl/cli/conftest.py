"""A served model and a retrieval service on loopback, for commands that talk to both."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import HTTPException
from pydantic import BaseModel

from retriever_server.app import create_app
from retriever_server.schema import ScoredPassage
from tests.search_rl.conftest import ByteCodec, hit


class OnePassage:
    """A retriever that knows one thing."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[ScoredPassage]]:
        """See `Retriever.search`."""
        return [[hit("Paris", "Paris is the capital of France.", score=0.5)][:top_k] for _ in queries]


class Completion(BaseModel):
    """The part of a completions request that matters here."""

    prompt: list[int]
    max_tokens: int


@pytest.fixture
def service(codec: ByteCodec) -> Iterator[str]:
    """The URL of the real retrieval service and of a model that searches once, then answers Paris, and refuses some
    questions.
    """
    app = create_app(OnePassage())

    @app.post("/v1/completions")
    def complete(request: Completion) -> dict[str, Any]:
        prompt = codec.decode(request.prompt)
        if "Refuse this" in prompt:
            raise HTTPException(400, "no")
        call = '<tool_call>{"name": "search", "arguments": {"query": "capital of France"}}</tool_call>'
        search = call if "<tool_call>" in prompt else "<search>capital of France</search>"
        reply = "<answer>Paris</answer>" if "Paris" in prompt else search
        token_ids = codec.encode(reply)[: request.max_tokens]
        return {"choices": [{"token_ids": token_ids, "logprobs": {"token_logprobs": [-0.5] * len(token_ids)}}]}

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture
def tokenizer_folder(codec: ByteCodec, tmp_path: Path) -> Path:
    """The small tokenizer as a folder that transformers can read; there are no weights."""
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path / "tokenizer"
    PreTrainedTokenizerFast(tokenizer_object=codec.tokenizer).save_pretrained(folder)
    return folder
