"""Flags that mean the same in every command, the scenario that they describe, and what `--set` changes besides it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

import typer
from typer.core import TyperCommand

from ladder_sim.cli.output import Output, in_output
from ladder_sim.errors import UsageError
from ladder_sim.specs.arguments import ARGUMENTS, ASKED, DEFAULTS, LOAD, REQUESTS, Argument
from ladder_sim.specs.reading import read_value
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.scenario_warnings import DECISIVE, Caution
from ladder_sim.specs.server_command import ServerCommand, read_server_command
from ladder_sim.specs.settings import find_setting, settings, unknown_setting
from ladder_sim.wirings.names import FAMILIES

if TYPE_CHECKING:
    from ladder_sim.costs.profile import CalibrationProfile

# options by their group in help
in_asked, in_load = (partial(typer.Option, rich_help_panel=panel) for panel in (ASKED, LOAD))
# arguments of which commands that search take several values
RANGED = ("tp", "pp", "ep", "attention_dp", "dp", "concurrency")


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


def instead_of(flag: str, command: str) -> str:
    """Return what to write instead of a flag that a command had in an earlier version; empty: it never had it."""
    if flag == "--save":
        return "redirect the output: --json > FILE, --csv > FILE, or > FILE alone for text"
    if (command, flag) == ("capacity", "--resume"):
        return "leave it out: a search is made again, which takes seconds to minutes"
    name = flag.removeprefix("--").replace("-", "_")
    knob, argument = knobs_of(command).get(name), ARGUMENTS.get(name)
    if name == "engine" and command != "serve":
        return "write --stack NAME for what serves" + (", --set engine=VALUE for what simulates" if knob else "")
    if knob:
        return f"write --set {name}={'true' if knob.kind is bool else 'FILE' if knob.kind is _file else 'VALUE'}"
    if argument is None or argument.has_flag:
        return ""
    return f"write {argument.flag}={'true' if argument.kind is bool else 'VALUE'}"


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


# context of a command whose arguments, --help among them, are read by the package that it runs
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

_Spec = TypeVar("_Spec")


def completion(argument: Argument) -> Callable[[str], list[str]] | None:
    """Return what completes the last name typed for an argument in the shell; None if it takes no names."""
    if argument.kind in (int, bool):
        return None

    def complete(incomplete: str) -> list[str]:
        typed = incomplete[: max(incomplete.rfind("+"), incomplete.rfind(",")) + 1]
        return [f"{typed}{each}" for each in argument.names if f"{typed}{each}".startswith(incomplete)]

    return complete


def _flag(name: str) -> Any:
    """Return the flag of an argument; left out, it is None, and the argument has its default."""
    argument = ARGUMENTS[name]
    shown = argument.default is not None and not argument.repeats and argument.kind is not bool
    text = f"{argument.help.removesuffix('.')}; default: {argument.default}." if shown else argument.help
    return typer.Option(argument.flag, help=text, rich_help_panel=argument.panel, autocompletion=completion(argument))


def ranged(name: str) -> Any:
    """Return the flag of an argument that takes several values."""
    argument = ARGUMENTS[name]
    return typer.Option(
        f"--{name.replace('_', '-')}",
        help=argument.range_help,
        rich_help_panel=argument.panel,
        autocompletion=completion(argument),
    )


_PATTERNS = ", ".join(family.pattern for family in FAMILIES.values())
Variant = Annotated[list[str] | None, in_asked(help=f"{_PATTERNS}, hybrid-NAME:K; repeatable, commas allowed.")]
Profile = Annotated[str | None, in_asked(help="Measured profile: name or file; 'none' for the datasheet.")]
Measured = Annotated[
    str | None,
    in_asked(
        help="What this deployment measures as standard, e.g. tpot=19ms, ttft=0.2s, tok/s=900, joined by commas; "
        "with tp=4 or others where it is not the scenario; or a result file."
    ),
]
Set = Annotated[
    list[str] | None,
    in_asked(
        "--set",
        help="NAME=VALUE for any figure and what has no flag: gpu.kernel=2us, plot=a.svg; `list settings` shows all.",
    ),
]
Price = Annotated[float | None, in_output(help="US dollars per GPU and hour.")]


def scenario(
    model: Annotated[str | None, _flag("model")] = None,
    cluster: Annotated[str | None, _flag("cluster")] = None,
    nodes: Annotated[int | None, _flag("nodes")] = None,
    gpus_per_node: Annotated[int | None, _flag("gpus_per_node")] = None,
    stack: Annotated[str | None, _flag("stack")] = None,
    dtype: Annotated[str | None, _flag("dtype")] = None,
    variant: Variant = None,
    technique: Annotated[list[str] | None, _flag("technique")] = None,
    allreduce: Annotated[str | None, _flag("allreduce")] = None,
    no_p2p: Annotated[bool, _flag("p2p")] = False,
    profile: Profile = None,
    set_: Set = None,
    tp: Annotated[int | None, _flag("tp")] = None,
    pp: Annotated[int | None, _flag("pp")] = None,
    ep: Annotated[int | None, _flag("ep")] = None,
    attention_dp: Annotated[int | None, _flag("attention_dp")] = None,
    dp: Annotated[int | None, _flag("dp")] = None,
    batch: Annotated[int | None, _flag("batch")] = None,
    concurrency: Annotated[int | None, _flag("concurrency")] = None,
    prompt: Annotated[int | None, _flag("prompt")] = None,
    gen: Annotated[int | None, _flag("gen")] = None,
) -> None:
    """Declare the flags of a scenario, in the order of their help."""


ServerLine = Annotated[
    str | None,
    in_asked(
        "--as", help='How the server is started, e.g. "vllm serve MODEL -tp 4 --max-num-seqs 128"; flags go before it.'
    ),
]


def running(as_: ServerLine = None, measured: Measured = None) -> None:
    """Declare the flags of a server that runs already."""


def searched(
    tp: Annotated[str | None, ranged("tp")] = None,
    pp: Annotated[str | None, ranged("pp")] = None,
    ep: Annotated[str | None, ranged("ep")] = None,
    attention_dp: Annotated[str | None, ranged("attention_dp")] = None,
    dp: Annotated[str | None, ranged("dp")] = None,
    concurrency: Annotated[str | None, ranged("concurrency")] = None,
) -> None:
    """Declare the flags of a plan and its requests where several values are tried."""


@cache
def _flags_of(template: Callable[..., object]) -> Mapping[str, Any]:
    """Return the flags that typer makes of the parameters of a function, or of the fields of a dataclass, by name."""
    app = typer.Typer(add_completion=False)
    app.command()(template)
    return {flag.name: flag for flag in typer.main.get_command(app).params if flag.name}


def with_flags(*templates: Callable[..., object], without: Collection[str] = ()) -> type[TyperCommand]:
    """Return the class of a command that has the flags of templates, but some, before those of its function.

    A flag of the function takes the place of a template's of the same name. Values of the other flags of templates are
    in the context, where `Asked.of` and `of_context` read them.
    """

    class Command(TyperCommand):
        def __init__(self, name: str, *, params: Sequence[Any], **how: Any) -> None:
            own = {each.name: each for each in params}
            before = {flag: each for flag, each in own.items() if each.param_type_name == "argument"}
            shared = {flag: each for template in templates for flag, each in _flags_of(template).items()}
            placed = {flag: own.get(flag, each) for flag, each in shared.items() if flag not in without}
            super().__init__(name, params=list({**before, **placed, **own}.values()), **how)
            self._own = frozenset(own)

        def invoke(self, ctx: Any) -> Any:
            return ctx.invoke(self.callback, **{name: ctx.params[name] for name in self._own})

    return Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A scenario and how it is predicted, as typed."""

    arguments: Mapping[str, Any]
    """Arguments of `Scenario` that were given, by name."""
    settings: Mapping[str, str]
    """Figures to change, by name."""
    profile: str | None
    """Measured profile: name or file; None: the default."""
    measured: str | None
    """What a running server measured; None: nothing was given."""
    variants: list[str]
    """Variants that were named."""
    knobs: Mapping[str, Any]
    """Values of the parameters of the command that have no flag, by name."""
    cautions: Sequence[str]
    """Options of a server's command line that are not simulated, in a sentence each."""
    output: Output
    """Form of the answer."""

    @classmethod
    def of(cls, context: typer.Context, *without: str, ranged: bool = False, requests: str = "") -> Self:
        """Read the flags of a command, but for arguments that it takes in another way (`without`).

        Where it is `ranged`, it takes several values of an argument: they stay text. `requests` says where these come
        from, if not from the scenario's `REQUESTS`: settings of those are refused.
        """
        left_out = {*without, *(REQUESTS if requests else ())}
        arguments = {
            name: _value(argument, typed)
            for name, argument in ARGUMENTS.items()
            if name not in left_out and _is_given(typed := context.params.get(argument.key, context.params.get(name)))
        }
        asked_settings = [*(context.params["set_"] or [])]
        cautions: Sequence[str] = ()
        if (line := context.params.get("as_")) is not None:
            command = read_server_command(line)
            started = _started(command, ranged=ranged)
            cautions = (
                *command.cautions,
                *(
                    Caution(f"{name} is {arguments[name]}, as its flag says; --as says {text}", DECISIVE)
                    for name, text in command.arguments.items()
                    if name in arguments
                    and name in started
                    and _read(name, arguments[name], started[name]) != started[name]
                ),
            )
            arguments = {**{name: value for name, value in started.items() if name not in left_out}, **arguments}
            asked_settings = [*(f"{name}={value}" for name, value in command.settings.items()), *asked_settings]
        knobs = knobs_of(str(context.info_name))
        rare = [each.name for each in ARGUMENTS.values() if not each.has_flag and each.name not in left_out]
        values = {name: knob.default for name, knob in knobs.items()}
        figures: dict[str, str] = {}
        for key, text in settings(asked_settings).items():
            name = key.replace("-", "_")
            if requests and key.removeprefix("workload.") in REQUESTS:
                raise UsageError(f"{key} changes nothing here: {requests}", hint="leave it out")
            if name in knobs:
                values[name] = knobs[name].read(text)
            elif name in rare:
                is_flag = ARGUMENTS[name].kind is bool and not ranged
                arguments[name] = ARGUMENTS[name].read(text, name=name) if is_flag else text
            elif find_setting(key) is None:
                elsewhere = [_shown(command) for each in _TABLE if each.name == name for command in each.commands]
                raise unknown_setting(key, also=(*knobs, *rare), commands=elsewhere)
            else:
                figures[key] = text
        profile, variant = map(context.params.get, ("profile", "variant"))
        variants = split_names([variant] if isinstance(variant, str) else variant)
        return cls(
            arguments=arguments,
            settings=figures,
            profile=profile,
            measured=context.params.get("measured"),
            variants=variants,
            knobs=values,
            cautions=cautions,
            output=Output.of(context, values.get("plot"), cautions),
        )

    def scenario(self) -> Scenario:
        """Resolve names and check everything."""
        return Scenario(**self.arguments, overrides=self.settings)

    def point(self, *without: str) -> dict[str, Any]:
        """Return the scenario as a point of a sweep, with the defaults of all arguments but some."""
        defaults = {name: value for name, value in DEFAULTS.items() if value is not None and name not in without}
        return {**defaults, **self.arguments, **self.settings}

    def how(self, *names: str, load: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the profile and some of the knobs, as arguments of the function that predicts; see `moved_profile`."""
        return {"profile": self.moved_profile(load), **{name: self.knobs[name] for name in names}}

    def moved_profile(self, load: Mapping[str, Any] | None = None) -> "str | CalibrationProfile | None":
        """Return the profile, moved to what a running server measured, if that was given.

        `load` has the requests of a command that serves others than its scenario's, as far as they have one length.
        """
        if self.measured is None:
            return self.profile
        # imported here: few commands are given a measurement
        from ladder_sim.conditioning import read_measured

        measured = read_measured(self.measured)
        fields = measured.fields
        several = {
            name
            for name, value in self.arguments.items()
            if name in RANGED and isinstance(value, str) and set(",:") & set(value)
        }
        asked = {
            name: ARGUMENTS[name].read(value, name=name) if isinstance(value, str) and name in RANGED else value
            for name, value in {**self.arguments, **(load or {})}.items()
            if name not in several
        }
        at = {**asked, **fields}
        if load is not None and not {"concurrency", "batch"} & at.keys():
            raise UsageError(
                "--measured: under which load?", hint=f"say it: --measured {self.measured},concurrency=32,tp=8"
            )
        scenario = Scenario(**at, overrides=self.settings)
        predicted = Scenario(**asked, overrides=self.settings).stack if load is None else scenario.stack
        if predicted != scenario.stack:
            raise UsageError(
                f"--measured is of {scenario.stack.name}, and the answer of {predicted.name}",
                hint=f"add --stack {scenario.stack.name}, or the requests in flight: --concurrency",
            )
        # what serves requests one by one meets other patterns of them
        elsewhere = load is not None or bool(several) or any(asked.get(name) != value for name, value in fields.items())
        return measured.condition(scenario, self.arguments, elsewhere=elsewhere, profile=self.profile)


def _read(name: str, given: Any, like: Any) -> Any:
    """Return the value of a flag, read if that of another command line is."""
    return given if isinstance(given, type(like)) else ARGUMENTS[name].read(str(given), name=name)


def _started(command: ServerCommand, *, ranged: bool) -> dict[str, Any]:
    """Return the arguments of a scenario that a server's command line gives."""
    return {
        name: text if ranged and name not in ("model", "stack") else ARGUMENTS[name].read(text, name=f"--as: {name}")
        for name, text in command.arguments.items()
        # where plans are searched, one that is not asked for is not the only one
        if not (ranged and name == "tp" and text == "1")
    }


def _is_given(typed: Any) -> bool:
    """Whether a flag was given: a switch that was not is False, a list of several None or empty."""
    return typed not in (None, [], ()) and typed is not False


def _value(argument: Argument, typed: Any) -> Any:
    if argument.repeats and not isinstance(typed, str):
        return "+".join(typed)
    # a switch says that an argument is not at its default: --no-p2p
    return not argument.default if typed is True else typed


def of_context(spec: type[_Spec], context: typer.Context) -> _Spec:
    """Make a dataclass of the parameters of a command that its fields name."""
    return spec(**{each.name: context.params[each.name] for each in fields(spec) if each.name in context.params})  # type: ignore[arg-type]


def split_names(given: Sequence[str] | None) -> list[str]:
    """Return the names of an option that may be repeated and takes commas.

    Examples
    --------
    >>> split_names(["standard,ladder", "desync:4"])
    ['standard', 'ladder', 'desync:4']
    """
    return [name for text in given or [] for name in text.split(",")]
