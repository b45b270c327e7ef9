"""Every error a user can meet, with the exit code it ends a process with.

    RunError                1; says the value, the rule and the way out
    |-- InputError          2: bad input
    |-- InfeasibleError     3: well-formed, but cannot run: does not divide, does not fit
    |-- MissingDeviceError  4: a device or backend is absent
    |-- MissingPackageError 4: an optional package is absent
    `-- RankError           1: another rank died or hangs

The codes are those of the command line.
"""

from typing import ClassVar


class RunError(Exception):
    """Base of every error this package raises on purpose; `hint` is the way out and may be empty."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}\n  hint: {hint}" if hint else message)


class InputError(RunError):
    """Input that breaks a rule."""

    exit_code = 2


class InfeasibleError(RunError):
    """A run that cannot be: the ranks do not divide the model, or the memory does not hold it."""

    exit_code = 3


class MissingDeviceError(RunError):
    """A device or a communication backend is absent."""

    exit_code = 4


class MissingPackageError(RunError):
    """An optional package is absent: what needs it, and its name."""

    exit_code = 4

    def __init__(self, what: str, package: str) -> None:
        super().__init__(f"{what} need the '{package}' package", hint="pip install 'ladder-sim[runtime]'")


class RankError(RunError):
    """Another rank died or hangs."""
