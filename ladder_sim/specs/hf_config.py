"""Read a Hugging Face config.json: the file, and the shape of the decoder it describes.

Field names are those of the configuration classes of Hugging Face transformers; what a model's type implies is in
`ladder_sim.specs.hf_types`, what it says of single layers in `ladder_sim.specs.hf_layers`.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ladder_sim.errors import SpecError
from ladder_sim.specs.hf_layers import read_experts, read_ladder_layers, read_latent, read_window
from ladder_sim.specs.hf_reader import ENCODERS, MAXIMA, TEXT_CONFIGS, ConfigReader
from ladder_sim.specs.hf_refusals import refuse_architectures, refuse_types
from ladder_sim.specs.hf_types import EXPERTS, SIZES
from ladder_sim.specs.layers import BlockNorms, QkNorm
from ladder_sim.specs.quantization import FIELDS, read_quantization
from ladder_sim.system.files import read_text, shown_path
from ladder_sim.units import quoted

# ModelOpt's settings, in a file next to config.json
_MODELOPT_FILE = "hf_quant_config.json"


def read_config(path: Path) -> dict[str, object]:
    """Read a config.json, or the one in a directory, and next to it what ModelOpt says of the quantisation.

    Parameters
    ----------
    path
        The file or its directory; at most 10 MB.

    Returns
    -------
    dict
        The parsed object.

    Raises
    ------
    SpecError
        If there is no such file, it cannot be read, or it is not a JSON object; the file is named.
    """
    file = path / "config.json" if os.path.isdir(path) else path
    config = _read_json(file)
    modelopt = file.parent / _MODELOPT_FILE
    if file.name == "config.json" and not any(config.get(key) for key in FIELDS) and os.path.isfile(modelopt):
        config["quantization_config"] = {"quant_method": "modelopt", **_read_json(modelopt)}
    return config


def _read_json(file: Path) -> dict[str, object]:
    text = read_text(file, what="a config.json")
    name = shown_path(file)
    try:
        config = json.loads(text)
    except RecursionError:
        raise SpecError(
            f"{name}: JSON nested too deeply", hint="give the model's config.json, not another JSON file"
        ) from None
    except ValueError as error:
        raise SpecError(
            f"{name}: not valid JSON ({error}); {'the file is empty' if not text.strip() else 'truncated?'}",
            hint="download or export the file again, and check it with `python -m json.tool`",
        ) from None
    if not isinstance(config, dict):
        raise SpecError(
            f"{name}: holds {quoted(config)}: a config.json must be a JSON object",
            hint='give the model\'s config.json, which starts with "{"',
        )
    return config


def shape_from_hf(config: Mapping[str, object], *, source: str) -> dict[str, Any]:
    """Translate a parsed config.json into the fields of ModelSpec that it decides; see `ModelSpec.from_hf`."""
    outer = ConfigReader(config, shown_path(source))
    refuse_architectures(outer)
    reader = outer.decoder()
    refuse_architectures(reader)
    refuse_types(reader)
    names = EXPERTS.get(reader.model_type())
    keys = {**SIZES, "intermediate": names.dense} if names else SIZES
    sizes = {field: reader.size(key, MAXIMA[field]) for field, key in keys.items()}
    layers = sizes["layers"]
    latent = read_latent(reader)
    if latent:
        attention = {"kv_heads": sizes["heads"], "head_dim": latent["nope_head_dim"] + latent["rope_head_dim"]}
    else:
        attention = _heads(reader, sizes["heads"], sizes["hidden"])
    quantised = next((each for each in (outer, reader) if any(each.config.get(key) for key in FIELDS)), reader)
    quantization = read_quantization(quantised.config, quantised.source, layers=layers)
    everywhere = reader.flag("use_bias")
    # Qwen2 has biases on q, k and v without a field for them, StableLM with a field of its own; Llama's attention_bias
    # covers the output as well
    qkv_only = reader.flag("use_qkv_bias")
    attention_bias = reader.flag("attention_bias", default=everywhere or qkv_only)
    return dict(
        **sizes,
        **attention,
        **latent,
        **read_experts(reader, layers),
        **read_window(reader, layers),
        gated_mlp=reader.flag("gated_mlp", default=True),
        tied_embeddings=reader.flag("tie_word_embeddings"),
        qkv_bias=attention_bias,
        out_bias=reader.flag("attention_out_bias", default=attention_bias and not qkv_only),
        mlp_bias=reader.flag("mlp_bias", default=everywhere),
        qk_norm=_qk_norm(reader),
        block_norms=_block_norms(reader),
        attention_sinks=reader.flag("attention_sinks"),
        ladder_layers=read_ladder_layers(reader, layers),
        wiring=read_wiring(reader),
        parallel_blocks=reader.flag("parallel_blocks"),
        multimodal=any(config.get(key) for key in (*TEXT_CONFIGS, *ENCODERS)),
        weights_dtype=quantization.dtype,
        unquantized=quantization.unquantized,
        unquantized_layers=quantization.unquantized_layers,
        kv_cache_dtype=quantization.kv_dtype,
        # llamaLadder has the same blocks, wired otherwise
        family="llama" if reader.model_type() == "llamaLadder" else reader.model_type(),
    )


def read_wiring(reader: ConfigReader) -> str:
    """A field of this project: published wirings other than llamaLadder's have none that is known."""
    value = reader.config.get("ladder_sim_wiring", "")
    if not isinstance(value, str):
        raise reader.error("ladder_sim_wiring", "must be the name of a variant", "for example 'delayed:2'")
    if value and reader.model_type() == "llamaLadder":
        raise reader.error("ladder_sim_wiring", "a llamaLadder has its ladder_layers", "drop one of both")
    return value


def _qk_norm(reader: ConfigReader) -> QkNorm:
    joint, weightless = reader.flag("joint_qk_norm"), reader.flag("weightless_qk_norm")
    # StableLM has a name of its own for it
    if not reader.flag("use_qk_norm", default=reader.flag("qk_layernorm")):
        return "none"
    return "all" if joint else "weightless" if weightless else "heads"


def _block_norms(reader: ConfigReader) -> BlockNorms:
    return "behind" if reader.flag("norms_behind") else "both" if reader.flag("post_norms") else "before"


def _heads(reader: ConfigReader, heads: int, hidden: int) -> dict[str, int]:
    """Key/value heads, and the width of a head."""
    kv_heads = reader.size("num_key_value_heads", MAXIMA["kv_heads"], default=heads)
    if heads % kv_heads:
        raise reader.error(
            "num_key_value_heads",
            f"must divide num_attention_heads, {heads}",
            "each key/value head serves the same number of query heads; correct either field",
        )
    if reader.config.get("head_dim") is None and hidden % heads:
        raise reader.error(
            "hidden_size",
            f"must be a multiple of num_attention_heads, {heads}, where head_dim is not given",
            "add head_dim to the file, or correct either field",
        )
    return {"kv_heads": kv_heads, "head_dim": reader.size("head_dim", MAXIMA["head_dim"], default=hidden // heads)}
