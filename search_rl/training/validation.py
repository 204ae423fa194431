"""The dev questions between the steps of a run, through verl's own validation: greedy, by the same agent loop."""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from search_rl.training import monitor
from search_rl.training.dev_set import dev_metrics, dev_result, keep_if_best
from search_rl.training.run_folder import RunFolder, read_metrics


class DevSteps(PPOTrainer):
    """Goes before one of verl's trainers in a class's bases. verl saves a step before it validates it."""

    _settings: Any
    _folder: RunFolder

    def _init_dataloader(self) -> None:
        """The first dev questions of the file; verl's own limit would draw them at random where data is shuffled."""
        super()._init_dataloader()
        num_questions = min(self._settings["eval_questions"], len(self.val_dataset))
        self.val_dataset.dataframe = self.val_dataset.dataframe.select(range(num_questions))

    def on_init_end(self) -> None:
        """A run that was killed between saving and validating a step makes up for it when it goes on."""
        super().on_init_end()
        self.config.trainer.val_before_train = self._owes_result()

    def _owes_result(self) -> bool:
        every, step = self.config.trainer.test_freq, self.global_steps
        if every <= 0 or not step or step % every:
            return False
        rows = read_metrics(self._folder.root / "metrics.jsonl")
        return not any(row["step"] == step and "dev/exact_match" in row for row in rows)

    def on_validate_begin(self) -> None:
        """Episodes of the dev questions beat as those of a step do."""
        monitor.beat("validation")
        super().on_validate_begin()

    def on_validate_end(self) -> None:
        """All answered."""
        super().on_validate_end()
        monitor.beat("metrics")

    def _val_metrics_update(
        self,
        data_sources: Any,
        sample_uids: Any,
        reward_extra_infos_dict: dict[str, list[Any]],
        sample_turns: Any,
        expected_acc_counts: dict[tuple[str, str], int] | None = None,
    ) -> dict[str, float]:
        """The dev metrics, in place of verl's means over the rows that came back. A result that was owed goes to the
        row that its step wrote before the kill."""
        num_questions = sum((expected_acc_counts or {}).values())
        result = dev_result(self.global_steps, num_questions, reward_extra_infos_dict)
        figures = dev_metrics(result, best=keep_if_best(self._folder, result), scores=reward_extra_infos_dict)
        self._folder.add_metrics(self.global_steps, figures)
        return figures
