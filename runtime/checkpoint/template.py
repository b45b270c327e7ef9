"""Chat templates: the Jinja of a checkpoint that turns a message into the prompt format of its model."""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from ladder_sim.errors import LadderSimError, MissingPackageError, UsageError
from ladder_sim.system.files import read_text
from ladder_sim.system.processes import run
from runtime.fields import read_object

# names in tokenizer_config.json and in templates
_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
# a template renders in milliseconds; limits of the process that does it
CPU_S, MEMORY_BYTES = 10, 2**30


def chat_prompt(folder: Path, message: str) -> str | None:
    """The prompt for a user's first message; None if the checkpoint has no template.

    Raises
    ------
    UsageError
        The template fails, or does not end.
    MissingPackageError
        jinja2 is not installed.
    """
    file = folder / "tokenizer_config.json"
    config = read_object(file, what=f"the checkpoint's {file.name}") if file.exists() else {}
    template = _template(folder, config)
    if template is None:
        return None
    if find_spec("jinja2") is None:
        raise MissingPackageError("chat templates need jinja2")
    variables = {
        "messages": [{"role": "user", "content": message}],
        "add_generation_prompt": True,
        **{name: _content(config[name]) for name in _TOKENS if config.get(name) is not None},
    }
    request = json.dumps({"template": template, "variables": variables})
    try:
        _, answer = run(("runtime.checkpoint.render", str(CPU_S), str(MEMORY_BYTES)), capture=True, given=request)
        rendered: dict[str, str] = json.loads(answer)
    except (LadderSimError, ValueError):
        raise UsageError(
            f"{folder}: the chat template takes more than {CPU_S} s or {MEMORY_BYTES // 2**20} MiB",
            hint="--raw leaves it out",
        ) from None
    if "error" in rendered:
        raise UsageError(f"{folder}: the chat template fails: {rendered['error']}", hint="--raw leaves it out")
    return rendered["text"]


def _template(folder: Path, config: Mapping[str, object]) -> str | None:
    """Source of the default template, in its own file or in the tokenizer's config."""
    file = folder / "chat_template.jinja"
    if file.exists():
        return read_text(file, what="a chat template", error=UsageError)
    template = config.get("chat_template")
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict)]
        template = next((entry.get("template") for entry in named if entry.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _content(token: object) -> object:
    """A special token: its text, or an object that holds it."""
    return token.get("content") if isinstance(token, dict) else token
