"""`ladder-sim run --prompt TEXT`: texts from the runtime package, streamed by a process of its own."""

import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence

import typer

from ladder_sim.errors import UsageError

TEXT_ONLY = ("temperature", "top_k", "top_p", "stop", "raw")
# options that a benchmark has no use for
_SINGLE = (
    *("model", "tp", "gen", "dtype", "seed", "temperature", "top_k", "top_p", "raw"),
    *("backend", "gloo_threads", "threads", "timeout", "json", "save"),
)
_REPEATED = ("prompt", "stop", "variant")
# options that travel to the runtime under their own names


def run(context: typer.Context) -> None:
    """Complete the prompts of a command line; the process writes to this one's stdout."""
    given = context.params
    refuse(context, set(given) - {*_SINGLE, *_REPEATED, "bench"}, "is for measurements, with --bench")
    if len(given["variant"] or ()) > 1:
        raise UsageError("--variant: a text has one wiring", hint="--bench compares several")
    if given["save"] is not None and given["save"].suffix.lower() != ".json":
        raise UsageError(f"--save '{given['save']}': texts go to stdout, and their JSON to a file", hint="use .json")
    flags = [*arguments({name.replace("_", "-"): given[name] for name in _SINGLE})]
    flags += [f"--{name}={value}" for name in _REPEATED for value in given[name] or ()]
    runtime("text", flags, capture=False)


def refuse(context: typer.Context, names: Collection[str], why: str) -> None:
    """Raise UsageError if one of these options was given."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"{parameter.opts[0]} {why}", hint="leave it out")


def arguments(flags: Mapping[str, object]) -> Iterator[str]:
    """Flags of a command line; false and none are left out."""
    for name, value in flags.items():
        if value is True:
            yield f"--{name}"
        elif value is not None and value is not False:
            yield f"--{name}={value}"


def runtime(command: str, given: Sequence[str], *, capture: bool) -> str:
    """Run ``python -m runtime`` to its end; returns what it printed, if that is to be captured."""
    stdout = subprocess.PIPE if capture else None
    process = subprocess.Popen([sys.executable, "-m", "runtime", command, *given], stdout=stdout, text=True)
    try:
        output, _ = process.communicate()
    finally:
        # the runtime ends its ranks when it is asked to end
        process.terminate()
        process.wait()
    if process.returncode:
        # it has said why
        raise typer.Exit(process.returncode)
    return output or ""
