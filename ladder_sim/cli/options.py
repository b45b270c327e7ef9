"""Flags that mean the same in every command, and the scenario they describe."""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, Self

import typer

from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.specs.arguments import ARGUMENTS, Argument
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.settings import settings

ENGINES = ("fast", "des")
_HOW = "Stack and costs"


class OptionGroup(Protocol):
    """Options that several commands share; a command takes them as one parameter, see `with_options`."""

    @classmethod
    def options(cls) -> list[inspect.Parameter]:
        """The options, as parameters that typer understands."""
        ...

    @classmethod
    def of(cls, **given: Any) -> Self:
        """What they say; `given` has a value for each."""
        ...


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter whose type is an `OptionGroup` by the group's options: typer reads a signature."""
    parameters = inspect.signature(command).parameters
    groups = {name: item.annotation for name, item in parameters.items() if hasattr(item.annotation, "options")}
    shared = {name: group.options() for name, group in groups.items()}
    signature = [option for name, item in parameters.items() for option in shared.get(name, [keyword(item)])]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        values = {
            name: group.of(**{option.name: given.pop(option.name) for option in shared[name]})
            for name, group in groups.items()
        }
        command(**values, **given)

    run.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in signature}
    return run


def keyword(item: inspect.Parameter) -> inspect.Parameter:
    """The same parameter, by keyword only."""
    return item.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def option(name: str, kind: Any, default: Any, *flags: str, help: str, panel: str) -> inspect.Parameter:
    """An option as a parameter that typer understands."""
    annotation = Annotated[kind, typer.Option(*flags, help=help, rich_help_panel=panel)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioFlags:
    """A scenario and how to predict it, as typed."""

    arguments: dict[str, Any]
    """Of `Scenario.of`, all of them."""
    settings: dict[str, str]
    """Figures to change, by name."""
    profile: str | None
    """Measured profile."""
    engine: str
    """One of `ENGINES`."""
    jitter: str
    """A number, or "measured"."""
    seed: int
    """Of the jitter's random numbers."""
    ignore_memory: bool
    """Predict even if the model does not fit."""

    @classmethod
    def options(cls) -> list[inspect.Parameter]:
        """The flags: every argument of a scenario, and what `of` names."""
        own = list(inspect.signature(cls.of).parameters.values())[:-1]
        return [*map(_flag, ARGUMENTS.values()), *own]

    @classmethod
    def of(
        cls,
        *,
        set_: Annotated[
            list[str] | None,
            typer.Option("--set", help="KEY=VALUE for any figure, e.g. inter.bandwidth=100Gb/s.", rich_help_panel=_HOW),
        ] = None,
        profile: Annotated[
            str | None,
            typer.Option(help="Measured profile: name or file; 'none' for the datasheet.", rich_help_panel=_HOW),
        ] = None,
        engine: Annotated[
            str, typer.Option(help="fast (vectorised) or des (event by event on simpy).", rich_help_panel=_HOW)
        ] = "fast",
        jitter: Annotated[
            str,
            typer.Option(
                help="Random spread of kernel times, e.g. 0.05, or 'measured': simulates every rank.",
                rich_help_panel=_HOW,
            ),
        ] = "0",
        seed: Annotated[int, typer.Option(help="Of the jitter's random numbers.", rich_help_panel=_HOW)] = 0,
        ignore_memory: Annotated[
            bool, typer.Option("--ignore-memory", help="Predict even if the model does not fit.", rich_help_panel=_HOW)
        ] = False,
        **arguments: Any,
    ) -> Self:
        """From the values of the flags."""
        return cls(
            # a switch says that an argument is not as usual: --no-p2p
            arguments={
                name: arguments[argument.key] != argument.default if argument.kind is bool else arguments[name]
                for name, argument in ARGUMENTS.items()
            },
            settings=settings(set_ or []),
            profile=profile,
            engine=engine,
            jitter=jitter,
            seed=seed,
            ignore_memory=ignore_memory,
        )

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

    def point(self) -> dict[str, Any]:
        """The same as a point of a sweep: arguments without those left to the others, and settings.

        Raises
        ------
        UsageError
            The flags ask for another engine or for jitter, which need one simulation per prediction.
        """
        for name, usual in (("engine", "fast"), ("jitter", "0"), ("seed", 0)):
            if getattr(self, name) != usual:
                raise UsageError(f"--{name} is for single predictions", hint="leave it out, or use predict")
        return {name: value for name, value in self.arguments.items() if value is not None} | self.settings


def _flag(argument: Argument) -> inspect.Parameter:
    if argument.kind is bool:
        return option(argument.key, bool, False, argument.flag, help=argument.help, panel=argument.panel)
    kind = int if argument.kind is int else str
    return option(
        argument.name,
        kind | None if argument.default is None else kind,
        argument.default,
        help=argument.help,
        panel=argument.panel,
    )


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


def split_names(given: Sequence[str] | None) -> list[str]:
    """Names of an option that may be repeated and takes commas.

    Examples
    --------
    >>> split_names(["standard,ladder", "desync:4"])
    ['standard', 'ladder', 'desync:4']
    """
    return [name for text in given or [] for name in text.split(",")]
