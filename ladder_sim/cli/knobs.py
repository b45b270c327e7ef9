"""What `--set` changes besides figures of the scenario: parameters of a command that have no flag."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ladder_sim.errors import UsageError
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.specs.reading import read_value


def _jitter(text: str) -> float | str:
    """Return a standard deviation, or the word that stands for the profile's."""
    if text == "measured":
        return text
    try:
        return float(text)
    except ValueError:
        raise UsageError(
            f"jitter '{text}' is not a number",
            hint="0.05 spreads kernel times by 5 %; 'measured' takes the profile's spread",
        ) from None


def _file(text: str) -> str:
    return text


@dataclass(frozen=True, slots=True)
class Knob:
    """A parameter of some commands, named as in Python."""

    name: str
    commands: tuple[str, ...]
    """Commands that have the parameter."""
    kind: Any
    """Type of the value, or a function that reads text."""
    default: Any
    """Value without ``--set``; None: off, or decided by the other parameters."""
    meaning: str
    """What it changes, in a sentence."""

    def read(self, text: str) -> Any:
        """Read the value from the text behind ``--set NAME=``."""
        return read_value(text, self.name, self.kind, name=self.name)


_LOADED = ("serve", "capacity")
_PREDICTED = ("predict", "export")
_FITTING = (*_PREDICTED, "sweep", "breakeven", "sensitivity", "compare", "versus", "explore")
_DRAWN = ("predict", "sweep", "breakeven", "sensitivity", "advise", "compare", "versus", *_LOADED, "validate")

_TABLE = (
    Knob("plot", _DRAWN, _file, None, "File to draw the answer into: .html, .png or .svg."),
    Knob("timeline", ("predict",), _file, None, "File to draw what runs when in a decode step: .html, .png or .svg."),
    Knob("ignore_memory", _FITTING, bool, False, "Predict even if the model does not fit the memory."),
    Knob(
        "intervals", ("sweep",), bool, None, "90 % intervals; by default where they take 100,000 simulations at most."
    ),
    Knob("engine", _PREDICTED, Literal["fast", "des"], "fast", "fast: vectorised; des: event by event on simpy."),
    Knob(
        "jitter",
        _PREDICTED,
        _jitter,
        0.0,
        "Random spread of kernel times, e.g. 0.05, or 'measured'; every rank is simulated.",
    ),
    Knob("seed", (*_PREDICTED, *_LOADED), int, 0, "Seed of the random numbers."),
    Knob("burstiness", _LOADED, float, 1.0, "Regularity of arrivals: 1 is a Poisson process, less comes in bursts."),
    Knob("prefix", _LOADED, int, 0, "Tokens that all prompts begin with, in addition to their own."),
    Knob(
        "router", _LOADED, str, "round-robin", "How replicas share requests: round-robin, least-loaded, prefix-aware."
    ),
    Knob("speculate", _LOADED, str, None, "Drafted tokens and their acceptance: 3:0.7, or 0.8/0.6/0.4 by position."),
    Knob("speed", ("serve",), float, None, "How many times as fast as recorded a trace is played."),
    Knob("prefill_replicas", ("serve",), int, 0, "Replicas that run prompts only, besides the --dp ones that decode."),
    Knob("prefill_tp", ("serve",), int, None, "Tensor parallelism of the prefill replicas; default: that of --tp."),
    Knob(
        "prefill_tp", ("capacity",), str, None, "Degrees of tensor parallelism to try for prefill replicas, e.g. 2:8."
    ),
    Knob("engine", ("serve",), str, None, "vllm: an installed vLLM schedules; its steps take predicted times."),
    Knob("perfetto", ("serve",), _file, None, "File to write a minute of one replica into: .json or .json.gz."),
)


def knobs_of(command: str) -> Mapping[str, Knob]:
    """Return the parameters without a flag that a command has, by name."""
    return {each.name: each for each in _TABLE if command in each.commands}


def commands_with(name: str) -> list[str]:
    """Return the commands that take a parameter without a flag; none if no command has one of this name."""
    return [_shown(command) for each in _TABLE if each.name == name for command in each.commands]


def instead_of(flag: str, command: str) -> str:
    """Return what to write instead of a flag that a command had in an earlier version; empty: it never had it."""
    if flag == "--save":
        return "redirect the output: --json > FILE, --csv > FILE, or > FILE alone for text"
    name = flag.removeprefix("--").replace("-", "_")
    knob, argument = knobs_of(command).get(name), ARGUMENTS.get(name)
    if knob:
        return f"write --set {name}={'true' if knob.kind is bool else 'FILE' if knob.kind is _file else 'VALUE'}"
    return f"write {argument.flag}=VALUE" if argument and not argument.has_flag else ""


def _shown(command: str) -> str:
    return "trace export" if command == "export" else command


def knob_rows() -> list[tuple[str, str, str, str]]:
    """Return name, default, meaning and commands of every parameter without a flag."""
    return [
        (
            each.name,
            "-" if each.default is None else str(each.default).lower(),
            each.meaning,
            ", ".join(map(_shown, each.commands)),
        )
        for each in _TABLE
    ] + [
        (name, str(each.default or "-").lower(), each.help, "every command with a scenario")
        for name, each in ARGUMENTS.items()
        if not each.has_flag
    ]
