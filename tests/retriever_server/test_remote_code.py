"""A model that brings code of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from retriever_server.encoders import DEFAULT_ENCODER, SentenceEncoder, location_of
from retriever_server.errors import EncoderError
from retriever_server.index import build_index
from retriever_server.process import IndexOpener
from retriever_server.settings import ClusterPlan, ServiceSettings
from retriever_server.steps import plan_parts
from search_rl.cli import main
from tests.retriever_server.bag_of_words import PLANETS
from tests.retriever_server.conftest import write_corpus

MARK = "ran"


@pytest.fixture
def model_with_code(tmp_path: Path) -> Path:
    """The default model with a last module that leaves a mark where it is imported."""
    folder = shutil.copytree(location_of(DEFAULT_ENCODER), tmp_path / "model")
    (folder / "marker.py").write_text(
        "from pathlib import Path\n"
        "from sentence_transformers.sentence_transformer.modules import Normalize\n"
        f"Path({str(tmp_path / MARK)!r}).touch()\n"
        "class Marker(Normalize):\n    pass\n"
    )
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": len(modules), "name": str(len(modules)), "path": "", "type": "marker.Marker"})
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


@pytest.mark.slow
def test_the_code_of_a_model_runs_only_when_it_is_trusted(model_with_code: Path) -> None:
    """Would catch a downloaded model that takes over the machine of whoever builds or serves an index with it."""
    with pytest.raises(EncoderError, match="--trust-remote-code"):
        SentenceEncoder(str(model_with_code))
    assert not (model_with_code.parent / MARK).exists()
    encoder = SentenceEncoder(str(model_with_code), trust_remote_code=True)
    assert (model_with_code.parent / MARK).exists()
    assert encoder.encode_queries(["a text"]).shape == (1, encoder.spec.dimension)


@pytest.fixture
def reranker_with_code(tmp_path: Path) -> Path:
    """A cross-encoder whose type only its own code knows; that code leaves a mark where it is imported."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    folder = tmp_path / "reranker"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        num_labels=1,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(folder)
    (folder / "marked.py").write_text(
        "from pathlib import Path\n"
        "from transformers import BertConfig, BertForSequenceClassification\n"
        f"Path({str(tmp_path / MARK)!r}).touch()\n"
        "class MarkedConfig(BertConfig):\n    model_type = 'marked'\n"
        "class Marked(BertForSequenceClassification):\n    config_class = MarkedConfig\n"
    )
    own = {"AutoConfig": "marked.MarkedConfig", "AutoModelForSequenceClassification": "marked.Marked"}
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "model_type": "marked", "auto_map": own}))
    return folder


def opened_here(folder: Path, settings: ServiceSettings) -> None:
    """As one process or a worker opens it."""
    IndexOpener(folder, settings)()


def opened_on_replicas(folder: Path, settings: ServiceSettings) -> None:
    """As Ray's replicas open it, here without Ray."""
    for part in plan_parts(folder, settings, ClusterPlan(), None)[0]:
        part.open_step()


@pytest.mark.slow
@pytest.mark.parametrize("opened", [opened_here, opened_on_replicas])
def test_the_code_of_a_reranker_runs_only_when_it_is_trusted(
    opened: Callable[[Path, ServiceSettings], None], reranker_with_code: Path, tmp_path: Path
) -> None:
    """Would catch a service that trusts its reranker whatever was said, or never: then such a model cannot be used."""
    index, mark = tmp_path / "index", tmp_path / MARK
    build_index(write_corpus(tmp_path / "c.jsonl", PLANETS), index, None, with_bm25=True)
    with pytest.raises(EncoderError, match=r"reranker .*--trust-remote-code"):
        opened(index, ServiceSettings(retriever="bm25", rerank=str(reranker_with_code)))
    assert not mark.exists()
    opened(index, ServiceSettings(retriever="bm25", rerank=str(reranker_with_code), trust_remote_code=True))
    assert mark.exists()


@pytest.mark.slow
def test_every_command_that_loads_an_encoder_can_trust_it(model_with_code: Path, tmp_path: Path) -> None:
    """`index search` and `index eval` told to give --trust-remote-code, and did not have it."""
    corpus, index = write_corpus(tmp_path / "c.jsonl", PLANETS), str(tmp_path / "index")
    (tmp_path / "q.jsonl").write_text('{"id": "1", "question": "Which is red?", "golden_answers": ["Mars"]}\n')
    commands = (
        ["build", "--corpus", str(corpus), "--out", index, "--encoder", str(model_with_code)],
        ["search", index, "Phobos"],
        ["eval", "--index", index, "--questions", str(tmp_path / "q.jsonl"), "--top-k", "1"],
    )
    for command in commands:
        refused = CliRunner().invoke(main.app, ["index", *command])
        assert refused.exit_code == 2 and "--trust-remote-code" in refused.stderr
        trusted = CliRunner().invoke(main.app, ["index", *command, "--trust-remote-code"])
        assert trusted.exit_code == 0, trusted.output
    for opened in (opened_here, opened_on_replicas):
        with pytest.raises(EncoderError, match=r"encoder .*--trust-remote-code"):
            opened(tmp_path / "index", ServiceSettings())
        opened(tmp_path / "index", ServiceSettings(trust_remote_code=True))
