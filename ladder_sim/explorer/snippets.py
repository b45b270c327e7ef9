"""The scenario of a page as a command line and as Python."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from ladder_sim.explorer.allowlist import Known
from ladder_sim.explorer.state import State
from ladder_sim.specs.model import ModelSpec

_NAMED = ("model", "cluster", "nodes", "gpus_per_node", "tp", "batch", "prompt", "gen", "dtype", "stack", "allreduce")
_FILES = ("cluster", "stack", "profile")


def command_line(state: State, known: Known) -> str:
    """What gives the same numbers in a terminal.

    Examples
    --------
    >>> state = State.parse("model=405b&nodes=2&inter.bandwidth=100Gb/s&variants=ladder", Known.of())
    >>> command_line(state, Known.of())
    'ladder-sim predict --model 405b --nodes 2 --set inter.bandwidth=100Gb/s --variant standard,ladder'
    """
    words = ["ladder-sim", "predict"]
    for name, value in _given(state, known).items():
        words += [f"--{name.replace('_', '-')}", "config.json" if isinstance(value, ModelSpec) else str(value)]
    if state.no_p2p:
        words.append("--no-p2p")
    for key, text in state.settings.items():
        words += ["--set", f"{key}={text}"]
    if state.variants:
        words += ["--variant", ",".join(dict.fromkeys(("standard", *state.variants)))]
    if state.ignore_memory:
        words.append("--ignore-memory")
    return shlex.join(words)


def python_code(state: State, known: Known) -> str:
    """What gives the same numbers in Python."""
    given = _given(state, known)
    profile = given.pop("profile", None)
    arguments = [f"{name}={_literal(value)}" for name, value in given.items()]
    if state.no_p2p:
        arguments.append("p2p=False")
    if state.settings:
        arguments.append(f"overrides={json.dumps(dict(state.settings))}")
    asked = ["scenario"]
    if state.variants:
        asked.append(json.dumps(list(dict.fromkeys(("standard", *state.variants)))))
    if profile is not None:
        asked.append(f"profile={_literal(profile)}")
    if state.ignore_memory:
        asked.append("ignore_memory=True")
    lines = ["from ladder_sim import Scenario, predict"]
    if state.shape is not None:
        lines.append("from ladder_sim.specs.model import ModelSpec")
    shown = state.variant if not state.variants or state.variant in state.variants else state.variants[-1]
    lines += [
        "",
        f"scenario = Scenario.of({', '.join(arguments)})",
        f"found = predict({', '.join(asked)})",
        f'print(found["{shown}"].speedup)',
    ]
    return "\n".join(lines)


def _given(state: State, known: Known) -> dict[str, Any]:
    """Fields that are not as usual; files by their paths."""
    usual = {field.name: None if field.default is MISSING else field.default for field in fields(State)}
    found: dict[str, Any] = {}
    for name in (*_NAMED, "profile"):
        value = getattr(state, name)
        if value != usual[name]:
            found[name] = known.typed.get(value, value) if name in _FILES else value
    if state.shape is not None:
        found["model"] = state.shape
    return found


def _literal(value: Any) -> str:
    if not isinstance(value, ModelSpec):
        return json.dumps(value)
    usual: Mapping[str, Any] = {field.name: field.default for field in fields(ModelSpec)}
    parts = [
        f"{name}={getattr(value, name)!r}" for name in usual if name != "source" and getattr(value, name) != usual[name]
    ]
    return f"ModelSpec({', '.join(parts)})"
