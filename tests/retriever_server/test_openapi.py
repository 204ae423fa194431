"""The service against its own description: what it allows, or nearly allows, is answered as it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import negative_data_rejection

from retriever_server.app import create_app, service_of
from retriever_server.opening import open_retriever
from retriever_server.service import Opened
from tests.retriever_server.bag_of_words import load_encoder

# A 503 may be right, and values are read as leniently as the reference server reads them (1 is true).
_DELIBERATE: list[Any] = [not_a_server_error, negative_data_rejection]
_folders: list[Path] = []


def open_index() -> Opened:
    """The flat index on disk, anew with each reload."""
    return open_retriever(_folders[0], load_encoder=load_encoder)


# With everything that it can have, but a token.
service = create_app(None, open_again=open_index)
schema = schemathesis.openapi.from_asgi("/openapi.json", service)


@pytest.fixture(scope="module", autouse=True)
def served_index(planets_folder: Path) -> None:
    """What is described is known before there is an index; what is asked is answered from one."""
    _folders.append(planets_folder)
    service_of(service).attach(*open_index())


@schema.parametrize()
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
def test_any_request_is_answered_as_described(case: Case[Any]) -> None:
    """Would catch a 500, a status or a body that the description does not know, and NaN in JSON."""
    response = case.call()
    assert response.status_code < 500 or response.status_code == 503
    if response.headers.get("content-type") == ["application/json"]:
        json.loads(response.content, parse_constant=pytest.fail)
    case.validate_response(response, excluded_checks=_DELIBERATE)


def test_the_description_names_every_status_that_a_client_can_get(planets_app: FastAPI) -> None:
    """Would catch a description that knows 200 and 422 alone, so that generated clients take a 503 for a fault."""
    responses = planets_app.openapi()["paths"]["/retrieve"]["post"]["responses"]
    assert sorted(responses) == ["200", "400", "401", "413", "422", "500", "503"]
    assert "429" not in json.dumps(planets_app.openapi()["paths"])
