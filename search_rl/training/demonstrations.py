"""Protocol demonstrations made by program: the oracle's searches, the live retriever's passages, the golden answer.

They are episodes of the very loop that is trained later, with a scripted engine in the policy's place, so prompt,
layout and mask cannot differ. A question whose evidence the retriever does not bring is left out: its demonstration
would teach to answer from nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from search_rl import records
from search_rl.agent.episode import Limits, run_episode
from search_rl.agent.protocols import AgentProtocol
from search_rl.codec import Codec
from search_rl.datasets.questions import QuestionRow
from search_rl.engines.base import Generation
from search_rl.engines.scripted import ScriptedEngine
from search_rl.errors import DataError, RetrieverError
from search_rl.evidence import evidence_among, evidence_of
from search_rl.rewards import score
from search_rl.search import Searcher
from search_rl.types import Answer, Rollout, Search, StopReason, Trajectory

CONCURRENT_EPISODES = 32


def choose_rows(
    rows: Sequence[QuestionRow],
    *,
    relations: Sequence[str],
    mix: Mapping[str, float],
    count: int,
    seed: int,
) -> list[QuestionRow]:
    """`count` rows of the named relations (all when none is named) in a seeded order, kinds in the proportions of `mix`
    (equal when it is empty; a kind that it does not name is left out).

    Raises DataError for a relation that no row asks about, or a kind that no row is of.
    """
    known = {row.relation for row in rows}
    for relation in relations:
        if relation not in known:
            raise DataError(f"sft.relations: no question asks about {relation!r}; known: {', '.join(sorted(known))}")
    kinds = {row.question.kind for row in rows}
    for kind in mix:
        if kind not in kinds:
            raise DataError(f"sft.mix: no question is of kind {kind!r}; known: {', '.join(sorted(kinds))}")
    weights = {kind: weight for kind, weight in (mix or dict.fromkeys(kinds, 1.0)).items() if weight > 0}
    chosen = [
        row
        for row in rows
        if row.oracle_queries and row.question.kind in weights and (not relations or row.relation in relations)
    ]
    random.Random(seed).shuffle(chosen)
    num_of_kind: Counter[str] = Counter()
    order = []
    for position, row in enumerate(chosen):
        kind = row.question.kind
        order.append((num_of_kind[kind] / weights[kind], position))
        num_of_kind[kind] += 1
    return [chosen[position] for _, position in sorted(order)][:count]


async def demonstrate(
    rows: Sequence[QuestionRow], *, searcher: Searcher, codec: Codec, protocol: AgentProtocol, limits: Limits
) -> list[Rollout]:
    """The demonstrations of `rows` in order; rows whose evidence was not found are left out.

    Raises RetrieverError when a search fails: nothing is learned from a broken retriever.
    """
    gate = asyncio.Semaphore(CONCURRENT_EPISODES)

    async def one(row: QuestionRow) -> Trajectory:
        actions: list[Search | Answer] = [Search(query) for query in row.oracle_queries]
        actions.append(Answer(row.question.golden_answers[0]))
        replies = [protocol.reply_ids(codec, action) for action in actions]
        script = [Generation(token_ids, (0.0,) * len(token_ids)) for token_ids in replies]
        engine = ScriptedEngine(script, codec)
        async with gate:
            return await run_episode(
                row.question, engine=engine, searcher=searcher, codec=codec, protocol=protocol, limits=limits
            )

    trajectories = await asyncio.gather(*(one(row) for row in rows))
    num_void = sum(trajectory.is_void for trajectory in trajectories)
    if num_void:
        raise RetrieverError(f"{num_void} of {len(rows)} demonstrations lost their search: mend the retriever first")
    return [
        Rollout(trajectory, score(trajectory), group_id=trajectory.question.key)
        for trajectory in trajectories
        if _is_grounded(trajectory)
    ]


def _is_grounded(trajectory: Trajectory) -> bool:
    """True when the episode answered and every piece of evidence stood in what it read."""
    found = evidence_among(trajectory.question, trajectory.passages_read)
    return trajectory.stop_reason is StopReason.ANSWERED and found == evidence_of(trajectory.question)


class DemonstrationDataset:
    """Stored demonstrations as verl's SFT trainer takes a data set: ids, positions and loss mask, unpadded."""

    def __init__(self, parquet_files: Sequence[str] | str, max_samples: int = -1, **_: object) -> None:
        paths = [parquet_files] if isinstance(parquet_files, str) else list(parquet_files)
        rollouts = [record.rollout for path in paths for record in records.read(Path(path))]
        self._trajectories = [rollout.trajectory for rollout in rollouts][: max_samples if max_samples > 0 else None]

    def __len__(self) -> int:
        return len(self._trajectories)

    def __getitem__(self, index: int) -> dict[str, object]:
        import torch

        trajectory = self._trajectories[index]
        token_ids = (*trajectory.prompt.token_ids, *trajectory.response_ids)
        mask = (*(False for _ in trajectory.prompt.token_ids), *trajectory.response_mask)
        return {
            "input_ids": torch.tensor(token_ids),
            "position_ids": torch.arange(len(token_ids)),
            "loss_mask": torch.tensor(mask, dtype=torch.int64),
        }
