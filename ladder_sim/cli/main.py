"""Entry point: dispatches to the commands; every error ends with a message and an exit code."""

import itertools
import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from ladder_sim.cli.commands import app, program
from ladder_sim.errors import (
    EXIT_USAGE,
    LadderSimError,
    UnknownNameError,
    UsageError,
    discard_output,
    exit_code,
    printable,
)

if TYPE_CHECKING:
    from ladder_sim.specs.arguments import Argument

# what a shell sets to ask for words, as the script of --install-completion does
_COMPLETES = "_LADDER_SIM_COMPLETE"

# commands of earlier versions, and flags of a command that are no knobs now; and what to write instead
GONE: Mapping[str, str] = {
    "crosscheck": "write `ladder-sim calibrate check`, with the same options",
    "train": "examples/train/train.py --scratch trains on transformers' Trainer, with any number of GPUs",
    "adapt": "examples/train/train.py adapts a checkpoint, on transformers' Trainer; --teacher distils",
    "show": "`ladder-sim list NAME` shows a model, cluster or stack; `list NAME --toml` prints its file",
    "quality": "`ladder-sim list quality` shows published quality; `ladder-sim versus` says what adapting costs",
    "calibrate fit-serving": "write `python -m tools.profiles.serving_fit FILE` in a clone of the repository",
    "calibrate import aiconfigurator": "write `python -m tools.profiles` in a clone of the repository",
    "calibrate show --source": "leave it out: the stored errors are those of the source",
    "calibrate export": "a profile is gzipped JSON; shipped ones lie in ladder_sim/costs/profiles",
    "calibrate import --placement": "leave it out: columns in place are read, as inference engines reduce",
    "calibrate import --algorithm": "leave it out: a log is NCCL's",
    "calibrate check --share": "leave it out: messages take 20, 30, 40 and 50 % of standard's time",
    "calibrate check --from": "read the JSON of the earlier result; --html and --save write what is measured now",
    "trace info --modules": "write --json, which has the modules",
    "calibrate check --calibration": "--profile FILE predicts from passes that were timed before; --out writes it",
    **{f"trace {name} --keep-gaps": "leave it out: --drop-gaps drops gaps" for name in ("replay", "predict")},
    **{f"trace {name} --save": "redirect the output: > FILE" for name in ("info", "replay", "predict", "diff")},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, by default the process's own arguments, without the program's name; return the exit code.

    0 done; 1 failed; 2 usage or bad input; 3 infeasible; 4 a missing dependency or device; 130 interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    flags = ["--debug"] if debug else []
    with warnings.catch_warnings():
        warnings.showwarning = _print_warning
        warnings.simplefilter("default", UserWarning)
        return exit_code(lambda: _run([*flags, *(item for item in arguments if item != "--debug")]), debug=debug)


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as answers print theirs: without the line of code that gave it."""
    print(f"warning: {printable(str(message))}", file=sys.stderr)


def _run(arguments: list[str]) -> int:
    command = typer.main.get_command(app)
    if _COMPLETES in os.environ:
        command.main([], prog_name="ladder-sim")
    if gone := _gone(arguments):
        raise UsageError(f"'{gone}' is no {'flag' if '--' in gone else 'command'} any more", hint=GONE[gone])
    try:
        # not command.main(): that one ends the process when the reader of a pipe has enough
        with command.make_context("ladder-sim", arguments) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as ended:
        return ended.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is not None:
            raise
        # without a file's name it is stdout, e.g. on a full disk
        discard_output()
        raise LadderSimError(f"cannot write the output: {error.strerror}", hint="send it elsewhere") from error
    except Exception as error:
        # click's usage errors: typer brings its own copy of click, so their class depends on its version
        if not hasattr(error, "format_message"):
            raise
        message = _usage_message(error)
        if not message:
            # no command was given, and help has been printed
            return EXIT_USAGE
        place = getattr(error, "ctx", None)
        command_path = place.command_path if place else "ladder-sim COMMAND"
        listed = "commands" if message.startswith("no such command") else "options"
        hint = f"`{command_path} --help` lists the {listed}"
        unknown = getattr(error, "option_name", "")
        if unknown and place:
            from ladder_sim.cli.flags import instead_of

            options = [name for item in place.command.params for name in item.opts if name.startswith("--")]
            if "--set" in options and (instead := instead_of(unknown, place.info_name)):
                raise UsageError(f"{unknown} is no flag of `{command_path}` any more", hint=instead) from error
            every = program().commands.items()
            takers = [f"`{name}`" for name, each in every if any(unknown in item.opts for item in each.params)]
            longer = any(each.startswith(unknown) for each in options)
            answer = f"other commands take it: {', '.join(takers)}; {hint}" if takers and not longer else ""
            raise UnknownNameError("option", unknown, options, more=hint, answer=answer) from error
        raise UsageError(message, hint=_way_out(error) or hint) from error
    return 0


def _gone(arguments: Sequence[str]) -> str:
    """Return the removed command or flag that a command line holds; empty if it holds none."""
    words = list(itertools.dropwhile(lambda word: word.startswith("-"), arguments))
    commands = (" ".join(words[:count]) for count in range(1, 4))
    flags = (" ".join([*words[:2], word.partition("=")[0]]) for word in words[2:])
    return next((each for each in (*commands, *flags) if each in GONE), "")


def _way_out(error: Any) -> str:
    """Return the right form of a number, or the flag of a name without one, that an error asks for; or nothing."""
    from ladder_sim.specs.arguments import ARGUMENTS

    option = getattr(error, "param", None)
    if option and error.format_message().startswith("Missing"):
        return f"{option.metavar or option.opts[0]}: {option.help}"
    extra = re.search(r"unexpected extra argument\S* \(([^ )]+)", error.format_message())
    if extra:
        taken = {item.name for item in error.ctx.command.params} if error.ctx else set()
        named = (each for each in ARGUMENTS.values() if each.name in taken and _names(each, extra[1]))
        return " or ".join(f"write {' '.join(each.words(extra[1]))}" for each in named)
    if option is None or not hasattr(error.__cause__, "errors"):
        return ""
    flag, typed = option.opts[0], str(error.__cause__.errors()[0]["input"])
    numbers = re.findall(r"\d+\.?\d*", typed)
    if len(numbers) > 1 and option.multiple:
        return f"repeat it: {' '.join(f'{flag} {number}' for number in numbers)}"
    axes = {argument.flag for argument in ARGUMENTS.values()}
    if flag in axes and re.fullmatch(r"[\d.:x+]+([,:][\d.:x+]+)+", typed):
        return f"a single value here; `ladder-sim sweep {flag} {typed}` takes several"
    if re.fullmatch(r"\d+[kK]", typed):
        return f"write {flag} {int(typed[:-1]) * 1024}"
    return f"a plain number: {flag} {numbers[0]}" if re.fullmatch(r"\$\d+\.?\d*|\d+\.?\d*\s*%", typed) else ""


def _names(argument: "Argument", text: str) -> bool:
    """Whether text is a name that an argument takes."""
    if argument.kind in (int, bool):
        return False
    try:
        argument.read(text, name=argument.name)
    except LadderSimError:
        return False
    return True


def _usage_message(error: Any) -> str:
    option = getattr(error, "param", None)
    if option is not None and hasattr(error.__cause__, "errors"):
        # typer checks values by pydantic, whose message leaves out the value; only numbers can be refused here
        fault = error.__cause__.errors()[0]
        rules = {"int": "a whole number", "flo": "a number"}
        rule = rules.get(fault["type"][:3], fault["msg"].removeprefix("Input should be "))
        return f"{option.opts[0]} is '{fault['input']}': must be {rule}"
    message: str = error.format_message()
    return f"{message[:1].lower()}{message[1:]}".removesuffix(".")
