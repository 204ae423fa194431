"""One episode in a terminal, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from search_rl import rewards
from search_rl.types import Malformed, SearchResult, StopReason, Trajectory

_INDENT = (0, 0, 0, 4)
_LONGEST_PASSAGE_CHARACTERS = 320


@dataclass(slots=True)
class EpisodeView:
    """Prints the pieces of one episode in order."""

    console: Console
    _num_turns: int = 0

    def question(self, text: str, golden_answers: Sequence[str] = ()) -> None:
        """The question, and its accepted answers where they are known."""
        self.console.print(Text("Question  ", "bold").append(text, "not bold"))
        if golden_answers:
            self.console.print(Text("Accepted  ", "bold").append(" | ".join(golden_answers), "not bold"))

    def policy(self, text: str, *, num_tokens: int, seconds: float) -> None:
        """What the policy wrote in its next turn, and what the protocol makes of it."""
        self._num_turns += 1
        self.console.print()
        heading = Text(f"Turn {self._num_turns}", "bold cyan")
        self.console.print(heading.append(f"  {num_tokens} tokens, {seconds:.2f} s", "not bold dim"))
        self.console.print(Padding(Text(text.strip("\n"), "cyan"), _INDENT))

    def malformed(self, action: Malformed) -> None:
        """Why the turn held no action."""
        self.console.print(Padding(Text(f"malformed: {action.reason}", "red"), _INDENT))

    def result(self, result: SearchResult, *, seconds: float) -> None:
        """The passages that a search returned, best first, long ones shortened for the eye."""
        heading = Text("Search  ", "bold yellow").append(result.query, "not bold")
        count = f"  {len(result.passages)} passages, {seconds:.2f} s"
        self.console.print(heading.append(count, "not bold dim"))
        table = Table.grid(padding=(0, 2, 0, 0))
        for hit in result.passages:
            passage = Text(hit.passage.title, "bold").append(f"  {_shortened(hit.passage.text)}", "not bold dim")
            table.add_row(Text(f"{hit.score:.3f}", "yellow"), passage)
        self.console.print(Padding(table, _INDENT))

    def ending(self, trajectory: Trajectory) -> None:
        """The answer, whether it is right where that is known, and what the episode cost."""
        self.console.print()
        answer = trajectory.answer
        line = Text("Answer  ", "bold").append("none" if answer is None else answer, _verdict_style(trajectory))
        self.console.print(line)
        num_policy, num_response = sum(trajectory.response_mask), len(trajectory.response_ids)
        seconds = sum(turn.generate_seconds + turn.search_seconds for turn in trajectory.turns)
        facts = (
            f"stopped by {trajectory.stop_reason}",
            f"{len(trajectory.turns)} turns",
            f"{trajectory.num_searches} searches",
            f"{num_policy} tokens written, {num_response - num_policy} read",
            f"{seconds:.2f} s",
        )
        self.console.print(Text(" · ".join(facts), "dim"))


def show(trajectory: Trajectory, console: Console) -> None:
    """Print a whole stored episode."""
    view = EpisodeView(console)
    view.question(trajectory.question.text, trajectory.question.golden_answers)
    for turn in trajectory.turns:
        view.policy(turn.text, num_tokens=len(turn.policy.token_ids), seconds=turn.generate_seconds)
        if isinstance(turn.action, Malformed):
            view.malformed(turn.action)
        for result in turn.observation.results if turn.observation is not None else ():
            view.result(result, seconds=turn.search_seconds)
    view.ending(trajectory)


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_PASSAGE_CHARACTERS else f"{text[:_LONGEST_PASSAGE_CHARACTERS]}…"


def _verdict_style(trajectory: Trajectory) -> str:
    """Green or red where the accepted answers are known."""
    if trajectory.stop_reason is not StopReason.ANSWERED:
        return "red"
    if not trajectory.question.golden_answers:
        return "not bold"
    return "green" if rewards.exact_match(trajectory) else "red"
