"""The field's question sets by name: where they are published, how many rows they have, and how a row reads.

Search-R1 (2503.09516) trains on NQ and HotpotQA and tests on seven sets, all taken from FlashRAG's collection: the test
split where there is one, else dev. Their sizes add up to 51,713 for testing and 169,615 for training. A row is JSON
with `id`, `question`, `golden_answers` and a `metadata` whose types differ within one file, which is why the `datasets`
library cannot load some of them; so files are read here, line by line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from search_rl.datasets.questions import QuestionRow, question_row
from search_rl.datasets.rows import RowFault, fields_of
from search_rl.errors import unknown_name

FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"
SEARCH_R1 = "PeterJinGo/nq_hotpotqa_train"
FANOUTQA_PACKAGE = "fanoutqa"


@dataclass(frozen=True, slots=True)
class Part:
    """One published file: `repository` of the hub (or a Python package), the path in it, and its number of rows."""

    dataset: str
    repository: str
    path: str
    num_rows: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A named question set: the parts that it is made of, in order."""

    name: str
    split: str
    parts: tuple[Part, ...]

    @property
    def num_rows(self) -> int:
        """How many questions it has."""
        return sum(part.num_rows for part in self.parts)


def _flashrag(dataset: str, split: str, num_rows: int) -> Part:
    return Part(dataset, FLASHRAG, f"{dataset}/{split}.jsonl", num_rows)


_TESTS = (
    _flashrag("nq", "test", 3_610),
    _flashrag("triviaqa", "test", 11_313),
    _flashrag("popqa", "test", 14_267),
    _flashrag("hotpotqa", "dev", 7_405),
    _flashrag("2wikimultihopqa", "dev", 12_576),
    _flashrag("musique", "dev", 2_417),
    _flashrag("bamboogle", "test", 125),
)
_TRAINS = (_flashrag("nq", "train", 79_168), _flashrag("hotpotqa", "train", 90_447))
_FANOUTQA = Part(
    "fanoutqa",
    FANOUTQA_PACKAGE,
    "data/fanout-final-dev.json",
    310,
    "359300b029c6891567816f351bf8786e9b018d7af8a1a44b7da9ba5ef4651288",  # of version 1.1.1
)

BENCHMARKS: Mapping[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        *(Benchmark(part.dataset, "test", (part,)) for part in _TESTS),
        Benchmark("search_r1_test", "test", _TESTS),
        Benchmark("search_r1_train", "train", _TRAINS),
        Benchmark("nq_hotpotqa_train", "train", (Part("", SEARCH_R1, "train.parquet", 169_615),)),
        Benchmark("nq_hotpotqa_test", "test", (Part("", SEARCH_R1, "test.parquet", 51_713),)),
        Benchmark("fanoutqa", "test", (_FANOUTQA,)),
    )
}


def benchmark_named(name: str) -> Benchmark:
    """The benchmark of that name. Raises ConfigError, which names the nearest one."""
    if name not in BENCHMARKS:
        raise unknown_name("data set", name, BENCHMARKS)
    return BENCHMARKS[name]


def published_row(record: Any, part: Part) -> QuestionRow:
    """One row of a published file. Raises RowFault."""
    fields = fields_of(record)
    if part.repository == FANOUTQA_PACKAGE:
        fields = _fanoutqa_fields(fields)
    return question_row({**fields, **({"data_source": part.dataset} if part.dataset else {})})


def _fanoutqa_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """FanOutQA's row (Zhu et al., 2402.14116). Most answers are tables or lists: their values make one gold text, which
    F1 can be measured against and exact match hardly ever meets. FanOutQA's own loose accuracy is another score."""
    if "answer" not in fields:
        raise RowFault("answer is missing")
    values = list(_leaves(fields["answer"]))
    return {
        "id": fields.get("id"),
        "question": fields.get("question"),
        "golden_answers": [", ".join(values)] if values else [],
        "kind": "one_answer" if len(values) == 1 else "several_answers",
        "extra_info": {"evidence_titles": list(dict.fromkeys(_article_titles(fields)))},
    }


def _article_titles(fields: Mapping[str, Any]) -> Iterator[str]:
    """The articles that the steps of the decomposition were answered from; steps may have steps of their own."""
    match fields.get("evidence"):
        case {"title": str(title)}:
            yield title
    steps = fields.get("decomposition")
    for step in steps if isinstance(steps, list) else ():
        if isinstance(step, Mapping):
            yield from _article_titles(step)


def _leaves(answer: Any) -> Iterable[str]:
    if isinstance(answer, Mapping):
        answer = list(answer.values())
    if isinstance(answer, list):
        for item in answer:
            yield from _leaves(item)
    elif isinstance(answer, bool):
        yield "yes" if answer else "no"
    elif answer is not None:
        yield str(answer)
