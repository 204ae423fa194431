"""A model that brings code of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from retriever_server.encoders import DEFAULT_ENCODER, SentenceEncoder, location_of
from retriever_server.errors import EncoderError

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
