"""Renders a chat template: a process of its own, because a template is code from whoever made the checkpoint.

Jinja's sandbox keeps it from the rest of the machine, and limits of the process end one that does not end by itself.
Reads a JSON object from stdin: the template and its variables; writes one that holds the text, or what went wrong.
"""

import json
import resource
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import NoReturn

from ladder_sim.system.processes import end_with_parent


def render(template: str, variables: Mapping[str, object]) -> dict[str, str]:
    """Text of a template, or its error."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": _refuse, "strftime_now": datetime.now().strftime}
    try:
        return {"text": environment.from_string(template).render(variables)}
    # it may raise anything
    except Exception as error:
        return {"error": str(error) or type(error).__name__}


def _tojson(value: object, indent: int | None = None) -> str:
    """Like Hugging Face's, without escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    """Called by templates that refuse a conversation."""
    raise ValueError(message)


if __name__ == "__main__":
    end_with_parent()
    seconds, size_bytes = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (size_bytes, size_bytes))
    json.dump(render(**json.load(sys.stdin)), sys.stdout)
