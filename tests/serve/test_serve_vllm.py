"""`benchmarks/serve_vllm.py`: what it recorded of a server under load, and how it starts and ends one."""

import json
import math
import sys
from pathlib import Path

import pytest

from benchmarks import serve_vllm
from benchmarks.serve_vllm import LIMIT, OTHERS, PAGE, RECORDED, Row, compare, to_section
from benchmarks.vllm_campaign import LOADS, TIMES, predict, to_text, with_section
from benchmarks.vllm_server import Setting, server
from ladder_sim.errors import LadderSimError, MissingDependencyError
from ladder_sim.serve import MeasuredSteps
from ladder_sim.serve.confidence import MEASURED_STEPS_WIDTH
from tests.support.waiting import until


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """The recorded runs, predicted anew."""
    return compare(RECORDED)


def test_predictions_hold_at_moderate_load(rows: list[Row]) -> None:
    errors = {(row.tp, row.figure): row.error for row in rows if row.load == "moderate"}
    assert len(errors) == 8
    assert max(map(abs, errors.values())) < LIMIT


@pytest.mark.parametrize("folder", ["", *OTHERS.values()])
def test_intervals_of_measured_steps_hold_every_series(folder: str) -> None:
    """At TP 1 and moderate load; what is further off is on the page."""
    errors = [row.error for row in compare(RECORDED / folder) if (row.tp, row.load) == (1, "moderate")]
    assert len(errors) == len(TIMES)
    assert all(abs(math.log1p(error)) < MEASURED_STEPS_WIDTH for error in errors)


def test_medians_hold_at_every_load(rows: list[Row]) -> None:
    medians = [row for row in rows if "p50" in row.figure]
    assert len(medians) == 12
    assert max(abs(row.error) for row in medians) < LIMIT


def test_every_rate_was_run_three_times_with_requests_of_its_own(rows: list[Row]) -> None:
    assert {len(row.measured_s) for row in rows} == {3}
    runs = json.loads((RECORDED / "runs.json").read_text("utf-8"))["runs"]
    for tp in (1, 2):
        own = [run for run in runs if run["tp"] == tp]
        assert len({run["seed"] for run in own}) == len(own) == 3 * len(LOADS)
        # they take turns
        assert [run["load"] for run in own] == 3 * list(LOADS)
        assert len({tuple(run["arrival_ms"]) for run in own}) == len(own)


def test_a_longer_step_would_not_hold(rows: list[Row]) -> None:
    """The bound tells a wrong fit from a right one."""
    run = next(
        run for run in json.loads((RECORDED / "runs.json").read_text("utf-8"))["runs"] if run["load"] == "moderate"
    )
    steps = MeasuredSteps.read(RECORDED / f"tp{run['tp']}.toml")
    right, wrong = (predict(each, run).seconds("tpot", 50) for each in (steps, steps.slower(1.3)))
    assert wrong / right - 1.0 > 2.0 * LIMIT


def test_the_page_shows_what_was_recorded() -> None:
    page = PAGE.read_text("utf-8")
    assert with_section(page, to_section(RECORDED)) == page


def test_results_are_written_a_run_a_line() -> None:
    results = {"date": "2026-11-22", "runs": [{"prompt": [1, 2, 3]}, {"prompt": [4]}]}
    assert json.loads(to_text(results)) == results
    assert [line for line in to_text(results).splitlines() if "prompt" in line] == [
        '  {"prompt": [1, 2, 3]},',
        '  {"prompt": [4]}',
    ]


SERVES = """
import http.server, os, subprocess, sys
port = next(int(flag.partition("=")[2]) for flag in sys.argv if flag.startswith("--port"))
worker = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
open("worker", "w").write(str(worker.pid))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def test_a_server_ends_with_what_it_started(tmp_path: Path) -> None:
    (tmp_path / "vllm_cpu.py").write_text(SERVES, "utf-8")
    with server(tmp_path, sys.executable, "tp1", Setting(1)):
        worker = int((tmp_path / "worker").read_text("utf-8"))
        assert _runs(worker)
    until(lambda: not _runs(worker))


def _runs(pid: int) -> bool:
    """Whether a process is there, and no mere entry that its parent has not read yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_server_that_does_not_start_is_reported(tmp_path: Path) -> None:
    (tmp_path / "vllm_cpu.py").write_text("raise OSError('port 8000 is taken')", "utf-8")
    match = "ended with 1: OSError: port 8000 is taken"
    with pytest.raises(LadderSimError, match=match), server(tmp_path, sys.executable, "tp1", Setting(1)):
        pass


def test_it_names_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["serve_vllm.py", "--python", "/no/python", "--out", str(tmp_path)])
    with pytest.raises(MissingDependencyError, match="no environment with vLLM: /no/python"):
        serve_vllm.main()
