"""Ids of quantised and newer checkpoints: which architecture of the catalog, in which format, as their names say it."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ladder_sim.hf.quantization import FP8_BLOCK, DType

# words of a name that change neither shapes nor formats: releases, tunings, dates
_WORDS = re.compile(
    r"-(instruct|chat|base|thinking|terminus|speciale|it|pt|hf|\d{4}|v0\.[1-3]|quantized)(?=-|\.|$)"
    r"|^(meta-(?=llama)|nvidia-(?=nemotron))",
    re.ASCII,
)
_FORMAT = re.compile(
    r"[-.](nvfp4|fp4|mxfp4|fp8[-.]dynamic|fp8[-.]block|fp8|w4a16|awq|gptq|int4|4bit|bf16)"
    r"(?:[-.](?:kv|v\d|int4|4bit|marlin))*(?=-|\.|$)",
    re.ASCII,
)
_Fields = Mapping[str, Any]
# the `quantization_config` of each format
_CONFIGS: Mapping[DType, _Fields] = {
    "bf16": {},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "mxfp4": {"quant_method": "mxfp4"},
    "fp8": {"quant_method": "fp8"},
    "fp8-dynamic": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "fp8-block": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [FP8_BLOCK, FP8_BLOCK]},
    "w4a16": {"quant_method": "gptq", "bits": 4},
}
_DTYPES: Mapping[str, DType] = {
    **{name: name for name in _CONFIGS},
    "fp4": "nvfp4",
    **dict.fromkeys(("awq", "gptq", "int4", "4bit"), "w4a16"),
}

# whose checkpoints "FP8" have scales of blocks, by the beginnings of ids
_BLOCKS = ("qwen/", "deepseek-ai/", "minimaxai/", "moonshotai/", "sgl-project/", "stepfun-ai/", "zai-org/glm-5")


def _mixed(formats: Mapping[str, str], **fields: Any) -> _Fields:
    layers = {name: {"quant_algo": each} for name, each in formats.items()}
    return {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers, **fields}


_ATTENTION = {"ignore": ["self_attn"]}
_ALL_BUT_EXPERTS = {"ignore": ["self_attn", "linear_attn", "shared_expert", "shared_experts"]}
# what NVIDIA's checkpoints "NVFP4" have in other formats, as their configs say, by the beginnings of names
_NVFP4: Mapping[str, _Fields] = {
    "deepseek-v4": _mixed({"experts": "NVFP4"}, **_CONFIGS["fp8-block"]),
    "deepseek": {"ignore": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"]},
    "gemma-4-26b": {"ignore": ["self_attn", "mlp", "layers.*.router"]},
    "gemma-4": _ATTENTION,
    "glm-5-": _ATTENTION,
    "glm-5.": _ALL_BUT_EXPERTS,
    "kimi-k2.5": _ATTENTION,
    "kimi": _ALL_BUT_EXPERTS,
    "minimax-m2": _ATTENTION,
    "minimax-m3": _mixed({"self_attn": "MXFP8", "shared_experts": "MXFP8", "experts": "NVFP4"}),
    "nvidia-nemotron-3.5": _mixed(
        {"in_proj": "FP8", "out_proj": "FP8", "shared_experts": "W4A16_NVFP4", "experts": "W4A16_NVFP4"}
    ),
    "qwen3.5": _ALL_BUT_EXPERTS,
    "qwen3.6": _mixed({"self_attn": "FP8", "linear_attn": "FP8", "mlp": "W4A16_NVFP4"}),
}

# releases of the same shapes, and of the formats that they come in; their configs say so
_TRAINED_IN_4_BITS = {**_CONFIGS["w4a16"], **_ALL_BUT_EXPERTS}
_RELEASES: Mapping[str, tuple[str, _Fields | None]] = {
    "deepseek-v3.1": ("deepseek-v3", None),
    "glm-4.7": ("glm-4.6", None),
    **dict.fromkeys(("kimi-k2-thinking", "kimi-k2.5", "kimi-k2.6", "kimi-k2.7-code"), ("kimi-k2", _TRAINED_IN_4_BITS)),
    **dict.fromkeys(("minimax-m2", "minimax-m2.1", "minimax-m2.7"), ("minimax-m2.5", None)),
    "nemotron-3.5-lightning-30b-a3b": ("nemotron-3-nano-30b-a3b", None),
    "qwen3-coder-30b-a3b": ("qwen3-30b-a3b", None),
}


class Named(NamedTuple):
    """What an id says."""

    model: str
    """Catalog id."""
    dtype: DType | None
    """Format that the id itself names; None: none."""
    quantization: Mapping[str, Any] | None
    """`quantization_config` of such a checkpoint; empty: 16 bits; None: the model's own."""


def named(hub_id: str, catalog: Mapping[str, str]) -> Named | None:
    """Return what an id says, given catalog ids by the ids that are known; None if it names no architecture of these.

    Examples
    --------
    >>> named("Qwen/Qwen3-32B-Instruct-AWQ", {"Qwen/Qwen3-32B": "qwen3-32b"})
    Named(model='qwen3-32b', dtype='w4a16', quantization={'quant_method': 'gptq', 'bits': 4})
    """
    owner, _, name = hub_id.strip().lower().replace("_", "-").partition("/")
    written = _FORMAT.search(name)
    dtype = _DTYPES[written[1].replace(".", "-")] if written else None
    if dtype == "fp8" and f"{owner}/{name}".startswith(_BLOCKS):
        dtype = "fp8-block"
    rest = _FORMAT.sub("", name)
    known = {_plain(_FORMAT.sub("", each.partition("/")[2].lower())): model for each, model in catalog.items()}
    model, own = next(
        (_RELEASES[each] for each in (rest, _plain(rest)) if each in _RELEASES), (known.get(_plain(rest)), None)
    )
    if model is None:
        return None
    if dtype is None:
        return Named(model, None, own)
    kept = next((fields for start, fields in _NVFP4.items() if name.startswith(start)), {}) if dtype == "nvfp4" else {}
    return Named(model, dtype, {**_CONFIGS[dtype], **kept})


def _plain(name: str) -> str:
    before = ""
    while name != before:
        before, name = name, _WORDS.sub("", name)
    return name
