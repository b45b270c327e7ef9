"""The commands for many predictions: what they print, write and refuse."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

from ladder_sim.analysis.breakeven import breakeven
from ladder_sim.errors import UsageError
from ladder_sim.specs.settings import find_setting
from ladder_sim.sweeps.price import PRICE_CAVEAT
from ladder_sim.system.progress import progress_text
from tests.support.commands import process, run

SWEEP = ("sweep", "--model", "8b", "--tp", "2:8", "--batch", "1,16")
TWO_NODES = ("--model", "405b", "--nodes", "2")


def test_sweep_prints_a_table() -> None:
    done = run(*SWEEP, "--variant", "standard,ladder")
    assert done.code == 0, done.err
    said, asked, _, columns, *rows = done.out.splitlines()[:10]
    assert said.startswith("Ladder's speedup: ")
    assert asked == "llama-3.1-8b bf16, H100 SXM5 80GB, gpt-fast (--stack); static batches, 1024 + 512; 6 points"
    heads = ["tp", "batch", "ladder (90 %)", "standard tok/s (90 %)", "TPOT [ms] (90 %)"]
    assert re.split(r"\s{2,}", columns) == heads
    assert [row.split()[:2] for row in rows] == [[tp, batch] for tp in "248" for batch in ("1", "16")]


def test_answers_keep_the_unit_that_was_typed() -> None:
    """A file keeps SI units, which the names of its columns end in."""
    ranged = ("--set", "inter.bandwidth=200:800:x2Gb/s", *TWO_NODES, "--variant", "ladder")
    head, *rows = run("sweep", *ranged).out.partition("\n\n")[2].splitlines()[:4]
    assert head.startswith("inter.bandwidth [Gb/s] ")
    assert [row.split()[0] for row in rows] == ["200", "400", "800"]
    lines = csv.DictReader(io.StringIO(run("sweep", *ranged, "--csv").out))
    assert [line["inter.bandwidth_Bps"] for line in lines] == ["25000000000", "50000000000", "100000000000"]
    typed = (*TWO_NODES, "--set", "inter.bandwidth=200Gb/s")
    answer = run("sensitivity", *TWO_NODES, "--set", "inter.allreduce_floor=40000ns").out
    figures = dict(line.split(maxsplit=1) for line in answer.splitlines() if " " in line)
    assert figures["inter.allreduce_floor"].startswith("40000 ns")
    assert figures["gpu.hbm_bandwidth"].startswith("3.35 TB/s")
    assert "12.5 Gb/s" in run("breakeven", "inter.bandwidth", *typed).out


def test_a_price_gives_what_tokens_cost() -> None:
    done = run(*SWEEP, "--variant", "standard,ladder", "--price", "2.5")
    assert "$/Mtoken" in done.out
    assert PRICE_CAVEAT in " ".join(done.out.split())
    assert "never idle" not in run(*SWEEP).out
    rows = list(csv.DictReader(io.StringIO(run(*SWEEP, "--csv", "--price", "2.5").out)))
    for row in rows:
        expected = 2.5 * int(row["tp"]) / 3600 / float(row["ladder.tokens_per_s"]) * 1e6
        assert float(row["ladder.usd_per_Mtoken"]) == pytest.approx(expected)
    assert "price -1: must be above 0" in run(*SWEEP, "--price", "-1").err


def test_a_long_table_says_what_it_leaves_out() -> None:
    command = ("sweep", "--model", "8b", "--set", "intra.allreduce_floor=1:120:+1us", "--variant", "ladder")
    done = run(*command)
    assert "--explain has the first 100 points (--csv and --save: all)" in done.out
    rows = [line.split()[0] for line in done.out.splitlines()[3:] if line[:1].isdigit()]
    # the least and the largest gain are among them
    assert {"1", "120"} < set(rows)
    assert "and 20 more: --csv and --save write all" in run(*command, "--explain").out


def test_sweep_streams_csv_and_json_lines() -> None:
    rows = list(csv.DictReader(io.StringIO(run(*SWEEP, "--csv").out)))
    objects = [json.loads(line) for line in run(*SWEEP, "--json").out.splitlines()]
    assert [row["tp"] for row in rows] == ["2", "2", "4", "4", "8", "8"]
    assert [one["ladder.speedup"] for one in objects] == [float(row["ladder.speedup"]) for row in rows]
    assert list(objects[0]) == [*rows[0], "validated"]


@pytest.mark.slow
def test_sweep_writes_a_file_with_any_number_of_workers(tmp_path: Path) -> None:
    """Two processes that are started for it write the same bytes as one."""
    paths = [tmp_path / name for name in ("one.csv", "two.csv")]
    for workers, path in zip("12", paths, strict=True):
        done = process(*SWEEP[:-1], "1:80:+1", "--workers", workers, "--save", str(path))
        assert (done.code, done.out) == (0, ""), done.err
        assert done.err == f"written: {path} (240 points, 240 feasible)\n"
    assert paths[0].read_bytes() == paths[1].read_bytes() == run(*SWEEP[:-1], "1:80:+1", "--csv").out.encode()


def test_a_sweep_of_nothing_that_runs_is_infeasible(tmp_path: Path) -> None:
    """Its rows are there all the same."""
    done = run("sweep", "--model", "405b", "--batch", "1:4", "--save", str(tmp_path / "x.csv"))
    assert done.code == 3
    assert "no point of the sweep can run" in done.err
    assert len((tmp_path / "x.csv").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batch", "4:1"), "batch: '4:1' runs backwards"),
        (("--prompt", "1:8"), "prompt: '1:8' has no step"),
        (("--set", "inter.bandwith=1:2:x2"), "unknown setting 'inter.bandwith'"),
        (("--variant", "lader"), "unknown variant 'lader'"),
        (("--batch", "1:100000:+1", "--prompt", "1:1000:+1"), "100,000,000 points (100000 x 1000) is more than"),
        (("--save", "x.xlsx"), "unknown extension"),
        (("--resume",), "--resume without --save"),
        (("--json", "--csv"), "--json and --csv exclude each other"),
        (("--set", "plot=x.gif"), "unknown extension"),
        (("--dask", "tcp://h:1", "--workers", "2"), "--dask and --workers exclude each other"),
        (("--tp", ""), "tp: '' has an empty value"),
        (("--p2p", "maybe"), "p2p is 'maybe': must be true or false"),
    ],
)
def test_sweep_refuses(arguments: tuple[str, ...], message: str) -> None:
    done = run("sweep", "--model", "8b", *arguments)
    assert done.code == 2
    assert message in done.err
    assert "hint: " in done.err
    assert done.out == ""


def test_progress_says_how_far_how_fast_and_how_long() -> None:
    assert progress_text(10, 1000, "points", 0, 0.0) == "  1 %, 10 of 1,000 points"
    assert progress_text(500, 1000, "points", 400, 100.0) == " 50 %, 500 of 1,000 points, 4/s, 2 min left"


@pytest.mark.parametrize(
    ("command", "columns"),
    [
        (
            ("breakeven", "inter.allreduce_floor=1:40us", *TWO_NODES, "--gain", "10%"),
            ["inter.allreduce_floor", "speedup"],
        ),
        (("sensitivity", *TWO_NODES), ["10", "%", "more", "of", "today", "standard's", "time"]),
        (("advise", *TWO_NODES, "--price", "2.5"), ["plan", "batch", "GPUs", "tok/s"]),
        (("compare", "h100-sxm", "h200-sxm", "--model", "70b"), ["cluster", "GPUs", "speedup"]),
    ],
    ids=["breakeven", "sensitivity", "advise", "compare"],
)
def test_answers_as_table_json_csv_and_page(command: tuple[str, ...], columns: list[str], tmp_path: Path) -> None:
    page = tmp_path / "figure.html"
    table = run(*command, "--set", f"plot={page}")
    assert table.code == 0, table.err
    assert any(line.split()[: len(columns)] == columns for line in table.out.splitlines())
    # warnings are sentences, which a terminal wraps
    assert max(len(line) for line in table.out.splitlines() if not line.startswith("warning: ")) <= 150
    assert page.stat().st_size > 1e6
    document = json.loads(run(*command, "--json").out)
    rows = list(csv.DictReader(io.StringIO(run(*command, "--csv").out)))
    assert document["schema_version"] == 2
    assert [list(row) for row in document["rows"]] == [list(row) for row in rows]


@pytest.mark.parametrize("command", ["breakeven", "sensitivity", "advise", "compare"])
def test_answers_list_and_take_only_flags_that_do_something(command: str) -> None:
    names = {"breakeven": ["batch"], "compare": ["h100-sxm", "h200-sxm"]}.get(command, [])
    for name, value in {"engine": "des", "jitter": "0.1", "seed": "1"}.items():
        done = run(command, *names, "--model", "8b", "--set", f"{name}={value}")
        assert (done.code, done.out) == (2, "")
        assert f"unknown setting '{name}'" in done.err
    if command == "advise":
        assert "--batch " not in run(command, "--help").out
        assert "unknown option '--batch'" in run(command, "--model", "8b", "--batch", "8").err


def test_a_figure_set_twice_is_refused() -> None:
    done = run("predict", "--set", "intra.allreduce_floor=5us", "--set", "intra.allreduce_floor=6us")
    assert (done.code, done.out) == (2, "")
    assert "is given twice: must be given once" in done.err


@pytest.mark.parametrize(
    ("setting", "values", "ends", "value", "uses"),
    [
        ("inter.bandwidth", "50:800:x2Gb/s", "50:800Gb/s", "50Gb/s", ("--nodes", "2")),
        ("inter.allreduce_floor", "50:90:+5us", "50:90us", "90us", ("--nodes", "2")),
        ("host.bandwidth", "2:4:+1GB/s", "2:4GB/s", "2GB/s", ("--no-p2p",)),
    ],
)
def test_figures_that_nothing_uses_are_refused_or_warned_of(
    setting: str, values: str, ends: str, value: str, uses: tuple[str, ...]
) -> None:
    """And what the message names does use them: then the answers differ."""
    rule = f"{setting} changes nothing: "
    for command in (("sweep", "--set", f"{setting}={values}"), ("breakeven", f"{setting}={ends}")):
        refused = run(*command, "--model", "8b")
        assert (refused.code, refused.out) == (2, "")
        assert rule in refused.err
        assert " ".join(uses) in refused.err
    typed = ("predict", "--model", "8b", "--set", f"{setting}={value}", "--json")
    warned, used = run(*typed), run(*typed, *uses)
    assert rule in warned.out
    assert rule not in used.out
    plain = run("predict", "--model", "8b", *uses, "--json")
    assert json.loads(plain.out)["variants"] != json.loads(used.out)["variants"]
    ran = run("breakeven", f"{setting}={ends}", "--model", "8b", *uses, "--json")
    assert len({row["speedup"] for row in json.loads(ran.out)["rows"]}) > 1


def test_sensitivity_names_figures_as_set_takes_them_or_marks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = run("sensitivity", "--model", "405b", "--nodes", "2", "--explain").out
    rows = text.partition("elasticity: ")[2].partition(" more change")[0].splitlines()[2:-1]
    assert len(rows) > 10
    for row in rows:
        name = re.split(r"\s{2,}", row)[0]
        assert name.endswith(" (not settable)") != (find_setting(name) is not None), name
    assert any(row.startswith("cluster.rank_skew ") for row in rows)
    assert any(row.startswith("overlap.lost (not settable)") for row in rows)


def test_a_sweep_over_one_node_and_two_uses_the_links_between_them() -> None:
    assert run("sweep", "--model", "8b", "--nodes", "1,2", "--set", "inter.allreduce_floor=5,20us", "--csv").code == 0


def test_the_ends_of_a_search_are_called_what_they_are() -> None:
    whole = run("breakeven", "inter.bandwidth=100:400Gb/s", *TWO_NODES).out
    assert "start of the range searched" in whole
    assert "end of the range searched" in whole
    assert "that can run" not in whole
    cut = run("breakeven", "batch=1:256", "--model", "70b", "--stack", "vllm", "--tp", "2").out
    assert "start of the range searched" in cut
    assert "largest value tried that can run" in cut
    assert "end of the range" not in cut


def test_a_gain_in_percent_is_no_share() -> None:
    """Guards against 0.2 as 0.2 % on the command line and as 20 % in Python."""
    with pytest.raises(UsageError, match=r"gain 10: must be above -100% and at most 500%") as caught:
        breakeven(None, "batch", gain=10, model="8b")
    assert "10% is --gain 10% or 0.1" in caught.value.hint
    share, percentage = (
        json.loads(run("breakeven", "batch=1:8", "--model", "8b", "--gain", text, "--json").out)["target"]
        for text in ("0.2", "20%")
    )
    assert share == percentage == breakeven(None, "batch", "1:8", gain=0.2, model="8b").target == pytest.approx(1.2)
    # what was a percentage without its sign
    refused = run("breakeven", "batch=1:8", "--model", "8b", "--gain", "20")
    assert refused.code == 2
    assert "gain 20: must have a percent sign" in refused.err
    assert "write 20%" in refused.err


def test_no_crossing_is_said_in_words() -> None:
    done = run("breakeven", "inter.bandwidth=100:400Gb/s", *TWO_NODES, "--gain", "400%")
    assert done.code == 0
    assert done.out.startswith("Ladder gains less than 400 % at all 65 values of inter.bandwidth tried.")
    # of 1 to 8 only 2, 4 and 8 divide the model and fit
    done = run("breakeven", "tp=1:8", "--model", "70b", "--gain", "100%")
    assert done.out.startswith("Ladder gains less than 100 % at all 3 values of tp tried that can run.")
