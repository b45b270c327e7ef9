"""Fields of a config.json, one by one, and the file: what is wrong is said with file and field."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from ladder_sim.errors import SpecError
from ladder_sim.hf.types import TYPES
from ladder_sim.system.files import read_text, shown_path
from ladder_sim.units import quoted
from ladder_sim.values import flag, real, whole

# largest accepted size, by field of `config.Shape`: ten times that of any published model, or more
MAXIMA: dict[str, int] = {
    "layers": 10_000,
    "hidden": 1_000_000,
    "heads": 100_000,
    "kv_heads": 100_000,
    "head_dim": 100_000,
    "intermediate": 10_000_000,
    "experts": 100_000,
    "vocab": 10_000_000,
    "max_positions": 1_000_000_000,
}

# beyond any number of a model
_LARGEST = 1e12

# fields with the precision of a checkpoint, the older one of compressed-tensors; and ModelOpt's, in a file of its own
QUANTIZATION = ("quantization_config", "compression_config")
_MODELOPT_FILE = "hf_quant_config.json"
# fields with the decoder of a multimodal model, and of the encoders
DECODERS = ("text_config", "llm_config")
_ENCODERS = ("vision_config", "audio_config")
# layers that predict further tokens, after those of the model
_FURTHER = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
# fields in which null is a value of its own: no window, as many heads as queries, a share of the width, none
_NULLABLE = ("sliding_window", "num_key_value_heads", "head_dim", "q_lora_rank", "n_shared_experts", "n_group")


def read_config(path: Path) -> dict[str, Any]:
    """Read a config.json, or that of a directory, and next to it what ModelOpt says of the quantisation.

    Raises SpecError if there is no such file, it cannot be read, or it is not a JSON object; the file is named.
    """
    file = path / "config.json" if os.path.isdir(path) else path
    config = read_object(file)
    modelopt = file.parent / _MODELOPT_FILE
    if file.name == "config.json" and not any(config.get(key) for key in QUANTIZATION) and os.path.isfile(modelopt):
        config["quantization_config"] = {"quant_method": "modelopt", **read_object(modelopt)}
    return config


def read_object(file: Path, *, what: str = "a config.json") -> dict[str, Any]:
    """Return the JSON object in a file, which should be `what`; raise SpecError if it holds none."""
    return parse_object(read_text(file, what=what), shown_path(file), what=what)


def parse_object(text: str, name: str, *, what: str = "a config.json") -> dict[str, Any]:
    """Return the JSON object in the text of a file, by its name for errors."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise SpecError(f"{name}: JSON nested too deeply", hint=f"give {what}, not another JSON file") from None
    except ValueError as error:
        raise SpecError(
            f"{name}: not valid JSON ({error}); {'the file is empty' if not text.strip() else 'truncated?'}",
            hint="download or export the file again, and check it with `python -m json.tool`",
        ) from None
    if not isinstance(value, dict):
        raise SpecError(
            f"{name}: holds {quoted(value)}: {what} must be a JSON object", hint=f'give {what}, which starts with "{{"'
        )
    return value


class Fields:
    """Fields of one config, with errors that name file and field. JSON null counts as missing."""

    def __init__(self, config: Mapping[str, object], source: str) -> None:
        self.config = config
        self.source = source

    @property
    def own_name(self) -> str:
        """Last part of the name that transformers wrote; empty: none."""
        return str(self.config.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]

    @property
    def decoder_key(self) -> str | None:
        """Field that holds the decoder of a multimodal model; None: the config itself is the decoder's."""
        return next((key for key in DECODERS if self.config.get(key)), None)

    @property
    def text(self) -> Mapping[str, Any]:
        """The config of the decoder as it is written."""
        key = self.decoder_key
        if key is None:
            return self.config
        text = self.config[key]
        if not isinstance(text, dict):
            raise self.error(key, "must be an object", "download or export the file again")
        return text

    @property
    def is_multimodal(self) -> bool:
        """Whether there are encoders around the decoder."""
        return self.decoder_key is not None or any(self.config.get(key) for key in _ENCODERS)

    def decoder(self) -> Self:
        """Return the fields of the decoder, completed by what its type implies."""
        key = self.decoder_key
        if key is None:
            return self._completed(self.config, TYPES[self.kind].fields if self.kind in TYPES else {}, self.source)
        # one setting of the whole model, which either may hold
        tied = {"tie_word_embeddings": self.config.get("tie_word_embeddings")}
        kind = next((name for name, each in TYPES.items() if each.inside and each.inside == self.kind), "llama")
        said = {"model_type": kind, **tied, **self.text}
        inner = type(self)(said, f"{self.source}: {key}")
        return self._completed(said, TYPES[inner.kind].defaults if inner.kind in TYPES else {}, inner.source)

    def _completed(self, config: Mapping[str, object], implied: Mapping[str, object], source: str) -> Self:
        given = {key: value for key, value in config.items() if value is not None or key in _NULLABLE}
        return type(self)({**implied, **given}, source)

    def quantized(self, decoder: "Fields") -> "Fields":
        """Return which of both says the precision of the checkpoint: these fields, or those of the decoder."""
        return self if any(self.config.get(key) for key in QUANTIZATION) else decoder

    def error(self, key: str, rule: str, way_out: str) -> SpecError:
        return SpecError(f"{self.source}: {key} is {quoted(self.config.get(key))}: {rule}", hint=way_out)

    @property
    def kind(self) -> str:
        """`model_type`; Llama's if it is missing."""
        kind = self.config.get("model_type")
        if kind is None:
            return "llama"
        if not isinstance(kind, str):
            raise self.error("model_type", "must be text", 'for example "llama"')
        return kind

    def size(self, key: str, maximum: int, *, default: int | None = None, minimum: int = 1) -> int:
        value = self.config.get(key)
        if value is None:
            if default is not None:
                return default
            raise SpecError(
                f"{self.source}: {key} is missing: a config.json of type {quoted(self.kind)} must have it",
                hint=f'add "{key}" to the file',
            )
        return whole(value, f"{self.source}: {key}", minimum, maximum, hint=f"correct {key} in the file")

    def number(self, key: str, default: float) -> float:
        """Return a number, which must be above 0."""
        value = self.config.get(key)
        return default if value is None else real(value, f"{self.source}: {key}", _LARGEST)

    def flag(self, key: str, *, default: bool = False) -> bool:
        value = self.config.get(key)
        return default if value is None else flag(value, f"{self.source}: {key}")

    def layer_numbers(self, key: str, layers: int) -> frozenset[int] | None:
        """Return the layers that a field lists; None if it is missing or empty."""
        value = self.config.get(key)
        if value is None or value == []:
            return None
        if not isinstance(value, list):
            raise self.error(key, "must be a list of layers", f"correct {key} in the file")
        return frozenset(whole(each, f"{self.source}: {key}: a layer", 0, layers - 1) for each in value)

    def further_layers(self) -> int:
        """Return the number of layers in a checkpoint that follow the model's and predict further tokens."""
        return max(self.size(key, 100, default=0, minimum=0) for key in _FURTHER)
