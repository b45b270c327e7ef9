"""`calibrate evidence`: a killed run goes on, and what it packs is read by the commands that it is for."""

import itertools
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from ladder_sim.cli.run import Bench
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.validation.archive import read_archive
from ladder_sim.validation.dataset import read_dataset
from ladder_sim_calibration.__main__ import main
from ladder_sim_calibration.evidence import steps
from ladder_sim_calibration.evidence.runs import Check
from ladder_sim_calibration.fit.samples import Sample, SampleStore
from ladder_sim_calibration.measure import command as measuring
from ladder_sim_runtime import environment
from tests.conftest import REPO
from tests.support.commands import run
from tests.support.waiting import until

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 256,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


MACHINE = {"gpu": "NVIDIA H100 80GB HBM3"}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Of a model that runs in no time."""
    path = tmp_path / "own.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.mark.slow
@pytest.mark.torch
def test_a_killed_run_goes_on_and_its_archive_is_read_elsewhere(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "evidence"
    arguments = ["evidence", f"--out={out}", f"--model={config}", "--ranks=2", "--stack=gpt-fast", "--batch=1"]
    arguments += ["--prompt=8", "--gen=4", "--repeats=1", "--most=4", "--budget"]
    command = [sys.executable, "-m", "ladder_sim_calibration", *arguments]
    killed = subprocess.Popen([*command, "9h"], cwd=REPO, stderr=subprocess.DEVNULL)
    samples = out / steps.SAMPLES
    # runs come first: when single ops begin they are there
    until(lambda: (samples.exists() and samples.read_bytes().count(b"\n") > 4) or killed.poll() is not None)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    before = SampleStore(samples).samples
    assert (out / "gpt-fast-batch-1.json").exists()

    # a second for ops that are left; the first run is begun in any case
    assert main([*arguments, "2s"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{out}.tar.gz"
    after = SampleStore(samples).samples
    assert after[: len(before)] == before
    # what is done is not done again
    assert main([*arguments, "9h"]) == 0
    assert SampleStore(samples).samples == after
    assert main([*arguments, "9h", "--gen=5"]) == 2
    assert f"{out} holds runs of gen 4, not 5" in capsys.readouterr().err

    home = tmp_path / "home"
    with tarfile.open(f"{out}.tar.gz") as archive:
        archive.extractall(home, filter="data")
    monkeypatch.chdir(home / "evidence")
    fit = ["fit", steps.SAMPLES, "--cluster", "h100-sxm", "--out", "again.json.gz", "--force"]
    assert main(fit) == 0
    assert run("validate", steps.RUNS, "--profile", steps.PROFILE).code == 0
    assert run("trace", "predict", f"{steps.TRACES}/standard").code == 0
    compared = json.loads(Path(steps.COMPARED).read_text())["rows"]
    assert {row["variant"] for row in compared} == {"standard", "parallel", "ladder", "upper-bound"}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that are run on a machine with H100s, where emulated vLLM does not fit."""
    commands: list[list[str]] = []

    def calibrate(command: Sequence[str], *, capture: bool) -> tuple[int, str]:
        commands.append(list(command))
        path = Path(next(word for word in command if word.startswith("--samples")).partition("=")[2])
        store = SampleStore(path, MACHINE)
        for m in (1.0, 16.0):
            store.append(Sample(op="gemm", point={"m": m, "n": 4096.0, "k": 4096.0}, seconds=1e-5))
        return 0, ""

    def bench(asked: Bench, flags: Sequence[str]) -> None:
        assert asked.stack
        assert asked.save
        commands.append([asked.stack, *flags])
        if asked.stack == "vllm" and "--backend=emulate" in flags:
            raise typer.Exit(1)
        tpot_s = 0.1 if "--batch=1" in flags else None
        each = {"ttft_s": 1.0, "tpot_s": tpot_s, "speedup": 1.0, "tokens_per_s": 10.0}
        done = {"decode": "CUDA graphs", "blocks": "compiled", "kernels": "fused", "missing": []}
        variants = {"standard": each, "ladder": each}
        memory = {"planned_bytes": 10**9, "reserved_bytes": 10**9}
        result = {"execution": done, "memory": memory, "shape": {"layers": 2}, "variants": variants}
        asked.save.write_text(json.dumps(result))

    monkeypatch.setattr(environment, "environment", lambda: dict(MACHINE))
    monkeypatch.setattr(steps.processes, "run", calibrate)
    monkeypatch.setattr(Bench, "measure", bench)
    return commands


def test_engines_run_with_each_all_reduce_between_gpus(
    config: Path,
    tmp_path: Path,
    ran: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "evidence"
    # no communication was measured, and nothing captured
    for _ in range(2):
        assert main(["evidence", f"--out={out}", f"--model={config}", "--ranks=2", "--prompt=8", "--gen=4"]) == 1
        assert "not as expected: gpt-fast-batch-1: hidden communication: none" in capsys.readouterr().err
    runs = [words for words in ran if words[0] in ("gpt-fast", "vllm")]
    engines = [(words[0], *(word for word in words if word.startswith("--allreduce"))) for words in runs]
    own = [("vllm",), ("vllm", "--allreduce=one-shot"), ("vllm", "--allreduce=multimem")]
    assert engines == [("gpt-fast",)] * 2 + own * 2
    assert not any("emulate" in word for words in ran for word in words)
    predicted = {
        row["run"]: row["tpot_s"]["predicted"]
        for row in json.loads((out / steps.COMPARED).read_text())["rows"]
        if row["variant"] == "standard" and "tpot_s" in row
    }
    assert predicted["vllm-batch-1-one-shot"] < predicted["vllm-batch-1-nccl"]
    # what engines take by themselves was not measured
    monkeypatch.chdir(out)
    assert {run.configuration.stack for run in read_dataset(steps.RUNS).measurements} == {"gpt-fast"}


def test_a_single_rank_emulates_the_predicted_links_and_a_run_that_fails_is_reported(
    config: Path,
    tmp_path: Path,
    ran: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "evidence"
    arguments = ["evidence", f"--out={out}", f"--model={config}", "--ranks=1", "--tp=2", "--budget=40s"]
    assert main([*arguments, "--prompt=8", "--gen=4"]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert any(line.startswith("not measured: vllm-batch-1: ") for line in errors)
    # no communication was measured, and nothing captured
    assert "not as expected: gpt-fast-batch-1: hidden communication: none" in errors
    assert any(line.startswith("not as expected: ladder: capture: ") for line in errors)
    checks = json.loads((out / steps.CHECKS).read_text())["rows"]
    assert [check["name"] for check in checks if check["holds"]] == [
        "steady clocks",
        *(f"gpt-fast-batch-{batch}: {what}" for batch in (1, 16) for what in ("launches", "memory")),
    ]
    *runs, ops = ran
    assert {"--overlap", "--ranks=1", "--tp=2", "--budget=20s"} <= set(ops)
    assert [flags[0] for flags in runs] == ["gpt-fast", "gpt-fast", "vllm", "vllm"]
    assert [any(flag.startswith("--trace") for flag in flags) for flags in runs] == [True, False, False, False]
    table = out / "all-reduce-gpt-fast.csv"
    assert {"--backend=emulate", f"--emulate={table}"} <= set(runs[0])
    sizes, seconds = zip(*(map(float, line.split(",")) for line in table.read_text().splitlines()[1:]), strict=True)
    assert sizes == steps.MESSAGES
    assert sorted(seconds) == list(seconds)
    assert load_profile(str(out / steps.PROFILE)).cluster_name == "h100-sxm"
    monkeypatch.chdir(out)
    compared = json.loads(Path(steps.COMPARED).read_text())["rows"]
    assert ["tpot_s" in row for row in compared] == [True, True, False, False]
    # what the shipped profile says was written first
    predicted = json.loads(Path(steps.PREDICTED).read_text())
    assert predicted["cluster"] == "h100-sxm"
    assert {row["run"] for row in predicted["rows"]} >= {"gpt-fast-batch-1", "gpt-fast-batch-16"}
    assert all(row["ttft_s"] > 0.0 for row in predicted["rows"])
    failures = json.loads(Path(steps.FAILURES).read_text())["failures"]
    assert any(line.startswith("not measured: vllm-batch-1: ") for line in failures)
    assert len(read_dataset(steps.RUNS).measurements) == 4


QUICK = ("--ranks=1", "--tp=2", "--budget=40s", "--prompt=8", "--gen=4", "--stack=gpt-fast", "--batch=1")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["--batch=1,x"], "--batch is 'x'"),
        (["--stack=gpt-fats"], "unknown stack 'gpt-fats'"),
        (["--cluster=nonsense"], "unknown cluster 'nonsense'"),
        (["--repeats=0"], "--repeats is 0"),
        (["--prompt=0"], "prompt is 0"),
        (["--most=-1"], "--most -1"),
        (["--model=70bb"], "unknown model '70bb'"),
    ],
)
def test_options_are_checked_before_anything_is_measured(
    wrong: list[str], says: str, config: Path, tmp_path: Path, ran: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: a wrong option ended it after half of the budget, and the corrected command was refused."""
    arguments = ["evidence", f"--out={tmp_path / 'evidence'}", f"--model={config}", *QUICK]
    assert main([*arguments, *wrong]) == 2
    assert says in capsys.readouterr().err
    assert ran == []
    main(arguments)
    assert "not as expected: gpt-fast-batch-1: hidden" in capsys.readouterr().err
    assert [words[0] for words in ran[:2]] == ["gpt-fast", "ladder_sim_calibration"]


def test_a_gpu_that_the_catalog_lacks_is_refused_first_and_then_described(
    config: Path,
    tmp_path: Path,
    ran: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(environment, "environment", lambda: {"gpu": "NVIDIA L40"})
    arguments = ["evidence", f"--out={tmp_path / 'evidence'}", f"--model={config}", *QUICK]
    assert main(arguments) == 2
    assert "no cluster of the catalog has a 'NVIDIA L40'" in capsys.readouterr().err
    assert ran == []
    monkeypatch.setattr(environment, "environment", lambda: dict(MACHINE))
    main([*arguments, "--cluster=h100-pcie"])
    assert ran


def test_whatever_fails_the_archive_holds_the_runs_and_the_causes(
    config: Path,
    tmp_path: Path,
    ran: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "evidence"
    packed: list[list[str]] = []

    def failing(command: Sequence[str], *, capture: bool) -> tuple[int, str]:
        # a machine that is taken away here
        with tarfile.open(f"{out}.tar.gz") as archive:
            packed.append(archive.getnames())
        return 1, ""

    def broken(name: str, result: Any) -> Iterator[Check]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(steps.processes, "run", failing)
    monkeypatch.setattr(steps, "of_run", broken)
    assert main(["evidence", f"--out={out}", f"--model={config}", *QUICK]) == 1
    printed = capsys.readouterr()
    assert packed
    assert "evidence/gpt-fast-batch-1.json" in packed[0]
    assert printed.out.splitlines()[-1] == f"{out}.tar.gz"
    with tarfile.open(f"{out}.tar.gz") as archive:
        names = set(archive.getnames())
        file = archive.extractfile(f"evidence/{steps.FAILURES}")
        assert file is not None
        failures = json.loads(file.read())["failures"]
    assert {"evidence/gpt-fast-batch-1.json", f"evidence/{steps.RUNS}", f"evidence/{steps.PREDICTED}"} <= names
    starts = ("single ops: ", "profile: ", "runs were not compared: ", "checks: ")
    assert [line.startswith(start) for line, start in zip(failures, starts, strict=True)] == [True] * len(starts)


@pytest.mark.torch
def test_an_op_that_fails_costs_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ladder_sim_calibration.measure import ops
    from ladder_sim_calibration.measure.ranks import Ranks

    monkeypatch.setattr(ops, "KERNELS", {"gemm": None, "norm": None, "add": None})
    monkeypatch.setattr(ops, "kernel", lambda op, weights: _failing(op.op))
    monkeypatch.setattr(ops, "launches_of", lambda op: 1)
    planned = [Sample(op=name, point={"bytes": 1024.0}, seconds=None) for name in ("norm", "add")]
    store = SampleStore(tmp_path / "samples.jsonl", MACHINE)
    # a clock that is read some dozen times before it is over
    seconds = itertools.count()
    monkeypatch.setattr(measuring.time, "monotonic", lambda: next(seconds))
    measuring.take_samples(planned, store, Ranks(), 50)
    causes = {sample.op: sample.cause for sample in SampleStore(tmp_path / "samples.jsonl").samples}
    assert causes["norm"] == "CUDA error: an illegal instruction"
    assert causes["add"] == ""


def _failing(op: str) -> Callable[[], None]:
    def run() -> None:
        if op == "norm":
            raise RuntimeError("CUDA error: an illegal instruction\nCompile with TORCH_USE_CUDA_DSA")

    return run


def test_the_paper_is_measured_by_worth_and_what_was_not_is_said(
    tmp_path: Path, ran: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On four GPUs: TP 8 is not there, TP 1 does not fit, and the others run with and without peer-to-peer access."""
    out = tmp_path / "paper"
    linked = []
    bench = Bench.measure
    monkeypatch.setattr(
        Bench, "measure", lambda *given: (linked.append(os.environ.get("NCCL_P2P_DISABLE")), bench(*given))
    )
    command = ["evidence", f"--out={out}", "--paper", "--ranks=4", "--batch=1,16", "--budget=9h"]
    assert main(command) == 1
    printed = capsys.readouterr().err
    runs = [words for words in ran if words[0] == "gpt-fast"]
    names = ["batch-1", "batch-1-p2p-off", "batch-16", "batch-16-p2p-off", "batch-1-tp-2", "batch-1-tp-2-p2p-off"]
    assert [(words[1], words[2]) for words in runs[:4]] == [("--tp=4", "--batch=1")] * 2 + [
        ("--tp=4", "--batch=16")
    ] * 2
    assert {"--prompt=1024", "--gen=512", "--dtype=fp16", "--repeats=6"} <= set(runs[0])
    assert linked == [None, "1"] * (len(runs) // 2)
    assert "NCCL_P2P_DISABLE" not in os.environ
    assert "not measured: gpt-fast-batch-1-tp-8: there are 4 GPUs" in printed
    assert "not measured: gpt-fast-batch-1-tp-1: it needs 1" in printed
    archive = read_archive(out.with_name("paper.tar.gz"))
    assert list(dict.fromkeys(row.run for row in archive.measured))[:6] == [f"gpt-fast-{name}" for name in names]
    assert archive.commit
    assert not archive.rehearsal
    table = (out / steps.TABLE).read_text()
    assert "| gpt-fast-batch-1 | ladder | 1.00 s | " in table
    assert "Not measured: gpt-fast-batch-1-tp-8, " in table
    assert (out / steps.FIGURE).stat().st_size > 1000

    # a time that is over: the first run is begun, what is predicted to last longer than what is left is not
    late = tmp_path / "late"
    monkeypatch.setattr(steps.time, "monotonic", lambda: 0.0)
    assert main([*command[:1], f"--out={late}", *command[2:-1], "--budget=1s"]) == 1
    assert "not measured: gpt-fast-batch-16: no time was left for it" in capsys.readouterr().err
    assert (late / "gpt-fast-batch-1.json").exists()


@pytest.mark.slow
@pytest.mark.torch
def test_with_every_op_failing_two_kills_and_a_full_disk_runs_are_measured(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "evidence"
    arguments = ["evidence", f"--out={out}", f"--model={config}", "--ranks=2", "--stack=gpt-fast", "--batch=1,2"]
    arguments += ["--prompt=8", "--gen=4", "--repeats=1", "--most=4", "--budget=9h"]
    # before the first run is there, and after it
    for there in (steps.SETTINGS, "gpt-fast-batch-1.json"):
        killed = subprocess.Popen(
            [sys.executable, "-m", "ladder_sim_calibration", *arguments], cwd=REPO, stderr=subprocess.DEVNULL
        )
        until(lambda there=there, killed=killed: (out / there).exists() or killed.poll() is not None)
        killed.kill()
        assert killed.wait() == -signal.SIGKILL

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    def failing(command: Sequence[str], *, capture: bool) -> tuple[int, str]:
        return 1, ""

    with monkeypatch.context() as once:
        once.setattr(steps, "write_file", full)
        assert main(arguments) != 0
        assert "No space left on device" in capsys.readouterr().err
    monkeypatch.setattr(steps.processes, "run", failing)
    # every op of the runtime's benchmark still works: runs are started by another module's `processes`
    monkeypatch.setattr("ladder_sim.cli.run.runtime", _runtime)
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == f"{out}.tar.gz"
    assert "single ops: they ended with an error" in printed.err
    assert "rehearsal, no evidence (CPUs, 2 ranks)" in printed.err
    with tarfile.open(f"{out}.tar.gz") as archive:
        names = archive.getnames()
    assert {f"evidence/gpt-fast-batch-{batch}.json" for batch in (1, 2)} <= set(names)


def _runtime(arguments: Sequence[str], *, capture: bool) -> str:
    command = [sys.executable, "-m", "ladder_sim_runtime", *arguments]
    return subprocess.run(command, cwd=REPO, capture_output=capture, text=True, check=True).stdout
