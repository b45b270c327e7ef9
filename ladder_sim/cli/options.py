"""Flags that mean the same in every command, and the scenario they describe."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Self

import typer
import typer.core

from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.graph.families import FAMILIES
from ladder_sim.specs.arguments import ARGUMENTS, Argument
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.settings import find_setting, settings

ENGINES = ("fast", "des")
# context of a command whose arguments, --help among them, are read by the package that it runs
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
_HOW = "Stack and costs"


class OptionGroup:
    """Options that several commands share; a command takes them as one parameter, see `with_options`.

    Subclasses are dataclasses whose fields are options of typer.
    """

    __slots__ = ()

    @classmethod
    def options(cls) -> list[inspect.Parameter]:
        """The options, as parameters that typer understands."""
        return [option(field.name, field.type, field.default) for field in fields(cls)]  # type: ignore[arg-type]

    @classmethod
    def of(cls, **given: Any) -> Self:
        """What the options say; `given` has a value for each."""
        return cls(**given)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter whose type is an `OptionGroup` by the group's options: typer reads a signature."""
    parameters = inspect.signature(command).parameters
    groups = {
        name: item.annotation
        for name, item in parameters.items()
        if isinstance(item.annotation, type) and issubclass(item.annotation, OptionGroup)
    }
    options = {name: group.options() for name, group in groups.items()}
    # by keyword: typer passes every value so
    signature = [
        item.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, own in parameters.items()
        for item in options.get(name, [own])
    ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        values = {
            name: group.of(**{item.name: given.pop(item.name) for item in options[name]})
            for name, group in groups.items()
        }
        command(**values, **given)

    run.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in signature}
    return run


class OnceCommand(typer.core.TyperCommand):
    """A command that refuses an option given twice, unless it takes several values: the last would win in silence."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments, and count the options among them."""
        switches = [item for item in self.params if item.name in _SWITCHES]
        args = _in_one_form(
            args, {flag: not getattr(item, "is_flag", False) for item in switches for flag in item.opts}
        )
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for item in order:
            if item.param_type_name == "option" and not item.multiple and order.count(item) > 1:
                raise _twice(item.opts[0])
        return super().parse_args(ctx, args)


# arguments that are true or false: a switch of a single scenario, values of a search
_SWITCHES = {name for name, argument in ARGUMENTS.items() if argument.kind is bool}


def _in_one_form(args: Sequence[str], takes_value: Mapping[str, bool]) -> list[str]:
    """Switches as a command reads them: alone or with a value, they mean the same in every command.

    Examples
    --------
    >>> _in_one_form(["--sp", "--tp", "8"], {"--sp": True}), _in_one_form(["--sp", "true"], {"--sp": False})
    (['--sp', 'true', '--tp', '8'], ['--sp'])
    """
    read: list[str] = []
    left: list[str] = []
    for text in args:
        flag, equals, value = text.partition("=")
        if flag in left and not takes_value.get(flag, True):
            raise _twice(flag)
        left += [flag, value] if equals and flag in takes_value else [text]
    while left:
        text = left.pop(0)
        if text not in takes_value:
            read.append(text)
            continue
        value = left.pop(0) if left and not left[0].startswith("-") else "true"
        if takes_value[text] or value.lower() not in ("true", "false"):
            read += [text, value]
        elif value.lower() == "true":
            read.append(text)
    return read


def _twice(flag: str) -> UsageError:
    return UsageError(f"{flag} is given twice: must be given once", hint="leave one out")


def option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """An option as a parameter that typer understands."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


@dataclass(frozen=True, slots=True, kw_only=True)
class PointFlags(OptionGroup):
    """A scenario and its profile, as typed: what every command takes that predicts."""

    # arguments that a command takes in another way, and those that it takes ranges of
    without: ClassVar[tuple[str, ...]] = ()
    ranged: ClassVar[tuple[str, ...]] = ()

    # settings that the command does not read, whatever the scenario, with the way out
    ignored: ClassVar[Mapping[str, str]] = {}

    arguments: dict[str, Any]
    """Of `Scenario.of`."""
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE for any figure, e.g. gpu.kernel=2us.", rich_help_panel=_HOW),
    ] = None
    profile: Annotated[
        str | None,
        typer.Option(help="Measured profile: name or file; 'none' for the datasheet.", rich_help_panel=_HOW),
    ] = None

    @classmethod
    def options(cls) -> list[inspect.Parameter]:
        """A flag for each argument of a scenario, and the other fields."""
        own = [option(field.name, field.type, field.default) for field in fields(cls) if field.name != "arguments"]
        flags = (_range_flag(each) if name in cls.ranged else _flag(each) for name, each in cls._taken().items())
        return [*flags, *own]

    @classmethod
    def of(cls, **given: Any) -> Self:
        """From the values of the flags."""
        arguments = {
            name: given.pop(name if name in cls.ranged else argument.key) for name, argument in cls._taken().items()
        }
        for name in arguments:
            if ARGUMENTS[name].repeats and name not in cls.ranged:
                arguments[name] = "+".join(arguments[name] or []) or ARGUMENTS[name].default
            if ARGUMENTS[name].kind is bool and name not in cls.ranged:
                # a switch says that an argument is not at its default: --no-p2p
                arguments[name] = arguments[name] != ARGUMENTS[name].default
        return cls(arguments=arguments, **given)

    @classmethod
    def _taken(cls) -> dict[str, Argument]:
        return {name: argument for name, argument in ARGUMENTS.items() if name not in cls.without}

    @property
    def settings(self) -> dict[str, str]:
        """Figures to change, by name."""
        changes = settings(self.set_ or [])
        for key in changes:
            setting = find_setting(key)
            if setting is not None and setting.name in self.ignored:
                raise UsageError(f"{key} changes nothing here: {self.ignored[setting.name]}", hint="leave it out")
        return changes

    def point(self) -> dict[str, Any]:
        """The scenario as a point of a sweep: arguments without those left to the others, and settings."""
        return {name: value for name, value in self.arguments.items() if value is not None} | self.settings


# arguments whose place requests take that arrive one by one, and the settings of their workload
REQUESTS = ("batch", "prompt", "gen", "concurrency", "arrivals")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFlags(PointFlags):
    """What a file of measured loads does not say of its scenario; left out, a flag is as in the file."""

    without: ClassVar[tuple[str, ...]] = REQUESTS
    ignored: ClassVar[Mapping[str, str]] = {f"workload.{name}": "the file has the requests" for name in REQUESTS}

    @classmethod
    def _taken(cls) -> dict[str, Argument]:
        taken = super(FileFlags, cls)._taken()
        return {
            name: argument if _has_default(argument) else replace(argument, default=None)
            for name, argument in taken.items()
        }

    @property
    def given(self) -> dict[str, Any]:
        """Arguments of `Scenario.of` that were given."""
        return {
            name: value
            for name, value in self.arguments.items()
            if value != (ARGUMENTS[name].default if _has_default(ARGUMENTS[name]) else None)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFlags(PointFlags):
    """Of a command that searches for the best plan and load: these take several values, and all by default."""

    ranged: ClassVar[tuple[str, ...]] = ("tp", "pp", "ep", "attention_dp", "dp", "sp", "concurrency")
    without: ClassVar[tuple[str, ...]] = ("nodes", "batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFlags(PointFlags):
    """Of a command that predicts what does not fit, if it must."""

    ignore_memory: Annotated[
        bool, typer.Option("--ignore-memory", help="Predict even if the model does not fit.", rich_help_panel=_HOW)
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioFlags(MemoryFlags):
    """Of a command that makes single predictions."""

    engine: Annotated[
        str, typer.Option(help="fast (vectorised) or des (event by event on simpy).", rich_help_panel=_HOW)
    ] = "fast"
    jitter: Annotated[
        str,
        typer.Option(
            help="Random spread of kernel times, e.g. 0.05, or 'measured': simulates every rank.", rich_help_panel=_HOW
        ),
    ] = "0"
    seed: Annotated[int, typer.Option(help="Of the jitter's random numbers.", rich_help_panel=_HOW)] = 0

    def scenario(self) -> Scenario:
        """Resolve names and check everything."""
        return Scenario.of(**self.arguments, overrides=self.settings)

    def how(self) -> dict[str, Any]:
        """Arguments of `ladder_sim.prediction.predict` other than scenario and variants."""
        if self.engine not in ENGINES:
            raise UnknownNameError("engine", self.engine, ENGINES)
        return {
            "profile": self.profile,
            "engine": self.engine,
            "jitter": _jitter(self.jitter),
            "seed": self.seed,
            "ignore_memory": self.ignore_memory,
        }


def _has_default(argument: Argument) -> bool:
    """Whether it has its default where its flag is left out, whatever the flag's."""
    return argument.kind is bool or argument.repeats


def completion(argument: Argument) -> Callable[[str], list[str]] | None:
    """What completes the last name typed for an argument in the shell; None: it takes no names."""
    if argument.kind in (int, bool):
        return None

    def complete(incomplete: str) -> list[str]:
        typed = incomplete[: max(incomplete.rfind("+"), incomplete.rfind(",")) + 1]
        return [f"{typed}{each}" for each in argument.names if f"{typed}{each}".startswith(incomplete)]

    return complete


def _flag(argument: Argument) -> inspect.Parameter:
    completes = completion(argument)
    decorate = functools.partial(
        typer.Option, help=argument.help, rich_help_panel=argument.panel, autocompletion=completes
    )
    if argument.kind is bool:
        return option(argument.key, Annotated[bool, decorate(argument.flag)], False)
    if argument.repeats:
        return option(argument.name, Annotated[list[str] | None, decorate()], None)
    kind: Any = int if argument.kind is int else str
    optional = kind | None if argument.default is None else kind
    return option(argument.name, Annotated[optional, decorate()], argument.default)


def range_option(argument: Argument, panel: str) -> Any:
    """The option that takes a range of an argument."""
    return typer.Option(help=argument.range_help, rich_help_panel=panel, autocompletion=completion(argument))


def _range_flag(argument: Argument) -> inspect.Parameter:
    # left out, it has all its values
    alone = replace(argument, help=argument.help.partition("; default")[0])
    return option(argument.name, Annotated[str | None, range_option(alone, argument.panel)], None)


def _jitter(text: str) -> float | str:
    if text == "measured":
        return text
    try:
        return float(text)
    except ValueError:
        raise UsageError(
            f"--jitter '{text}' is not a number",
            hint="0.05 spreads kernel times by 5 %; 'measured' takes the profile's spread",
        ) from None


_PATTERNS = ", ".join(family.pattern for family in FAMILIES.values())
# of `--variant`
VARIANT_HELP = f"{_PATTERNS}, hybrid-NAME:K; repeatable, commas allowed."


def split_names(given: Sequence[str] | None) -> list[str]:
    """Names of an option that may be repeated and takes commas.

    Examples
    --------
    >>> split_names(["standard,ladder", "desync:4"])
    ['standard', 'ladder', 'desync:4']
    """
    return [name for text in given or [] for name in text.split(",")]
