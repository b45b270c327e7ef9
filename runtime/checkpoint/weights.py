"""Fill a rank's decoder with its slices of full tensors, which are read one at a time by Hugging Face's names."""

import functools
import hashlib
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from runtime.checkpoint.tensors import EMBEDDING, LAST_NORM, LM_HEAD, tensor_shapes
from runtime.model.decoder import Decoder
from runtime.model.layers import Layer
from runtime.model.shard import Shard

# part of a full tensor that is read at once; no more of a mapped file is in memory
_CHUNK_BYTES = 16 * 2**20


class Sliceable(Protocol):
    """A full tensor, possibly on disk."""

    def __getitem__(self, where: tuple[slice, ...], /) -> Tensor:
        """A part of it."""


# from a name and a shape to the full tensor
Source = Callable[[str, tuple[int, ...]], Sliceable]


class Piece(NamedTuple):
    """A rank's part of one full tensor."""

    name: str
    """Of the full tensor."""
    part: Tensor
    """View of a parameter; rows beyond the vocabulary are padding."""
    features: Callable[[Shard], slice] | None = None
    """What the rank with a shard holds along `dim`; None: everything."""
    dim: int = 0
    """Dimension that is split."""
    share: bool = False
    """The ranks' sum is the full tensor: each holds an equal share."""

    def place(self, shard: Shard) -> tuple[slice, ...]:
        """Where the part of the rank with `shard` lies in the full tensor."""
        features = slice(None) if self.features is None else self.features(shard)
        return (*(slice(None),) * self.dim, features)


def random_weights(seed: int, device: torch.device | str = "cpu") -> Source:
    """Random tensors, each from its own generator, so that every tensor-parallel degree slices the same model.

    Matrices are scaled by the number of their inputs, so that activations keep their size. A GPU draws other numbers.
    """

    def draw(name: str, shape: tuple[int, ...]) -> Tensor:
        digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=7).digest()
        generator = torch.Generator(device).manual_seed(int.from_bytes(digest))
        values = torch.randn(shape, generator=generator, device=device)
        if name.endswith("norm.weight"):
            return 1 + 0.1 * values
        if name.endswith("bias"):
            return 0.1 * values
        return values if "embed" in name else values / shape[-1] ** 0.5

    return draw


@torch.no_grad()
def fill(model: Decoder, source: Source) -> None:
    """Copy this rank's slices of every tensor into `model`, in its dtype and on its device."""
    shapes = tensor_shapes(model.config)
    for piece in pieces(model):
        shape = shapes[piece.name]
        step = max(1, _CHUNK_BYTES // (math.prod(shape[1:]) * 4))
        _copy(piece.part, source(piece.name, shape), piece.place(model.shard), step)
        if piece.share:
            piece.part.div_(model.shard.ranks)


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
    """Everything a rank holds; a tied LM head split differently from the embedding is a second piece of it."""
    vocab, tied = model.config.vocab, model.config.tied_embeddings
    yield Piece(EMBEDDING, model.embedding_VD, lambda shard: shard.vocabulary(shard.embedding_rows, vocab))
    for index, layer in enumerate(model.layers):
        yield from _pieces_of(layer, f"model.layers.{index}")
    yield Piece(LAST_NORM, model.norm.weight_D)
    if model.lm_head_VD is not model.embedding_VD:
        name = EMBEDDING if tied else LM_HEAD
        yield Piece(name, model.lm_head_VD, lambda shard: shard.vocabulary(shard.lm_head_rows, vocab))


def _pieces_of(layer: Layer, where: str) -> Iterator[Piece]:
    config = layer.config
    query = functools.partial(Shard.query, head_dim=config.head_dim)
    key_value = functools.partial(Shard.key_value, head_dim=config.head_dim)
    yield Piece(f"{where}.input_layernorm.weight", layer.attn_norm.weight_D)
    yield Piece(f"{where}.post_attention_layernorm.weight", layer.mlp_norm.weight_D)

    stacked: list[tuple[str, Callable[[Shard], slice], bool]] = [
        ("self_attn.q_proj", query, config.qkv_bias),
        ("self_attn.k_proj", key_value, config.qkv_bias),
        ("self_attn.v_proj", key_value, config.qkv_bias),
        *([("mlp.gate_proj", Shard.mlp, config.mlp_bias)] if config.gated_mlp else []),
        ("mlp.up_proj", Shard.mlp, config.mlp_bias),
    ]
    end = 0
    for name, features, biased in stacked:
        held = features(layer.shard)
        begin, end = end, end + held.stop - held.start
        yield Piece(f"{where}.{name}.weight", layer.qkv_up.weight_NF[begin:end], features)
        if biased and layer.qkv_up.bias_N is not None:
            yield Piece(f"{where}.{name}.bias", layer.qkv_up.bias_N[begin:end], features)

    for name, linear, features in (("self_attn.o_proj", layer.o, query), ("mlp.down_proj", layer.down, Shard.mlp)):
        yield Piece(f"{where}.{name}.weight", linear.weight_NF, features, dim=1)
        if linear.bias_N is not None:
            yield Piece(f"{where}.{name}.bias", linear.bias_N, share=True)
