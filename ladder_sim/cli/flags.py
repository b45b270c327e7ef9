"""Flags that mean the same in every command, and the scenario that they describe."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Self, TypeVar

import typer

from ladder_sim.cli.knobs import commands_with, knobs_of
from ladder_sim.cli.output import PANEL
from ladder_sim.errors import UsageError
from ladder_sim.graph.families import FAMILIES
from ladder_sim.specs.arguments import ARGUMENTS, ASKED, DEFAULTS, Argument
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.settings import find_setting, settings, unknown_setting

# context of a command whose arguments, --help among them, are read by the package that it runs
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
# what of a scenario requests replace that arrive one by one
REQUESTS = ("batch", "prompt", "gen", "concurrency", "arrivals")

_Spec = TypeVar("_Spec")


def completion(argument: Argument) -> Callable[[str], list[str]] | None:
    """What completes the last name typed for an argument in the shell; None: it takes no names."""
    if argument.kind in (int, bool):
        return None

    def complete(incomplete: str) -> list[str]:
        typed = incomplete[: max(incomplete.rfind("+"), incomplete.rfind(",")) + 1]
        return [f"{typed}{each}" for each in argument.names if f"{typed}{each}".startswith(incomplete)]

    return complete


def _flag(name: str) -> Any:
    """The flag of an argument; left out, it is None, and the argument has its default."""
    argument = ARGUMENTS[name]
    shown = argument.default is not None and not argument.repeats and argument.kind is not bool
    text = f"{argument.help.removesuffix('.')}; default: {argument.default}." if shown else argument.help
    return typer.Option(argument.flag, help=text, rich_help_panel=argument.panel, autocompletion=completion(argument))


def ranged(name: str) -> Any:
    """The flag of an argument that takes several values."""
    argument = ARGUMENTS[name]
    return typer.Option(
        f"--{name.replace('_', '-')}",
        help=argument.range_help,
        rich_help_panel=argument.panel,
        autocompletion=completion(argument),
    )


Model = Annotated[str | None, _flag("model")]
Cluster = Annotated[str | None, _flag("cluster")]
Nodes = Annotated[int | None, _flag("nodes")]
GpusPerNode = Annotated[int | None, _flag("gpus_per_node")]
Stack = Annotated[str | None, _flag("stack")]
DType = Annotated[str | None, _flag("dtype")]
AllReduce = Annotated[str | None, _flag("allreduce")]
Technique = Annotated[list[str] | None, _flag("technique")]
NoP2p = Annotated[bool, _flag("p2p")]
Tp = Annotated[int | None, _flag("tp")]
Pp = Annotated[int | None, _flag("pp")]
Ep = Annotated[int | None, _flag("ep")]
AttentionDp = Annotated[int | None, _flag("attention_dp")]
Dp = Annotated[int | None, _flag("dp")]
Batch = Annotated[int | None, _flag("batch")]
Concurrency = Annotated[int | None, _flag("concurrency")]
Prompt = Annotated[int | None, _flag("prompt")]
Gen = Annotated[int | None, _flag("gen")]

Tps = Annotated[str | None, ranged("tp")]
Pps = Annotated[str | None, ranged("pp")]
Eps = Annotated[str | None, ranged("ep")]
AttentionDps = Annotated[str | None, ranged("attention_dp")]
Dps = Annotated[str | None, ranged("dp")]
Concurrencies = Annotated[str | None, ranged("concurrency")]

_PATTERNS = ", ".join(family.pattern for family in FAMILIES.values())
Variant = Annotated[
    list[str] | None,
    typer.Option(help=f"{_PATTERNS}, hybrid-NAME:K; repeatable, commas allowed.", rich_help_panel=ASKED),
]
Profile = Annotated[
    str | None, typer.Option(help="Measured profile: name or file; 'none' for the datasheet.", rich_help_panel=ASKED)
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="NAME=VALUE for any figure and what has no flag: gpu.kernel=2us, plot=a.svg; `list settings` shows all.",
        rich_help_panel=ASKED,
    ),
]
Price = Annotated[float | None, typer.Option(help="US dollars per GPU and hour.", rich_help_panel=PANEL)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A scenario and how it is predicted, as typed."""

    arguments: Mapping[str, Any]
    """Arguments of `Scenario.of` that were given, by name."""
    settings: Mapping[str, str]
    """Figures to change, by name."""
    profile: str | None
    """Measured profile: name or file; None: the default."""
    knobs: Mapping[str, Any]
    """Values of the parameters of the command that have no flag, by name."""

    @classmethod
    def of(cls, context: typer.Context, *without: str, ranged: bool = False, requests: str = "") -> Self:
        """Read the flags of a command.

        Parameters
        ----------
        context
            Context of the command.
        *without
            Arguments of `Scenario.of` that the command takes in another way.
        ranged
            Whether the command takes several values of an argument: they stay text.
        requests
            Where the requests come from, if not from the scenario's `REQUESTS`: what refuses settings of those.
        """
        left_out = {*without, *(REQUESTS if requests else ())}
        arguments = {
            name: _value(argument, typed)
            for name, argument in ARGUMENTS.items()
            if name not in left_out and _is_given(typed := context.params.get(argument.key, context.params.get(name)))
        }
        knobs = knobs_of(str(context.info_name))
        rare = [each.name for each in ARGUMENTS.values() if not each.has_flag and each.name not in left_out]
        values = {name: knob.default for name, knob in knobs.items()}
        figures: dict[str, str] = {}
        for key, text in settings(context.params["set_"] or []).items():
            name = key.replace("-", "_")
            if requests and key.removeprefix("workload.") in REQUESTS:
                raise UsageError(f"{key} changes nothing here: {requests}", hint="leave it out")
            if name in knobs:
                values[name] = knobs[name].read(text)
            elif name in rare:
                is_flag = ARGUMENTS[name].kind is bool and not ranged
                arguments[name] = ARGUMENTS[name].read(text, name=name) if is_flag else text
            elif find_setting(key) is None:
                raise unknown_setting(key, also=(*knobs, *rare), commands=commands_with(name))
            else:
                figures[key] = text
        return cls(arguments=arguments, settings=figures, profile=context.params.get("profile"), knobs=values)

    def scenario(self) -> Scenario:
        """Resolve names and check everything."""
        return Scenario.of(**self.arguments, overrides=self.settings)

    def point(self, *without: str) -> dict[str, Any]:
        """Return the scenario as a point of a sweep, with the defaults of all arguments but some."""
        defaults = {name: value for name, value in DEFAULTS.items() if value is not None and name not in without}
        return {**defaults, **self.arguments, **self.settings}

    def how(self, *names: str) -> dict[str, Any]:
        """Return the profile and some of the knobs, as arguments of the function that predicts."""
        return {"profile": self.profile, **{name: self.knobs[name] for name in names}}


def _is_given(typed: Any) -> bool:
    """Whether a flag was given: a switch that was not is False, a list of several None or empty."""
    return typed not in (None, [], ()) and typed is not False


def _value(argument: Argument, typed: Any) -> Any:
    if argument.repeats and not isinstance(typed, str):
        return "+".join(typed)
    # a switch says that an argument is not at its default: --no-p2p
    return not argument.default if typed is True else typed


def of_context(spec: type[_Spec], context: typer.Context) -> _Spec:
    """Make a dataclass whose fields are parameters of a command."""
    return spec(**{each.name: context.params[each.name] for each in fields(spec)})  # type: ignore[arg-type]


def split_names(given: Sequence[str] | None) -> list[str]:
    """Names of an option that may be repeated and takes commas.

    Examples
    --------
    >>> split_names(["standard,ladder", "desync:4"])
    ['standard', 'ladder', 'desync:4']
    """
    return [name for text in given or [] for name in text.split(",")]
