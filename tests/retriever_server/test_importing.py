"""`index import`: files of the shape of wiki-18's published ones, small, and all that can be wrong with them."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import orjson
import pytest

from retriever_server.errors import CorpusError, IndexFolderError
from retriever_server.importing import import_index
from retriever_server.opening import check_index, open_retriever
from tests.retriever_server.bag_of_words import PLANETS, BagOfWordsEncoder

CONTENTS = [passage.contents for passage in PLANETS]


def publish(folder: Path, factory: str = "Flat", *, num_parts: int = 2) -> tuple[list[Path], Path]:
    """The parts of a FAISS index (part_aa, part_ab) and wiki-18.jsonl.gz, rows of which are `id` and `contents`."""
    rows = [orjson.dumps({"id": str(row), "contents": text}) for row, text in enumerate(CONTENTS)]
    corpus = folder / "wiki-18.jsonl.gz"
    corpus.write_bytes(gzip.compress(b"\n".join(rows) + b"\n"))
    vectors = faiss.index_factory(256, factory, faiss.METRIC_INNER_PRODUCT)
    vectors.add(BagOfWordsEncoder().encode_passages(CONTENTS))
    whole = faiss.serialize_index(vectors).tobytes()
    size = -(-len(whole) // num_parts)
    parts = [folder / f"part_a{'abc'[number]}" for number in range(num_parts)]
    for number, part in enumerate(parts):
        part.write_bytes(whole[number * size : (number + 1) * size])
    return parts, corpus


@pytest.mark.parametrize(
    ("factory", "num_parts", "kind"), [("Flat", 2, "flat"), ("Flat", 1, "flat"), ("HNSW64", 3, "hnsw")]
)
def test_published_files_become_an_index_as_they_are(factory: str, num_parts: int, kind: str, tmp_path: Path) -> None:
    """Would catch parts joined wrongly, rows beside other passages, or vectors that were encoded again."""
    parts, corpus = publish(tmp_path, factory, num_parts=num_parts)
    import_index(parts, corpus, tmp_path / "index", BagOfWordsEncoder(), with_bm25=num_parts == 1)
    manifest = check_index(tmp_path / "index")
    assert (manifest.num_passages, manifest.parts) == (6, ("dense", "bm25") if num_parts == 1 else ("dense",))
    assert manifest.dense is not None
    assert (manifest.dense.kind, manifest.dense.factory) == (kind, factory)
    assert manifest.dense.kind_reason == f"imported from {', '.join(part.name for part in parts)}"
    assert (tmp_path / "index" / "index.faiss").read_bytes() == b"".join(part.read_bytes() for part in parts)
    retriever, _ = open_retriever(tmp_path / "index", load_encoder=lambda name: BagOfWordsEncoder())
    (hits,) = retriever.search(["red Mars Phobos Deimos"], top_k=1)
    assert (hits[0].passage.id, hits[0].passage.title) == ("3", "Mars")


def drop_the_last_part(parts: list[Path], corpus: Path) -> None:
    del parts[-1]


def swap_the_parts(parts: list[Path], corpus: Path) -> None:
    parts.reverse()


def repeat_a_part(parts: list[Path], corpus: Path) -> None:
    parts.append(parts[-1])


def cut_a_part(parts: list[Path], corpus: Path) -> None:
    parts[-1].write_bytes(parts[-1].read_bytes()[:-4])


def lose_a_part(parts: list[Path], corpus: Path) -> None:
    parts[-1].unlink()


def break_a_vector(parts: list[Path], corpus: Path) -> None:
    content = bytearray(parts[1].read_bytes())
    content[-4:] = np.float32("nan").tobytes()
    parts[1].write_bytes(content)


def change_the_corpus(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[list[Path], Path], None]:
    def damage(parts: list[Path], corpus: Path) -> None:
        rows = gzip.decompress(corpus.read_bytes()).splitlines()
        corpus.write_bytes(gzip.compress(b"\n".join(change(rows))))

    return damage


def without_ids_that_count(rows: list[bytes]) -> list[bytes]:
    return [orjson.dumps({**orjson.loads(row), "id": f"x{number}"}) for number, row in enumerate(reversed(rows))]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop_the_last_part, "part_aa: not a FAISS index, or cut short"),
        (swap_the_parts, "part_ab: does not begin a FAISS index; give its parts in their order"),
        (repeat_a_part, "a part is missing, cut short or there twice"),
        (cut_a_part, "not a FAISS index, or cut short"),
        (lose_a_part, "part_ab: cannot be read"),
        (break_a_vector, "the vector of row 5 is not finite"),
        (change_the_corpus(lambda rows: rows[:-1]), "rows of vectors 6, but it must be 5"),
        (change_the_corpus(lambda rows: rows[::-1]), "of 6 passages find themselves"),
        (change_the_corpus(lambda rows: [rows[0], *rows[:0:-1]]), "passage 2 has id '5', not '1'"),
        (change_the_corpus(without_ids_that_count), "of 6 passages find themselves"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(
    damage: Callable[[list[Path], Path], None], message: str, tmp_path: Path
) -> None:
    """Would catch an index whose every answer is the passage of another row."""
    parts, corpus = publish(tmp_path)
    damage(parts, corpus)
    with pytest.raises(IndexFolderError, match=message) as caught:
        import_index(parts, corpus, tmp_path / "index", BagOfWordsEncoder())
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "index").exists() and not (tmp_path / ".index.building").exists()


def test_another_encoder_is_refused(tmp_path: Path) -> None:
    """Would catch a mistyped model: a server that finds noise, and never says so."""
    parts, corpus = publish(tmp_path)
    with pytest.raises(IndexFolderError, match="not those that encoder 'bag-of-words' gives this corpus"):
        import_index(parts, corpus, tmp_path / "index", BagOfWordsEncoder(flipped=True))
    with pytest.raises(IndexFolderError, match="dimension 256, but it must be 64"):
        import_index(parts, corpus, tmp_path / "index", BagOfWordsEncoder(dimension=64))


def test_a_corpus_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    """Would catch a half-downloaded corpus."""
    parts, corpus = publish(tmp_path)
    corpus.write_bytes(corpus.read_bytes()[:-30])
    with pytest.raises(CorpusError, match="damaged or cut short"):
        import_index(parts, corpus, tmp_path / "index", BagOfWordsEncoder())
