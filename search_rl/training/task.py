"""verl's task runner, in a process that knows what this project registers."""

from __future__ import annotations

from typing import Any

from verl.trainer.main_ppo import TaskRunnerV1

_TaskRunner: Any = TaskRunnerV1.__ray_metadata__.modified_class


class SearchTaskRunner(_TaskRunner):
    """verl looks its trainer up by name before it builds the model config that would import the plugin."""

    def run(self, config: Any) -> None:
        """The whole training run."""
        import search_rl.training.plugin  # noqa: F401

        super().run(config)
