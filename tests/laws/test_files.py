"""Files that others wrote: whatever the shape and unit, the same content reads as the same."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ladder_sim.costs.estimate import Estimate
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.errors import LadderSimError
from ladder_sim.graph.ops import Op
from ladder_sim.kernels import CollectiveShape
from ladder_sim.prediction import resolve_profile
from ladder_sim.serving import Trace, Traffic
from ladder_sim.serving.requests.results import read_results
from ladder_sim.specs.scenario import Scenario
from ladder_sim.validation.load import stated_otherwise
from ladder_sim_calibration.nccl_tests.sweep import Sweep, add_to_profile, fabric_text, read_sweep
from tests.conftest import DATA
from tests.support.laws import law
from tests.support.load_generators import GENERATORS, Measured, measured
from tests.support.strategies import damaged

RESULTS = DATA / "results"
NCCL = "nccl_structured_output.json"
JSON_FILES = (
    NCCL,
    *("vllm_rate.json", "vllm_concurrency.json", "aiperf_concurrency.json", "genai_perf_profile_export.json"),
    *("aiperf_profile_export_loadgen.json", "inferencex.json"),
)


@st.composite
def written_requests(draw: st.DrawFn) -> tuple[str, list[tuple[float, int, int]], int]:
    """A trace in a random unit, block size and format, what it says, and the tokens of its blocks; 0: none."""
    # what services have: at a hundred times these rates one unit cannot be told from the next
    unit = draw(st.sampled_from(["fractional s", "s", "ms", "us", "ns", "date", "named ms", "fractional ms"]))
    step_ms = 1000 if unit == "s" else 1
    gaps_ms = draw(st.lists(st.integers(300 // step_ms, 2000 // step_ms), min_size=19, max_size=40))
    times_ms = [step_ms * sum(gaps_ms[:number]) for number in range(len(gaps_ms) + 1)]
    assume(times_ms[-1] > 300 * len(gaps_ms))
    block = draw(st.sampled_from([16, 32, 64, 128, 256, 512]))
    # some have more than one block: otherwise its size is neither known nor needed
    lengths = [draw(st.integers(1, 6 * block)) for _ in times_ms]
    requests = [
        (1e-3 * at_ms, prompt, draw(st.integers(1, 900))) for at_ms, prompt in zip(times_ms, lengths, strict=True)
    ]
    start_ms = draw(st.sampled_from([0, 301, 1_795_365_187_138]))

    def time(at_ms: int) -> Any:
        at_ms += start_ms
        days, of_day_ms = divmod(at_ms, 86_400_000)
        hours, minutes, seconds, millis = (
            *(of_day_ms // size % top for size, top in ((3_600_000, 24), (60_000, 60), (1000, 60))),
            of_day_ms % 1000,
        )
        return {
            # at least one has a fraction, also where all gaps are of whole seconds
            "fractional s": (at_ms + 0.5) / 1e3,
            "s": at_ms // 1000,
            "ms": at_ms,
            "named ms": at_ms,
            "fractional ms": at_ms + 0.25,
            "us": 1000 * at_ms,
            "ns": 1_000_000 * at_ms,
            "date": f"2026-11-{1 + days % 28:02} {hours:02}:{minutes:02}:{seconds:02}.{millis:03}0000",
        }[unit]

    partial = draw(st.booleans())
    hashed = draw(st.booleans())
    names = draw(
        st.sampled_from(
            [
                ("timestamp", "input_length", "output_length"),
                ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
                ("Timestamp", "Request tokens", "Response tokens"),
                ("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
            ]
        )
    )
    at = f"{names[0]}_ms" if unit == "named ms" else names[0]
    rows: list[dict[str, Any]] = [
        {at: time(at_ms), names[1]: prompt, names[2]: gen}
        for at_ms, (_, prompt, gen) in zip(times_ms, requests, strict=True)
    ]
    if not hashed and draw(st.booleans()):
        lines = [",".join(map(str, row.values())) for row in rows]
        return "\n".join([",".join(rows[0]), *lines]), requests, 0
    for number, row in enumerate(rows if hashed else ()):
        blocks = -(-row[names[1]] // block) if partial else row[names[1]] // block
        row["hash_ids"] = [1000 * number + each for each in range(blocks)]
    return "".join(json.dumps(row) + "\n" for row in rows), requests, block if hashed else 0


@law(examples=150)
@given(written_requests())
def test_units_of_requests(
    tmp_path_factory: pytest.TempPathFactory, written: tuple[str, list[tuple[float, int, int]], int]
) -> None:
    """The same requests in any unit of time and any block size are read as the same traffic."""
    text, requests, block = written
    path = tmp_path_factory.getbasetemp() / "requests.jsonl"
    path.write_text(text, "utf-8")
    trace = Trace(path=path)
    read = list(trace)
    assert [(each.prompt, each.gen) for each in read] == [(prompt, gen) for _, prompt, gen in requests], trace.units
    assert [each.arrival_s for each in read] == pytest.approx([at_s for at_s, _, _ in requests], abs=1e-5), trace.units
    if block and max(prompt for _, prompt, _ in requests) > 2 * block:
        assert {each.prefix_tokens for each in read if each.prefix} == {block}, trace.units


@law(examples=150)
@given(measured(), st.sampled_from(GENERATORS), st.data())
def test_results_of_generators(
    tmp_path_factory: pytest.TempPathFactory, load: Measured, write: Any, data: st.DataObject
) -> None:
    """The same measurement in any generator's shape and units is read as the same figures of the same load."""
    path = tmp_path_factory.getbasetemp() / "result.json"
    path.write_text(json.dumps(write(load, data.draw)), "utf-8")
    (result,) = read_results(path)
    assert not result.left_out
    assert isinstance(result.requests, Traffic)
    requests = result.requests
    assert (str(requests.prompt), str(requests.gen)) == (str(float(load.prompt)).removesuffix(".0"), f"{load.gen}")
    assert (requests.requests, result.concurrency, result.failed) == (load.requests, load.concurrency, load.failed)
    expected = load.figures
    assert result.figures == {name: pytest.approx(expected[name]) for name in result.figures}
    assert {"ttft_mean_s", "tpot_p99_s", "e2e_p50_s", "requests_per_s", "tokens_per_s"} <= result.figures.keys()


@law(examples=150)
@given(measured(), st.sampled_from(GENERATORS), st.data())
def test_contradictions_in_results(
    tmp_path_factory: pytest.TempPathFactory, load: Measured, write: Any, data: st.DataObject
) -> None:
    """A result with one kind of times or one rate a thousand times too large or too small is not compared."""
    document = json.dumps(write(load, data.draw))
    factor = data.draw(st.sampled_from([1e-3, 1e3]))
    words = data.draw(
        st.sampled_from(
            [("e2e", "request_latency"), ("request_throughput", "requests_per_second"), ("tpot", "inter_token_latency")]
        )
    )
    # of few tokens the others may be lost in the first
    assume("tpot" not in words or (load.gen - 1) * load.tpot_s["mean"] > 0.7 * load.e2e_s["mean"])

    def scaled(value: Any, key: str = "", *, inside: bool = False) -> Any:
        inside = inside or any(word in key for word in words)
        if isinstance(value, dict):
            return {name: scaled(each, name, inside=inside) for name, each in value.items()}
        if isinstance(value, list):
            return [scaled(each, inside=inside) for each in value]
        return value * factor if inside and isinstance(value, float) else value

    path = tmp_path_factory.getbasetemp() / "result.json"
    path.write_text(json.dumps(scaled(json.loads(document))), "utf-8")
    (result,) = read_results(path)
    assert "contradicts itself" in result.left_out


SIZES = [2.0**power for power in range(3, 35)]


def all_reduces(scenario: Scenario, sizes: list[float], profile: CalibrationProfile | None = None) -> list[Estimate]:
    """Estimates of all-reduces of these sizes."""
    ops = [Op(name=f"{size}", kind="all_reduce", shape=CollectiveShape(message_bytes=size)) for size in sizes]
    return KernelCosts(scenario, profile or resolve_profile(scenario, None)).estimates(ops)


@law(examples=100)
@given(
    st.sampled_from(["h100-sxm", "h100-p5", "h100-a3mega", "a100-sxm-roce"]),
    st.sampled_from([0, 2, 4]),
    st.sets(st.sampled_from(SIZES), min_size=2, max_size=12),
    st.floats(0.3, 3.0),
    st.sampled_from(["vllm", "gpt-fast"]),
)
def test_sizes_of_an_import(
    tmp_path_factory: pytest.TempPathFactory,
    cluster: str,
    nodes: int,
    measured_bytes: set[float],
    factor: float,
    stack: str,
) -> None:
    """An import of some sizes leaves predictions of others, an octave or more from them, as they were.

    But that none takes less than a smaller one that was measured, nor more than a larger one.
    """
    sizes = sorted(measured_bytes)
    # no faster than any of the networks, whose ports take a message at 200 GB/s together
    seconds = [factor * (30e-6 + size / 50e9) for size in sizes]
    sweep = Sweep(file="a.log", op="all_reduce", sizes=tuple(sizes), seconds=tuple(seconds))
    # sizes further apart than 64 times were not measured between them
    pairs = [(sizes[0], sizes[0]), *itertools.pairwise(sizes), (sizes[-1], sizes[-1])]
    inside = [(low, high if high <= 64.0 * low else low) for low, high in pairs]
    outside = [size for size in SIZES if all(size <= low / 2.0 or size >= 2.0 * high for low, high in inside)]
    shared: dict[str, Any] = {"model": "70b", "cluster": cluster, "stack": stack, "allreduce": "nccl"}
    if nodes:
        path = tmp_path_factory.getbasetemp() / "fabric.toml"
        path.unlink(missing_ok=True)
        path.write_text(fabric_text(sweep, cluster=cluster, nodes=2, ranks_per_node=8, created="2026-11-26"), "utf-8")
        before, after = (
            Scenario(**shared, nodes=nodes, overrides=overrides) for overrides in ({}, {"inter.fabric": str(path)})
        )
        profile = None
    else:
        before = after = Scenario(**shared, tp=8)
        base = resolve_profile(before, None)
        assert base is not None
        profile = add_to_profile(base, sweep, name="mine", ranks=8, created="2026-11-26")
    measured_on = Scenario(**shared, nodes=2) if nodes else before
    # what 2 nodes, or one, took before lies between what others of the import take
    between = {
        size
        for size, each in zip(SIZES, all_reduces(measured_on, SIZES), strict=True)
        if all((own_s <= each.seconds) == (own <= size) for own, own_s in zip(sizes, seconds, strict=True))
    }
    outside = [size for size in outside if {size / 2.0, size, size * 2.0} & set(SIZES) <= between]
    was, now = all_reduces(before, outside), all_reduces(after, outside, profile)
    assert [each.seconds for each in now] == pytest.approx([each.seconds for each in was], rel=1e-9)
    if nodes == 2:
        assert [each.source for each in now] == [each.source for each in was]
        assert [each.seconds for each in all_reduces(after, sizes)] == pytest.approx(seconds, rel=1e-4)


@law(examples=150)
@given(st.sampled_from(JSON_FILES), st.data())
def test_damage_is_not_called_truncation(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    """A damaged result or JSON output is read or refused, and told to be cut off only if it ends early."""
    folder = DATA / "nccl_tests" if name == NCCL else RESULTS
    content = data.draw(damaged(json.loads((folder / name).read_text("utf-8"))))
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_bytes(content)
    message = refusal(read_sweep if name == NCCL else read_results, path)
    end = content.decode("utf-8", "replace").rstrip()
    whole = end.endswith(("}", "]")) and end.count("{") == end.count("}") and end.count("[") == end.count("]")
    assert not whole or not any(word in message for word in ("truncated", "cut off", "copy it again")), message
    assert "Error" not in message


def refusal(read: Callable[[Path], object], path: Path) -> str:
    """The message with which a file is refused; empty if it is read."""
    try:
        read(path)
    except LadderSimError as fault:
        return str(fault)
    return ""


DEPLOYMENTS = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["minimax-m2.5", "llama-3.1-70b", "qwen3-32b"]),
        "cluster": st.sampled_from(["h100-sxm", "h200-sxm", "b200-sxm"]),
        "stack": st.sampled_from(["vllm", "sglang", "trtllm"]),
        "dtype": st.sampled_from(["bf16", "fp8"]),
    }
)


@law(examples=100)
@given(DEPLOYMENTS, DEPLOYMENTS, st.sampled_from([2, 4, 8]))
def test_a_measurement_is_of_its_own_deployment(
    tmp_path_factory: pytest.TempPathFactory, served: dict[str, str], asked: dict[str, str], tp: int
) -> None:
    """A result that names another model, GPU, engine or precision than is asked about is refused as `--measured`."""
    words = {"hw": served["cluster"].partition("-")[0], "framework": served["stack"], "precision": served["dtype"]}
    document = {"conc": 8, "isl": 1024, "osl": 1024, "tp": 8, "mean_ttft": 0.1, "mean_tpot": 0.01, **words}
    path = tmp_path_factory.getbasetemp() / "deployment.json"
    path.write_text(json.dumps(document | {"model": served["model"]}), "utf-8")
    (result,) = read_results(path)
    other = stated_otherwise(result, Scenario(**asked, tp=tp, concurrency=8), asked)
    assert other.keys() - {"dtype"} == {name for name in served.keys() - {"dtype"} if served[name] != asked[name]}
    if served["model"] == asked["model"] != "minimax-m2.5":
        assert ("dtype" in other) == (served["dtype"] != asked["dtype"])
