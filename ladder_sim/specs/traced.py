"""Configs of models that no hand-written reader knows: transformers builds them, in a process of its own.

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
from ladder_sim.specs.hf_config import refuse_architectures
from ladder_sim.specs.hf_reader import ENCODERS, TEXT_CONFIGS, TYPES, ConfigReader
from ladder_sim.specs.layer_data import LAYER_DATA
from ladder_sim.specs.quantization import FIELDS
from ladder_sim.system.files import cache_folder, replacing, shown_path
from ladder_sim.system.processes import start

# version of the tracing: files of an earlier one are made again
_VERSION = 7
# what a trace needs, with what finds it
_PACKAGES = ("torch", "transformers", "ladder_sim_runtime")


def layers_config(config: Mapping[str, Any], *, source: str) -> Mapping[str, Any]:
    """Return a config that `ModelSpec.from_hf` reads: the given one, or its layers as transformers builds them.

    Parameters
    ----------
    config
        A parsed ``config.json``.
    source
        The file it comes from; errors name it.

    Raises
    ------
    MissingPackageError
        Its type is not known, and torch or transformers is not installed.
    SpecError
        transformers cannot build it either.
    """
    reader = ConfigReader(config, shown_path(source))
    inner = reader.decoder()
    if reader.model_type() == LAYER_DATA or config.get("is_encoder_decoder") or _is_known(reader, inner):
        return config
    traced = _traced({key: value for key, value in config.items() if key not in FIELDS}, reader, inner.model_type())
    # the precision of a checkpoint is no part of the model's shape
    quantised = next((each for each in (config, inner.config) if any(each.get(key) for key in FIELDS)), {})
    precision = {key: quantised[key] for key in FIELDS if quantised.get(key)}
    return {**traced, **precision, "multimodal": any(config.get(key) for key in (*TEXT_CONFIGS, *ENCODERS))}


def _is_known(outer: ConfigReader, inner: ConfigReader) -> bool:
    """Whether a hand-written reader knows a decoder; one whose type is not said may be Llama's."""
    text = next((outer.config[key] for key in TEXT_CONFIGS if outer.config.get(key)), outer.config)
    if text is outer.config or (isinstance(text, Mapping) and text.get("model_type")):
        return inner.model_type() in TYPES
    with contextlib.suppress(SpecError):
        refuse_architectures(inner)
        return True
    return False


def _traced(config: Mapping[str, Any], reader: ConfigReader, model_type: str) -> dict[str, Any]:
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
                f"{reader.source}: model_type {model_type!r} is no built-in family: to read it from transformers "
                f"needs {package}",
                extra="trace",
            )
    document = _run(text, reader.source)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as target:
            target.write(json.dumps(document).encode())
    return document


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _run(text: str, source: str) -> dict[str, Any]:
    """Return what the runtime's command prints."""
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
