"""Readable stand-ins for the outside world: a real small tokenizer and a searcher with fixed passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from search_rl.codec import Message, Tool
from search_rl.errors import RetrieverError
from search_rl.types import Passage, Question, ScoredPassage, SearchResult

_SENTENCES = [
    "<think>I need the capital of France.</think>\n<search>capital of France</search>",
    '\n\n<information>Doc 1(Title: "Paris") Paris is the capital and largest city of France.\n',
    'Doc 2(Title: "Lyon") Lyon is a city in France.</information>\n\n<answer>Paris</answer>',
    "Question: what is the capital of France? The river Seine flows through Paris. 日本 東京 naïve café",
]


@dataclass(frozen=True, slots=True)
class ByteCodec:
    """A byte-level BPE of a few hundred tokens: every text has ids, and many ids are no valid UTF-8."""

    tokenizer: Tokenizer

    def encode(self, text: str) -> tuple[int, ...]:
        """See Codec."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """See Codec: a plain conversation, without special tokens."""
        return self.encode("".join(f"{message['role']}: {message['content']}\n" for message in messages))

    def decode(self, token_ids: Sequence[int]) -> str:
        """See Codec."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False))

    @property
    def num_tokens(self) -> int:
        """The size of the vocabulary."""
        return int(self.tokenizer.get_vocab_size())


@dataclass(slots=True)
class FixedSearcher:
    """Finds the same passages for every query, or fails with `error`; `queries` keeps what was asked."""

    passages: tuple[ScoredPassage, ...] = ()
    error: str = ""
    queries: list[str] = field(default_factory=list)

    async def search(self, query: str, top_k: int) -> SearchResult:
        """See Searcher."""
        self.queries.append(query)
        if self.error:
            raise RetrieverError(self.error)
        return SearchResult(query, self.passages[:top_k])


def make_byte_codec() -> ByteCodec:
    """Train the tokenizer, in a few milliseconds."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        _SENTENCES, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    return ByteCodec(tokenizer)


@pytest.fixture(scope="session")
def codec() -> ByteCodec:
    """A real tokenizer that is small enough to train here."""
    return make_byte_codec()


@pytest.fixture
def searcher() -> FixedSearcher:
    """Knows two cities."""
    return FixedSearcher((hit("Paris", "Paris is the capital of France."), hit("Lyon", "Lyon is a city.")))


@pytest.fixture
def question() -> Question:
    """The question that the small tokenizer was trained on."""
    return Question("q1", "what is the capital of France", ("Paris",), "demo")


def hit(title: str, text: str, *, score: float = 1.0) -> ScoredPassage:
    """A scored passage whose id is its title."""
    return ScoredPassage(Passage(title, title, text), score)
