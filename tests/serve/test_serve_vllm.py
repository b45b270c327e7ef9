"""`benchmarks/serve_vllm.py`: how it starts and ends a server."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import serve_vllm
from benchmarks.serve_vllm import to_text
from ladder_sim.errors import LadderSimError, MissingDependencyError
from tests.support.waiting import until


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
    with serve_vllm._server(tmp_path, sys.executable, 1):
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
    with pytest.raises(LadderSimError, match=match), serve_vllm._server(tmp_path, sys.executable, 1):
        pass


def test_it_names_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["serve_vllm.py", "--python", "/no/python", "--out", str(tmp_path)])
    with pytest.raises(MissingDependencyError, match="no environment with vLLM: /no/python"):
        serve_vllm.main()
