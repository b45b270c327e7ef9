"""Answers of commands as they were: tests/golden/answers.jsonl, a command and its figures a line.

After a change that is meant, ``python -m tests.support.golden`` writes the answers again: the difference of that file
is what users will see, and belongs into the changelog.
"""

import json
import math
import os
import shlex
import tempfile
from collections.abc import Iterator
from typing import Any

from tests.conftest import REPO
from tests.support.commands import run

GOLDEN = REPO / "tests" / "golden" / "answers.jsonl"
# of a list's entries, and significant digits of a figure
ENTRIES, DIGITS = 6, 7
# entries of documents that are answers: times, rates, gains, plans, memory, accuracy
ANSWERS = frozenset(
    (
        *("ttft_s", "tpot_s", "itl_s", "e2e_s", "request_s", "tokens_per_s", "requests_per_s"),
        *("speedup", "speedup_low", "speedup_high", "exposed_comm_s", "memory_bytes_per_gpu", "mean", "p50"),
        *("p99", "gain", "gain_low", "gain_high", "value", "crossings", "gpus"),
        *("replicas", "rate", "rising", "tp", "pp", "ep", "mean_error"),
        *("median_error", "inside", "speedup_elasticity", "request_elasticity", "recorded_s", "replay_s", "bound"),
        *("goodput"),
    )
)


def answer(command: str) -> dict[str, Any]:
    """Run a command from the repository's root: its exit code with its figures, or the first line of its refusal."""
    done = run(*shlex.split(command))
    if done.code not in (0, 1) or not done.out.strip():
        return {"exit": done.code, "error": done.err.strip().splitlines()[0]}
    return {"exit": done.code, **dict(_figures(_document(done.out), ""))}


def _document(out: str) -> object:
    try:
        return json.loads(out)
    except json.JSONDecodeError:
        # a sweep writes a document a line
        return [json.loads(line) for line in out.splitlines()]


def _figures(node: object, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        entries = [(key, value) for key, value in node.items() if key not in ("scenario", "provenance", "samples")]
    elif isinstance(node, list):
        entries = [(str(at), value) for at, value in enumerate(node[:ENTRIES])]
    else:
        name = path.rpartition("/")[2].rpartition(".")[2]
        if name in ANSWERS and isinstance(node, int | float) and not isinstance(node, bool):
            yield path, rounded(node)
        return
    for key, value in entries:
        yield from _figures(value, f"{path}/{key}" if path else key)


def rounded(value: float) -> float:
    """Cut a figure to the digits that processors agree on."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else value


def golden() -> dict[str, dict[str, Any]]:
    """Commands and their answers as they were."""
    lines = [json.loads(line) for line in GOLDEN.read_text("utf-8").splitlines()]
    return {line["command"]: line["answer"] for line in lines}


def _write(commands: list[str]) -> None:
    lines = [json.dumps({"command": command, "answer": answer(command)}) for command in commands]
    GOLDEN.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        _write(list(golden()))
