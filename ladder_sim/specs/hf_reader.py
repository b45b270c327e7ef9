"""Reads fields of a Hugging Face config.json."""

from collections.abc import Mapping
from typing import Self

from ladder_sim.errors import SpecError
from ladder_sim.specs.hf_types import CLASS_SIZES, TYPES
from ladder_sim.specs.values import flag, whole
from ladder_sim.units import quoted

# largest accepted size, by ModelSpec field: ten times that of any published model, or more
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

# fields with the decoder of a multimodal model, its type where they do not say it, and fields of the encoders
TEXT_CONFIGS = ("text_config", "llm_config")
_TEXT_TYPES = {"gemma3": "gemma3_text", "mistral3": "mistral", "llama4": "llama4_text"}
ENCODERS = ("vision_config", "audio_config")
# fields in which null is a value of its own: no window, as many heads as queries, a share of the width
_NULLABLE = ("sliding_window", "num_key_value_heads", "head_dim", "q_lora_rank")


class ConfigReader:
    """Fields of one config, with errors that name file and field. JSON null counts as missing."""

    def __init__(self, config: Mapping[str, object], source: str) -> None:
        self.config = config
        self.source = source

    def decoder(self) -> Self:
        """Return the config of the decoder, which a multimodal model holds inside its own, with the type's defaults."""
        nested = next((key for key in TEXT_CONFIGS if self.config.get(key)), None)
        if nested is None:
            return self._filled({})
        text = self.config[nested]
        if not isinstance(text, dict):
            raise self.error(nested, "must be an object", "download or export the file again")
        # one setting of the whole model, which either may hold
        tied = {"tie_word_embeddings": self.config.get("tie_word_embeddings")}
        kind = {"model_type": _TEXT_TYPES.get(self.model_type(), "llama")}
        inner = type(self)({**kind, **tied, **text}, f"{self.source}: {nested}")
        return inner._filled(CLASS_SIZES.get(inner.model_type(), {}))

    def _filled(self, sizes: Mapping[str, object]) -> Self:
        """Return the config completed by what the model's type implies."""
        given = {key: value for key, value in self.config.items() if value is not None or key in _NULLABLE}
        return type(self)({**sizes, **TYPES.get(self.model_type(), {}), **given}, self.source)

    def error(self, key: str, rule: str, way_out: str) -> SpecError:
        return SpecError(f"{self.source}: {key} is {quoted(self.config.get(key))}: {rule}", hint=way_out)

    def model_type(self) -> str:
        model_type = self.config.get("model_type")
        if model_type is None:
            return "llama"
        if not isinstance(model_type, str):
            raise self.error("model_type", "must be text", 'for example "llama"')
        return model_type

    def size(self, key: str, maximum: int, *, default: int | None = None, minimum: int = 1) -> int:
        value = self.config.get(key)
        if value is None:
            if default is not None:
                return default
            raise SpecError(
                f"{self.source}: {key} is missing: a config.json of type {quoted(self.model_type())} must have it",
                hint=f'add "{key}" to the file',
            )
        return whole(value, f"{self.source}: {key}", minimum, maximum, hint=f"correct {key} in the file")

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
