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
from runtime.checkpoint.tensors import mixtral_name, tensor_shapes
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
    saved, own = (
        replace(shape, ladder_layers=(), variant="standard") for shape in (ModelConfig.from_hf(config), model.config)
    )
    if saved != own:
        raise UsageError("the config.json to be saved is not that of the model", hint="give the one it was made from")
    if model.comm.pipeline.stages > 1:
        raise UsageError("a model in pipeline stages is not saved", hint="load it with tensor parallelism alone")
    if model.comm.exchange.size > 1:
        raise UsageError("a model of several groups is not saved", hint="load it without attention-DP")
    try:
        from safetensors import SafetensorError
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
    in_files = mixtral_name if config.get("model_type") == "mixtral" else str
    writes = model.comm.rank == 0
    if writes:
        folder.mkdir(parents=True, exist_ok=True)
    for file, held in files.items():
        tensors = {}
        for name in held:
            full = _gather(every[name], shapes[name], model)
            if writes:
                tensors[in_files(name)] = full.cpu()
        if writes:
            try:
                save_file(tensors, folder / file, metadata={"format": "pt"})
            except (OSError, SafetensorError) as error:
                raise UsageError(
                    f"'{folder / file}' cannot be written: {error}", hint="make room, or choose another folder"
                ) from None
    if writes:
        if len(files) > 1:
            placed = {in_files(name): file for file, held in files.items() for name in held}
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
    ranks, dim = model.shard.ranks, piece.dim
    if piece.share:
        return piece.part * ranks
    if piece.features is None or ranks == 1:
        return piece.part[: shape[0]].clone()
    full = piece.part.new_empty(shape)
    held = [full[piece.place(Shard.of(model.config, model.engine, rank, ranks))] for rank in range(ranks)]
    # of equal size: some ranks may hold less, or nothing
    padded = torch.zeros_like(max(held, key=lambda view: view.shape[dim]))
    if piece.part.numel():
        padded.copy_(piece.part.narrow(dim, 0, min(padded.shape[dim], piece.part.shape[dim])))
    for view, part in zip(held, _parts(padded, model.comm), strict=True):
        view.copy_(part.narrow(dim, 0, view.shape[dim]))
    return full


def _parts(part: Tensor, comm: Communicator) -> Tensor:
    """Every rank's part, stacked; gathered as bytes, which every backend supports."""
    gathered = comm.all_gather(part.contiguous().flatten().view(torch.uint8))
    return gathered.view(part.dtype).view(comm.size, *part.shape)
