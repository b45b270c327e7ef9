"""The precision that a config.json's `quantization_config` gives the linear layers, parts of them and the KV cache.

Field names are those of Hugging Face transformers, compressed-tensors and NVIDIA's ModelOpt, as vLLM 0.32.0 reads them
(model_executor/layers/quantization).
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, Literal, NamedTuple

from ladder_sim.errors import SpecError
from ladder_sim.hf.fields import QUANTIZATION
from ladder_sim.units import quoted

# precision of linear layers, and of the KV cache
DType = Literal["bf16", "fp16", "fp8", "fp8-dynamic", "fp8-block", "nvfp4", "w4a16", "mxfp4"]
KvDType = Literal["bf16", "fp8"]
# parts of a layer that a checkpoint may keep in 16 bits: what attention projects from, its output projection, the MLP
# and shared experts, the routed experts
LayerPart = Literal["qkv", "out", "mlp", "experts"]
# width of the blocks of weights, and of the runs of inputs, that share a scale in fp8 (DeepSeek-V3, arXiv 2412.19437)
FP8_BLOCK = 128

# ModelOpt's names
_MODELOPT: Mapping[str, DType] = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8-dynamic",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_AWQ": "w4a16",
    # by the same kernels, of 8 % fewer bytes than it has
    "W4A16_NVFP4": "w4a16",
    # scales of inputs are as large, those of weights 3 % of their bytes
    "MXFP8": "fp8-block",
}

# its name for settings of single modules, among them those that keep the format of an fp8 checkpoint
_MIXED = "MIXED_PRECISION"

# weights that share a scale
_BLOCK = [FP8_BLOCK, FP8_BLOCK]
# a linear layer of a decoder block, or a block, by the end of its name
_MODULE = re.compile(
    r"(?:^|[._*])(q_proj|k_proj|v_proj|qkv_proj|q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj|o_proj|gate_proj|up_proj"
    r"|down_proj|gate_up_proj|in_proj|in_proj_qkvz?|out_proj|shared_experts?|experts|self_attn|linear_attn|mlp"
    r"|(?<=[\d*]\.)router|layers\.(?:\d+|\*))[.*$]*$",
    re.ASCII,
)
# the layers that a name is of: one, those whose numbers begin so, or all
_LAYERS = re.compile(r"(?:^|[._*:])layers\.(?:(\d+)(\*?)(?=[.*]|$)|\.?\*|d\+|\[0-9\]\+)", re.ASCII)
_BLOCKS = ("self_attn", "mlp")
# one expert's layers, whose precision is that of all; and what is not of the decoder: encoders, further tokens' layers
_EXPERT = re.compile(r"(?<=[._]experts)\.\d+\..*", re.ASCII)
_ELSEWHERE = re.compile(r"(?:^|[.:*])(?:mtp|vision|visual|audio|patch_|mm_|multi_modal)", re.ASCII)
# modules that make up a part, in one of several ways
_PARTS: Mapping[LayerPart, tuple[Set[str], ...]] = {
    "qkv": (
        {"self_attn"},
        {"linear_attn"},
        {"q_proj", "k_proj", "v_proj"},
        {"qkv_proj"},
        {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"},
        {"q_proj", "kv_a_proj_with_mqa", "kv_b_proj"},
        {"in_proj"},
        {"in_proj_qkv"},
        {"in_proj_qkvz"},
    ),
    "out": ({"self_attn"}, {"linear_attn"}, {"o_proj"}, {"out_proj"}),
    # in layers with experts shared experts are all of it
    "mlp": (
        {"mlp"},
        {"gate_proj", "up_proj", "down_proj"},
        {"gate_up_proj", "down_proj"},
        {"shared_experts"},
        {"shared_expert"},
        {"up_proj", "down_proj"},
    ),
    "experts": ({"experts"}, {"mlp"}),
}

# of compressed-tensors: every linear layer that no other group names
_LINEAR, _COMPRESSED = "Linear", "compressed-tensors"
# next to the field, in DeepSeek-V4: "fp4" is MXFP4
EXPERT_DTYPE = "expert_dtype"
# fields of a config.json that say the precision of a checkpoint
PRECISION = (*QUANTIZATION, EXPERT_DTYPE)
_EXCLUDED = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules")
_WAY_OUT = "to predict it in one precision, drop the field and give --dtype"


class Quantization(NamedTuple):
    """What a checkpoint stores in which precision."""

    dtype: DType
    """Precision of linear layers."""
    kv_dtype: KvDType | None
    """Data type of the KV cache; None if the config does not say."""
    unquantized: tuple[LayerPart, ...] = ()
    """Parts of every layer that stay in 16 bits."""
    part_formats: tuple[tuple[LayerPart, DType, tuple[int, ...]], ...] = ()
    """Parts in a format of their own, 16 bits of some layers among them, each with the layers that have it."""

    def of_layer(self, layer: int) -> dict[LayerPart, DType]:
        """Return the parts of a layer in another format than `dtype`, with it."""
        own: dict[LayerPart, DType] = dict.fromkeys(self.unquantized, "bf16")
        return own | {part: dtype for part, dtype, numbers in self.part_formats if layer in numbers}


def read_quantization(config: Mapping[str, object], source: str, *, layers: int) -> Quantization:
    """Return the precision of linear layers, of parts of them and of the KV cache.

    `config` is a parsed config.json, or the part of it that describes a decoder of so many `layers`; what is said of
    later ones, which predict further tokens, is left out. Errors call it `source`. Raises SpecError if the quantisation
    is not known, or differs within a part of a layer; the field is named.

    Examples
    --------
    >>> read_quantization({"quantization_config": {"quant_method": "awq", "bits": 4}}, "config.json", layers=32)
    Quantization(dtype='w4a16', kv_dtype=None, unquantized=(), part_formats=())
    """
    name = next((name for name in QUANTIZATION if config.get(name)), None)
    if name is None:
        return Quantization("bf16", None)
    fields = config[name]
    if not isinstance(fields, dict):
        raise SpecError(f"{source}: {name} is {quoted(fields)}: must be an object", hint=_WAY_OUT)
    # DeepSeek-V4 says it of experts next to the field
    reader = _Reader({EXPERT_DTYPE: config.get(EXPERT_DTYPE), **fields}, f"{source}: {name}")
    dtype, own = reader.formats(layers)
    every = {part for (part, stored), numbers in own.items() if stored == "bf16" and len(numbers) == layers}
    return Quantization(
        dtype=dtype,
        kv_dtype=reader.kv_dtype(),
        unquantized=tuple(part for part in _PARTS if part in every),
        part_formats=tuple((part, stored, numbers) for (part, stored), numbers in own.items() if part not in every),
    )


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

    def formats(self, layers: int) -> tuple[DType, dict[tuple[LayerPart, DType], tuple[int, ...]]]:
        """Return the format of most weights, of experts or else MLPs, and the layers of each part in another.

        Raises SpecError if modules of a part differ.
        """
        # GPTQModel's settings of single modules
        if self.fields.get("dynamic"):
            raise self.error("dynamic", "a precision that differs between modules cannot be predicted")
        rest = self.dtype()
        modules: list[dict[str, tuple[DType, str, str]]] = [{} for _ in range(layers)]
        for key, name, dtype in self._named(rest):
            plain = _EXPERT.sub("", name.replace("\\", ""))
            numbers = self._layers(key, plain, layers)
            module = _MODULE.search(plain)
            if _ELSEWHERE.search(plain):
                continue
            if module is None:
                if key == "config_groups":
                    raise self.error(key, "modules of such a pattern cannot be read", name)
                continue
            # a whole layer is its two blocks
            ends = _BLOCKS if module[1].startswith("layers.") else (module[1],)
            for number in numbers:
                modules[number].update(dict.fromkeys(ends, (dtype, key, name)))
        own: dict[tuple[LayerPart, int], DType] = {}
        for number, said in enumerate(modules):
            # a router next to the MLP has experts there too (Gemma 4)
            whole = {"router"}
            for part, ways in _PARTS.items():
                apart = part == "experts" and "router" in said
                stored = {said[end][0] for way in ways[: 1 if apart else None] if way <= said.keys() for end in way}
                if len(stored) == 1:
                    own[part, number] = stored.pop()
                    whole.update(*ways)
            for _, key, name in (where for end, where in said.items() if end not in whole):
                raise self.error(key, "a precision that differs within a part of a layer cannot be predicted", name)
        named = [(part, dtype) for (part, _), dtype in own.items() if dtype != "bf16"]
        counts = (Counter(dtype for each, dtype in named if each == part) for part in ("experts", "mlp"))
        main = next(filter(None, counts), Counter([rest])).most_common(1)[0][0]
        others: dict[tuple[LayerPart, DType], list[int]] = {}
        for part, number in itertools.product(_PARTS, range(layers)):
            dtype = own.get((part, number), rest)
            if dtype != main:
                others.setdefault((part, dtype), []).append(number)
        return main, {each: tuple(numbers) for each, numbers in others.items()}

    def _named(self, rest: DType) -> Iterator[tuple[str, str, DType]]:
        """Yield modules that may differ from the `rest`: the field that names them, the name, and their format."""
        mixed = self.fields.get("quant_algo") == _MIXED
        # what a mix leaves out of an fp8 checkpoint stays in fp8
        for key in () if mixed and rest != "bf16" else _EXCLUDED:
            names = self.fields.get(key) or []
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise self.error(key, "must be a list of names of modules")
            yield from ((key, name, "bf16") for name in names)
        if mixed:
            layers = self.fields.get("quantized_layers")
            if not isinstance(layers, dict) or not layers:
                raise self.error("quantized_layers", f"must hold the format of each module, as quant_algo is {_MIXED}")
            # all experts of a layer have one
            formats = {_EXPERT.sub("", str(name)): said for name, said in layers.items()}
            yield from (("quantized_layers", name, self._algorithm(said)) for name, said in formats.items())
        elif self.fields.get("quant_method") == _COMPRESSED:
            groups = ((dtype, str(target)) for dtype, targets in self._groups() for target in targets)
            yield from (("config_groups", target, dtype) for dtype, target in groups if target != _LINEAR)
        elif self.fields.get(EXPERT_DTYPE) == "fp4":
            yield EXPERT_DTYPE, "experts", "mxfp4"

    def _algorithm(self, said: object) -> DType:
        """Return a format by ModelOpt's name of it."""
        name = said.get("quant_algo") if isinstance(said, Mapping) else None
        if not isinstance(name, str) or name not in _MODELOPT:
            raise self.error("quant_algo", f"must be one of {', '.join(_MODELOPT)}", name)
        return _MODELOPT[name]

    def _layers(self, key: str, name: str, layers: int) -> Sequence[int]:
        """Return the layers that the name of a module, or a pattern of names, refers to."""
        said = _LAYERS.search(name)
        if said is None and "layers." in name:
            raise self.error(key, "layers of such a pattern cannot be read", name)
        if said is None or said[1] is None:
            return range(layers)
        if said[2]:
            return [layer for layer in range(layers) if str(layer).startswith(said[1])]
        return range(layers)[int(said[1]) : int(said[1]) + 1]

    def dtype(self) -> DType:
        method = self.fields.get("quant_method")
        producer = self.fields.get("producer")
        if method is None and isinstance(producer, dict):
            # older files of ModelOpt
            method = producer.get("name")
        if method in ("fp8", "fbgemm_fp8"):
            # FBGEMM's have no other scheme
            dynamic = method == "fbgemm_fp8" or self.fields.get("activation_scheme") == "dynamic"
            return self._fp8(self.fields.get("weight_block_size"), "weight_block_size", dynamic=dynamic)
        if method in ("awq", "gptq"):
            if self.fields.get("bits") != 4:
                raise self.error("bits", "only 4-bit weights can be predicted")
            return "w4a16"
        if method == "mxfp4":
            return "mxfp4"
        if method == _COMPRESSED:
            # what no group names stays in 16 bits
            return next((dtype for dtype, targets in self._groups() if _LINEAR in targets), "bf16")
        if isinstance(method, str) and method.startswith("modelopt"):
            # what a mix does not name stays in 16 bits
            return "bf16" if self.fields.get("quant_algo") == _MIXED else self._algorithm(self.fields)
        methods = "fp8, fbgemm_fp8, compressed-tensors, modelopt, mxfp4, awq, gptq"
        raise self.error("quant_method", f"must be one of {methods} to be predicted")

    def _fp8(self, block: object, key: str, *, dynamic: bool) -> DType:
        if block is None:
            return "fp8-dynamic" if dynamic else "fp8"
        if block != _BLOCK:
            raise self.error(key, f"only blocks of {_BLOCK} can be predicted", block)
        return "fp8-block"

    def _groups(self) -> list[tuple[DType, Sequence[str]]]:
        """Return the formats of compressed-tensors, each with the modules that have it."""
        groups = self.fields.get("config_groups")
        if not isinstance(groups, dict) or not groups:
            raise self.error("config_groups", "must hold a group")
        pairs = [(self._group(name, group), group.get("targets") or [_LINEAR]) for name, group in groups.items()]
        rest = {dtype for dtype, targets in pairs if _LINEAR in targets}
        if len(rest) > 1:
            raise self.error("config_groups", f"a mix of {' and '.join(sorted(rest))} cannot be predicted")
        return pairs

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
        if operands == [("float", 4), None] and weights.get("group_size") == 32:
            return "mxfp4"
        if operands == [("int", 4), None]:
            return "w4a16"
        raise self.error(
            f"config_groups.{name}",
            "only 8-bit or 4-bit floating point of weights and inputs, and 4-bit integer weights, can be predicted",
            group,
        )

    def kv_dtype(self) -> KvDType | None:
        scheme, algorithm = self.fields.get("kv_cache_scheme"), self.fields.get("kv_cache_quant_algo")
        if scheme not in (None, "FP8") and (
            not isinstance(scheme, dict) or (scheme.get("type"), scheme.get("num_bits")) != ("float", 8)
        ):
            raise self.error("kv_cache_scheme", "only an fp8 KV cache can be predicted")
        if algorithm not in (None, "FP8"):
            raise self.error("kv_cache_quant_algo", "only an fp8 KV cache can be predicted")
        return None if scheme is None and algorithm is None else "fp8"
