"""Checkpoints in Hugging Face's layout: config.json with model.safetensors, or with shards and their index.

Opening one reads headers only and compares them with the config, without torch, so that a launcher refuses a damaged
checkpoint before memory is allocated. Tensors are memory-mapped: a rank reads its own slices.
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from ladder_sim.errors import MissingPackageError, UsageError
from ladder_sim.hf.fields import Fields, read_config, read_object
from ladder_sim.hf.types import TYPES
from ladder_sim.system.files import write_file
from ladder_sim_runtime.checkpoint.tensors import EMBEDDING, LM_HEAD, Shape, mixtral_name, tensor_shapes
from ladder_sim_runtime.config import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor

# names of `config.DType` by those of safetensors
DTYPE_NAMES = {"F32": "fp32", "BF16": "bf16", "F16": "fp16"}
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"

# number of tensors in an error
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A tensor in a file; indexing reads a part of it."""

    file: Path
    """Safetensors."""
    name: str
    """In the file."""
    dtype: str
    """As safetensors names it."""
    shape: Shape
    """Shape of the full tensor."""

    def __getitem__(self, where: tuple[slice, ...], /) -> "Tensor":
        """Return a view of the mapped file, which stays mapped while the view exists."""
        with _open(self.file, "pt") as tensors:
            part: Tensor = tensors.get_slice(self.name)[where]
        return part


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model's config and where its tensors are stored."""

    shape: ModelConfig
    """From config.json."""
    tensors: Mapping[str, Stored]
    """Stored tensors by name."""

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read config and headers.

        Raises UsageError if a file is missing or damaged, or a tensor is missing, superfluous, or has another shape or
        type than the config.
        """
        config = read_config(folder / CONFIG)
        fields = Fields(config, str(folder / CONFIG))
        # types whose tensors have the names of `tensors`
        known = [name for name, each in TYPES.items() if not (each.not_run or each.own_tensors)]
        if "model_type" not in config or fields.kind not in known:
            raise fields.error("model_type", f"must be one of {', '.join(known)}", "no other can be opened")
        shape = ModelConfig.from_hf(config, source=str(folder / CONFIG))
        stored = _read_headers(folder)
        shapes = tensor_shapes(shape)
        # by their names in the files
        is_mixtral = any(".block_sparse_moe." in name for name in stored)
        names = {mixtral_name(name) if is_mixtral else name: name for name in shapes}
        after = range(shape.layers, shape.layers + fields.further_layers())
        spare = tuple(f"model.layers.{index}." for index in after)
        misfits = list(_misfits({name: shapes[ours] for name, ours in names.items()}, stored, spare))
        if misfits:
            more = f" and {len(misfits) - _SHOWN} more" if len(misfits) > _SHOWN else ""
            raise UsageError(
                f"{folder}: tensors do not fit its config.json: {'; '.join(misfits[:_SHOWN])}{more}",
                hint="are config and weights of one model, and is the download complete?",
            )
        return cls(shape=shape, tensors={ours: stored[name] for name, ours in names.items()})

    @property
    def dtype(self) -> str:
        """Data type of the embedding, and usually of every matrix: fp32, bf16 or fp16."""
        return DTYPE_NAMES[self.tensors[EMBEDDING].dtype]

    def source(self, name: str, _shape: Shape) -> Stored:
        """Return the tensor of a name, as a `weights.Source` does."""
        return self.tensors[name]


def _read_headers(folder: Path) -> dict[str, Stored]:
    """Return every tensor of a checkpoint: of its one file, or of its index."""
    if (folder / WEIGHTS).exists():
        return _file_headers(folder / WEIGHTS)
    if not (folder / INDEX).exists():
        raise UsageError(
            f"{folder}: neither {WEIGHTS} nor {INDEX}", hint="weights must be safetensors; nothing is downloaded"
        )
    files = _index(folder)
    headers = {file: _file_headers(file) for file in sorted(set(files.values()))}
    for name, file in files.items():
        if name not in headers[file]:
            raise UsageError(
                f"{folder / INDEX}: {name} is not in {file.name}", hint="are index and files of one model?"
            )
    return {name: headers[file][name] for name, file in files.items()}


def _index(folder: Path) -> dict[str, Path]:
    """Return the file of every tensor."""
    hint = "download the index again"
    names = read_object(folder / INDEX, what="the index of a checkpoint").get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise UsageError(f"{folder / INDEX}: weight_map must give the file of every tensor", hint=hint)
    for name in sorted(set(names.values())):
        if Path(name).name != name or not (folder / name).is_file():
            raise UsageError(
                f"{folder / INDEX}: names {name!r}, which is not in the folder", hint="is the download complete?"
            )
    return {tensor: folder / name for tensor, name in names.items()}


def _file_headers(file: Path) -> dict[str, Stored]:
    with _open(file, "np") as tensors:
        headers = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
        return {
            name: Stored(file=file, name=name, dtype=header.get_dtype(), shape=tuple(header.get_shape()))
            for name, header in headers.items()
        }


def _open(file: Path, framework: Literal["np", "pt"]) -> Any:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise MissingPackageError("checkpoints need safetensors") from None
    try:
        return safe_open(file, framework)
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{file}: {error}", hint="truncated? download it again") from None


def _misfits(shapes: Mapping[str, Shape], tensors: Mapping[str, Stored], spare: tuple[str, ...]) -> Iterator[str]:
    """Yield what is wrong with the tensors; `spare` starts the names of layers that are not run."""
    for name, shape in shapes.items():
        stored = tensors.get(name)
        if stored is None:
            yield f"{name} {list(shape)} is missing"
        elif stored.shape != shape:
            yield f"{name} is {list(stored.shape)}, must be {list(shape)}"
        elif stored.dtype not in DTYPE_NAMES:
            yield f"{name} is {stored.dtype}, must be {', '.join(DTYPE_NAMES)}"
    for name, stored in tensors.items():
        # a tied LM head may be stored as well; transformers 4.31 and older stored the rotary frequencies
        known = name in shapes or name == LM_HEAD or name.startswith(spare)
        if not known and not name.endswith("rotary_emb.inv_freq"):
            yield f"{name} {list(stored.shape)} is not part of the model"


# files that belong to a model next to its weights, if they exist
COMPANIONS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)

# the model's code for transformers, which is written with the weights, and its classes
_HF_CODE = Path(__file__).with_name("modeling_llama_ladder.py")
_HF_CLASSES = {
    "AutoConfig": "LlamaLadderConfig",
    "AutoModel": "LlamaLadderModel",
    "AutoModelForCausalLM": "LlamaLadderForCausalLM",
}


def convert(folder: Path, out: Path, ladder_layers: int, *, link: bool = False, hf_code: bool = False) -> None:
    """Write the hybrid of the checkpoint in `folder` to `out`, a new or an empty folder.

    The uppermost `ladder_layers` layers are wired as ladder. With `link`, weights are linked to instead of copied. With
    `hf_code`, transformers can load it: its classes are written next to the weights. The config of a Llama becomes that
    of the paper's authors, `llamaLadder`; others keep their type, and name the wiring.

    References
    ----------
    Ladder Residual, arXiv 2501.06589, section 4: the upper half of Llama-3.1-8B rewired, then retrained.
    """
    checkpoint = Checkpoint.open(folder)
    layers = checkpoint.shape.layers
    if not 0 <= ladder_layers <= layers:
        raise UsageError(f"--ladder-layers {ladder_layers}: must be 0 to {layers}, the model's layers")
    variant = checkpoint.shape.variant
    if not re.fullmatch(r"standard|ladder|hybrid-ladder:\d+", variant):
        raise UsageError(
            f"{folder}: its weights were trained as '{variant}' (ladder_sim_wiring): must be standard or ladder",
            hint="convert the checkpoint that it was trained from, or adapt it: examples/train",
        )
    beyond = beyond_llama(checkpoint.shape)
    if hf_code and beyond:
        raise UsageError(f"--hf-code: the model has {beyond}", hint="only models that are a Llama have such code")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out {out}: exists already", hint="give a new folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        companions = (folder / name for name in (INDEX, *COMPANIONS) if (folder / name).exists())
        for file in (*{stored.file for stored in checkpoint.tensors.values()}, *companions):
            if link and file.suffix == ".safetensors":
                (out / file.name).symlink_to(file.resolve())
            else:
                shutil.copyfile(file, out / file.name)
        config = hybrid(read_object(folder / CONFIG, what="a checkpoint's config.json"), ladder_layers)
        if hf_code:
            shutil.copyfile(_HF_CODE, out / _HF_CODE.name)
            classes = {auto: f"{_HF_CODE.stem}.{name}" for auto, name in _HF_CLASSES.items()}
            config |= {"architectures": [_HF_CLASSES["AutoModelForCausalLM"]], "auto_map": classes}
        write_file(out / CONFIG, json.dumps(config, indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}", hint="give a folder that can be written") from None


def hybrid(config: dict[str, Any], ladder_layers: int) -> dict[str, object]:
    """Return a config.json with this number of upper layers wired as ladder."""
    shape = ModelConfig.from_hf(config)
    dropped = ("architectures", "auto_map", "ladder_sim_wiring")
    kept = {key: value for key, value in config.items() if key not in dropped}
    if Fields(config, CONFIG).kind == "llamaLadder" or not beyond_llama(shape):
        sizes = {"num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim}
        return {**kept, **sizes, "model_type": "llamaLadder", "ladder_layers": ladder_layers}
    name = {0: "standard", shape.layers: "ladder"}.get(ladder_layers, f"hybrid-ladder:{ladder_layers}")
    return {**kept, "ladder_sim_wiring": name}


def beyond_llama(shape: ModelConfig) -> str:
    """Return what blocks have that a Llama of transformers and vLLM lacks, in words; empty for nothing."""
    kinds = {
        "latent attention": shape.latent,
        "routed experts": shape.experts > 0,
        "norms of queries and keys": shape.qk_norm != "none",
        "norms behind the blocks": shape.norms_behind,
        "a sliding window": shape.sliding_window > 0,
        "biases on queries, keys and values alone": shape.qkv_bias != shape.out_bias,
        "an MLP without a gate": not shape.gated_mlp,
    }
    return ", ".join(kind for kind, has in kinds.items() if has)
