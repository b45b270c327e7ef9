"""Long runs say how far they are, on a terminal only."""

import io

import pytest

from ladder_sim.cli.main import main
from ladder_sim.system.progress import Progress, StatusLine
from tests.support.terminal import progress_of


def test_the_line_is_written_over_and_goes_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = progress_of(monkeypatch)
    with Progress(8, "requests") as progress:
        for done in (2, 8):
            progress(done)
    first, second, last = screen.getvalue().split("\r\x1b[K")[1:]
    assert first == " 25 %, 2 of 8 requests"
    assert second.startswith("100 %, 8 of 8 requests")
    assert last == ""


def test_nothing_is_written_off_a_terminal_nor_by_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = progress_of(monkeypatch)
    with StatusLine(wanted=False) as line:
        line.show("here")
    assert screen.getvalue() == ""
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stderr", pipe)
    with Progress(8, "requests") as progress:
        progress(8)
    assert pipe.getvalue() == ""


def test_a_sweep_counts_points(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    screen = progress_of(monkeypatch)
    assert main(["sweep", "--model", "8b", "--batch", "1:8"]) == 0
    assert "100 %, 4 of 4 points" in screen.getvalue()
    assert "4 points" in " ".join(capsys.readouterr().out.split())
