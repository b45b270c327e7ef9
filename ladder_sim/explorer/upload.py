"""A config.json that was uploaded to the page or pasted into it: read as data, within bounds."""

import base64
import binascii
import json

from ladder_sim.errors import UsageError
from ladder_sim.explorer.state import model_name, model_text
from ladder_sim.specs.model import ModelSpec

# a config.json is a few kilobytes
MAX_BYTES = 1_000_000
# origins that say nothing about the model: pasted text, and the name that every such file has
_PASTED = "pasted"
_UNNAMED = (_PASTED, "config")


def read_config(file: object, pasted: object) -> tuple[str, str]:
    """Return the model's name, and its shape as a link holds it.

    Parameters
    ----------
    file
        Name and contents, a data URL, of an uploaded file; any JSON, because a browser sent it.
    pasted
        Text instead of a file; None: a file was uploaded.

    Raises
    ------
    UsageError
        It is too large, not a JSON object, or not a dense decoder.
    """
    if pasted is not None:
        return _shape(_PASTED, _check_length(pasted, MAX_BYTES))
    name, contents = (file.get("name"), file.get("contents")) if isinstance(file, dict) else (None, None)
    if not isinstance(contents, str) or not isinstance(name, str):
        raise UsageError("no file was uploaded", hint="drop a config.json, or paste its text")
    _, _, encoded = _check_length(contents, 2 * MAX_BYTES).partition(",")
    try:
        text = base64.b64decode(encoded, validate=True).decode("utf-8-sig")
    except (binascii.Error, UnicodeDecodeError):
        raise UsageError("the file is not text", hint="give the model's config.json, not its weights") from None
    return _shape(name.removesuffix(".json"), _check_length(text, MAX_BYTES))


def _check_length(text: object, maximum: int) -> str:
    if not isinstance(text, str) or not text.strip():
        raise UsageError("the text is empty", hint="paste the model's config.json")
    if len(text) > maximum:
        raise UsageError(f"the file is larger than {MAX_BYTES} bytes", hint="a config.json has a few kilobytes")
    return text


def _shape(origin: str, text: str) -> tuple[str, str]:
    """Return a model's name and shape; the name comes from the file, else from the config in it."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UsageError(f"not valid JSON: {reason}", hint="give the whole config.json") from None
    if not isinstance(config, dict):
        raise UsageError("a config.json must be a JSON object", hint='it starts with "{"')
    own = str(config.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
    name = model_name(own if own and origin in _UNNAMED else origin)
    return name, model_text(ModelSpec.from_hf(config, name=name, source="config.json"))
