"""What an evaluation cost: tokens, searches, seconds, and with a price table money."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from pydantic import Field, ValidationError

from search_rl.config import Section
from search_rl.errors import ConfigError, unknown_name
from search_rl.records import Record
from search_rl.types import Trajectory


@dataclass(frozen=True, slots=True)
class Usage:
    """What episodes sent to the engine and got back.

    `sent_tokens` counts the whole context at each call, as a provider bills it; of these, `repeated_tokens` had been
    sent or written before in the same episode, which a prefix cache serves.
    """

    num_calls: int = 0
    sent_tokens: int = 0
    repeated_tokens: int = 0
    written_tokens: int = 0
    num_searches: int = 0
    search_seconds: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.num_calls + other.num_calls,
            self.sent_tokens + other.sent_tokens,
            self.repeated_tokens + other.repeated_tokens,
            self.written_tokens + other.written_tokens,
            self.num_searches + other.num_searches,
            self.search_seconds + other.search_seconds,
        )


class ModelPrice(Section):
    """What one model costs; cached input costs what fresh input does unless told otherwise."""

    input_per_million_tokens: float = Field(default=0.0, ge=0)
    cached_input_per_million_tokens: float | None = Field(default=None, ge=0)
    output_per_million_tokens: float = Field(default=0.0, ge=0)
    engine_per_hour: float = Field(default=0.0, ge=0)


class PriceTable(Section):
    """Prices by the name of a model, as served or as the name of its folder; searches cost the same under each."""

    currency: str
    search_per_thousand: float = Field(default=0.0, ge=0)
    models: Mapping[str, ModelPrice]


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of one evaluation."""

    currency: str
    search_per_thousand: float
    model: ModelPrice

    def money(self, usage: Usage, engine_seconds: float) -> float:
        """What all of it cost."""
        price = self.model
        cached = price.cached_input_per_million_tokens
        cached = price.input_per_million_tokens if cached is None else cached
        fresh_tokens = usage.sent_tokens - usage.repeated_tokens
        tokens = fresh_tokens * price.input_per_million_tokens
        tokens += usage.repeated_tokens * cached + usage.written_tokens * price.output_per_million_tokens
        searches = usage.num_searches * self.search_per_thousand / 1000
        return tokens / 1e6 + searches + engine_seconds * price.engine_per_hour / 3600


@dataclass(frozen=True, slots=True)
class Cost:
    """What all questions cost together, over all runs that the evaluation took.

    `engine_seconds` are those in which the engine had work, `usage.search_seconds` the sum over searches, which wait
    beside each other. `money` is None without prices.
    """

    num_questions: int
    num_right: float
    usage: Usage
    wall_seconds: float
    engine_seconds: float
    currency: str | None = None
    money: float | None = None

    @property
    def money_per_question(self) -> float | None:
        """None without prices."""
        return None if self.money is None else self.money / self.num_questions

    @property
    def money_per_right_answer(self) -> float | None:
        """Exact matches count; None without prices, and where nothing was right."""
        return None if self.money is None or not self.num_right else self.money / self.num_right


@dataclass(slots=True)
class CostTally:
    """Adds up the rows of an episode file, those of questions that were asked again among them: they cost too."""

    usage: Usage = Usage()
    _seconds: dict[float, float] = field(default_factory=dict)
    _engine_seconds: dict[float, float] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        """Count a row."""
        self.usage += usage_of(record.rollout.trajectory)
        session = record.metadata.get("session")
        if session is not None:
            self._keep_latest(self._seconds, session, record.metadata["seconds"])
            self._keep_latest(self._engine_seconds, session, record.metadata["engine_seconds"])

    def cost(self, *, num_questions: int, num_right: float, prices: Prices | None) -> Cost:
        """What it came to."""
        engine_seconds = sum(self._engine_seconds.values())
        return Cost(
            num_questions=num_questions,
            num_right=num_right,
            usage=self.usage,
            wall_seconds=sum(self._seconds.values()),
            engine_seconds=engine_seconds,
            currency=None if prices is None else prices.currency,
            money=None if prices is None else prices.money(self.usage, engine_seconds),
        )

    @staticmethod
    def _keep_latest(latest: dict[float, float], session: float, seconds: float) -> None:
        latest[session] = max(latest.get(session, 0.0), seconds)


def usage_of(trajectory: Trajectory) -> Usage:
    """The usage of one episode; each of its turns is a call."""
    context_tokens = len(trajectory.prompt.token_ids)
    sent_tokens = repeated_tokens = written_tokens = known_tokens = 0
    for turn in trajectory.turns:
        sent_tokens += context_tokens
        repeated_tokens += known_tokens
        written_tokens += len(turn.policy.token_ids)
        known_tokens = context_tokens + len(turn.policy.token_ids)
        context_tokens = known_tokens + (len(turn.environment.token_ids) if turn.environment else 0)
    search_seconds = trajectory.given_seconds + sum(turn.search_seconds for turn in trajectory.turns)
    return Usage(
        len(trajectory.turns),
        sent_tokens,
        repeated_tokens,
        written_tokens,
        trajectory.num_searches,
        search_seconds,
    )


def read_prices(path: Path, model: str) -> Prices:
    """The prices of a model from a YAML table.

    Raises ConfigError for a file that is no such table, and for a model that it does not name.
    """
    try:
        table = PriceTable.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"price table {path} cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"price table {path} is not YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"]) or "the table"
        raise ConfigError(f"price table {path}: {where}: {fault['msg']}") from error
    names = [name for name in (model, Path(model).name) if name in table.models]
    if not names:
        raise unknown_name(f"model in price table {path}", Path(model).name, table.models)
    return Prices(table.currency, table.search_per_thousand, table.models[names[0]])
