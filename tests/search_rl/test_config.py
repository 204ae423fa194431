"""The config file: every file in configs/ loads, and each kind of mistake is told in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from search_rl.config import AgentSection, Config, load_config
from search_rl.errors import ConfigError
from search_rl.search import SearchClient

CONFIGS = sorted(Path("configs").glob("*.yaml"))
DEMO = Path("configs/demo.yaml")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_of_the_project_loads(path: Path) -> None:
    """Would catch a config file that a renamed key left behind."""
    assert load_config(path).run.name


def test_override_wins_over_the_file() -> None:
    """Would catch an override that is parsed as text where the key is a number."""
    config = load_config(DEMO, ["optimizer.learning_rate=0.5", "run.seed=7", "data.dev=[a.parquet]"])
    assert (config.optimizer.learning_rate, config.run.seed) == (0.5, 7)
    assert config.data.dev == (Path("a.parquet"),)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.learning_rat=1", "unknown key optimizer.learning_rat: did you mean learning_rate?"),
        ("agnet.max_turns=1", "unknown key agnet: did you mean agent?"),
        ("agent.max_turns=many", "agent.max_turns: Input should be a valid integer"),
        ("rollout.temperature=0", "rollout.temperature: Input should be greater than 0 (got 0)"),
        (
            "optimizer.mini_batch_prompts=3",
            "optimizer.mini_batch_prompts=3 must divide rollout.prompts_per_step=8",
        ),
        (
            "trainer.eval_every_steps=15",
            "trainer: trainer.eval_every_steps=15 must be a multiple of trainer.save_every_steps=16: the best step",
        ),
        ("model.path", "--set model.path: write it as section.key=value"),
        ("run.name.x=1", "--set run.name.x=1: name is a value, not a section"),
        ("run.name=[", "--set run.name=[: the value is not YAML; quote it"),
        ("hardware.platform=tpu", "hardware.platform: Input should be 'cpu' or 'gpu' (got 'tpu')"),
    ],
)
def test_mistakes_are_named(override: str, message: str) -> None:
    """Would catch a typo that trains with a default, and an error that does not say what to do."""
    with pytest.raises(ConfigError) as caught:
        load_config(DEMO, [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_preset_fills_in_what_the_file_leaves_open(tmp_path: Path) -> None:
    """Would catch a preset that overrules the file, that stops at one section, or that a report does not name."""
    path = tmp_path / "config.yaml"
    path.write_text("run: {name: x}\nmodel: {path: m}\ndata: {train: [a], dev: [b]}\ntrainer: {total_steps: 1}\n")
    default, paper = load_config(path), load_config(path, ["agent.preset=paper"])
    assert default.agent.budgets == {**paper.agent.budgets, "max_response_tokens": 4500}
    assert default.agent == Config.model_validate(yaml.safe_load(path.read_text())).agent
    assert list(paper.agent.budgets.values()) == [4, 500, 500, 2048, 4096]
    assert (paper.retriever.top_k, paper.rollout.temperature, paper.rollout.top_p) == (3, 1.0, 1.0)
    assert (default.budgets_label, paper.budgets_label) == ("default", "paper")
    changed = load_config(path, ["agent.preset=paper", "agent.max_turns=2", "retriever.top_k=5", "rollout.top_p=0.95"])
    assert changed.budgets_label == "paper, but max_turns=2, top_k=5, top_p=0.95"
    assert changed.agent.max_response_tokens == 4096
    with pytest.raises(ConfigError, match=r"agent.preset: Input should be 'default' or 'paper' \(got 'papr'\)"):
        load_config(path, ["agent.preset=papr"])


def test_the_corrected_default_holds_every_turn_at_full_length() -> None:
    """Would catch a default under which the answer falls off the end (D8)."""
    agent = AgentSection()
    turns, observations = (agent.max_turns + 1) * agent.max_turn_tokens, agent.max_turns * agent.max_observation_tokens
    assert agent.max_response_tokens >= turns + observations


def test_retriever_url_is_one_or_a_list() -> None:
    """Would catch a list of services that is read as one odd URL, and a client that is not told every option."""
    one = load_config(DEMO).retriever
    many = load_config(DEMO, ["retriever.url=[http://a:1,http://b:2]", "retriever.cache_entries=0"]).retriever
    assert (one.urls, many.urls) == (("http://127.0.0.1:8000",), ("http://a:1", "http://b:2"))
    assert SearchClient(**many.client_options).urls == many.urls


def test_missing_file_and_bad_yaml(tmp_path: Path) -> None:
    """Would catch a traceback in place of a message."""
    with pytest.raises(ConfigError, match="no config file at"):
        load_config(tmp_path / "none.yaml")
    for text, message in [
        ("a: [", "is not YAML"),
        ("- a", "a config is a mapping of sections"),
        ("run: {}", "missing key"),
    ]:
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_config(tmp_path / "bad.yaml")
