"""Fill a rank's decoder with its slices of full tensors, which are read one at a time by Hugging Face's names."""

import hashlib
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ladder_sim_runtime.checkpoint.tensors import (
    EMBEDDING,
    LAST_NORM,
    LM_HEAD,
    block_norms,
    learned_name,
    mlp_name,
    tensor_shapes,
    up_names,
)
from ladder_sim_runtime.memory import enough_memory
from ladder_sim_runtime.model.attention import GroupedAttention
from ladder_sim_runtime.model.decoder import Decoder
from ladder_sim_runtime.model.feed_forward import RoutedExperts
from ladder_sim_runtime.model.latent import LatentAttention
from ladder_sim_runtime.model.layers import Layer
from ladder_sim_runtime.model.linear import Linear
from ladder_sim_runtime.model.shard import Shard

# part of a full tensor that is read at once; no more of a mapped file is in memory
_CHUNK_BYTES = 16 * 2**20


class Sliceable(Protocol):
    """A full tensor, possibly on disk."""

    def __getitem__(self, where: tuple[slice, ...], /) -> Tensor:
        """Return a part of the tensor."""


# what the rank with a shard holds along one dimension
Features = Callable[[Shard], slice]
# from a name and a shape to the full tensor
Source = Callable[[str, tuple[int, ...]], Sliceable]


class Piece(NamedTuple):
    """A rank's part of one full tensor."""

    name: str
    """Name of the full tensor."""
    part: Tensor
    """View of a parameter; rows beyond the vocabulary are padding. Empty: this rank holds nothing of it."""
    features: Features | None = None
    """What a rank holds along `dim`; None: everything."""
    dim: int = 0
    """Dimension that is split."""
    share: bool = False
    """The ranks' sum is the full tensor: each holds an equal share."""

    def place(self, shard: Shard) -> tuple[slice, ...]:
        """Return where the part of the rank with `shard` lies in the full tensor."""
        features = slice(None) if self.features is None else self.features(shard)
        return (*(slice(None),) * self.dim, features)


def random_weights(seed: int, device: torch.device | str = "cpu") -> Source:
    """Return random tensors with seeds of their own, so that every tensor-parallel degree slices the same model.

    Matrices are scaled by the number of their inputs, so that activations keep their size. A GPU draws other numbers.
    """
    return lambda name, shape: _Drawn(f"{seed} {name}", shape, device)


class _Drawn:
    """A random tensor, drawn as it is read: some rows at a time, of which the last ones are kept."""

    def __init__(self, seed: str, shape: tuple[int, ...], device: torch.device | str) -> None:
        self._seed, self._shape, self._device = seed, shape, device
        self._kept: tuple[int, Tensor] | None = None

    def __getitem__(self, where: tuple[slice, ...]) -> Tensor:
        rows, *columns = where
        step = _chunk_rows(self._shape)
        start, stop, _ = rows.indices(self._shape[0])
        parts = [
            self._chunk(first)[(slice(max(0, start - first), stop - first), *columns)]
            for first in range(start // step * step, stop, step)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _chunk(self, first: int) -> Tensor:
        """Return the rows of the chunk that begins at row `first`."""
        if self._kept is None or self._kept[0] != first:
            self._kept = None
            seed = self._seed if first == 0 else f"{self._seed} {first}"
            digest = hashlib.blake2b(seed.encode(), digest_size=7).digest()
            generator = torch.Generator(self._device).manual_seed(int.from_bytes(digest))
            rows = min(_chunk_rows(self._shape), self._shape[0] - first)
            values = torch.randn((rows, *self._shape[1:]), generator=generator, device=self._device)
            self._kept = first, self._scaled(values)
        return self._kept[1]

    def _scaled(self, values: Tensor) -> Tensor:
        if self._seed.endswith(("norm.weight", "_weight")):
            return 1 + 0.1 * values
        if self._seed.endswith("bias"):
            return 0.1 * values
        return values if "embed" in self._seed else values / self._shape[-1] ** 0.5


@torch.no_grad()
def fill(model: Decoder, source: Source) -> None:
    """Copy this rank's slices of every tensor into `model`, in its dtype and on its device."""
    shapes = tensor_shapes(model.config)
    for piece in pieces(model):
        if not piece.part.numel():
            continue
        shape = shapes[piece.name]
        with enough_memory(piece.name, model.comm.rank):
            _copy(piece.part, source(piece.name, shape), piece.place(model.shard), _chunk_rows(shape))
        if piece.share:
            piece.part.div_(model.shard.ranks)


def _chunk_rows(shape: tuple[int, ...]) -> int:
    """Return the number of rows in a chunk of a full tensor, in float32."""
    return max(1, _CHUNK_BYTES // (math.prod(shape[1:]) * 4))


def _copy(part: Tensor, full: Sliceable, place: tuple[slice, ...], step: int) -> None:
    """Copy `step` rows at a time."""
    rows, *columns = place
    first = rows.start or 0
    count = len(part) if rows.stop is None else rows.stop - first
    for at in range(0, count, step):
        end = min(at + step, count)
        part[at:end].copy_(full[(slice(first + at, first + end), *columns)])
    part[count:].zero_()


def pieces(model: Decoder) -> Iterator[Piece]:
    """Yield everything a rank holds; a tied LM head split unlike the embedding is a second piece of that."""
    vocab, tied = model.config.vocab, model.config.tied_embeddings
    yield Piece(EMBEDDING, model.embedding_VD, lambda shard: shard.vocabulary(shard.embedding_rows, vocab))
    for index, layer in zip(model.shard.layers, model.layers, strict=True):
        yield from _pieces_of(layer, f"model.layers.{index}")
    yield Piece(LAST_NORM, model.norm.weight_D)
    if model.lm_head_VD is not model.embedding_VD:
        name = EMBEDDING if tied else LM_HEAD
        yield Piece(name, model.lm_head_VD, lambda shard: shard.vocabulary(shard.lm_head_rows, vocab))


def _pieces_of(layer: Layer, where: str) -> Iterator[Piece]:
    for name, norm in zip(block_norms(layer.config), (layer.attn_norm, layer.mlp_norm), strict=True):
        yield Piece(f"{where}.{name}.weight", norm.weight_D)
    for part in layer.config.learned_of(layer.index):
        yield Piece(f"{where}.{learned_name(part)}", layer.learned[part])
    end = 0
    for name, features, biased in (*_attention_inputs(layer), *_mlp_inputs(layer)):
        held = features(layer.shard)
        begin, end = end, end + held.stop - held.start
        yield Piece(f"{where}.{name}.weight", layer.inputs.weight_NF[begin:end], features)
        if biased and layer.inputs.bias_N is not None:
            yield Piece(f"{where}.{name}.bias", layer.inputs.bias_N[begin:end], features)
    if isinstance(layer.attention, LatentAttention):
        yield from _latent(layer.attention, layer.config.head_dim, f"{where}.self_attn")
    else:
        yield from _grouped(layer.attention, f"{where}.self_attn")
    if layer.has_mlp:
        width = layer.mlp.width
        name = mlp_name(shared=layer.experts is not None)
        yield from _summed(layer.mlp.down, f"{where}.{name}.down_proj", lambda shard: shard.mlp(width))
    if layer.experts is not None:
        yield from _experts(layer.experts, f"{where}.mlp")


# name, features and whether there is a bias, of the projections stacked in a layer's `inputs`
_Inputs = list[tuple[str, Features, bool]]


def _attention_inputs(layer: Layer) -> _Inputs:
    config = layer.config
    width, biased = config.head_dim, config.qkv_bias
    if not config.latent:
        return [
            ("self_attn.q_proj", lambda shard: shard.query(width), biased),
            ("self_attn.k_proj", lambda shard: shard.key_value(width), biased),
            ("self_attn.v_proj", lambda shard: shard.key_value(width), biased),
        ]
    q_rank, kv_width = config.q_lora_rank, config.kv_lora_rank + config.rope_head_dim
    return [
        ("self_attn.q_a_proj", lambda _: slice(0, q_rank), biased)
        if q_rank
        else ("self_attn.q_proj", lambda shard: shard.query(width), False),
        ("self_attn.kv_a_proj_with_mqa", lambda _: slice(0, kv_width), biased),
    ]


def _mlp_inputs(layer: Layer) -> _Inputs:
    if not layer.has_mlp:
        return []
    width, biased, name = layer.mlp.width, layer.config.mlp_bias, mlp_name(shared=layer.experts is not None)
    return [(f"{name}.{up}", lambda shard: shard.mlp(width), biased) for up in up_names(gated=layer.mlp.gated)]


def _grouped(attention: GroupedAttention, where: str) -> Iterator[Piece]:
    width = attention.head_dim

    def query(shard: Shard) -> slice:
        return shard.query(width)

    def key(shard: Shard) -> slice:
        return shard.key_value(width)

    for name, norm, features in (("q_norm", attention.q_norm, query), ("k_norm", attention.k_norm, key)):
        if norm is not None:
            yield Piece(f"{where}.{name}.weight", norm.weight_D, features if attention.has_joint_norms else None)
    yield from _summed(attention.o, f"{where}.o_proj", query)


def _latent(attention: LatentAttention, width: int, where: str) -> Iterator[Piece]:
    value_dim = attention.config.value_head_dim
    if attention.q is not None and attention.q_norm is not None:
        yield Piece(f"{where}.q_a_layernorm.weight", attention.q_norm.weight_D)
        yield Piece(f"{where}.q_b_proj.weight", attention.q.weight_NF, lambda shard: shard.query(width))
    made = attention.nope + value_dim
    yield Piece(f"{where}.kv_a_layernorm.weight", attention.kv_norm.weight_D)
    yield Piece(f"{where}.kv_b_proj.weight", attention.kv.weight_NF, lambda shard: shard.query(made))
    yield from _summed(attention.o, f"{where}.o_proj", lambda shard: shard.query(value_dim))


def _experts(routed: RoutedExperts, where: str) -> Iterator[Piece]:
    count, width = routed.config.experts, routed.config.expert_intermediate
    yield Piece(f"{where}.gate.weight", routed.router.weight_NF)
    if routed.choice_bias_E is not None:
        yield Piece(f"{where}.gate.e_score_correction_bias", routed.choice_bias_E)
    for number in range(count):

        def features(shard: Shard, number: int = number) -> slice:
            return shard.expert(number, count=count, width=width)

        at = number - routed.first
        held = 0 <= at < len(routed.up_LND)
        # of another rank's expert an empty part
        up_ND, down_DI = (stack[at] if held else stack.new_empty(0) for stack in (routed.up_LND, routed.down_LDI))
        names = up_names(gated=routed.gated)
        for name, part in zip(names, up_ND.chunk(len(names)) if held else [up_ND] * len(names), strict=True):
            yield Piece(f"{where}.experts.{number}.{name}.weight", part, features)
        yield Piece(f"{where}.experts.{number}.down_proj.weight", down_DI, features, dim=1)


def _summed(linear: Linear, name: str, features: Features) -> Iterator[Piece]:
    """Yield the pieces of a projection split by its inputs, whose outputs the ranks sum."""
    yield Piece(f"{name}.weight", linear.weight_NF, features, dim=1)
    if linear.bias_N is not None:
        yield Piece(f"{name}.bias", linear.bias_N, share=True)
