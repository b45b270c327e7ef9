"""Ids of quantised and newer checkpoints: which architecture of the catalog, in which format, as their names say it."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from ladder_sim.hf.quantization import DType, LayerPart

# words of a name that change neither shapes nor formats: releases, tunings, dates
_WORDS = re.compile(
    r"-(instruct|chat|base|thinking|terminus|it|pt|hf|\d{4}|v0\.[1-3]|quantized)(?=-|\.|$)|^meta-(?=llama)", re.ASCII
)
_FORMAT = re.compile(
    r"[-.](nvfp4|fp4|mxfp4|fp8[-.]dynamic|fp8[-.]block|fp8|w4a16|awq|gptq|int4|4bit)(?:[-.](?:kv|v\d|int4|4bit|marlin))*(?=-|\.|$)",
    re.ASCII,
)
_DTYPES: Mapping[str, DType] = {
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
    "mxfp4": "mxfp4",
    "fp8": "fp8",
    "fp8-dynamic": "fp8-dynamic",
    "fp8-block": "fp8-block",
    **dict.fromkeys(("w4a16", "awq", "gptq", "int4", "4bit"), "w4a16"),
}

# whose checkpoints "FP8" have scales of blocks
_BLOCKS = ("qwen", "deepseek-ai", "minimaxai", "moonshotai")

# what NVIDIA's checkpoints in NVFP4 keep in 16 bits, as the configs of V3.1, K2.5 and M2.5 say
_KEPT: Mapping[str, tuple[LayerPart, ...]] = {
    "deepseek": ("qkv",),
    "kimi": ("qkv", "out"),
    "minimax": ("qkv", "out"),
}

# releases of the same shapes, and the format that they come in; their configs say so
_RELEASES: Mapping[str, tuple[str, DType | None]] = {
    "deepseek-v3.1": ("deepseek-v3", None),
    **dict.fromkeys(("kimi-k2-thinking", "kimi-k2.5", "kimi-k2.6", "kimi-k2.7-code"), ("kimi-k2", "w4a16")),
    **dict.fromkeys(("minimax-m2", "minimax-m2.1", "minimax-m2.7"), ("minimax-m2.5", None)),
}


class Named(NamedTuple):
    """What an id says."""

    model: str
    """Catalog id."""
    dtype: DType | None
    """Format of the linear layers; None: the model's own."""
    unquantized: tuple[LayerPart, ...]
    """Parts that such checkpoints keep in 16 bits."""


def named(hub_id: str, catalog: Mapping[str, str]) -> Named | None:
    """Return what an id says, given catalog ids by the ids that are known; None if it names no architecture of these.

    Examples
    --------
    >>> named("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8-dynamic", {"meta-llama/Llama-3.1-70B": "llama-3.1-70b"})
    Named(model='llama-3.1-70b', dtype='fp8-dynamic', unquantized=())
    """
    owner, _, name = hub_id.strip().lower().replace("_", "-").partition("/")
    written = _FORMAT.search(name)
    dtype = _DTYPES[written[1].replace(".", "-")] if written else None
    if dtype == "fp8" and owner in _BLOCKS:
        dtype = "fp8-block"
    rest = _FORMAT.sub("", name)
    known = {_plain(each.partition("/")[2].lower()): model for each, model in catalog.items()}
    model, own = next(
        (_RELEASES[each] for each in (rest, _plain(rest)) if each in _RELEASES), (known.get(_plain(rest)), None)
    )
    if model is None:
        return None
    dtype = dtype or own
    # in 16 bits stay all but the experts of what was trained in 4 bits
    kept: tuple[LayerPart, ...] = ()
    if dtype == "w4a16" and own:
        kept = ("qkv", "out", "mlp")
    elif dtype == "nvfp4":
        kept = _KEPT.get(model.partition("-")[0], ())
    return Named(model, dtype, kept)


def _plain(name: str) -> str:
    before = ""
    while name != before:
        before, name = name, _WORDS.sub("", name)
    return name
