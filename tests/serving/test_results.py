"""Result files of load generators: what is read of real ones, and files that are damaged, absurd or no results."""

import contextlib
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from ladder_sim.errors import UsageError
from ladder_sim.serving import Trace, Traffic
from ladder_sim.serving.requests.result import Result
from ladder_sim.serving.requests.results import read_results
from tests.conftest import DATA
from tests.support.strategies import damaged_text

FOLDER = DATA / "results"
VLLM, VLLM_FIGURES = FOLDER / "vllm_rate.json", FOLDER / "vllm_concurrency.json"
AIPERF, RECORDS = FOLDER / "aiperf_concurrency.json", FOLDER / "aiperf_records.jsonl"
INFERENCEX = FOLDER / "inferencex.json"
SGLANG, GENAI_PERF = FOLDER / "sglang_bench_serving.jsonl", FOLDER / "genai_perf_profile_export.json"
AIPERF_LOADGEN = FOLDER / "aiperf_profile_export_loadgen.json"


def one(path: Path) -> Result:
    (result,) = read_results(path)
    return result


def changed(path: Path, tmp_path: Path, **fields: Any) -> Path:
    """A file with some fields otherwise; None: without them."""
    document = json.loads(path.read_text("utf-8")) | fields
    written = tmp_path / path.name
    written.write_text(json.dumps({name: value for name, value in document.items() if value is not None}), "utf-8")
    return written


def test_vllm_bench_serve_with_every_request() -> None:
    result = one(VLLM)
    assert (result.tool, result.concurrency) == ("vllm bench serve", 0)
    assert result.server == {"model": "tiny-llama", "backend": "vllm"}
    assert not isinstance(result.requests, Traffic)
    requests = list(result.requests)
    assert len(requests) == 24
    assert (requests[0].arrival_s, requests[0].prompt, requests[0].gen) == (0.0, 63, 19)
    document = json.loads(VLLM.read_text("utf-8"))
    assert sum(request.prompt for request in requests) == document["total_input_tokens"]
    assert requests[-1].arrival_s == pytest.approx(max(document["start_times"]) - min(document["start_times"]))
    assert result.figures["ttft_p99_s"] == pytest.approx(1e-3 * document["p99_ttft_ms"])
    assert result.figures["tokens_per_s"] == pytest.approx(document["output_throughput"])
    assert {"tpot_mean_s", "itl_p95_s", "e2e_p50_s", "requests_per_s"} <= result.figures.keys()
    # the same requests as a trace
    assert list(Trace(path=VLLM)) == requests


def test_vllm_bench_serve_with_figures_alone(tmp_path: Path) -> None:
    result = one(VLLM_FIGURES)
    assert isinstance(result.requests, Traffic)
    assert (result.concurrency, result.requests.requests, str(result.requests.prompt)) == (4, 16, "64")
    # without a limit all come at once
    assert one(changed(VLLM_FIGURES, tmp_path, max_concurrency=None)).concurrency == 16
    # both: the client holds requests of a rate back
    held = one(changed(VLLM_FIGURES, tmp_path, request_rate=2.5, burstiness=0.5))
    assert isinstance(held.requests, Traffic)
    assert (held.requests.rate, held.requests.burstiness) == (2.5, 0.5)
    assert held.concurrency == held.requests.concurrency == 4
    assert held.requests.arrivals == "2.5 requests/s, at most 4 in flight"
    assert one(changed(VLLM_FIGURES, tmp_path, request_rate=2.5, max_concurrency=None)).concurrency == 0
    # all that are recorded are sent as soon as there is a place
    recorded = one(changed(VLLM, tmp_path, request_rate="inf", max_concurrency=4))
    assert recorded.concurrency == 4
    assert {request.arrival_s for request in recorded.requests} == {0.0}
    assert one(changed(VLLM_FIGURES, tmp_path, backend="sglang")).server["backend"] == "sglang"


def test_bench_serving_of_sglang() -> None:
    """Two runs, a line each; the first one's figures are of 16 in flight, and it had 1 client."""
    wrong, result = read_results(SGLANG)
    assert "15.6 in flight, but the client had at most 1" in wrong.left_out
    assert not result.left_out
    assert (result.tool, result.concurrency, result.server) == ("SGLang's bench_serving", 16, {"backend": "sglang"})
    assert isinstance(result.requests, Traffic)
    assert (str(result.requests.prompt), str(result.requests.gen), result.requests.requests) == ("8192", "1024", 48)
    assert result.figures["tpot_mean_s"] == pytest.approx(0.0604)
    assert result.figures["e2e_p99_s"] == pytest.approx(67.0)
    assert result.figures["tokens_per_s"] == 245.6


def test_tokens_that_sglang_drafted_are_not_compared_with_others(tmp_path: Path) -> None:
    """Regression: a step that makes 2.7 tokens was compared with one that makes one."""
    document = json.loads(SGLANG.read_text("utf-8").splitlines()[1])
    path = tmp_path / "result.jsonl"
    path.write_text(json.dumps(document | {"accept_length": 2.7}), "utf-8")
    (result,) = read_results(path)
    assert "speculative decoding (2.7 tokens a step)" in result.left_out


def test_genai_perf() -> None:
    result = one(GENAI_PERF)
    assert (result.tool, result.concurrency, result.server["model"]) == ("GenAI-Perf", 30, "llama-70b-fp8")
    assert isinstance(result.requests, Traffic)
    assert (str(result.requests.prompt), str(result.requests.gen), result.requests.requests) == ("3000", "150", 128)
    assert result.figures["ttft_mean_s"] == pytest.approx(1.38548)
    assert result.figures["tpot_p95_s"] == pytest.approx(0.01942)
    assert result.figures["tokens_per_s"] == 1023.48


def test_aiperf_with_a_load_generator_in_its_configuration() -> None:
    result = one(AIPERF_LOADGEN)
    assert (result.tool, result.concurrency, result.server["model"]) == ("AIPerf", 64, "llama-3.1-70b")
    assert isinstance(result.requests, Traffic)
    assert (result.requests.rate, result.requests.requests) == (0.0, 640)
    assert result.requests.prompt.mean == pytest.approx(1024, rel=0.01)
    assert (result.figures["ttft_p99_s"], result.duration_s) == (pytest.approx(0.252), 105.0)


def test_a_file_of_no_known_generator_is_refused_by_its_shape(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text('{"latency": 3, "qps": 4}', "utf-8")
    with pytest.raises(UsageError, match="a JSON object with the keys 'latency, qps': written by no known") as fault:
        read_results(path)
    assert "copy" not in fault.value.hint


def test_several_runs_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_text(VLLM_FIGURES.read_text("utf-8") + VLLM.read_text("utf-8"), "utf-8")
    assert [result.concurrency for result in read_results(path)] == [4, 0]
    with pytest.raises(UsageError, match="holds 2 runs"):
        list(Trace(path=path))


def test_figures_of_aiperf() -> None:
    result = one(AIPERF)
    assert (result.tool, result.concurrency, result.server) == ("AIPerf", 4, {"model": "tiny-llama"})
    assert isinstance(result.requests, Traffic)
    assert (str(result.requests.prompt), str(result.requests.gen), result.requests.requests) == ("64", "16", 16)
    document = json.loads(AIPERF.read_text("utf-8"))
    # what it calls inter-token latency is a request's mean
    assert result.figures["tpot_mean_s"] == pytest.approx(1e-3 * document["inter_token_latency"]["avg"])
    assert result.figures["itl_p99_s"] == pytest.approx(1e-3 * document["inter_chunk_latency"]["p99"])


def test_a_time_in_another_unit_is_refused(tmp_path: Path) -> None:
    latency = json.loads(AIPERF.read_text("utf-8"))["request_latency"] | {"unit": "fortnights"}
    with pytest.raises(UsageError, match="request_latency in 'fortnights': must be in ms, sec"):
        one(changed(AIPERF, tmp_path, request_latency=latency))


def test_lengths_of_aiperf_spread_as_measured(tmp_path: Path) -> None:
    lengths = {"unit": "tokens", "avg": 100.0, "std": 20.0}
    requests = one(changed(AIPERF, tmp_path, input_sequence_length=lengths)).requests
    assert isinstance(requests, Traffic)
    assert str(requests.prompt) == "uniform:65:135"


@pytest.mark.parametrize(("kind", "burstiness"), [("poisson", 1.0), ("constant", 1000.0), ("gamma", 0.5)])
def test_arrivals_of_aiperf(tmp_path: Path, kind: str, burstiness: float) -> None:
    document = json.loads(AIPERF.read_text("utf-8"))
    phase = {"kind": "profiling", "type": kind, "rate": 3.0, **({"smoothness": 0.5} if kind == "gamma" else {})}
    path = changed(AIPERF, tmp_path, input_config=document["input_config"] | {"phases": [phase]})
    result = one(path)
    assert isinstance(result.requests, Traffic)
    assert (result.concurrency, result.requests.rate, result.requests.burstiness) == (0, 3.0, burstiness)


def test_records_of_aiperf_are_put_in_order_of_arrival(tmp_path: Path) -> None:
    text = RECORDS.read_text("utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    starts = sorted(line["metadata"]["request_start_ns"] for line in lines)
    requests = list(Trace(path=RECORDS))
    assert [request.arrival_s for request in requests] == pytest.approx(
        [1e-9 * (start - starts[0]) for start in starts], abs=1e-6
    )
    # they stand in the order in which they ended
    path = tmp_path / "profile_export.jsonl"
    path.write_text("".join(reversed(text.splitlines(keepends=True))), "utf-8")
    assert list(Trace(path=path)) == list(one(path).requests) == requests


def test_figures_of_records() -> None:
    lines = [json.loads(line) for line in RECORDS.read_text("utf-8").splitlines()]
    figures = one(RECORDS).figures
    ttfts_s = [1e-3 * line["metrics"]["time_to_first_token"]["value"] for line in lines]
    assert figures["ttft_mean_s"] == pytest.approx(sum(ttfts_s) / len(ttfts_s))
    assert 0.0 < figures["itl_p50_s"] < figures["itl_p99_s"]


def test_failed_requests_are_counted(tmp_path: Path) -> None:
    assert one(VLLM_FIGURES).failed == 0
    assert one(changed(VLLM_FIGURES, tmp_path, failed=3)).failed == 3
    assert one(changed(VLLM_FIGURES, tmp_path, failed=None, num_prompts=20)).failed == 4
    assert one(changed(AIPERF, tmp_path, error_request_count={"unit": "requests", "avg": 2.0})).failed == 2
    assert one(changed(AIPERF_LOADGEN, tmp_path, error_summary=[{"count": 5}, {"count": 2}])).failed == 7


def test_requests_that_failed_or_warmed_up_are_left_out(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in RECORDS.read_text("utf-8").splitlines()]
    lines[0]["error"], lines[0]["metrics"] = {"type": "Timeout"}, {}
    lines[1]["metadata"]["benchmark_phase"] = "warmup"
    lines[2]["metadata"]["was_cancelled"] = True
    path = tmp_path / "profile_export.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    assert len(list(Trace(path=path))) == len(one(path).requests) == len(lines) - 3  # type: ignore[arg-type]
    lengths = json.loads(VLLM.read_text("utf-8"))["output_lens"]
    assert len(list(Trace(path=changed(VLLM, tmp_path, output_lens=[0, *lengths[1:]])))) == len(lengths) - 1


def test_records_that_end_as_they_begin_are_refused(tmp_path: Path) -> None:
    record = json.loads(RECORDS.read_text("utf-8").splitlines()[0])
    record["metadata"]["request_end_ns"] = record["metadata"]["request_start_ns"]
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps(record), "utf-8")
    with pytest.raises(UsageError, match="must be a number above 0"):
        read_results(path)


def test_requests_that_come_ten_years_apart_are_named(tmp_path: Path) -> None:
    record = json.loads(RECORDS.read_text("utf-8").splitlines()[0])
    later = json.loads(json.dumps(record))
    later["metadata"]["request_start_ns"] += 10**18
    path = tmp_path / "records.jsonl"
    path.write_text("\n".join(map(json.dumps, (later, record))), "utf-8")
    with pytest.raises(UsageError, match=r"records\.jsonl, request 2: comes .* after the first"):
        list(Trace(path=path))


def test_inferencex() -> None:
    first, _, _, drafts = read_results(INFERENCEX)
    assert first.server == {
        "model": "MiniMaxAI/MiniMax-M2.5",
        "system": "h200",
        "backend": "vllm",
        "dtype": "fp8",
        "tp": 8,
        "ep": 1,
        "dp_attention": False,
        "campaign": "inferencex-vllm",
    }
    assert isinstance(first.requests, Traffic)
    assert (first.concurrency, first.requests.requests, str(first.requests.prompt)) == (4, 40, "uniform:819:1024")
    assert first.figures == {"ttft_mean_s": 0.106441, "tpot_mean_s": 0.008012}
    assert "speculative decoding" in drafts.left_out


def test_throughput_of_inferencex_counts_prompts_too(tmp_path: Path) -> None:
    row = json.loads(INFERENCEX.read_text("utf-8"))[0] | {"tput_per_gpu": 900.0}
    path = tmp_path / "row.json"
    path.write_text(json.dumps(row), "utf-8")
    assert one(path).figures["tokens_per_s_per_gpu"] == pytest.approx(450.0)


@pytest.mark.parametrize("read", [lambda path: list(Trace(path=path)), read_results])
@pytest.mark.parametrize("file", [VLLM, RECORDS])
def test_gzipped_files_are_read(tmp_path: Path, file: Path, read: Callable[[Path], object]) -> None:
    path = tmp_path / "packed.gz"
    path.write_bytes(gzip.compress(file.read_bytes()))
    assert read(path) == read(file)
    path.write_bytes(gzip.compress(file.read_bytes())[:-20])
    with pytest.raises(UsageError, match="cut off or damaged"):
        read(path)


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"total_input_tokens": None}, "a JSON object with the keys 'date, .* no known load generator"),
        ({"completed": 0}, "completed is 0: must be a number above 0"),
        ({"request_rate": -1}, "request_rate is -1"),
        ({"request_rate": "fast"}, "could not convert"),
        ({"mean_ttft_ms": float("nan")}, "mean_ttft_ms is nan"),
        ({"request_throughput": 1e300}, "request_throughput is 1e"),
        ({"output_lens": [1]}, "cannot be read"),
        ({"output_lens": [0] * 24}, "no request that was answered"),
        ({"start_times": ["now"] * 24}, "could not convert"),
        ({"input_lens": [1.5] * 24}, "a length is 1.5: must be a whole number"),
        ({"model_id": None}, "no field 'model_id'"),
    ],
)
def test_faults_of_a_result_are_named(tmp_path: Path, fields: dict[str, Any], shown: str) -> None:
    with pytest.raises(UsageError, match=shown) as fault:
        read_results(changed(VLLM, tmp_path, **fields))
    assert fault.value.hint


@pytest.mark.parametrize("tokens", [-3, 10**12])
def test_absurd_lengths_of_a_result_are_refused(tmp_path: Path, tokens: int) -> None:
    with pytest.raises(UsageError, match=f"a request's prompt is {tokens}: must be"):
        list(Trace(path=changed(VLLM, tmp_path, input_lens=[tokens] * 24)))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", "no JSON"),
        ("[]", "holds no results"),
        ("[1, 2]", "holds no results"),
        ("3", "holds no results"),
        (VLLM.read_text("utf-8")[:-300], "ends in the middle of its JSON"),
        (RECORDS.read_text("utf-8")[:-300], "line 24: ends in the middle of its JSON"),
        (VLLM_FIGURES.read_text("utf-8") + RECORDS.read_text("utf-8"), "line 2: a JSON object with the keys"),
        ("[" * 100_000, "nested too deeply|no JSON"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str, shown: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text, "utf-8")
    with pytest.raises(UsageError, match=shown):
        read_results(path)


@pytest.mark.parametrize("file", [AIPERF, VLLM_FIGURES, GENAI_PERF, AIPERF_LOADGEN])
def test_figures_are_no_trace(file: Path) -> None:
    with pytest.raises(UsageError, match="holds figures, but not each request"):
        list(Trace(path=file))


@given(*(damaged_text(file.read_text("utf-8")) for file in (VLLM, AIPERF, RECORDS, INFERENCEX)))
def test_a_damaged_result_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, vllm: bytes, aiperf: bytes, records: bytes, inferencex: bytes
) -> None:
    path = tmp_path_factory.mktemp("results") / "result.json"
    for content in (vllm, aiperf, records, inferencex):
        path.write_bytes(content)
        with contextlib.suppress(UsageError):
            assert all(value > 0.0 for result in read_results(path) for value in result.figures.values())
        with contextlib.suppress(UsageError):
            assert all(request.prompt >= 1 for request in Trace(path=path))
