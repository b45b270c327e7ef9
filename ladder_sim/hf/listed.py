"""Layers as data: a config.json that lists the kinds of a model's blocks and their order.

Its ``model_type`` is "ladder_sim_layers". ``kinds`` has each kind of block once, as a JSON object with the fields of
one of `ladder_sim.hf.mixer.BlockKind` and its class under "kind"; ``blocks`` has the number of each block's kind, in
order, and ``layers`` the number of the layer that it belongs to in the checkpoint. For predictions two blocks in a row
are a layer. `python -m ladder_sim_runtime layers config.json` writes such a file of any model that transformers knows.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from ladder_sim.errors import SpecError
from ladder_sim.hf.fields import MAXIMA, Fields
from ladder_sim.hf.mixer import BlockKind, Mixer, State
from ladder_sim.hf.quantization import read_quantization
from ladder_sim.hf.types import SIZES
from ladder_sim.units import quoted
from ladder_sim.values import choice, field_kinds, flag, whole

LAYER_DATA = "ladder_sim_layers"
# ten times the weights of the largest published block, or more
_MAXIMUM = 10**13
_KEY = "kind"


def described(blocks: Sequence[tuple[int, BlockKind]]) -> dict[str, Any]:
    """Return the fields of a config.json that list blocks, each given with the number of its layer.

    Examples
    --------
    >>> from ladder_sim.hf.feed_forward import Dense
    >>> described([(0, Dense(hidden=8, width=32)), (1, Dense(hidden=8, width=32))])
    {'kinds': [{'kind': 'Dense', 'hidden': 8, 'width': 32}], 'blocks': [0, 0], 'layers': [0, 1]}
    """
    kinds = list(dict.fromkeys(block for _, block in blocks))
    return {
        "kinds": [plain(kind) for kind in kinds],
        "blocks": [kinds.index(block) for _, block in blocks],
        "layers": [layer for layer, _ in blocks],
    }


def plain(value: Any) -> Any:
    """Return a value as JSON has it, without fields that have their default."""
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if not dataclasses.is_dataclass(value):
        return value
    own = {each.name: (getattr(value, each.name), each.default) for each in dataclasses.fields(value)}
    return {_KEY: type(value).__name__, **{name: plain(has) for name, (has, default) in own.items() if has != default}}


def read_layers(fields: Fields) -> dict[str, Any]:
    """Return the fields of `config.Shape` that a config of such a type decides, with the precision of its blocks.

    Raises SpecError if a field is missing or breaks a rule.
    """
    numbers, order, listed = (fields.config.get(name) for name in ("layers", "blocks", "kinds"))
    if not isinstance(numbers, list) or not isinstance(order, list) or len(numbers) != len(order):
        raise fields.error("layers", "must be a list with a number for each of blocks", "trace the model again")
    # of each block's layer in the checkpoint
    layers = [whole(each, f"{fields.source}: layers: a layer", 0, MAXIMA["layers"]) for each in numbers]
    if not isinstance(listed, list) or not listed or not order:
        raise fields.error("kinds", "kinds and blocks must be lists that are not empty", "trace the model again")
    if len(order) % 2:
        raise fields.error("blocks", "two blocks in a row are a layer, and their number is odd", "leave one out")
    kinds = tuple(block_kind(each, f"{fields.source}: kinds") for each in listed)
    positions = [whole(each, f"{fields.source}: blocks: a block", 0, len(kinds) - 1) for each in order]
    quantization = read_quantization(fields.config, fields.source, layers=max(layers) + 1)
    stored = [quantization.of_layer(layer) for layer in range(max(layers) + 1)]
    blocks = [kinds[at].stored(stored[layer]) for at, layer in zip(positions, layers, strict=True)]
    kinds = tuple(dict.fromkeys(blocks))
    return {
        **scalars(kinds),
        **{name: fields.size(SIZES[name], MAXIMA[name]) for name in ("hidden", "vocab", "max_positions")},
        "layers": len(positions) // 2,
        "block_norms": fields.config.get("block_norms", "before"),
        "tied_embeddings": fields.flag("tie_word_embeddings"),
        "parallel_blocks": fields.flag("parallel_blocks"),
        "multimodal": fields.flag("multimodal"),
        "block_kinds": kinds,
        "block_order": tuple(map(kinds.index, blocks)),
        "family": str(fields.config.get("family", "")),
        "origin": str(fields.config.get("source", "")),
        "weights_dtype": quantization.dtype,
        "unquantized": quantization.unquantized,
        "part_formats": quantization.part_formats,
        "kv_cache_dtype": quantization.kv_dtype,
    }


def block_kind(value: object, where: str) -> BlockKind:
    """Return a kind of block from its form in JSON, as `plain` gives it; raise SpecError if it is none."""
    kind: BlockKind = _read(value, BlockKind, where)
    return kind


def _read(value: object, kind: Any, where: str) -> Any:
    if kind is int:
        return whole(value, where, 0, _MAXIMUM)
    if kind is bool:
        return flag(value, where)
    if get_origin(kind) is Literal:
        return choice(value, where, get_args(kind))
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        if not isinstance(value, list) or (kinds[-1] is not Ellipsis and len(value) != len(kinds)):
            raise SpecError(f"{where} is {quoted(value)}: must be a list of its length", hint="trace the model again")
        return tuple(_read(each, kinds[0 if kinds[-1] is Ellipsis else at], where) for at, each in enumerate(value))
    classes = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if value is None and NoneType in classes:
        return None
    names = {each.__name__: each for each in classes if each is not NoneType}
    if not isinstance(value, Mapping):
        raise SpecError(f"{where} is {quoted(value)}: must be an object", hint="trace the model again")
    made = names[choice(value.get(_KEY), f"{where}: {_KEY}", names)]
    fields = field_kinds(made)
    given = {
        choice(name, f"{where}: a field of {made.__name__}", fields): _read(each, fields[name], f"{where}: {name}")
        for name, each in value.items()
        if name != _KEY
    }
    for each in dataclasses.fields(made):
        if each.default is dataclasses.MISSING and each.name not in given:
            raise SpecError(f"{where}: {made.__name__} has no {each.name}", hint="trace the model again")
    return made(**given)


def scalars(kinds: Sequence[BlockKind]) -> dict[str, int]:
    """Return the sizes of `config.Shape` that stand for blocks of several kinds: those of the first that has them."""
    sizes = {name: size for kind in reversed(kinds) for name, size in kind.sizes.items()}
    states = [core for kind in kinds if isinstance(kind, Mixer) for core in kind.cores if isinstance(core, State)]
    if "heads" not in sizes and states:
        first = states[0]
        sizes |= {"heads": first.heads, "kv_heads": first.heads, "head_dim": max(1, first.elements // first.heads)}
    width = sizes.get("shared_intermediate") or sizes.get("expert_intermediate") or 1
    return {"intermediate": width, "heads": 1, "kv_heads": 1, "head_dim": 1, **sizes}
