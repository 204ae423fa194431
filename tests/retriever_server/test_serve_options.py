"""Every option of `search-rl serve`, and which setting of the service it reaches."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from retriever_server import serving
from retriever_server.errors import ServingError
from retriever_server.settings import ClusterPlan, ServiceSettings
from search_rl.cli.serve import serve

app = typer.Typer(add_completion=False)
app.command()(serve)
COMMAND = typer.main.get_command(app)

# By option: what is typed, the setting that it reaches, and what that then is.
OPTIONS: dict[str, tuple[tuple[str, ...], str, Any]] = {
    "index": (("--index", "elsewhere"), "folder", Path("elsewhere")),
    "set_": (("--config", "configs/demo.yaml", "--set", "service.retriever=hybrid"), "settings.retriever", "hybrid"),
    "config": (("--config", "RERANKING"), "settings.rerank", "another-model"),
    "retriever": (("--retriever", "bm25"), "settings.retriever", "bm25"),
    "rerank": (("--rerank", "a-model"), "settings.rerank", "a-model"),
    "host": (("--host", "127.0.0.2"), "host", "127.0.0.2"),
    "workers": (("--workers", "3"), "workers", 3),
    "top_k": (("--top-k", "7"), "settings.top_k", 7),
    "cache": (("--cache", "0"), "settings.cache_entries", 0),
    "token_file": (("--token-file", "TOKEN"), "settings.token", "a-token"),
    "log_json": (("--log-json",), "settings.log_requests", True),
    "trust_remote_code": (("--trust-remote-code",), "settings.trust_remote_code", True),
    "max_body_mib": (("--max-body-mib", "5"), "settings.limits.max_body_bytes", 5 * 2**20),
    "max_queries": (("--max-queries", "11"), "settings.limits.max_queries", 11),
    "max_query_characters": (("--max-query-characters", "12"), "settings.limits.max_query_characters", 12),
    "max_top_k": (("--max-top-k", "13"), "settings.limits.max_top_k", 13),
    "max_passages": (("--max-passages", "14"), "settings.limits.max_passages", 14),
    "max_batch": (("--max-batch", "15"), "settings.batching.max_batch_queries", 15),
    "share": (("--share", "16"), "settings.batching.share_queries", 16),
    "max_pending": (("--max-pending", "17"), "settings.batching.max_pending_queries", 17),
    "deadline": (("--deadline", "18.5"), "settings.batching.deadline_seconds", 18.5),
    "overlap": (("--overlap",), "settings.batching.overlap", True),
    "shards": (("--ray", "--shards", "2"), "cluster.num_shards", 2),
    "replicas": (("--ray", "--replicas", "3"), "cluster.num_replicas", 3),
    "replica_cpus": (("--ray", "--replica-cpus", "4"), "cluster.cpus_per_replica", 4),
    "ray_address": (("--ray", "--ray-address", "auto"), "cluster.address", "auto"),
}


@pytest.fixture(scope="module")
def taken_port() -> Iterator[int]:
    """A port at which a service ends before it opens anything."""
    with socket.create_server(("0.0.0.0", 0)) as listener:
        yield listener.getsockname()[1]


def handed_over(port: int, *arguments: str) -> dict[str, Any]:
    """What the command hands to the service, which fails because its port is taken, by dotted name."""
    result = CliRunner().invoke(app, ["--index", "somewhere", "--port", str(port), *arguments])
    assert isinstance(result.exception, ServingError) and "in use" in str(result.exception), result.output
    frame = result.exception.__traceback__
    while frame is not None and frame.tb_frame.f_code is not serving.serve.__code__:
        frame = frame.tb_next
    assert isinstance(frame, TracebackType)
    given = frame.tb_frame.f_locals
    return dict(flat({name: given[name] for name in ("folder", "settings", "host", "port", "workers", "cluster")}))


def flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Values by dotted name, those of dataclasses field by field."""
    for name, value in values.items():
        if is_dataclass(value):
            yield from flat({field.name: getattr(value, field.name) for field in fields(value)}, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@pytest.mark.parametrize("option", [parameter.name for parameter in COMMAND.params])
def test_each_option_reaches_its_setting_and_no_other(option: str, taken_port: int, tmp_path: Path) -> None:
    """Would catch an option, or a new one, that is parsed and lost, or that sets its neighbour."""
    if option == "port":  # Without which nothing is handed over here.
        assert handed_over(taken_port)["port"] == taken_port
        return
    if option == "ray":
        assert (handed_over(taken_port)["cluster"], handed_over(taken_port, "--ray")["cluster.num_shards"]) == (None, 1)
        return
    (tmp_path / "token").write_text("a-token\n")
    demo = yaml.safe_load(Path("configs/demo.yaml").read_text())
    (tmp_path / "reranking").write_text(yaml.safe_dump({**demo, "service": {"rerank": "another-model"}}))
    typed, setting, value = OPTIONS[option]
    before = handed_over(taken_port, *(word for word in typed if word == "--ray"))
    after = handed_over(taken_port, *(str(tmp_path / word.lower()) if word.isupper() else word for word in typed))
    assert {name: after[name] for name in after if after[name] != before[name]} == {setting: value}


def test_each_setting_has_an_option() -> None:
    """Would catch a setting that no user can reach."""
    settings = dict(flat({"settings": ServiceSettings(), "cluster": ClusterPlan()}))
    reached = {setting for _, setting, _ in OPTIONS.values()}
    assert set(settings) <= reached


def test_the_defaults_of_the_command_are_those_of_the_service(taken_port: int) -> None:
    """Would catch a service that behaves otherwise when it is started from Python, or a README true of one alone."""
    given = handed_over(taken_port, "--ray")
    settings = dict(flat({"settings": ServiceSettings(), "cluster": ClusterPlan()}))
    assert {name: given[name] for name in settings} == settings
    assert (given["host"], given["workers"]) == (serving.DEFAULT_HOST, 1)


def test_an_option_wins_over_the_config_and_one_of_them_names_the_index(taken_port: int) -> None:
    """Would catch a control experiment that is run over what the file says, and a service of no index."""
    config = ("--config", "configs/demo.yaml", "--set", "service.retriever=hybrid", "--set", "service.index=i")
    assert handed_over(taken_port, *config, "--retriever", "random")["settings.retriever"] == "random"
    result = CliRunner().invoke(app, ["--port", str(taken_port), *config])
    assert isinstance(result.exception, ServingError), "the index comes from the config"
    result = CliRunner().invoke(app, ["--port", str(taken_port)])
    assert result.exit_code == 2 and "--index is missing" in result.output
