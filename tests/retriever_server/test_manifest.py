"""What a manifest holds, that another encoder is refused by every field of it, and what the commands make of it."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import Field, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from retriever_server.bm25 import TERMS
from retriever_server.encoders import EncoderSpec, location_of, passage_text
from retriever_server.errors import EncoderError, IndexFolderError
from retriever_server.manifest import MANIFEST_FILE, TermSpec
from retriever_server.opening import open_retriever
from retriever_server.settings import ClusterPlan, ServiceSettings
from retriever_server.steps import plan_parts
from search_rl.cli.index import app
from tests.retriever_server.bag_of_words import PLANETS, BagOfWordsEncoder
from tests.retriever_server.conftest import write_corpus


class Renamed(BagOfWordsEncoder):
    """The same vectors under another spec."""

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        self.spec = spec


def changed(value: Any) -> Any:
    """Another value of its type."""
    match value:
        case str():
            return f"other {value}"
        case int() | float():
            return value + 1
        case _:
            return [*value, "other"]


def edited(folder: Path, to: Path, part: str, edit: dict[str, Any]) -> Path:
    """A copy of an index folder of which a part of the manifest is changed."""
    shutil.copytree(folder, to)
    manifest = orjson.loads((to / MANIFEST_FILE).read_bytes())
    where = manifest
    for name in part.split("."):
        where = where[name]
    where.update(edit)
    (to / MANIFEST_FILE).write_bytes(orjson.dumps(manifest))
    return to


@pytest.mark.parametrize("field", fields(EncoderSpec), ids=lambda field: field.name)
def test_another_encoder_is_refused_by_each_field_of_its_spec(field: Field[Any], planets_folder: Path) -> None:
    """Would catch a field, or a new one, that the manifest holds and nobody compares, here or on Ray's replicas."""
    spec = BagOfWordsEncoder().spec
    was, now = getattr(spec, field.name), changed(getattr(spec, field.name))
    encoder = Renamed(replace(spec, **{field.name: now}))
    parts, _, _ = plan_parts(planets_folder, ServiceSettings(), ClusterPlan(), lambda name: encoder)
    if field.name == "dtype":  # bfloat16 and float32 find the same.
        assert open_retriever(planets_folder, load_encoder=lambda name: encoder)[0].search(["Mars"], top_k=1)[0]
        assert parts[0].open_step()(["Mars"]).shape == (1, 256)
        return
    said = f"the encoder is not the one of the index: {field.name} was {was!r} and is {now!r}; build it again"
    with pytest.raises(EncoderError) as caught:
        open_retriever(planets_folder, load_encoder=lambda name: encoder)
    assert str(caught.value) == said
    with pytest.raises(EncoderError) as caught:
        parts[0].open_step()
    assert str(caught.value) == said


@pytest.mark.parametrize("field", fields(TermSpec), ids=lambda field: field.name)
def test_other_terms_are_refused_by_each_field(field: Field[Any], hybrid_folder: Path, tmp_path: Path) -> None:
    """Would catch BM25 weights that are searched with another stemmer, stopwords or constants."""
    was = changed(getattr(TERMS, field.name))
    folder = edited(hybrid_folder, tmp_path / "index", "bm25.terms", {field.name: was})
    was = tuple(was) if isinstance(was, list) else was
    with pytest.raises(IndexFolderError) as caught:
        open_retriever(folder, "bm25")
    assert f"{field.name} was {was!r} and is {getattr(TERMS, field.name)!r}; build it again" in str(caught.value)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"metric": "l2"}, "dense.metric: Input should be 'inner_product', not 'l2'"),
        ({"is_normalised": False}, "dense.is_normalised: Input should be True, not False"),
    ],
)
def test_another_metric_or_normalisation_is_refused(
    edit: dict[str, Any], message: str, planets_folder: Path, tmp_path: Path
) -> None:
    """A folder that said its vectors were not normalised was served as if they were: lengths decided what was found."""
    with pytest.raises(IndexFolderError) as caught:
        open_retriever(edited(planets_folder, tmp_path / "index", "dense", edit))
    assert f"bad manifest.json ({message}); build it again" in str(caught.value)


def test_an_index_of_before_backends_were_named_is_torchs(planets_folder: Path, tmp_path: Path) -> None:
    """Would catch an update of this package that makes all indexes useless, or takes them for another backend's."""
    folder = edited(planets_folder, tmp_path / "index", "dense", {})
    manifest = orjson.loads((folder / MANIFEST_FILE).read_bytes())
    del manifest["dense"]["encoder"]["backend"]
    (folder / MANIFEST_FILE).write_bytes(orjson.dumps(manifest))
    encoder = Renamed(replace(BagOfWordsEncoder().spec, backend="torch"))
    retriever, _ = open_retriever(folder, load_encoder=lambda name: encoder)
    assert retriever.search(["Phobos"], top_k=1)[0][0].passage.id == "mars"
    with pytest.raises(EncoderError, match="backend was 'torch' and is 'numpy'"):
        open_retriever(folder, load_encoder=lambda name: BagOfWordsEncoder())


@pytest.fixture(scope="module")
def minilm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The six passages as `index build` indexes them, with a seventh row that has been skipped."""
    base = tmp_path_factory.mktemp("minilm")
    corpus = write_corpus(base / "corpus.jsonl", [*PLANETS, PLANETS[0]])
    arguments = ["build", "--corpus", str(corpus), "--out", str(base / "index"), "--skip-bad"]
    built = CliRunner().invoke(app, [*arguments, "--retriever", "hybrid"])
    assert built.exit_code == 0, built.output
    return base / "index"


@pytest.mark.slow
def test_the_manifest_of_a_build_says_all_that_decides_what_is_found(minilm_folder: Path) -> None:
    """Would catch a manifest that lacks what a later check, or a reader of a paper, must know."""
    manifest = orjson.loads((minilm_folder / MANIFEST_FILE).read_bytes())
    dense, encoder = manifest["dense"], manifest["dense"]["encoder"]
    (weights,) = (Path(location_of("all-MiniLM-L6-v2"))).rglob("*.safetensors")
    digest = hashlib.sha256(hashlib.sha256(weights.read_bytes()).digest()).hexdigest()
    assert encoder.pop("dtype") in ("bfloat16", "float32")
    assert encoder == {
        "name": "all-MiniLM-L6-v2",
        "revision": f"sha256:{digest}",
        "query_prefix": "",
        "passage_prefix": "",
        "dimension": 384,
        "max_length_tokens": 256,
        "pooling": "mean",
        "backend": "torch",
    }
    assert (dense["metric"], dense["is_normalised"]) == ("inner_product", True)
    assert (dense["kind"], dense["kind_reason"], dense["factory"]) == ("flat", "asked for", "Flat")
    stored = (minilm_folder / "passages.jsonl").read_bytes()
    assert manifest["corpus_sha256"] == hashlib.sha256(stored).hexdigest()
    assert (manifest["num_passages"], manifest["num_skipped"]) == (6, {"duplicate": 1})
    assert {"numpy", "sentence-transformers", "torch", "transformers", "bm25s", "PyStemmer"} < set(manifest["versions"])
    assert manifest["versions"] == {name: version(name) for name in manifest["versions"]}
    # Five of six passages, evenly spread.
    texts = [" ".join(passage_text(PLANETS[row]).split()[:12]) for row in (0, 1, 2, 3, 5)]
    for part in ("dense", "bm25"):
        canaries = manifest[part]["canaries"]
        assert [canary["query"] for canary in canaries] == texts
        found = open_retriever(minilm_folder, part)[0].search(texts, top_k=3)
        assert [canary["passage_ids"] for canary in canaries] == [[hit.passage.id for hit in hits] for hits in found]
        assert [canary["passage_ids"][0] for canary in canaries] == ["mercury", "venus", "earth", "mars", "pluto"]


@pytest.mark.slow
def test_eval_judges_an_index_at_the_command_line(minilm_folder: Path, tmp_path: Path) -> None:
    """Would catch options that do not reach the measurement, an exact index that is not, or hits counted past k."""
    asked = {
        "Which planet is the hottest?": "Venus",
        "What was called a planet until 2006?": "Pluto",
        "Which planet is red?": "Saturn",
        # Its passage is the best, the answer stands in another.
        "Mercury is the smallest planet and has no moon": "hottest",
    }
    rows = [{"id": f"{n}", "question": text, "golden_answers": [gold]} for n, (text, gold) in enumerate(asked.items())]
    questions = tmp_path / "questions.jsonl"
    questions.write_bytes(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows))
    arguments = ["eval", "--index", str(minilm_folder), "--questions", str(questions), "--top-k", "3"]
    measured = CliRunner().invoke(app, [*arguments, "--json"])
    assert measured.exit_code == 0, measured.output
    quality = orjson.loads(measured.stdout)
    assert (quality["num_questions"], quality["queries_per_second"] > 0) == (4, True)
    figures = [(row["top_k"], row["recall"]["mean"], row["answer_hit"]["mean"]) for row in quality["by_k"]]
    assert figures == [(1, 1.0, 0.5), (3, 1.0, 0.75)]
    shown = CliRunner().invoke(app, [*arguments, "--limit", "1", "--no-recall", "--retriever", "bm25"])
    assert shown.exit_code == 0, shown.output
    assert "queries/s, 1 questions" in shown.stdout and "answer hit" in shown.stdout
