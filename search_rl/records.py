"""Rollouts as JSON lines, lossless: what is read back equals what was written, token by token and bit by bit.

Masks and flat lists are not stored, for they are derived from the turns. A row carries its version; metadata
(step, checkpoint, …) rides along untouched. A last row that was cut short by an interruption was never a row:
`read` leaves it out and the next `append` removes it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from search_rl.errors import DataError
from search_rl.types import (
    Action,
    Answer,
    Malformed,
    Observation,
    Origin,
    Passage,
    Question,
    Reward,
    Rollout,
    ScoredPassage,
    Search,
    SearchResult,
    Segment,
    StopReason,
    Trajectory,
    Turn,
)

VERSION = 2
"""Version 1, which is still read, had one query and one result a turn."""

Row = dict[str, Any]

_ACTIONS: Mapping[str, type[Search] | type[Answer] | type[Malformed]] = {
    "search": Search,
    "answer": Answer,
    "malformed": Malformed,
}
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Record:
    """One row: a rollout and the metadata that it was written with."""

    rollout: Rollout
    metadata: Mapping[str, Any] = field(default_factory=dict)


def append(path: Path, rollouts: Iterable[Rollout], metadata: Mapping[str, Any] | None = None) -> None:
    """Add a row for each rollout to the file, which is made when there is none. `metadata` must be JSON."""
    content = b"".join(encode_row(rollout_to_row(rollout, metadata or {})) for rollout in rollouts)
    close_last_row(path)
    with path.open("ab") as file:
        file.write(content)


def encode_row(row: Row) -> bytes:
    """The line of a row, in ASCII: a text that is no valid Unicode has a form there too."""
    return json.dumps(row).encode("ascii") + b"\n"


def decode_row(line: bytes) -> Row:
    """The row of a line. Raises ValueError for what is no JSON."""
    try:
        row: Row = orjson.loads(line)
    except orjson.JSONDecodeError:
        # Infinite numbers and texts that are no valid Unicode, which orjson refuses.
        row = json.loads(line)
    return row


def read(path: Path) -> Iterator[Record]:
    """The records of a file in order, one at a time.

    Raises DataError that names file and line for a row that cannot be read or is of another version.
    """
    return (record for _, record in read_with_offsets(path))


def read_with_offsets(path: Path) -> Iterator[tuple[int, Record]]:
    """Like `read`, each record with the byte at which its line begins."""
    offset_bytes = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield offset_bytes, row_to_record(decode_row(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                if not line.endswith(b"\n") and isinstance(error, ValueError):
                    _logger.warning("%s: line %d was cut short and is left out", path, number)
                    return
                raise DataError(f"{path}:{number}: not a rollout: {_reason(error)}") from error
            offset_bytes += len(line)


def rollout_to_row(rollout: Rollout, metadata: Mapping[str, Any]) -> Row:
    """The JSON form of a rollout."""
    trajectory = rollout.trajectory
    row: Row = {
        "version": VERSION,
        "metadata": dict(metadata),
        "group_id": rollout.group_id,
        "question": _fields(trajectory.question),
        "stop_reason": str(trajectory.stop_reason),
        "failure": trajectory.failure,
        "reward": {**_fields(rollout.reward), "parts": dict(rollout.reward.parts)},
        "prompt_ids": trajectory.prompt.token_ids,
        "turns": [_turn_to_row(turn) for turn in trajectory.turns],
    }
    if trajectory.given is not None:
        row |= {"given": _fields(trajectory.given), "given_seconds": trajectory.given_seconds}
    return row


def row_to_record(row: Row) -> Record:
    """The inverse of `rollout_to_row`. Raises ValueError, KeyError, TypeError or AttributeError for a bad
    row.
    """
    if row["version"] not in (1, VERSION):
        raise ValueError(f"version {row['version']}, this program reads versions 1 to {VERSION}")
    fields: Row = {**row["question"]}
    for name in ("golden_answers", "evidence_ids"):
        fields[name] = tuple(fields[name])
    fields["evidence_titles"] = tuple(fields.get("evidence_titles", ()))
    trajectory = Trajectory(
        Question(**fields),
        Segment(Origin.PROMPT, tuple(row["prompt_ids"])),
        tuple(_turn_from_row(turn) for turn in row["turns"]),
        StopReason(row["stop_reason"]),
        failure=row.get("failure", ""),
        given=_result_from_row(row["given"]) if "given" in row else None,
        given_seconds=row.get("given_seconds", 0.0),
    )
    return Record(Rollout(trajectory, Reward(**row["reward"]), row["group_id"]), row["metadata"])


def _fields(value: Any) -> Any:
    """Dataclasses as objects and tuples as lists, all the way down; `asdict` does it too, with a copy of each text."""
    if isinstance(value, tuple):
        return [_fields(item) for item in value]
    names = getattr(value, "__dataclass_fields__", None)
    return value if names is None else {name: _fields(getattr(value, name)) for name in names}


def _turn_to_row(turn: Turn) -> Row:
    kind = type(turn.action).__name__.lower()
    return {
        "text": turn.text,
        "action": {"kind": kind, **_fields(turn.action)},
        "policy_ids": turn.policy.token_ids,
        "policy_logprobs": turn.policy.logprobs,
        "observation": None if turn.observation is None else _fields(turn.observation),
        "environment_ids": None if turn.environment is None else turn.environment.token_ids,
        "generate_seconds": turn.generate_seconds,
        "search_seconds": turn.search_seconds,
    }


def _turn_from_row(row: Row) -> Turn:
    environment_ids = row["environment_ids"]
    return Turn(
        policy=Segment(Origin.POLICY, tuple(row["policy_ids"]), tuple(row["policy_logprobs"])),
        text=row["text"],
        action=_action_from_row(row["action"]),
        observation=None if row["observation"] is None else _observation_from_row(row["observation"]),
        environment=None if environment_ids is None else Segment(Origin.ENVIRONMENT, tuple(environment_ids)),
        generate_seconds=row["generate_seconds"],
        search_seconds=row["search_seconds"],
    )


def _action_from_row(row: Row) -> Action:
    fields = {name: value for name, value in row.items() if name != "kind"}
    if "more_queries" in fields:
        fields["more_queries"] = tuple(fields["more_queries"])
    return _ACTIONS[row["kind"]](**fields)


def _observation_from_row(row: Row) -> Observation:
    results = row["results"] if "results" in row else [] if row["result"] is None else [row["result"]]
    return Observation(row["text"], tuple(map(_result_from_row, results)), row["num_passages_shortened"])


def _result_from_row(row: Row) -> SearchResult:
    passages = (ScoredPassage(Passage(**hit["passage"]), hit["score"]) for hit in row["passages"])
    return SearchResult(row["query"], tuple(passages))


def close_last_row(path: Path) -> None:
    """Make the file, if there is one, end after a whole row, so that the next one does not grow onto it.

    A file that does is not read, so that many appends cost no more than their rows.
    """
    if not path.exists():
        return
    with path.open("rb+") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return
        file.seek(-1, os.SEEK_END)
        if file.read(1) == b"\n":
            return
        file.seek(0)
        content = file.read()
        last = content[content.rfind(b"\n") + 1 :]
        try:
            json.loads(last)
        except ValueError:
            file.truncate(len(content) - len(last))
        else:
            file.write(b"\n")


def _reason(error: Exception) -> str:
    return f"no field {error}" if isinstance(error, KeyError) else str(error)
