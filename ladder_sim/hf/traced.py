"""Configs of models whose type no row of the table has: transformers builds them, in a process of its own.

What it finds is kept in the cache folder, so that a model is traced once: later predictions need neither torch nor
transformers.
"""

import contextlib
import hashlib
import importlib.util
import json
import subprocess
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from ladder_sim.errors import MissingPackageError, SpecError
from ladder_sim.hf.config import refuse_architectures
from ladder_sim.hf.fields import Fields
from ladder_sim.hf.listed import LAYER_DATA
from ladder_sim.hf.quantization import PRECISION
from ladder_sim.hf.types import TYPES
from ladder_sim.system.files import cache_folder, replacing, shown_path
from ladder_sim.system.processes import start

# version of the tracing: files of an earlier one are made again
_VERSION = 7
# what a trace needs, with what finds it
_PACKAGES = ("torch", "transformers", "ladder_sim_runtime")


def layers_config(config: Mapping[str, Any], *, source: str) -> Mapping[str, Any]:
    """Return a config that `ModelSpec.from_hf` reads: the parsed one, or its layers as transformers builds them.

    Errors name its file, `source`. Raises MissingPackageError if its type is not known, and torch or transformers is
    not installed; SpecError if transformers cannot build it either.
    """
    fields = Fields(config, shown_path(source))
    inner = fields.decoder()
    if fields.kind == LAYER_DATA or config.get("is_encoder_decoder") or _is_known(fields, inner):
        return config
    traced = _traced({key: value for key, value in config.items() if key not in PRECISION}, fields, inner.kind)
    # the precision of a checkpoint is no part of the model's shape
    quantised = fields.quantized(inner).config
    precision = {key: quantised[key] for key in PRECISION if quantised.get(key)}
    return {**traced, **precision, "multimodal": fields.is_multimodal}


def _is_known(outer: Fields, inner: Fields) -> bool:
    """Whether the table has a decoder's type; one whose type is not said may be Llama's."""
    text = outer.config[outer.decoder_key] if outer.decoder_key else None
    if text is None or (isinstance(text, Mapping) and text.get("model_type")):
        return inner.kind in TYPES
    with contextlib.suppress(SpecError):
        refuse_architectures(inner)
        return True
    return False


def _traced(config: Mapping[str, Any], fields: Fields, model_type: str) -> dict[str, Any]:
    text = json.dumps(config, sort_keys=True, default=str)
    name = hashlib.sha256(f"{_VERSION} {text}".encode()).hexdigest()
    file = cache_folder() / "models" / f"{name}.json"
    with contextlib.suppress(OSError, ValueError):
        kept = json.loads(file.read_text("utf-8"))
        # another transformers may build another model
        version = f" {metadata.version('transformers')}:" if _installed("transformers") else ""
        if isinstance(kept, dict) and version in str(kept.get("source")):
            return kept
    for package in _PACKAGES:
        if not _installed(package):
            raise MissingPackageError(
                f"{fields.source}: model_type {model_type!r} is no built-in family: to read it from transformers "
                f"needs {package}",
                extra="trace",
            )
    document = _run(text, fields.source)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as target:
            target.write(json.dumps(document).encode())
    return document


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _run(text: str, source: str) -> dict[str, Any]:
    pipe = subprocess.PIPE
    command = ["ladder_sim_runtime", "layers", "-", "--source", source]
    # no network, whatever a model's code asks for
    offline = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    process = start(command, env=offline, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    output, errors = process.communicate(text)
    if process.returncode:
        *_, message = errors.strip().rpartition("error: ")
        said, _, hint = message.partition("\n  hint: ")
        raise SpecError(said or f"{source}: tracing it ended with code {process.returncode}", hint=hint)
    document: dict[str, Any] = json.loads(output)
    return document
