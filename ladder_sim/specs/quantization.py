"""The precision that a config.json's `quantization_config` gives the linear layers and the KV cache.

Field names are those of Hugging Face transformers, compressed-tensors and NVIDIA's ModelOpt, as vLLM 0.32.0 reads them
(model_executor/layers/quantization).
"""

import re
from collections.abc import Mapping
from typing import Any

from ladder_sim.errors import SpecError
from ladder_sim.specs.workload import DType, KvDType
from ladder_sim.units import quoted

# its name, and an older one of compressed-tensors
FIELDS = ("quantization_config", "compression_config")

# ModelOpt's names
_MODELOPT: Mapping[str, DType] = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8-dynamic",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_AWQ": "w4a16",
}

# what the scales of fp8 blocks belong to
_BLOCK = [128, 128]
# decoder blocks, and linear layers in them: left out of the quantisation they make it a mixed one
_LINEAR = re.compile(
    r"(?:(?:^|[._])(?:q|k|v|o|qkv|gate|up|down|gate_up)_proj|self_attn|mlp|layers\.(?:\d+|\*))[.*]*$", re.ASCII
)
# what patterns of compressed-tensors say of the two kinds of decoder blocks; "Linear" stands for every layer
_ATTENTION, _MLP = re.compile(r"attn|[qkvo]_proj|qkv"), re.compile(r"mlp|gate|up_proj|down_proj")
_EXCLUDED = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules")
_WAY_OUT = "to predict it in one precision, drop the field and give --dtype"


def read_quantization(config: Mapping[str, object], source: str) -> tuple[DType, KvDType | None]:
    """Return the precision of the linear layers and of the KV cache, None where the config does not say the latter.

    Parameters
    ----------
    config
        A parsed config.json, or the part of it that describes the decoder.
    source
        What errors call it.

    Raises
    ------
    SpecError
        If the quantisation is mixed or not known; the field is named.

    Examples
    --------
    >>> read_quantization({"quantization_config": {"quant_method": "awq", "bits": 4}}, "config.json")
    ('w4a16', None)
    """
    name = next((name for name in FIELDS if config.get(name)), None)
    if name is None:
        return "bf16", None
    fields = config[name]
    if not isinstance(fields, dict):
        raise SpecError(f"{source}: {name} is {quoted(fields)}: must be an object", hint=_WAY_OUT)
    reader = _Reader(fields, f"{source}: {name}")
    reader.refuse_mixed()
    return reader.dtype(), reader.kv_dtype()


class _Reader:
    """Fields of one `quantization_config`, with errors that name them."""

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        # ModelOpt's own file has them one level deeper
        inner = fields.get("quantization")
        self.fields: Mapping[str, Any] = {**fields, **inner} if isinstance(inner, dict) else fields
        self.where = where

    def error(self, key: str, rule: str, value: object = None) -> SpecError:
        value = self.fields.get(key) if value is None else value
        return SpecError(f"{self.where}: {key} is {quoted(value)}: {rule}", hint=_WAY_OUT)

    def refuse_mixed(self) -> None:
        for key in _EXCLUDED:
            names = self.fields.get(key) or []
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise self.error(key, "must be a list of names of modules")
            for name in names:
                if _LINEAR.search(name):
                    raise self.error(key, "a mix of precisions within the decoder cannot be predicted", name)
        # GPTQModel's settings of single modules
        if self.fields.get("dynamic"):
            raise self.error("dynamic", "a mix of precisions within the decoder cannot be predicted")

    def dtype(self) -> DType:
        method = self.fields.get("quant_method")
        if method in ("fp8", "fbgemm_fp8"):
            # FBGEMM's have no other scheme
            dynamic = method == "fbgemm_fp8" or self.fields.get("activation_scheme") == "dynamic"
            return self._fp8(self.fields.get("weight_block_size"), "weight_block_size", dynamic=dynamic)
        if method in ("awq", "gptq"):
            if self.fields.get("bits") != 4:
                raise self.error("bits", "only 4-bit weights can be predicted")
            return "w4a16"
        if method == "compressed-tensors":
            return self._compressed()
        if isinstance(method, str) and method.startswith("modelopt"):
            algorithm = self.fields.get("quant_algo")
            if not isinstance(algorithm, str) or algorithm not in _MODELOPT:
                raise self.error("quant_algo", f"must be one of {', '.join(_MODELOPT)}")
            return _MODELOPT[algorithm]
        raise self.error(
            "quant_method", "must be one of fp8, fbgemm_fp8, compressed-tensors, modelopt, awq, gptq to be predicted"
        )

    def _fp8(self, block: object, key: str, *, dynamic: bool) -> DType:
        if block is None:
            return "fp8-dynamic" if dynamic else "fp8"
        if block != _BLOCK:
            raise self.error(key, f"only blocks of {_BLOCK} can be predicted", block)
        return "fp8-block"

    def _compressed(self) -> DType:
        groups = self.fields.get("config_groups")
        if not isinstance(groups, dict) or not groups:
            raise self.error("config_groups", "must hold a group")
        dtypes = {self._group(name, group) for name, group in groups.items()}
        if len(dtypes) > 1:
            raise self.error("config_groups", f"a mix of {' and '.join(sorted(dtypes))} cannot be predicted")
        targets = [target for group in groups.values() for target in group.get("targets") or ["Linear"]]
        patterns = " ".join(map(str, targets))
        if "Linear" not in targets and bool(_ATTENTION.search(patterns)) != bool(_MLP.search(patterns)):
            raise self.error(
                "config_groups: targets", "a mix of precisions within the decoder cannot be predicted", targets
            )
        return dtypes.pop()

    def _group(self, name: str, group: object) -> DType:
        weights = group.get("weights") if isinstance(group, dict) else None
        inputs = group.get("input_activations") if isinstance(group, dict) else None
        if not isinstance(weights, dict) or not isinstance(inputs, dict | None):
            raise self.error(f"config_groups.{name}", "must say how weights are stored", group)
        operands = [
            (each.get("type"), each.get("num_bits")) if isinstance(each, dict) else None for each in (weights, inputs)
        ]
        if operands == [("float", 8), ("float", 8)]:
            in_blocks = weights.get("strategy") == "block"
            block = (weights.get("block_structure") or _BLOCK) if in_blocks else None
            key = f"config_groups.{name}.weights.block_structure"
            return self._fp8(block, key, dynamic=bool(inputs and inputs.get("dynamic")))
        if operands == [("float", 4), ("float", 4)]:
            return "nvfp4"
        if operands == [("int", 4), None]:
            return "w4a16"
        raise self.error(
            f"config_groups.{name}",
            "only 8-bit or 4-bit floating point of weights and inputs, and 4-bit integer weights, can be predicted",
            group,
        )

    def kv_dtype(self) -> KvDType | None:
        scheme, algorithm = self.fields.get("kv_cache_scheme"), self.fields.get("kv_cache_quant_algo")
        if scheme is not None and (
            not isinstance(scheme, dict) or (scheme.get("type"), scheme.get("num_bits")) != ("float", 8)
        ):
            raise self.error("kv_cache_scheme", "only an fp8 KV cache can be predicted")
        if algorithm not in (None, "FP8"):
            raise self.error("kv_cache_quant_algo", "only an fp8 KV cache can be predicted")
        return None if scheme is None and algorithm is None else "fp8"
