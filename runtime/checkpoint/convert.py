"""Rewire a pretrained model: the same weights with the config of a hybrid, whose upper layers are ladder.

References
----------
Ladder Residual, arXiv 2501.06589, section 4: the upper half of Llama-3.1-8B rewired, then retrained.
"""

import json
import shutil
from pathlib import Path

from ladder_sim.errors import UsageError
from ladder_sim.system.files import write_file
from runtime.checkpoint.files import CONFIG, INDEX, Checkpoint
from runtime.fields import read_object
from runtime.model_types import TYPES

# files that are copied with the weights, if they exist
_COMPANIONS = (
    INDEX,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def convert(folder: Path, out: Path, ladder_layers: int, *, link: bool = False) -> None:
    """Write the hybrid of the checkpoint in `folder` to `out`, a new or an empty folder.

    The uppermost `ladder_layers` layers are wired as ladder. With `link`, weights are linked to instead of copied.
    """
    checkpoint = Checkpoint.open(folder)
    layers = checkpoint.shape.layers
    if not 0 <= ladder_layers <= layers:
        raise UsageError(f"--ladder-layers {ladder_layers}: must be 0 to {layers}, the model's layers")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out {out}: exists already", hint="give a new folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        companions = (folder / name for name in _COMPANIONS if (folder / name).exists())
        for file in (*{stored.file for stored in checkpoint.tensors.values()}, *companions):
            if link and file.suffix == ".safetensors":
                (out / file.name).symlink_to(file.resolve())
            else:
                shutil.copyfile(file, out / file.name)
        config = hybrid(read_object(folder / CONFIG, what="a checkpoint's config.json"), ladder_layers)
        write_file(out / CONFIG, json.dumps(config, indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}", hint="give a folder that can be written") from None


def hybrid(config: dict[str, object], ladder_layers: int) -> dict[str, object]:
    """A config.json with this number of upper layers wired as ladder; what its model type implies is written out."""
    dropped = ("architectures", "ladder_sim_wiring")
    kept = {key: value for key, value in config.items() if key not in dropped and value is not None}
    return {**TYPES[str(config["model_type"])], **kept, "model_type": "llamaLadder", "ladder_layers": ladder_layers}
