"""Command lines that argparse reads: those of `python -m ladder_sim_runtime` and `ladder-sim calibrate`."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from ladder_sim.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Raises its errors instead of ending the process, so that they look as all others do."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        # of the command that read the options, which `read` names
        self.set_defaults(prog=self.prog)

    def error(self, message: str) -> NoReturn:
        """Raise the error of an option that is missing or wrong."""
        raise UsageError(message, hint=f"`{self.prog} --help` lists the options")

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Return the options of a command line; raises UsageError if an option is missing, unknown or wrong."""
        options, unknown = self.parse_known_args(argv)
        command = vars(options).pop("prog")
        if unknown:
            name = unknown[0].partition("=")[0]
            raise UsageError(
                f"{name} is not an option of {command.rpartition(' ')[2]}",
                hint=f"leave it out; `{command} --help` lists the options",
            )
        return options


def flags(values: Mapping[str, object]) -> Iterator[str]:
    """Yield the options of a command line, without those that are False or None.

    Examples
    --------
    >>> list(flags({"tp": 2, "fused_add": True, "trace": None}))
    ['--tp=2', '--fused-add']
    """
    for name, value in values.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            yield flag
        elif value is not None and value is not False:
            yield f"{flag}={value}"
