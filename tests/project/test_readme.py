"""The README shows commands that work; `test_docs.py` checks the output that it shows."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import REPO
from tests.support.commands import run

README = (REPO / "README.md").read_text("utf-8")


def commands() -> list[str]:
    """Every `ladder-sim` line of the README, without comments, pipes and files that only a user has."""
    lines = [line.strip().removeprefix("$ ").split("#")[0].split("|")[0].strip() for line in README.splitlines()]
    shown = {line for line in lines if line.startswith("ladder-sim ") and "path/to" not in line}
    # a server runs until it is stopped: tests/cli/test_explore.py
    return sorted(line for line in shown if not line.startswith("ladder-sim explore"))


def test_the_readme_has_commands() -> None:
    assert "ladder-sim predict --model 405b --nodes 2" in commands()
    assert len(commands()) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("command", commands())
def test_commands_work(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # some write files
    monkeypatch.chdir(tmp_path)
    ran = run(*shlex.split(command)[1:])
    assert ran.code == 0, ran.err
    assert ran.out


def test_the_table_is_what_the_commands_print() -> None:
    rows = re.findall(r"^\| `(--model .*?)` \| (.+?) \| (.*?) ?\|$", README, re.MULTILINE)
    assert len(rows) >= 5
    for flags, speedup, unchecked in rows:
        answer = json.loads(run("predict", *shlex.split(flags), "--json").out)
        ladder = answer["variants"]["ladder"]
        low, high = ladder["speedup_low"], ladder["speedup_high"]
        assert f"{ladder['speedup']:.2f} ({low:.2f}-{high:.2f})" == speedup
        missing = [name.replace("_", " ") for name, checked in answer["validated"].items() if not checked]
        assert ", ".join(missing).replace("gpu", "GPU").replace("tp", "TP") == unchecked


@pytest.mark.slow
def test_the_gpus_that_keep_a_promise_are_what_the_commands_print() -> None:
    flags = "--model 70b --stack vllm --tp 8 --pp 1 --rate 20 --requests 500 --price 3 --json"
    command = ("capacity", *flags.split(), "--slo", "ttft_p95=500ms,tpot_p95=30ms")
    plain = json.loads(run(*command).out)["rows"]
    fused = json.loads(run(*command, "--technique", "fused-norm", "--variant", "standard").out)["rows"]
    named = {"standard": plain[0], "standard, `--technique fused-norm`": fused[0], "ladder": plain[1]}
    for name, row in named.items():
        cells = [
            " (".join(
                (form(row[figure]), "-".join(form(row[f"{figure}_{end}"]).lstrip("$") for end in ("low", "high")))
            )
            for figure, form in (
                ("gpus", "{:.0f}".format),
                ("rate_limit", "{:.3g}".format),
                ("usd_per_Mtoken", "${:.2f}".format),
            )
        ]
        assert f"| {name} | {') | '.join(cells)}) |" in README
    assert f"carries {plain[1]['rate_gain']:.2f} times the rate" in README
