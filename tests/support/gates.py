"""Questions for a worker of the explorer: each says what is to become of it."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder_sim.errors import UsageError


def compute(question: tuple[str, str], tell: Callable[[str], object]) -> None:
    """Say a text; or wait until a file is there, whose end is noted in another; or hang; or fail in some way."""
    what, text = question
    if what == "wait":
        while not Path(text).exists():
            tell("waiting")
            time.sleep(0.01)
        Path(f"{text}.end").touch()
    elif what == "hang":
        threading.Event().wait()
    elif what == "refuse":
        raise UsageError(text, hint="ask otherwise")
    elif what == "fail":
        raise ZeroDivisionError
    elif what == "die":
        os._exit(1)
    tell(text)


@dataclass(frozen=True)
class Absent:
    """`compute`, as long as a file is there; else the process that is to compute ends while it starts."""

    file: Path

    def __call__(self, question: tuple[str, str], tell: Callable[[str], object]) -> None:
        """As `compute`."""
        compute(question, tell)

    def __reduce__(self) -> tuple[Any, ...]:
        """What the process imports first."""
        return _compute_of, (self.file,)


def _compute_of(file: Path) -> Callable[..., None]:
    if not file.exists():
        os._exit(3)
    return compute
