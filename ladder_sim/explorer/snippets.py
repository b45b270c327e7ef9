"""The scenario of a page as a command line and as Python."""

import json
import shlex
from dataclasses import replace
from typing import Any

from ladder_sim.conditioning import read_measured
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.state import State, model_fields
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.scenario import Scenario
from ladder_sim.sweeps.axes import resolve

# of a simulated load, and per second where a link has no rate
REQUESTS, USUAL_RATE = 500, 10.0
# how a command predicts what does not fit
IGNORE_MEMORY = "ignore_memory=true"
# arguments that arrivals, the SLO and the search for replicas replace, and the settings of the same
_REQUESTS = ("batch", "prompt", "gen", "concurrency", "dp")
OF_REQUESTS = (*_REQUESTS, *(f"workload.{name}" for name in _REQUESTS))


def command_line(state: State, allowlist: Allowlist) -> str:
    """Return the command that predicts a page's scenario in a terminal.

    Examples
    --------
    >>> state = State.parse("model=405b&nodes=2&inter.bandwidth=100Gb/s&variants=ladder", Allowlist.of())
    >>> command_line(state, Allowlist.of())
    'ladder-sim predict --model 405b --nodes 2 --set inter.bandwidth=100Gb/s --variant standard,ladder'
    """
    variants = ",".join(dict.fromkeys(("standard", *state.variants))) if state.variants else None
    return written("predict", state, allowlist, variant=variants, set=state.ignore_memory and IGNORE_MEMORY)


def capacity_command(state: State, allowlist: Allowlist) -> str:
    """Return the command that gives a page's answer on requests under load in a terminal, for the page's plan.

    Examples
    --------
    >>> state = State.parse("model=8b&rate=4&tpot_p95=9ms&variants=ladder", Allowlist.of())
    >>> capacity_command(state, Allowlist.of()).partition(" --slo ")[0]
    'ladder-sim capacity --model 8b --tp 8 --pp 1 --prompt 1024 --gen 512 --rate 4 --requests 500'
    """
    scenario = state.under_load().scenario(allowlist)
    plan = served_plan(scenario)
    return written(
        "capacity",
        replace(state, measured=state.measured_at),
        allowlist,
        *(*OF_REQUESTS, *plan),
        **{name: value for name, value in plan.items() if name != "sp"},
        prompt=scenario.workload.prompt,
        gen=scenario.workload.gen,
        rate=state.rate or USUAL_RATE,
        requests=REQUESTS,
        slo=state.slo,
        variant=",".join(state.variants),
        price=state.price,
        set="sp=true" if scenario.plan.sp else None,
    )


def served_plan(scenario: Scenario) -> dict[str, Any]:
    """Return the degrees of a replica under load, which are not searched."""
    experts = ("ep", "attention_dp") if scenario.model.experts else ()
    return {name: getattr(scenario.plan, name) for name in ("tp", "pp", *experts, "sp")}


def written(command: str, state: State, allowlist: Allowlist, *left_out: str, **options: object) -> str:
    """Write a command with the page's scenario, without some arguments and settings, and with options that are set."""
    words = ["ladder-sim", command]
    if state.shape is not None:
        words += ["--model", "config.json"]
    for argument, value in state.changed():
        if argument.name in left_out:
            continue
        if argument.name != "model" or state.shape is None:
            words += argument.words(str(allowlist.given(argument.name, value)))
    if state.profile is not None:
        words += ["--profile", allowlist.given("profile", state.profile)]
    if state.measured:
        words += ["--measured", state.measured]
    for key, text in state.settings.items():
        if resolve(key)[0] not in left_out:
            words += ["--set", f"{key}={text}"]
    for name, value in options.items():
        if value:
            # a whole number of a float as one would type it
            words += [f"--{name.replace('_', '-')}", str(value).removesuffix(".0")]
    return shlex.join(words)


def python_code(state: State, allowlist: Allowlist) -> str:
    """Return the Python code that predicts a page's scenario."""
    inputs = ["scenario"]
    if state.variants:
        inputs.append(json.dumps(list(dict.fromkeys(("standard", *state.variants)))))
    profile = None
    if state.profile is not None:
        profile = f"profile={_literal(allowlist.given('profile', state.profile))}"
    if state.measured:
        figures = read_measured(state.measured).figures
        said = [f"{name}={value!r}" for name, value in figures.items()]
        profile = f"profile=condition({', '.join(filter(None, ['scenario', *said, profile]))})"
    inputs += [profile] if profile else []
    if state.ignore_memory:
        inputs.append("ignore_memory=True")
    lines = ["from ladder_sim import Scenario, predict"]
    if state.measured:
        lines.append("from ladder_sim.conditioning import condition")
    if state.shape is not None and not state.shape.block_kinds:
        lines.append("from ladder_sim.specs.model import ModelSpec")
    shown = state.variant if not state.variants or state.variant in state.variants else state.variants[-1]
    lines += [
        "",
        f"scenario = Scenario({_arguments(state, allowlist)})",
        f"predictions = predict({', '.join(inputs)})",
        f'print(predictions["{shown}"].speedup)',
    ]
    return "\n".join(lines)


def _arguments(state: State, allowlist: Allowlist) -> str:
    """Return the arguments of `Scenario` as code."""
    given = {argument.name: allowlist.given(argument.name, value) for argument, value in state.changed()}
    if state.shape is not None:
        given["model"] = state.shape
    arguments = [f"{name}={_literal(value)}" for name, value in given.items()]
    if state.settings:
        arguments.append(f"overrides={json.dumps(dict(state.settings))}")
    return ", ".join(arguments)


def _literal(value: Any) -> str:
    if isinstance(value, ModelSpec):
        if value.block_kinds:
            # many objects: the reader has the file
            return '"config.json"'
        return f"ModelSpec({', '.join(f'{name}={field!r}' for name, field in model_fields(value).items())})"
    return repr(value) if isinstance(value, bool) else json.dumps(value)
