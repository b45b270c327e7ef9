"""The scenario of a page as a command line and as Python."""

import json
import shlex
from typing import Any

from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.serving import traffic_of
from ladder_sim.explorer.state import State, model_fields
from ladder_sim.specs.model import ModelSpec
from ladder_sim.sweeps.axes import resolve

# how a command predicts what does not fit
IGNORE_MEMORY = "ignore_memory=true"
# arguments that arrivals, the SLO and the search for replicas replace, and the settings of the same
_REQUESTS = ("batch", "prompt", "gen", "concurrency", "arrivals", "dp")
_OF_REQUESTS = (*_REQUESTS, *(f"workload.{name}" for name in _REQUESTS))


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
    r"""Return the command that gives a page's answer on requests under load in a terminal.

    Examples
    --------
    >>> state = State.parse("model=8b&rate=4&tpot_p95=9ms&variants=ladder", Allowlist.of())
    >>> print(capacity_command(state, Allowlist.of()).replace(" --slo ", " ...\n--slo "))
    ladder-sim capacity --model 8b --prompt 1024 --gen 512 --rate 4 --requests 500 ...
    --slo ttft_p95=500ms,tpot_p95=9.00ms --variant standard,ladder
    """
    served = state.under_load()
    scenario = served.scenario(allowlist)
    traffic = traffic_of(served, scenario)
    return written(
        "capacity",
        state,
        allowlist,
        *_OF_REQUESTS,
        **{name: getattr(traffic, name) for name in ("prompt", "gen", "rate", "requests")},
        slo=state.slo,
        variant=",".join(state.names(scenario)),
        price=state.price,
    )


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
        f"scenario = Scenario({_arguments(state, allowlist)})",
        f"predictions = predict({', '.join(inputs)})",
        f'print(predictions["{shown}"].speedup)',
    ]
    return "\n".join(lines)


def capacity_code(state: State, allowlist: Allowlist) -> str:
    """Return the Python code that gives a page's answer on requests under load, for the plan of one replica."""
    scenario = state.under_load().scenario(allowlist)
    traffic = traffic_of(state, scenario)
    experts = ("ep", "attention_dp") if scenario.model.experts else ()
    degrees = [f"{name}={getattr(scenario.plan, name)}" for name in ("tp", "pp", *experts)]
    load = [f"{name}={getattr(traffic, name)}" for name in ("prompt", "gen", "requests")]
    inputs = ["scenario", json.dumps(list(state.names(scenario))), *degrees, *(["sp=True"] if scenario.plan.sp else [])]
    inputs += [f"rate={traffic.rate:g}", *load, f'slo="{state.slo}"']
    if state.profile is not None:
        inputs.append(f"profile={_literal(allowlist.given('profile', state.profile))}")
    lines = ["from ladder_sim import Scenario, capacity"]
    if state.shape is not None:
        lines.append("from ladder_sim.specs.model import ModelSpec")
    lines += [
        "",
        f"scenario = Scenario({_arguments(state, allowlist, *_OF_REQUESTS)})",
        f"need = capacity({', '.join(inputs)})",
        "print({name: (each.gpus.low, each.gpus.value, each.gpus.high) for name, each in need.items()})",
    ]
    return "\n".join(lines)


def _arguments(state: State, allowlist: Allowlist, *left_out: str) -> str:
    """Return the arguments of `Scenario` as code, without some arguments and settings."""
    given = {argument.name: allowlist.given(argument.name, value) for argument, value in state.changed()}
    if state.shape is not None:
        given["model"] = state.shape
    arguments = [f"{name}={_literal(value)}" for name, value in given.items() if name not in left_out]
    settings = {key: text for key, text in state.settings.items() if resolve(key)[0] not in left_out}
    if settings:
        arguments.append(f"overrides={json.dumps(settings)}")
    return ", ".join(arguments)


def _literal(value: Any) -> str:
    if isinstance(value, ModelSpec):
        return f"ModelSpec({', '.join(f'{name}={field!r}' for name, field in model_fields(value).items())})"
    return repr(value) if isinstance(value, bool) else json.dumps(value)
