"""vLLM in process: the ids, the stop and the log-probs of a real engine, and nothing left behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from search_rl.agent.episode import Limits, run_episode
from search_rl.agent.protocols import PROTOCOLS, STOP
from search_rl.agent.selection import protocol_for
from search_rl.codec import load_codec
from search_rl.engines.base import Generation, Sampling
from search_rl.engines.vllm_engine import VllmEngine
from search_rl.errors import EngineError, ModelError
from search_rl.types import Question, StopReason, Trajectory
from tests.search_rl.conftest import FixedSearcher, hit, make_byte_codec

pytestmark = pytest.mark.engine

PROMPT = "Question: what is the capital of France?"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer model over the small tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=make_byte_codec().tokenizer)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
        dtype="float32",
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def true_logprobs(checkpoint: Path, prompt_ids: tuple[int, ...], sampled_ids: tuple[int, ...]) -> list[float]:
    """What transformers says of the sampled tokens."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([prompt_ids + sampled_ids])).logits[0, len(prompt_ids) - 1 : -1]
    logprobs = torch.log_softmax(logits, -1)
    return [float(logprobs[i, token_id]) for i, token_id in enumerate(sampled_ids)]


def test_a_real_engine_keeps_the_contract(checkpoint: Path) -> None:
    """Log-probs of other tokens, a stop cut off, siblings all alike or without a common prefix, processes left."""
    codec = load_codec(checkpoint)
    prompt_ids = codec.encode(PROMPT)
    # A stop string of one letter is sure to be sampled by a random model.
    stop = ("e",)
    before = set(psutil.Process().children(recursive=True))

    calls = protocol_for(codec, protocol="tool_call", prompt="short", max_queries=1, keep_reasoning=True)

    async def sample() -> tuple[list[Generation], Generation, list[Trajectory]]:
        async with VllmEngine.open(checkpoint, Sampling(seed=1), max_model_tokens=1000, dtype="float32") as engine:
            siblings = await asyncio.gather(
                *(engine.generate(prompt_ids, max_tokens=40, stop=stop, request_id=f"q/{i}") for i in range(8))
            )
            again = await engine.generate(prompt_ids, max_tokens=40, stop=stop, request_id="q/3")
            shared = await engine.generate((7,) * 100, max_tokens=2, stop=stop, request_id="shared/0")
            sharing = await engine.generate((7,) * 100, max_tokens=2, stop=stop, request_id="shared/1")
            assert (shared.num_cached_tokens, sharing.num_cached_tokens) == (0, 96), "a prompt of 100 fills 3 blocks"
            episodes = [
                run_episode(
                    Question("q", "capital of France?", ("Paris",), "demo"),
                    engine=engine,
                    searcher=FixedSearcher((hit("Paris", "Paris is a city."),)),
                    codec=codec,
                    protocol=protocol,
                    limits=Limits(1, 20, 120, 600, 300),
                )
                for protocol in (PROTOCOLS["short"], calls)
            ]
            trajectories = await asyncio.gather(*episodes)
            # More prompt tokens than one step takes: a seeded prompt that is cut in two killed the engine on a CPU.
            await asyncio.gather(
                *(engine.generate((7,) * (590 + i), max_tokens=2, stop=stop, request_id=f"cut/{i}") for i in range(5))
            )
            with pytest.raises(EngineError, match="vLLM failed"):
                await engine.generate((1,) * 1010, max_tokens=9, stop=STOP, request_id="long")
            return siblings, again, list(trajectories)

    siblings, again, trajectories = asyncio.run(sample())
    assert len({sibling.token_ids for sibling in siblings}) > 4
    assert again == siblings[3]
    for sibling in siblings:
        text = codec.decode(sibling.token_ids)
        assert "e" not in codec.decode(sibling.token_ids[:-1])
        assert "e" in text or len(sibling.token_ids) == 40
        assert sibling.logprobs == pytest.approx(true_logprobs(checkpoint, prompt_ids, sibling.token_ids), abs=1e-3)
    assert any("e" in codec.decode(sibling.token_ids) for sibling in siblings)
    for trajectory in trajectories:
        assert trajectory.stop_reason in (StopReason.MAX_TOKENS, StopReason.MALFORMED, StopReason.ANSWERED)
        assert len(trajectory.turns) == 2
        assert sum(trajectory.response_mask) == 40
    left = set(psutil.Process().children(recursive=True)) - before
    assert not [child for child in left if "VLLM" in child.name()]


def test_a_folder_that_is_no_checkpoint_is_one_line(tmp_path: Path) -> None:
    """A traceback of four screens for a mistyped path."""

    async def open_engine() -> None:
        async with VllmEngine.open(tmp_path / "nowhere", Sampling(), max_model_tokens=64):
            pass

    with pytest.raises(ModelError, match=r"vLLM cannot load .*nowhere") as failure:
        asyncio.run(open_engine())
    assert "\n" not in str(failure.value)
    with pytest.raises(ModelError, match=r"no tokenizer in .*nowhere"):
        load_codec(tmp_path / "nowhere")
