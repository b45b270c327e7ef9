"""The scenario of a page as a command line and as Python."""

import json
import shlex
from typing import Any

from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.state import State, model_fields
from ladder_sim.specs.model import ModelSpec


def command_line(state: State, allowlist: Allowlist) -> str:
    """The command that gives the same numbers in a terminal.

    Examples
    --------
    >>> state = State.parse("model=405b&nodes=2&inter.bandwidth=100Gb/s&variants=ladder", Allowlist.of())
    >>> command_line(state, Allowlist.of())
    'ladder-sim predict --model 405b --nodes 2 --set inter.bandwidth=100Gb/s --variant standard,ladder'
    """
    words = ["ladder-sim", "predict"]
    if state.shape is not None:
        words += ["--model", "config.json"]
    for argument, value in state.changed():
        if argument.kind is bool:
            words.append(argument.flag)
        elif argument.name != "model" or state.shape is None:
            words += [argument.flag, str(allowlist.given(argument.name, value))]
    if state.profile is not None:
        words += ["--profile", allowlist.given("profile", state.profile)]
    for key, text in state.settings.items():
        words += ["--set", f"{key}={text}"]
    if state.variants:
        words += ["--variant", ",".join(dict.fromkeys(("standard", *state.variants)))]
    if state.ignore_memory:
        words.append("--ignore-memory")
    return shlex.join(words)


def python_code(state: State, allowlist: Allowlist) -> str:
    """The code that gives the same numbers in Python."""
    given = {argument.name: allowlist.given(argument.name, value) for argument, value in state.changed()}
    if state.shape is not None:
        given["model"] = state.shape
    arguments = [f"{name}={_literal(value)}" for name, value in given.items()]
    if state.settings:
        arguments.append(f"overrides={json.dumps(dict(state.settings))}")
    inputs = ["scenario"]
    if state.variants:
        inputs.append(json.dumps(list(dict.fromkeys(("standard", *state.variants)))))
    if state.profile is not None:
        inputs.append(f"profile={_literal(allowlist.given('profile', state.profile))}")
    if state.ignore_memory:
        inputs.append("ignore_memory=True")
    lines = ["from ladder_sim import Scenario, predict"]
    if state.shape is not None:
        lines.append("from ladder_sim.specs.model import ModelSpec")
    shown = state.variant if not state.variants or state.variant in state.variants else state.variants[-1]
    lines += [
        "",
        f"scenario = Scenario.of({', '.join(arguments)})",
        f"predictions = predict({', '.join(inputs)})",
        f'print(predictions["{shown}"].speedup)',
    ]
    return "\n".join(lines)


def _literal(value: Any) -> str:
    if isinstance(value, ModelSpec):
        return f"ModelSpec({', '.join(f'{name}={field!r}' for name, field in model_fields(value).items())})"
    return repr(value) if isinstance(value, bool) else json.dumps(value)
