"""Command lines that argparse reads: those of `python -m runtime` and `ladder-sim calibrate`."""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from ladder_sim.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Raises its errors instead of ending the process, so that they look as all others do."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        # of the command that read the options, which `read` names
        self.set_defaults(prog=self.prog)

    def error(self, message: str) -> NoReturn:
        """Raise the error of an option that is missing or wrong.

        Raises
        ------
        UsageError
            Always.
        """
        raise UsageError(message, hint=f"`{self.prog} --help` lists the options")

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """The options of a command.

        Raises
        ------
        UsageError
            An option is missing, unknown or wrong.
        """
        options, unknown = self.parse_known_args(argv)
        command = vars(options).pop("prog")
        if unknown:
            raise UsageError(
                f"{unknown[0].partition('=')[0]} is not an option of {command.rpartition(' ')[2]}",
                hint=f"leave it out; `{command} --help` lists the options",
            )
        return options
