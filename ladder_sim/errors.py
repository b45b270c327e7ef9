"""Every error a user can meet, and how a command line ends with one.

    LadderSimError            base; says the value, the rule and the way out
    |-- UsageError            2: bad input
    |   |-- UnknownNameError  2: a name in no catalog; the nearest ones are named
    |   |-- UnitError         2: a quantity without a readable number or unit
    |   |-- SpecError         2: an impossible model, cluster, stack or workload
    |   `-- ProfileError      2: a calibration profile that cannot be read or trusted
    |-- InfeasibleError       3: well-formed, but cannot run
    |   |-- PartitionError    3: the tensor-parallel degree does not divide the model
    |   `-- MemoryFitError    3: the model does not fit the GPU
    |-- MissingDependencyError 4: an optional package or a device is absent
    |   `-- MissingPackageError 4: a package that an extra of ladder-sim installs
    |-- BoundError            1: a prediction is not as near to measurements as it must be
    |-- DeadlockError         1: a program whose tasks wait for each other
    `-- RankError             1: a rank of a real run died or hangs

`runtime` and `calibration` use them too. This module imports the standard library only.
"""

import difflib
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable
from typing import ClassVar, TextIO

EXIT_FAILURE, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


class LadderSimError(Exception):
    """Base of every error this package raises on purpose: the value and the rule it breaks, and the way out, if any."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class UsageError(LadderSimError):
    """Input that breaks a rule (exit code 2)."""

    exit_code = 2


class UnknownNameError(UsageError):
    """A name that is in no catalog.

    `kind` is singular, e.g. "model". The nearest of the `known` names becomes the hint, with where to see `more`; an
    `answer` says what to do instead, where that is certain.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], *, more: str = "", answer: str = "") -> None:
        typed = {each.lower(): each for each in known}
        names = sorted(typed)
        longer, near = _longer(name, names), nearest(name, names)
        if answer:
            parts = [answer]
        elif 1 < len(longer) <= 6:
            parts = [_listed(name, [typed[each] for each in longer]) + (";" if more else ""), more]
        elif near:
            parts = [f"did you mean '{typed[near]}'?", more]
        elif more and len(names) > 12:
            parts = [more]
        else:
            parts = [f"known: {', '.join(typed[each] for each in names)}" + (";" if more else ""), more]
        super().__init__(f"unknown {kind} '{name}'", hint=" ".join(filter(None, parts)))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the valid name, in lower case, that a mistyped one stands for; empty if there is none.

    Examples
    --------
    >>> nearest("h100-smx", ["h100-sxm", "h200-sxm"]), nearest("h20", ["h200-sxm"])
    ('h100-sxm', '')
    """
    names = sorted(each.lower() for each in known)
    close = difflib.get_close_matches(name.lower(), names, n=5, cutoff=0.7)
    # "h100" stands for an "h100_sxm", but "h20" for no "h200-sxm"
    whole = [each for each in _longer(name, names) if not each.removeprefix(name.lower())[:1].isalnum()]
    near = [each for each in close if _marks(each) == _marks(name.lower())] or whole
    return near[0] if near else ""


def _longer(name: str, names: Iterable[str]) -> list[str]:
    """Return the names that hold another: "h100" begins "h100-sxm", and "hop_latency" ends "inter.hop_latency"."""
    return [each for each in names if name and (each.startswith(name.lower()) or each.endswith(f".{name}"))]


def _listed(name: str, names: list[str]) -> str:
    """Return the names that hold another, without it where it is the section of all.

    Examples
    --------
    >>> _listed("inter.", ["inter.bandwidth", "inter.fabric"]), _listed("h100", ["h100-p5", "h100-sxm"])
    ('inter has bandwidth, fabric', 'there are h100-p5, h100-sxm')
    """
    section = name.lower().removesuffix(".")
    if all(each.startswith(f"{section}.") for each in names):
        return f"{section} has {', '.join(each.removeprefix(f'{section}.') for each in names)}"
    return f"there are {', '.join(names)}"


def _marks(name: str) -> tuple[list[str], set[str]]:
    """Return what tells similar product names apart: digits, and one or two letters before a number.

    An h20 is no mistyped h200, and fp4 none of fp8.

    Examples
    --------
    >>> _marks("h100-smx") == _marks("h100-sxm"), _marks("bf61") == _marks("bf16")
    (True, True)
    >>> _marks("a100-pcie") == _marks("h100-pcie"), _marks("h20") == _marks("h200-sxm")
    (False, False)
    """
    return sorted(re.findall(r"\d", name)), set(re.findall(r"(?<![a-z])[a-z]{1,2}(?=\d)", name))


class UnitError(UsageError):
    """A quantity without a readable number or unit."""


class SpecError(UsageError):
    """An impossible model, cluster, stack or workload."""


class ProfileError(UsageError):
    """A calibration profile that cannot be read or trusted."""


class InfeasibleError(LadderSimError):
    """A well-formed scenario that cannot run (exit code 3)."""

    exit_code = 3


class PartitionError(InfeasibleError):
    """The tensor-parallel degree does not divide the model."""


class MemoryFitError(InfeasibleError):
    """The model does not fit the memory of its GPUs."""


class MissingDependencyError(LadderSimError):
    """An optional package or a device is absent (exit code 4)."""

    exit_code = 4


class MissingPackageError(MissingDependencyError):
    """A package of an extra of ladder-sim is absent; `need` says what needs which: "the explorer needs dash"."""

    def __init__(self, need: str, *, extra: str = "runtime", otherwise: str = "") -> None:
        hint = install_command(extra) + (f", or {otherwise}" if otherwise else "")
        super().__init__(f"{need}, which is not installed", hint=hint)


class BoundError(LadderSimError):
    """A prediction is further from measurements than its bound, or they cannot tell; every such row is named."""


class DeadlockError(LadderSimError):
    """Tasks of a program wait for each other; the message names the cycle."""


class RankError(LadderSimError):
    """Another rank of a real run died or hangs."""


def install_command(extra: str = "", *, plug_in: str = "") -> str:
    """Return the command that installs this copy of ladder-sim again, with an extra or a plug-in.

    It names where the copy came from, never a package of the index: neither is there, and their names are free.
    """
    # imported here: an error is rare, and these take 60 ms
    import shutil
    from importlib import metadata
    from pathlib import Path
    from urllib.request import url2pathname

    here, python = Path.cwd(), Path(sys.executable)
    pip = "pip install"
    # the first pip in PATH may belong to another environment
    if Path(shutil.which("pip") or "").parent != python.parent:
        typed = python.relative_to(here) if python.is_relative_to(here) else python
        pip = f"{shlex.quote(str(typed))} -m pip install"
    # how pip came by it: packaging.python.org/en/latest/specifications/direct-url
    records = (copy.read_text("direct_url.json") for copy in metadata.distributions(name="ladder-sim"))
    origin = json.loads(next(filter(None, records), "{}"))
    url, extras = origin.get("url", ""), f"[{extra}]" if extra else ""
    folder, commit = url2pathname(url.removeprefix("file://")), origin.get("vcs_info")
    part = f"/plugins/{plug_in}" if plug_in else extras
    # a path of the machine on which this environment was built says nothing here
    if url.startswith("file://") and not Path(folder).exists():
        source = f".{part}"
    elif "dir_info" in origin:
        pip += " -e" if origin["dir_info"].get("editable") else ""
        source = ("." if Path(folder) == here else folder) + part
    elif commit:
        source = f"{plug_in or 'ladder-sim'}{extras} @ {commit['vcs']}+{url}@{commit['commit_id']}"
        source += f"#subdirectory={part[1:]}" if plug_in else ""
    elif url and not plug_in:
        source = f"ladder-sim{extras} @ {url}"
    else:
        source = f".{part}"
    return f"{pip} {shlex.quote(source)}"


def reason(error: Exception) -> str:
    """Return why one of many points has no result, in a line."""
    return error.message if isinstance(error, LadderSimError) else f"{type(error).__name__}: {error} (a bug)"


def exit_code(
    command: Callable[[], int | None], *, debug: bool = False, report: Callable[[str], object] | None = None
) -> int:
    """Run a command to its end and return its exit code, 0 for None; errors become a message and a code.

    Messages go to `report`, which are `printable`; by default to stderr, after ``error: ``. `debug` prints the
    traceback of an error, too. The code is 0 also if the reader of stdout closed the pipe; 130 if interrupted; else the
    error's, 1 for a bug.
    """
    show = report or print_error
    # None in a process that was started without them, as by `>&-`
    sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()
    try:
        return command() or 0
    except KeyboardInterrupt:
        show("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        discard_output()
        return 0
    except SystemExit as ended:
        # rich turns a closed pipe into this
        if isinstance(ended.__context__, BrokenPipeError):
            discard_output()
            return 0
        raise
    except Exception as error:
        if debug:
            # imported here: `import ladder_sim` does without it
            import traceback

            traceback.print_exc()
        if isinstance(error, LadderSimError):
            show(printable(str(error)))
            return error.exit_code
        show(printable(f"{type(error).__name__}: {error}\n  hint: a bug; --debug shows where"))
        return EXIT_FAILURE


def printable(text: str, *, lines: bool = True) -> str:
    r"""Return the text with escapes for what a terminal obeys or cannot print: files hold names of any characters.

    `lines`: with its line ends.

    Examples
    --------
    >>> print(printable("\x1b[2Jgemm"))
    \x1b[2Jgemm
    """
    if text.isprintable():
        return text
    kept = "\n" if lines else ""
    return "".join(
        each if each.isprintable() or each == kept else each.encode("unicode_escape").decode("ascii") for each in text
    )


def discard_output() -> None:
    """Send stdout nowhere: Python flushes it at exit, which would fail again on a closed pipe or a full disk."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def print_error(message: str) -> None:
    """Print an error's message on stderr."""
    print(f"error: {message}", file=sys.stderr)
