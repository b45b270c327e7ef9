"""A terminal, as far as programs ask for it."""

import io

import pytest


class Terminal(io.StringIO):
    """What is written to it."""

    def isatty(self) -> bool:
        return True


def progress_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make stderr a terminal on which a line of progress is written each time."""
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("ladder_sim.system.progress.EVERY_S", 0.0)
    return screen
