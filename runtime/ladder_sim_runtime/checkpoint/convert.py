"""Rewire a pretrained model: the same weights with the config of a hybrid, whose upper layers are ladder.

The config of a Llama becomes that of the paper's authors, `llamaLadder`; others keep their type, and name the wiring.

References
----------
Ladder Residual, arXiv 2501.06589, section 4: the upper half of Llama-3.1-8B rewired, then retrained.
"""

import json
import re
import shutil
from pathlib import Path

from ladder_sim.errors import UsageError
from ladder_sim.system.files import write_file
from ladder_sim_runtime.checkpoint.files import CONFIG, INDEX, Checkpoint, read_object
from ladder_sim_runtime.config import ModelConfig

# files that belong to a model next to its weights, if they exist
COMPANIONS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)

# the model's code for transformers, which is written with the weights, and its classes
_HF_CODE = Path(__file__).with_name("modeling_llama_ladder.py")
_HF_CLASSES = {
    "AutoConfig": "LlamaLadderConfig",
    "AutoModel": "LlamaLadderModel",
    "AutoModelForCausalLM": "LlamaLadderForCausalLM",
}


def convert(folder: Path, out: Path, ladder_layers: int, *, link: bool = False, hf_code: bool = False) -> None:
    """Write the hybrid of the checkpoint in `folder` to `out`, a new or an empty folder.

    The uppermost `ladder_layers` layers are wired as ladder. With `link`, weights are linked to instead of copied. With
    `hf_code`, transformers can load it: its classes are written next to the weights.
    """
    checkpoint = Checkpoint.open(folder)
    layers = checkpoint.shape.layers
    if not 0 <= ladder_layers <= layers:
        raise UsageError(f"--ladder-layers {ladder_layers}: must be 0 to {layers}, the model's layers")
    variant = checkpoint.shape.variant
    if not re.fullmatch(r"standard|ladder|hybrid-ladder:\d+", variant):
        raise UsageError(
            f"{folder}: its weights were trained as '{variant}' (ladder_sim_wiring): must be standard or ladder",
            hint="convert the checkpoint that it was trained from, or adapt it: examples/train",
        )
    beyond = beyond_llama(checkpoint.shape)
    if hf_code and beyond:
        raise UsageError(f"--hf-code: the model has {beyond}", hint="only models that are a Llama have such code")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out {out}: exists already", hint="give a new folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        companions = (folder / name for name in (INDEX, *COMPANIONS) if (folder / name).exists())
        for file in (*{stored.file for stored in checkpoint.tensors.values()}, *companions):
            if link and file.suffix == ".safetensors":
                (out / file.name).symlink_to(file.resolve())
            else:
                shutil.copyfile(file, out / file.name)
        config = hybrid(read_object(folder / CONFIG, what="a checkpoint's config.json"), ladder_layers)
        if hf_code:
            shutil.copyfile(_HF_CODE, out / _HF_CODE.name)
            classes = {auto: f"{_HF_CODE.stem}.{name}" for auto, name in _HF_CLASSES.items()}
            config |= {"architectures": [_HF_CLASSES["AutoModelForCausalLM"]], "auto_map": classes}
        write_file(out / CONFIG, json.dumps(config, indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}", hint="give a folder that can be written") from None


def hybrid(config: dict[str, object], ladder_layers: int) -> dict[str, object]:
    """Return a config.json with this number of upper layers wired as ladder."""
    shape = ModelConfig.from_hf(config)
    dropped = ("architectures", "auto_map", "ladder_sim_wiring")
    kept = {key: value for key, value in config.items() if key not in dropped}
    if config.get("model_type") == "llamaLadder" or not beyond_llama(shape):
        sizes = {"num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim}
        return {**kept, **sizes, "model_type": "llamaLadder", "ladder_layers": ladder_layers}
    name = {0: "standard", shape.layers: "ladder"}.get(ladder_layers, f"hybrid-ladder:{ladder_layers}")
    return {**kept, "ladder_sim_wiring": name}


def beyond_llama(shape: ModelConfig) -> str:
    """Return what blocks have that a Llama of transformers and vLLM lacks, in words; empty for nothing."""
    kinds = {
        "latent attention": shape.latent is not None,
        "routed experts": shape.experts is not None,
        "norms of queries and keys": shape.qk_norm,
        "norms behind the blocks": shape.norms_behind,
        "a sliding window": shape.sliding_window > 0,
        "biases on queries, keys and values alone": shape.qkv_bias != shape.out_bias,
        "an MLP without a gate": not shape.gated_mlp,
    }
    return ", ".join(kind for kind, has in kinds.items() if has)
