"""Builds the Factbook data set: corpus, three question files and a data card; one seed, one set of bytes."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from retriever_server.schema import Passage
from search_rl.datasets.factbook.card import LICENCE, FactbookCard, count_kinds, count_relations, file_digest
from search_rl.datasets.factbook.compose import KINDS, balanced, compose_questions
from search_rl.datasets.factbook.corpus import build_corpus
from search_rl.datasets.factbook.facts import Fact, extract_facts
from search_rl.datasets.factbook.source import PACKAGE, Entry, load_entries, package_version
from search_rl.datasets.factbook.splits import SPLITS, naming, split_countries
from search_rl.datasets.questions import QuestionRow, RenderPrompt, write_questions
from search_rl.errors import DataError

CORPUS_FILE = "corpus.jsonl"
DEFAULT_SEED = 17
_NUM_EACH_KIND: Mapping[str, int] = {"dev": 120, "test": 300}


def build_factbook(out_dir: Path, *, seed: int = DEFAULT_SEED, render_prompt: RenderPrompt = str) -> FactbookCard:
    """The card of the data now in `out_dir`: corpus.jsonl, train, dev and test.parquet, data_card.json.

    Takes about ten seconds. Train, dev and test share no country, as subject, bridge or side of a comparison.
    The card is written last: without it a build is not whole. Raises DataError when the source package is not
    installed or the folder cannot be written.
    """
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        return _build(out_dir, seed, render_prompt)
    except OSError as error:
        raise DataError(f"cannot write the data set to {out_dir}: {error}") from error


def _build(folder: Path, seed: int, render_prompt: RenderPrompt) -> FactbookCard:
    entries = load_entries()
    passages = build_corpus(entries)
    facts = extract_facts(entries, {passage.id: passage for passage in passages})
    countries = split_countries({fact.entry.code: fact.entry for fact in facts}.values(), seed=seed)
    rows = {
        split: _split_rows(split, facts, passages, countries=countries, entries=entries, seed=seed) for split in SPLITS
    }
    _write_corpus(folder / CORPUS_FILE, passages)
    for split in SPLITS:
        write_questions(folder / f"{split}.parquet", rows[split], split=split, render_prompt=render_prompt)
    card = _card(folder, passages, rows, countries, seed)
    card.write(folder)
    return card


def _split_rows(
    split: str,
    facts: Sequence[Fact],
    passages: Sequence[Passage],
    *,
    countries: Mapping[str, Sequence[Entry]],
    entries: Sequence[Entry],
    seed: int,
) -> list[QuestionRow]:
    codes = {entry.code for entry in countries[split]}
    foreign = naming(entry for entry in entries if entry.code not in codes)
    own_facts = [fact for fact in facts if fact.entry.code in codes]
    chooser = random.Random(f"{seed}/{split}")
    composed = compose_questions(own_facts, passages, chooser=chooser)
    kept = {kind: [row for row in composed[kind] if not foreign.search(row.question.text)] for kind in KINDS}
    if split in _NUM_EACH_KIND:
        return balanced(kept, num_each=_NUM_EACH_KIND[split])
    rows = [row for kind in KINDS for row in kept[kind]]
    chooser.shuffle(rows)
    return rows


def _write_corpus(path: Path, passages: Sequence[Passage]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for passage in passages:
            row = {
                "id": passage.id,
                "title": passage.title,
                "text": passage.text,
                "contents": passage.contents,
                "url": passage.url,
            }
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _card(
    folder: Path,
    passages: Sequence[Passage],
    rows: Mapping[str, Sequence[QuestionRow]],
    countries: Mapping[str, Sequence[Entry]],
    seed: int,
) -> FactbookCard:
    lengths = [len(passage.text.split()) for passage in passages]
    names = (CORPUS_FILE, *(f"{split}.parquet" for split in SPLITS))
    return FactbookCard(
        source=f"{PACKAGE} {package_version()}",
        licence=LICENCE,
        seed=seed,
        num_passages=len(passages),
        mean_passage_words=round(sum(lengths) / len(lengths), 1),
        max_passage_words=max(lengths),
        num_questions={split: len(rows[split]) for split in SPLITS},
        num_by_kind={split: count_kinds(rows[split]) for split in SPLITS},
        num_by_relation={split: count_relations(rows[split]) for split in SPLITS},
        countries={split: [entry.name for entry in countries[split]] for split in SPLITS},
        sha256={name: file_digest(folder / name) for name in names},
    )
