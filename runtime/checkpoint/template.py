"""Chat templates: the Jinja of a checkpoint that turns a message into the prompt format of its model."""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from ladder_sim.errors import MissingPackageError, UsageError
from ladder_sim.system.files import read_text
from runtime.config import read_object

# names in tokenizer_config.json and in templates
_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


def chat_prompt(folder: Path, message: str) -> str | None:
    """The prompt for a user's first message; None if the checkpoint has no template.

    A template is code from whoever made the checkpoint: it runs in Jinja's sandbox.
    """
    file = folder / "tokenizer_config.json"
    config = read_object(file, what=f"the checkpoint's {file.name}") if file.exists() else {}
    template = _template(folder, config)
    if template is None:
        return None
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise MissingPackageError("chat templates need jinja2") from None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": _refuse, "strftime_now": datetime.now().strftime}
    try:
        return environment.from_string(template).render(
            messages=[{"role": "user", "content": message}],
            add_generation_prompt=True,
            **{name: _content(config[name]) for name in _TOKENS if config.get(name) is not None},
        )
    except (TemplateError, TypeError, ValueError) as error:
        raise UsageError(f"{folder}: the chat template fails: {error}", hint="--raw leaves it out") from None


def _template(folder: Path, config: Mapping[str, object]) -> str | None:
    """Source of the default template, in its own file or in the tokenizer's config."""
    file = folder / "chat_template.jinja"
    if file.exists():
        return read_text(file, what="a chat template", error=UsageError)
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template if isinstance(template, str) else None


def _content(token: object) -> object:
    """A special token: its text, or an object that holds it."""
    return token.get("content") if isinstance(token, dict) else token


def _tojson(value: object, indent: int | None = None) -> str:
    """Like Hugging Face's, without escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    """Called by templates that refuse a conversation."""
    raise ValueError(message)
