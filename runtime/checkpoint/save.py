"""Save a sharded decoder as a checkpoint that every tensor-parallel degree can read."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ladder_sim.errors import MissingPackageError, UsageError
from ladder_sim.system.files import write_file
from runtime.checkpoint.files import CONFIG, INDEX, WEIGHTS
from runtime.checkpoint.tensors import tensor_shapes
from runtime.checkpoint.weights import Piece, pieces
from runtime.comm.base import Communicator
from runtime.config import ModelConfig
from runtime.model.decoder import Decoder
from runtime.model.shard import Shard


@torch.no_grad()
def save(model: Decoder, folder: Path, config: Mapping[str, object], *, file_bytes: float = 5e9) -> None:
    """Gather tensor by tensor; rank 0 writes files of up to `file_bytes`. Every rank has to call it.

    `folder` is created if needed and must not hold a checkpoint; `config` is the Hugging Face config.json of the model.
    """
    if replace(ModelConfig.from_hf(config), ladder_layers=()) != replace(model.config, ladder_layers=()):
        raise UsageError("the config.json to be saved is not that of the model", hint="give the one it was made from")
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise MissingPackageError("checkpoints need safetensors") from None
    if (folder / WEIGHTS).exists() or (folder / INDEX).exists():
        raise UsageError(f"{folder}: holds a checkpoint already", hint="save to another folder")
    # rank 0 writes only after every rank has looked
    model.comm.barrier()
    shapes = tensor_shapes(model.config)
    every = {piece.name: piece for piece in pieces(model)}
    size = {name: math.prod(shape) * model.embedding_VD.itemsize for name, shape in shapes.items()}
    files = _files(size, file_bytes)
    writes = model.comm.rank == 0
    if writes:
        folder.mkdir(parents=True, exist_ok=True)
    for file, held in files.items():
        tensors = {}
        for name in held:
            full = _gather(every[name], shapes[name], model)
            if writes:
                tensors[name] = full.cpu()
        if writes:
            save_file(tensors, folder / file, metadata={"format": "pt"})
    if writes:
        if len(files) > 1:
            placed = {name: file for file, held in files.items() for name in held}
            _write(folder / INDEX, {"metadata": {"total_size": sum(size.values())}, "weight_map": placed})
        kept = {key: value for key, value in config.items() if key != "torch_dtype"}
        _write(folder / CONFIG, {**kept, "dtype": str(model.embedding_VD.dtype).removeprefix("torch.")})
    model.comm.barrier()


def _write(file: Path, content: Mapping[str, object]) -> None:
    write_file(file, json.dumps(content, indent=2) + "\n")


def _files(size: Mapping[str, int], file_bytes: float) -> dict[str, list[str]]:
    """Tensors of each file, in order."""
    groups: list[list[str]] = [[]]
    room = file_bytes
    for name, needed in size.items():
        if needed > room and groups[-1]:
            groups.append([])
            room = file_bytes
        groups[-1].append(name)
        room -= needed
    if len(groups) == 1:
        return {WEIGHTS: groups[0]}
    return {f"model-{i:05}-of-{len(groups):05}.safetensors": group for i, group in enumerate(groups, start=1)}


def _gather(piece: Piece, shape: tuple[int, ...], model: Decoder) -> Tensor:
    """The full tensor of a piece, on every rank."""
    ranks = model.shard.ranks
    if piece.share:
        return piece.part * ranks
    if piece.features is None or ranks == 1:
        return piece.part[: shape[0]].clone()
    full = piece.part.new_empty(shape)
    for rank, part in enumerate(_parts(piece.part, model.comm)):
        place = piece.place(Shard.of(model.config, model.engine, rank, ranks))
        held = full[place]
        held.copy_(part[: len(held)])
    return full


def _parts(part: Tensor, comm: Communicator) -> Tensor:
    """Every rank's part, stacked; gathered as bytes, which every backend supports."""
    gathered = comm.all_gather(part.contiguous().flatten().view(torch.uint8))
    return gathered.view(part.dtype).view(comm.size, *part.shape)
