"""The commands, each imported when it runs or shows its help: the list of them in `--help` needs one sentence each."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ladder_sim import __version__

# groups of flags that several commands have, by their places
_SCENARIO, _SEARCHED, _FORM = "flags:scenario", "flags:searched", "output:form"
_REQUESTS, _BENCH, _RUNNING = "serve:Requests", "run:Bench", "flags:running"


@dataclass(frozen=True, slots=True)
class Entry:
    """A command in the list of commands."""

    place: str
    """Module of `ladder_sim.cli`, and name in it of the command's function or its `typer.Typer` of subcommands."""
    summary: str
    """First sentence of the command's help."""
    flags: tuple[str, ...] = ()
    """Places of the groups of flags that the command has besides its own."""
    without: tuple[str, ...] = ()
    """Flags of those groups that the command does not have."""
    passes_on: bool = False
    """Whether another package reads the options that the command does not know."""


COMMANDS: Mapping[str, Entry] = {
    "predict": Entry(
        "analysis:predict",
        "Predict latency, throughput and speedup of residual wirings, for a static batch or requests in flight.",
        (_SCENARIO, _RUNNING, _FORM),
    ),
    "sweep": Entry(
        "sweep:sweep",
        "Predict every combination of some fields' values, thousands a second.",
        (_SCENARIO, _SEARCHED),
        without=("no_p2p",),
    ),
    "breakeven": Entry(
        "analysis:breakeven",
        "Find the value of a field at which a variant's gain crosses a target.",
        (_SCENARIO, _FORM),
    ),
    "sensitivity": Entry(
        "analysis:sensitivity",
        "Change each hardware figure and cost a little, and report how time and speedup change.",
        (_SCENARIO, _FORM),
    ),
    "advise": Entry(
        "analysis:advise",
        "Find the plan and variant that serve requests best, or the plan, static batch and variant.",
        (_SCENARIO, _RUNNING, _SEARCHED, _FORM),
        without=("batch",),
    ),
    "compare": Entry(
        "analysis:compare",
        "Predict the same scenario on several clusters, or under several stacks, side by side.",
        (_SCENARIO, _FORM),
    ),
    "versus": Entry(
        "analysis:versus",
        "Compare what hides communication: techniques without retraining, and wirings that need it.",
        (_SCENARIO, _RUNNING, _FORM),
    ),
    "serve": Entry(
        "serve:serve",
        "Simulate requests that arrive under load, one by one, and show their times for each variant.",
        (_SCENARIO, _RUNNING, _REQUESTS, _FORM),
        without=("batch",),
    ),
    "capacity": Entry(
        "serve:capacity",
        "Find the fewest GPUs that meet an SLO at a rate, over plans, and the rate at which one replica breaks it.",
        (_SCENARIO, _RUNNING, _SEARCHED, _REQUESTS, _FORM),
        without=("batch", "dp"),
    ),
    "explore": Entry(
        "explore:explore",
        "Open a page in the browser that answers one question with an interval, and shows why.",
        (_SCENARIO, _RUNNING),
    ),
    "run": Entry(
        "run:run",
        "Run tensor-parallel forward passes for real: measure residual wirings, or continue prompts with a checkpoint.",
        (_BENCH,),
        passes_on=True,
    ),
    "validate": Entry(
        "validate:validate",
        "Compare measured runs of static batches, servings with requests in flight, or loads, with predictions.",
        (_SCENARIO, _FORM),
        without=("variant", "batch", "concurrency", "prompt", "gen"),
    ),
    "list": Entry(
        "catalog:list_",
        "List what there is, published quality of wirings, or every figure of one model, cluster or stack.",
    ),
    "doctor": Entry(
        "doctor:doctor",
        "Show what is installed, which devices this machine has, and which commands work here or why not.",
    ),
    "trace": Entry("trace:trace", "Learn from a recorded run what ladder would give it."),
    "calibrate": Entry("run:calibrate", "Make, read and compare measured profiles."),
}


def load(name: str) -> Any:
    """Import a command, with its flags or subcommands."""
    entry = COMMANDS[name]
    command = _at(entry.place)
    if isinstance(command, typer.Typer):
        group = typer.main.get_command(command)
        group.name = name
        return group
    from ladder_sim.cli.flags import PASSED_ON, with_flags

    alone = typer.Typer(add_completion=False)
    alone.command(
        name,
        cls=with_flags(*map(_at, entry.flags), without=entry.without) if entry.flags else TyperCommand,
        context_settings=PASSED_ON if entry.passes_on else None,
    )(command)
    return typer.main.get_command(alone)


def program() -> Any:
    """Return the whole command line with every command imported, for lists of their options."""
    group: Any = typer.main.get_command(app)
    group.commands = {name: load(name) for name in COMMANDS}
    return group


def _at(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"ladder_sim.cli.{module}"), name)


class _Listed(TyperCommand):
    """A command that is not imported yet."""

    def make_context(self, info_name: str | None, *args: Any, **how: Any) -> Any:
        return load(str(self.name)).make_context(info_name, *args, **how)


app = typer.Typer(
    name="ladder-sim",
    help="What does Ladder Residual buy on my model, my GPUs, my interconnect?",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for _name, _entry in COMMANDS.items():
    app.command(_name, cls=_Listed, help=_entry.summary)(lambda: None)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _global_flags(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback on errors.")] = False,
) -> None:
    """Declare the flags before the command; `main` acts on --debug, wherever it stands, and moves it here."""
