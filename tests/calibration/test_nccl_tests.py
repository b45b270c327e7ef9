"""Importing one's own measurements: logs of nccl-tests and CSV files."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from ladder_sim import Scenario
from ladder_sim.costs.collectives.fabrics import fabric_curve
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim_calibration.__main__ import main
from ladder_sim_calibration.nccl_tests.sweep import (
    Sweep,
    add_to_profile,
    collective_of,
    fabric_text,
    ranks_of,
    read_sweep,
)
from tests.conftest import DATA
from tests.support.commands import run
from tests.support.predict_one import predict_one

SIZES = [2**exponent for exponent in range(3, 28, 3)]
COLUMNS = (
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw"
)


def log(
    *, ranks: int = 16, hosts: int = 2, op: str = "all_reduce", listed: bool = True, root: str = "-1", wrong: str = "0"
) -> str:
    """What nccl-tests print: a made-up sweep of 40 us and 200 GB/s, in place 10 % faster than out of place."""
    share = (ranks - 1) / ranks * (2 if op == "all_reduce" else 1)
    redop = "none" if op == "all_gather" else "sum"
    lines = ["# nccl-tests version 2.17.6 nccl-headers=22907 nccl-library=22907"]
    if listed:
        lines.append(f"# Collective test starting: {op}_perf")
    lines += ["# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 8(factor) warmup iters: 5 iters: 20", "#"]
    if listed:
        for rank in range(ranks):
            host, device = divmod(rank, ranks // hosts)
            lines.append(
                f"#  Rank {rank:2} Group  0 Pid {4000 + rank} on     node-{host} device {device:2} "
                "[0000:07:00] NVIDIA H100 80GB HBM3"
            )
    lines += [COLUMNS, "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"]
    for size in SIZES:
        row = f"{size:12} {size // 4:12} float {redop} {root}"
        for factor in (1.1, 1.0):
            time_us = factor * (40.0 + size / 200e3)
            algbw = size / time_us / 1e3
            row += f" {time_us:.2f} {algbw:.2f} {algbw * share:.2f} {wrong}"
        lines.append(row)
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 12.3", "#"])


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_log(tmp_path: Path) -> None:
    sweep = read_sweep(write(tmp_path / "a.log", log()))
    assert sweep.op == "all_reduce"
    assert sweep.sizes == tuple(map(float, SIZES))
    assert sweep.seconds[0] == pytest.approx(40e-6)
    assert sweep.hosts == {"node-0": 8, "node-1": 8}
    assert sweep.device == "NVIDIA H100 80GB HBM3"
    assert sweep.bus_factor == pytest.approx(2 * 15 / 16, rel=0.01)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: log(root="").replace("   root ", " "),
        lambda text: log(wrong="N/A"),
        lambda text: log(wrong="0e+00"),
        lambda text: "\n".join(f"[1,0]<stdout>: {line}" for line in text.splitlines()),
        lambda text: "\n".join(f"0: {line}" for line in text.splitlines()),
        lambda text: text.replace(COLUMNS, f"{COLUMNS}\n 0 0 float sum -1 0.15 0.00 0.00 0 0.15 0.00 0.00 0"),
        lambda text: "node-a:4000:4000 [0] NCCL INFO Bootstrap : Using eth0\n\nWarning: 3 things\n" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\n".join(f"2026-11-26 13:50:47.123 {line}" for line in text.splitlines()),
        lambda text: "\n".join(f"[gpu-17:3] {line}" for line in text.splitlines()),
        lambda text: "\n".join(f"worker-0: 2026-11-26T13:50:47Z stdout F {line}" for line in text.splitlines()),
        lambda text: "\n".join(f"7\t{line}" for line in text.splitlines()),
    ],
    ids=[
        *("without root", "unchecked", "old errors", "mpirun", "srun", "empty message", "talk", "carriage returns"),
        *("time stamps", "host and rank", "Kubernetes", "rank"),
    ],
)
def test_forms_of_logs(tmp_path: Path, change: object) -> None:
    text = change(log())  # type: ignore[operator]
    sweep = read_sweep(write(tmp_path / "a.log", text))
    assert sweep.sizes == tuple(map(float, SIZES))
    assert sweep.seconds[-1] == pytest.approx(40e-6 + SIZES[-1] / 200e9, rel=1e-4)


NCCL = DATA / "nccl_tests"


def test_a_log_whose_check_failed_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.toml"
    source = NCCL / "nccl_validation_failed.log"
    arguments = ["import", "nccl-tests", str(source), "--cluster", "h100-sxm", "--out", str(out)]
    assert main(arguments) == 2
    assert "its check failed: 14 wrong results, at 7 of 13 sizes" in capsys.readouterr().err
    assert not out.exists()
    assert main([*arguments, "--force"]) == 0
    assert "warning: 7 sizes from 524288 bytes on are left out: results were wrong" in capsys.readouterr().err
    fabric = fabric_curve(str(out))
    assert fabric is not None
    assert fabric.curve.size_bytes.tolist() == [2**power for power in range(13, 19)]


def test_wrong_rows_of_a_log_that_ends_early_are_left_out(tmp_path: Path) -> None:
    text = (NCCL / "nccl_validation_failed.log").read_text("utf-8")
    sweep = read_sweep(write(tmp_path / "a.log", text[: text.index("# Out of bounds")]))
    assert (len(sweep.sizes), len(sweep.wrong)) == (6, 7)


def test_json_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Busbw / algbw says 8 ranks, which are one node: a profile."""
    source, out = NCCL / "nccl_structured_output.json", tmp_path / "mine.json.gz"
    sweep = read_sweep(source)
    assert sweep.sizes == tuple(2.0**power for power in range(13, 25))
    assert (sweep.seconds[0], ranks_of(sweep)) == (pytest.approx(30.051e-6), 8)
    assert main(["import", "nccl-tests", str(source), "--cluster", "h100-sxm", "--out", str(out)]) == 0
    assert "read as 1 x 8 GPUs\n12 sizes, 8192 to 16777216 bytes" in capsys.readouterr().err
    curve = load_profile(out).collectives["all_reduce"]["nccl"][8]
    assert curve.seconds_at(2.0**20)[0] == pytest.approx(36.554e-6)
    assert main(["import", "nccl-tests", str(source), "--cluster", "h100-sxm", "--out", "x.toml"]) == 2
    flags = ("--nodes", "2", "--ranks-per-node", "4", "--out", str(tmp_path / "mine.toml"))
    assert main(["import", "nccl-tests", str(source), "--cluster", "h100-sxm", *flags]) == 0


def test_json_output_with_an_object_for_each_placement(tmp_path: Path) -> None:
    """Later versions write sizes as a field, and say which program and which devices."""
    results = [
        {
            "size": size,
            "count": size // 4,
            "type": "float",
            "redop": "sum",
            "root": -1,
            "out_of_place": {"time": 9.0, "alg_bw": size / 9e3, "bus_bw": 1.875 * size / 9e3, "nwrong": 0},
            "in_place": {"time": 8.0, "alg_bw": size / 8e3, "bus_bw": 1.875 * size / 8e3, "nwrong": int(size == 64)},
        }
        for size in (0, 16, 32, 64)
    ]
    devices = [{"rank": rank, "host": f"node{rank // 8}", "device_name": "H100"} for rank in range(16)]
    document = {"argv": ["./build/all_reduce_perf", "-b", "8"], "devices": devices, "results": results}
    path = write(tmp_path / "a.json", json.dumps(document))
    with pytest.raises(UsageError, match="its check failed: 1 wrong results, at 1 of 3 sizes"):
        read_sweep(path)
    sweep = read_sweep(path, force=True)
    assert (sweep.op, sweep.sizes, sweep.wrong) == ("all_reduce", (16.0, 32.0), (64.0,))
    assert (sweep.hosts, sweep.device, sweep.seconds[0]) == ({"node0": 8, "node1": 8}, "H100", pytest.approx(8e-6))
    with pytest.raises(UsageError, match="ends in the middle of its JSON"):
        read_sweep(write(tmp_path / "a.json", json.dumps(document)[:-40]))


def test_large_messages_alone_leave_small_ones_as_they_were(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.toml"
    source = str(NCCL / "nccl_from_512M_up.log")
    assert main(["import", "nccl-tests", source, "--cluster", "h100-sxm", "--out", str(out)]) == 0
    said = capsys.readouterr().err
    assert "smaller and larger messages stay as in fabric ib-ndr400" in said
    assert "warning: no message of decode's size (at most 8388608 bytes) was measured" in said
    scenarios = [Scenario(model="70b", nodes=2, overrides={"inter.fabric": name}) for name in (str(out), "ib-ndr400")]
    mine, shipped = (predict_one(scenario) for scenario in scenarios)
    assert mine.tpot_s == pytest.approx(shipped.tpot_s, rel=1e-9)


def test_one_placement_only(tmp_path: Path) -> None:
    text = "\n".join(line if line.startswith("#") else " ".join(line.split()[:9]) for line in log().splitlines())
    assert read_sweep(write(tmp_path / "a.log", text)).seconds[0] == pytest.approx(44e-6)


def test_csv(tmp_path: Path) -> None:
    sweep = read_sweep(write(tmp_path / "a.csv", "# mine\nbytes,time_us\n1024, 20\n\n4096,21.5\n"))
    assert sweep.sizes == (1024.0, 4096.0)
    assert sweep.seconds == (pytest.approx(20e-6), pytest.approx(21.5e-6))
    assert collective_of(sweep, 16) == "all_reduce"


@pytest.mark.parametrize(
    ("name", "text", "line", "rule"),
    [
        ("a.log", "", "", "0 rows of measurements"),
        ("a.log", "# nothing but comments\nand talk\n", "", "0 rows of measurements"),
        ("a.log", "8 2 float sum -1 1 0 0 0 1 0 0 0", "", "1 rows of measurements"),
        ("a.log", log().replace(" 40.00 ", " 0.00 "), ":23", "time is 0.00 us: must be above 0"),
        ("a.log", log().replace(" 40.00 ", " -3.1 "), ":23", "time is -3.1 us: must be above 0"),
        ("a.log", log().replace(" 40.00 ", " nan "), ":23", "time is nan us"),
        ("a.log", log().replace(" 40.00 ", " fast "), ":23", "time is 'fast': must be a number"),
        ("a.log", log().replace(" 711.09 ", " 0.711 "), ":31", "134217728 bytes in 0.711 us are 1.89e+05 GB/s, but"),
        ("a.log", log() + "\n" + log(), "", "sizes must increase"),
        ("a.log", log().replace("float sum", "half sum", 1), ":24", "several operations (float sum -1 after half sum"),
        ("a.log", log().replace("float sum", "float max", 1), ":24", "several operations"),
        ("a.log", log(op="all_gather") + "\n" + log(), "", "several operations (all_gather, all_reduce)"),
        ("a.log", log().rpartition(" 0\n#")[0], ":31", "12 columns, not 9 or 13"),
        ("a.csv", "size,time\n1,2\n", ":1", "the columns must be bytes,time_us"),
        ("a.csv", "bytes,time_us\n8,1\n16\n", ":3", "must be two numbers"),
        ("a.csv", "bytes,time_us\n8,1\n0,1\n", ":3", "bytes is '0': must be above 0"),
        ("a.csv", "bytes,time_us\n8,1\n8,1\n", ":3", "size 8 after 8: sizes must increase"),
        ("a.csv", "bytes,time_us\n", "", "0 rows"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, text: str, line: str, rule: str) -> None:
    path = write(tmp_path / name, text)
    with pytest.raises(UsageError) as caught:
        read_sweep(path)
    assert caught.value.message.startswith(f"{path}{line}")
    assert rule in caught.value.message
    assert caught.value.hint


def test_times_that_no_kernel_takes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Regression: seconds in a column of microseconds were collectives a million times too fast."""
    file = write(tmp_path / "a.csv", "bytes,time_us\n8192,0.00003\n1048576,0.00007\n")
    across = ("--cluster", "h100-sxm", "--nodes", "2", "--ranks-per-node", "8", "--out", str(tmp_path / "a.toml"))
    for options in (across, ("--base", "h100-sxm", "--ranks", "8", "--out", str(tmp_path / "a.json.gz"))):
        assert main(["import", "nccl-tests", str(file), *options]) == 2
        assert "3e-05 us is less than one kernel takes on H100 SXM5 80GB, 2.5 us" in capsys.readouterr().err


def test_an_odd_size_and_another_gpu_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Regression: a log of H100s became the fabric of A100s, and one odd size its time, without a word."""
    file = write(tmp_path / "a.csv", "bytes,time_us\n8192,30\n16384,10\n1048576,70\n")
    where = ["--nodes", "2", "--ranks-per-node", "8", "--out", str(tmp_path / "a.toml")]
    assert main(["import", "nccl-tests", str(file), "--cluster", "h100-sxm", *where]) == 0
    assert "warning: 1 sizes, the first of 16384 bytes, took less than the size before" in capsys.readouterr().err
    said = "warning: the file was measured on NVIDIA H100 80GB HBM3, and is taken for"
    for cluster, other in (("h100-p5", ""), ("a100-sxm-roce", f"{said} A100 SXM4 80GB")):
        assert main(["import", "nccl-tests", str(write(tmp_path / "a.log", log())), "--cluster", cluster, *where]) == 0
        errors = capsys.readouterr().err
        assert other in errors
        assert (said in errors) == bool(other)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(LadderSimError, match="no such file"):
        read_sweep(tmp_path / "no.log")
    (tmp_path / "b.log").write_bytes(b"\x7fELF\xff\xfe")
    with pytest.raises(LadderSimError, match="not UTF-8"):
        read_sweep(tmp_path / "b.log")


def test_collective_is_known_by_header_or_bandwidths(tmp_path: Path) -> None:
    for op in ("all_reduce", "all_gather", "reduce_scatter"):
        for listed in (True, False):
            sweep = read_sweep(write(tmp_path / "a.log", log(op=op, listed=listed)))
            assert collective_of(sweep, 16) == op
    unnamed = read_sweep(write(tmp_path / "a.log", log(listed=False)))
    with pytest.raises(UsageError, match=r"busbw / algbw is 1\.87\d; all_reduce on 2 ranks makes it 1\.000"):
        collective_of(unnamed, 2)
    with pytest.raises(UsageError, match="lists 16 ranks, not 8"):
        collective_of(read_sweep(write(tmp_path / "a.log", log())), 8)
    with pytest.raises(UsageError, match="alltoall is not a collective of a profile"):
        collective_of(Sweep(file="a.log", op="alltoall", sizes=(1.0, 2.0), seconds=(1.0, 2.0)), 2)


def test_fabric_needs_an_all_reduce_of_those_nodes(tmp_path: Path) -> None:
    given = {"cluster": "h100-sxm", "created": "2025-01-31"}
    sweep = read_sweep(write(tmp_path / "a.log", log(op="all_gather")))
    with pytest.raises(UsageError, match="holds an all-reduce"):
        fabric_text(sweep, nodes=2, ranks_per_node=8, **given)
    sweep = read_sweep(write(tmp_path / "a.log", log()))
    with pytest.raises(UsageError, match="lists 2 hosts, not 4"):
        fabric_text(sweep, nodes=4, ranks_per_node=4, **given)


def test_profile_needs_one_node(tmp_path: Path) -> None:
    sweep = read_sweep(write(tmp_path / "a.log", log()))
    with pytest.raises(UsageError, match="lists 2 hosts"):
        add_to_profile(load_profile("h100-sxm"), sweep, name="mine", ranks=16, created="2025-01-31")


def test_fabric_from_log_to_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = write(tmp_path / 'my "log".txt', log()), tmp_path / "mine.toml"
    assert main(["import", "nccl-tests", str(source), "--cluster", "h100-sxm", "--out", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    fabric = fabric_curve(str(out))
    assert fabric is not None
    assert (fabric.nodes, fabric.ranks_per_node, fabric.cluster.name) == (2, 8, "h100-sxm")
    assert fabric.curve.seconds[0] == pytest.approx(40e-6)
    assert str(tmp_path) not in out.read_text("utf-8")
    ran = run("predict", "--model", "8b", "--nodes", "2", "--variant", "ladder", "--set", f"inter.fabric={out}")
    assert ran.code == 0, ran.err
    overrides = {"inter.fabric": str(out)}
    mine, shipped = (
        predict_one(Scenario(model="70b", nodes=2, stack="vllm", overrides=changes)).breakdown.comm_s
        for changes in (overrides, {})
    )
    # 40 us and 200 GB/s: faster than the log of the shipped fabric for every message of this request
    assert mine < shipped


def test_profile_from_log_to_prediction(tmp_path: Path) -> None:
    source, out = write(tmp_path / "box.log", log(ranks=8, hosts=1)), tmp_path / "mine.json.gz"
    assert main(["import", "nccl-tests", str(source), "--base", "h100-sxm", "--out", str(out)]) == 0
    profile, base = load_profile(out), load_profile("h100-sxm")
    assert (profile.name, profile.cluster_name) == ("mine", "h100-sxm")
    curve = profile.collectives["all_reduce"]["nccl"][8]
    measured = np.isin(curve.size_bytes, SIZES)
    assert curve.size_bytes[measured].tolist() == SIZES
    assert curve.seconds[measured][0] == pytest.approx(40e-6)
    # larger messages are the profile's own
    last, before = (each.collectives["all_reduce"]["nccl"][8] for each in (profile, base))
    assert last.seconds_at(before.size_bytes[-1])[0] == pytest.approx(before.seconds[-1])
    assert profile.collectives["all_reduce"]["nccl"].keys() == base.collectives["all_reduce"]["nccl"].keys()
    assert profile.sources[:-1] == base.sources
    assert profile.sources[-1].files == ("box.log",)
    slow, fast = (predict_one(Scenario(model="70b"), profile=used).request_s for used in (profile, base))
    assert slow > fast
    assert main(["show", str(out)]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give either --cluster or --base"),
        (("--cluster", "h100-sxm", "--base", "h100-sxm"), "give either --cluster or --base"),
        (("--cluster", "h100-smx"), "did you mean 'h100-sxm'?"),
        (("--base", "h100-smx", "--ranks", "8"), "did you mean 'h100-sxm'?"),
        (("--base", "h100-sxm"), "--ranks is missing"),
        (("--base", "h100-sxm", "--ranks", "1"), "--ranks is 1: must be a whole number from 2"),
        (("--cluster", "h100-sxm"), "--nodes is missing"),
        (("--cluster", "h100-sxm", "--nodes", "1"), "--nodes is 1: must be a whole number from 2"),
        (("--cluster", "h100-sxm", "--nodes", "2"), "--ranks-per-node is missing"),
        (("--cluster", "h100-sxm", "--nodes", "2", "--ranks-per-node", "0"), "--ranks-per-node is 0"),
        (("--cluster", "h100-sxm", "--nodes", "2", "--ranks-per-node", "4"), "all_reduce on 8 ranks makes it 1.750"),
        (("--cluster", "h100-sxm", "--nodes", "2", "--ranks-per-node", "8", "--out", "x.txt"), "must end in .toml"),
        (("--cluster", "h100-sxm", "--nodes", "2", "--ranks-per-node", "8", "--out", "no/x.toml"), "cannot be written"),
    ],
)
def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str) -> None:
    source = write(tmp_path / "a.log", log(ranks=64, listed=False))
    assert main(["import", "nccl-tests", str(source), *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert re.search(r"^  hint: .", captured.err, re.M)
    assert not captured.out
