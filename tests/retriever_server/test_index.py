"""Index folders: exact search, and the refusal of folders that are not what their manifest says."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retriever_server.dense import DenseIndex, open_dense
from retriever_server.encoders import passage_text
from retriever_server.errors import CorpusError, EncoderError, IndexFolderError
from retriever_server.index import build_index
from retriever_server.manifest import read_manifest
from retriever_server.opening import check_index, open_retriever
from retriever_server.retrievers import Retriever
from retriever_server.schema import Passage
from tests.retriever_server.bag_of_words import PLANETS, BagOfWordsEncoder
from tests.retriever_server.conftest import vouch_for, write_corpus


def ids(retriever: Retriever, query: str, *, top_k: int) -> list[str]:
    """Ids of the hits."""
    return [hit.passage.id for hit in retriever.search([query], top_k=top_k)[0]]


def test_search_agrees_with_brute_force(planets: Retriever) -> None:
    """Would catch rows off by one, another metric, or scores of another passage."""
    encoder = BagOfWordsEncoder()
    query_D = encoder.encode_queries(["the red planet with a moon"])[0]
    scores = encoder.encode_passages([passage_text(passage) for passage in PLANETS]) @ query_D
    expected = sorted(zip(scores, PLANETS, strict=True), key=lambda pair: -pair[0])
    (hits,) = planets.search(["the red planet with a moon"], top_k=4)
    assert [hit.passage for hit in hits] == [passage for _, passage in expected[:4]]
    assert [hit.score for hit in hits] == pytest.approx([score for score, _ in expected[:4]], abs=1e-6)


def test_more_hits_than_rows_never_repeat_the_last_passage(planets: Retriever) -> None:
    """Would catch FAISS's row -1 read as the last passage, with score -3.4e38, as in the reference server."""
    (hits,) = planets.search(["red moon"], top_k=50)
    assert sorted(hit.passage.id for hit in hits) == sorted(passage.id for passage in PLANETS)
    assert all(-1.001 <= hit.score <= 1.001 for hit in hits)


def test_a_query_that_is_not_finite_finds_nothing(planets_folder: Path) -> None:
    """Would catch NaN scores, which JSON cannot carry."""
    index = open_dense(planets_folder, read_manifest(planets_folder))
    queries_ND = np.full((2, 256), np.nan, dtype=np.float32)
    queries_ND[1] = np.inf
    assert index.search(queries_ND, 3) == [[], []]


def test_equal_scores_come_in_row_order(tmp_path: Path) -> None:
    """Would catch an order of duplicates that changes with threads or batch size."""
    twins = [Passage(str(number), "", "the very same words") for number in range(40)]
    build_index(write_corpus(tmp_path / "c.jsonl", twins), tmp_path / "index", BagOfWordsEncoder())
    retriever, _ = open_retriever(tmp_path / "index", load_encoder=lambda name: BagOfWordsEncoder())
    assert ids(retriever, "same words", top_k=5) == ["0", "1", "2", "3", "4"]
    assert ids(retriever, "", top_k=5) == ["0", "1", "2", "3", "4"]


words = st.sampled_from(["moon", "planet", "red", "water", "storm", "two", "the", "is", "xyzzy"])


@settings(max_examples=25)
@given(st.lists(st.lists(words, max_size=6).map(" ".join), min_size=1, max_size=40), st.integers(1, 8))
def test_a_batch_finds_what_single_queries_find(planets: Retriever, queries: list[str], top_k: int) -> None:
    """Would catch answers that move between the queries of a batch, or depend on its size."""
    together = planets.search(queries, top_k=top_k)
    for query, hits in zip(queries, together, strict=True):
        (alone,) = planets.search([query], top_k=top_k)
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in alone], abs=2e-6)
        assert {hit.passage.id for hit in hits} == {hit.passage.id for hit in alone}


@settings(max_examples=20)
@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_search_is_exact_on_random_vectors(num_rows: int, top_k: int, seed: int) -> None:
    """Would catch a hit lost between FAISS's top k and ours."""
    random = np.random.default_rng(seed)
    rows_ND, queries_ND = (random.normal(size=(n, 16)).astype(np.float32) for n in (num_rows, 3))
    vectors = faiss.IndexFlatIP(16)
    vectors.add(rows_ND)

    found = DenseIndex(vectors).search(queries_ND, top_k)
    scores_QN = queries_ND @ rows_ND.T
    for hits, scores_N in zip(found, scores_QN, strict=True):
        best = np.sort(scores_N)[::-1][:top_k]
        assert [score for _, score in hits] == pytest.approx(best.tolist(), abs=1e-4)


def test_the_manifest_says_how_the_index_was_made(planets_folder: Path) -> None:
    """Would catch a manifest that a later check cannot rely on."""
    manifest = check_index(planets_folder)
    assert (manifest.num_passages, manifest.parts) == (6, ("dense",))
    assert manifest.dense is not None
    assert (manifest.dense.encoder.name, manifest.dense.encoder.dimension) == ("bag-of-words", 256)
    assert manifest.canaries[0].passage_ids[0] == "mercury"
    assert manifest.dense.factory == "Flat"
    content = (planets_folder / "index.faiss").read_bytes()
    record = manifest.files["index.faiss"]
    assert (record.num_bytes, record.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert manifest.corpus_sha256 == manifest.files["passages.jsonl"].sha256
    assert set(manifest.files) == {path.name for path in planets_folder.iterdir()} - {"manifest.json"}


def test_a_vector_file_of_another_index_of_that_size_is_refused_unread(planets_folder: Path, tmp_path: Path) -> None:
    """Would catch vectors of another corpus, of the same size, that answer for the passages of this one."""
    folder = tmp_path / "index"
    shutil.copytree(planets_folder, folder)
    others = [Passage(passage.id, passage.title, f"other {passage.text}") for passage in PLANETS]
    build_index(write_corpus(tmp_path / "c.jsonl", others), tmp_path / "other", BagOfWordsEncoder())
    shutil.copy(tmp_path / "other" / "index.faiss", folder)
    with pytest.raises(IndexFolderError, match=r"index\.faiss: not the file that the manifest describes"):
        open_retriever(folder, load_encoder=lambda name: BagOfWordsEncoder())


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def scribble(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def replace(old: bytes, new: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.write_bytes(path.read_bytes().replace(old, new))

    return damage


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("index.faiss", truncate, "the manifest says"),
        ("passages.jsonl", truncate, "the manifest says"),
        ("offsets.npy", truncate, "the manifest says"),
        ("index.faiss", Path.unlink, "index.faiss: missing"),
        ("index.faiss", scribble, "not the file that the manifest describes"),
        ("index.faiss", flip_a_bit, "not the file that the manifest describes"),
        ("offsets.npy", scribble, "not the file that the manifest describes"),
        ("manifest.json", Path.unlink, "not an index folder"),
        ("manifest.json", scribble, "is not JSON"),
        ("manifest.json", replace(b'"format_version": 3', b'"format_version": 9'), "format is 9"),
        ("manifest.json", replace(b'"num_passages": 6', b'"num_passages": 7'), "passages 6, but the manifest says 7"),
        ("manifest.json", replace(b'"dimension": 256', b'"dimension": 255'), "dimension 256, but it must be 255"),
        ("manifest.json", replace(b'"num_passages": 6', b'"num_passages": "six"'), "num_passages"),
    ],
)
def test_a_damaged_or_foreign_index_is_refused(
    file: str, damage: Callable[[Path], None], message: str, planets_folder: Path, tmp_path: Path
) -> None:
    """Would catch a half-copied index that is served, or one that ends in a traceback."""
    folder = tmp_path / "index"
    shutil.copytree(planets_folder, folder)
    damage(folder / file)
    with pytest.raises(IndexFolderError, match=message) as caught:
        check_index(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("damage", "message"), [(scribble, "not a FAISS index"), (truncate, "or cut short")])
def test_a_vector_file_that_is_none_is_refused_even_where_the_manifest_describes_it(
    damage: Callable[[Path], None], message: str, planets_folder: Path, tmp_path: Path
) -> None:
    """Would catch FAISS's own C++ text, or rows that are read beyond the end of the file."""
    folder = tmp_path / "index"
    shutil.copytree(planets_folder, folder)
    damage(folder / "index.faiss")
    vouch_for(folder)
    with pytest.raises(IndexFolderError, match=message):
        check_index(folder)


def test_an_encoder_with_other_weights_is_refused(planets_folder: Path) -> None:
    """Would catch an index that is queried with another model: every answer looks fine and is wrong."""
    with pytest.raises(EncoderError, match="weights have changed"):
        open_retriever(planets_folder, load_encoder=lambda name: BagOfWordsEncoder(flipped=True))
    with pytest.raises(EncoderError, match="dimension was 256 and is 64"):
        open_retriever(planets_folder, load_encoder=lambda name: BagOfWordsEncoder(dimension=64))


def test_a_failed_build_leaves_the_old_index_alone(planets_folder: Path, tmp_path: Path) -> None:
    """Would catch an index that is lost, or half new, because its next corpus had a bad row."""
    out = tmp_path / "index"
    shutil.copytree(planets_folder, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(orjson.dumps(PLANETS[0]) + b"\n{}\n")
    with pytest.raises(CorpusError, match="line 2"):
        build_index(bad, out, BagOfWordsEncoder())
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl", "index"]


def test_a_new_build_replaces_an_index_and_nothing_else(planets_folder: Path, tmp_path: Path) -> None:
    """Would catch a build that deletes a folder which is not an index, or leaves its work folders behind."""
    corpus = write_corpus(tmp_path / "c.jsonl", PLANETS[:2])
    shutil.copytree(planets_folder, tmp_path / "index")
    progress: list[tuple[int, int]] = []
    build_index(
        corpus,
        tmp_path / "index",
        BagOfWordsEncoder(),
        progress=lambda done, total: progress.append((done, total)),
    )
    assert check_index(tmp_path / "index").num_passages == 2
    assert progress == [(2, 2)]
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years of work")
    with pytest.raises(IndexFolderError, match="not an index is in the way"):
        build_index(corpus, tmp_path / "precious", BagOfWordsEncoder())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.jsonl", "index", "precious"]


def test_an_empty_corpus_is_refused(tmp_path: Path) -> None:
    """Would catch an index of nothing, which fails only when it is asked."""
    (tmp_path / "c.jsonl").touch()
    with pytest.raises(IndexFolderError, match="no passages, nothing to index"):
        build_index(tmp_path / "c.jsonl", tmp_path / "index", BagOfWordsEncoder())
