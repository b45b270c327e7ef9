"""A config.json that was uploaded to the page or pasted into it: read as data, within bounds."""

import base64
import binascii
import json

from ladder_sim.errors import UsageError
from ladder_sim.explorer.state import model_name, model_text
from ladder_sim.specs.model import ModelSpec

# a config.json is a few kilobytes
MAX_BYTES = 1_000_000


def read_config(file: object, contents: object, pasted: object) -> tuple[str, str]:
    """The model's name, and its shape as a link holds it.

    Parameters
    ----------
    file, contents
        Name and data URL of an uploaded file; any JSON, because a browser sent them.
    pasted
        Text instead of a file; None: a file was uploaded.

    Raises
    ------
    UsageError
        It is too large, not a JSON object, or not a dense decoder.
    """
    if pasted is not None:
        return _shape("pasted", _check_length(pasted, MAX_BYTES))
    if not isinstance(contents, str) or not isinstance(file, str):
        raise UsageError("no file was uploaded", hint="drop a config.json, or paste its text")
    _, _, encoded = _check_length(contents, 2 * MAX_BYTES).partition(",")
    try:
        text = base64.b64decode(encoded, validate=True).decode("utf-8-sig")
    except (binascii.Error, UnicodeDecodeError):
        raise UsageError("the file is not text", hint="give the model's config.json, not its weights") from None
    return _shape(model_name(file.removesuffix(".json")), _check_length(text, MAX_BYTES))


def _check_length(text: object, maximum: int) -> str:
    if not isinstance(text, str) or not text.strip():
        raise UsageError("the text is empty", hint="paste the model's config.json")
    if len(text) > maximum:
        raise UsageError(f"the file is larger than {MAX_BYTES} bytes", hint="a config.json has a few kilobytes")
    return text


def _shape(name: str, text: str) -> tuple[str, str]:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UsageError(f"not valid JSON: {reason}", hint="give the whole config.json") from None
    if not isinstance(config, dict):
        raise UsageError("a config.json must be a JSON object", hint='it starts with "{"')
    return name, model_text(ModelSpec.from_hf(config, name=name, source="config.json"))
