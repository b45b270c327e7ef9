"""Times of steps fitted to a server's log: a made-up server is found again, logs that say too little are refused."""

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ladder_sim.errors import UsageError
from ladder_sim.serving import Lengths, MeasuredSteps, Outcome, Traffic
from ladder_sim.serving.replicas.simulation import Pool, simulate
from ladder_sim.serving.requests.results import read_results
from ladder_sim.serving.steps.mix import Mix
from ladder_sim_calibration.__main__ import main
from ladder_sim_calibration.steps_fit import fit_steps, read_step_log, steps_toml
from tests.support.replicas import SERVER

# as vLLM 0.32.0 writes it, shortened where nothing is read
START = """\
(APIServer pid=1) INFO 11-22 16:29:18 [api_utils.py:286] non-default args: {'model': 'model', 'max_model_len': 2048, \
'block_size': 16, 'max_num_batched_tokens': 2048, 'max_num_seqs': 128}
(EngineCore pid=2) INFO 11-22 16:29:26 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: \
max_seq_len=2048, tensor_parallel_size=2, pipeline_parallel_size=1, device_config=cpu, seed=0, \
enable_prefix_caching=False, enable_chunked_prefill=True
(EngineCore pid=2) INFO 11-22 16:29:36 [kv_cache_utils.py:2327] CPU KV cache size: 32,768 tokens, Maximum concurrency
"""
STEP = (
    "(APIServer pid=1) INFO 11-22 16:30:15 [loggers.py:199] Engine 000: Iteration({number}): "
    "{prompts} context requests, {chunk} context tokens, {decoding} generation requests, {decoding} generation tokens, "
    "iteration elapsed time: {ms:.2f} ms, CPU KV cache usage: {kv:.1f}%\n"
)


def served(server: MeasuredSteps, rate: float = 4.0) -> Outcome:
    lengths = {"prompt": Lengths.parse("uniform:64:256"), "gen": Lengths.parse("uniform:20:200")}
    traffic = Traffic(rate=rate, burstiness=1.0, requests=150, **lengths)
    return simulate("standard", Pool(times=server, spec=server.spec), traffic, record=True)


def to_log(outcome: Outcome, token_s: float = 0.0) -> str:
    """What the engine would have logged, with so much for each decoded token left out."""
    lines = [
        STEP.format(
            number=number,
            prompts=step.mix.prompts,
            chunk=step.mix.chunk,
            decoding=step.mix.decoding,
            ms=1e3 * (step.seconds - SERVER.between_s - token_s * step.mix.decoding),
            kv=100.0 * step.kv_share,
        )
        for number, step in enumerate(outcome.replicas[0].steps)
    ]
    return START + "".join(lines)


def to_result(outcome: Outcome) -> str:
    """What `vllm bench serve --save-result --save-detailed` would have saved."""
    answers = outcome.answers
    times_ms = {f"{name}_ms": 1e3 * outcome.seconds(name, 50) for name in ("ttft", "tpot")}  # type: ignore[arg-type]
    return json.dumps(
        {
            "model_id": "model",
            "backend": "openai",
            "request_rate": 4.0,
            "burstiness": 1.0,
            "max_concurrency": None,
            "num_prompts": len(answers),
            "completed": len(answers),
            "total_input_tokens": sum(answer.request.prompt for answer in answers),
            "total_output_tokens": sum(answer.request.gen for answer in answers),
            "request_throughput": len(answers) / outcome.duration_s,
            "output_throughput": outcome.tokens_per_s,
            "start_times": [100.0 + answer.request.arrival_s for answer in answers],
            "input_lens": [answer.request.prompt for answer in answers],
            "output_lens": [answer.request.gen for answer in answers],
            **{f"median_{name}": value for name, value in times_ms.items()},
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The log of a run and its result."""
    folder, outcome = tmp_path_factory.mktemp("server"), served(SERVER)
    log, result = folder / "server.log", folder / "result.json"
    log.write_text(to_log(outcome), "utf-8")
    result.write_text(to_result(outcome), "utf-8")
    return log, result


def test_the_server_that_made_the_log_is_found(run: tuple[Path, Path]) -> None:
    log, result = run
    steps = fit_steps(read_step_log(log), read_results(result))
    assert steps.error < 0.01
    for name in ("step_s", "prompt_token_s", "between_s"):
        assert getattr(steps, name) == pytest.approx(getattr(SERVER, name), rel=0.05), name
    # far less than a step
    assert steps.frontend_s == pytest.approx(SERVER.frontend_s, abs=0.002)
    # the log has the use of the KV cache in thousandths, in blocks, so that these two are hardly told apart
    for mix in (Mix.of(decode=[100] * 2), Mix.of(decode=[250] * 10), Mix.of(decode=[200] * 5, prefill=[(200, 0)])):
        assert steps.of_mix(mix) == pytest.approx(SERVER.of_mix(mix), rel=0.02)
    assert steps.spec == replace(SERVER, frontend_s=steps.frontend_s).spec
    assert (steps.engine, steps.context) == (SERVER.engine, SERVER.context)


def test_runs_at_two_rates_tell_what_a_token_adds_between_steps(tmp_path: Path) -> None:
    """The engine hands out tokens after each step, which its log does not time."""
    token_s = 0.0004
    between = replace(SERVER, decode_token_s=SERVER.decode_token_s + token_s)
    files = []
    for name, rate in (("few", 1.0), ("many", 6.0)):
        outcome = served(between, rate)
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(to_result(outcome), "utf-8")
        with (tmp_path / "server.log").open("a") as log:
            log.write(to_log(outcome, token_s))
    results = [result for file in files for result in read_results(file)]
    log = read_step_log(tmp_path / "server.log")
    steps, one = fit_steps(log, results), fit_steps(log, results[:1])
    assert steps.between_s == pytest.approx(between.between_s, rel=0.1)
    mix = Mix.of(decode=[100] * 8)
    assert steps.of_mix(mix) == pytest.approx(between.of_mix(mix), rel=0.03)
    assert one.of_mix(mix) < 0.97 * between.of_mix(mix)


def test_a_few_steps_that_waited_change_little(run: tuple[Path, Path], tmp_path: Path) -> None:
    """As when something else took the cores: one step in twenty takes ten times as long."""
    log, result = run
    lines = log.read_text("utf-8").splitlines(keepends=True)
    disturbed = [
        line.replace("elapsed time: ", "elapsed time: 1") if number % 20 == 0 and "Iteration" in line else line
        for number, line in enumerate(lines)
    ]
    path = tmp_path / "server.log"
    path.write_text("".join(disturbed), "utf-8")
    clean, noisy = (fit_steps(read_step_log(each), read_results(result)) for each in (log, path))
    for name in ("step_s", "prompt_token_s"):
        assert getattr(noisy, name) == pytest.approx(getattr(clean, name), rel=0.1), name


def test_an_engine_that_did_not_wait_is_no_fault(run: tuple[Path, Path], tmp_path: Path) -> None:
    log, result = run
    path = tmp_path / "server.log"
    path.write_text(re.sub(r"time: \d+\.\d+ ms", "time: 0.00 ms", log.read_text("utf-8"), count=50), "utf-8")
    assert fit_steps(read_step_log(path), read_results(result)).step_s > 0.005


def test_what_cannot_be_told_apart_is_not_negative(run: tuple[Path, Path]) -> None:
    """One request at a time, so that what decodes is always one token."""
    log, result = run
    whole = read_step_log(log)
    alone = replace(whole, decoded=whole.decoded.clip(max=1.0), kv_share=0.0 * whole.kv_share)
    steps = fit_steps(alone, read_results(result))
    assert min(steps.step_s, steps.decode_token_s, steps.context_token_s) >= 0.0
    assert steps.step_s + steps.decode_token_s > 0.005


CHANGES: dict[str, tuple[Callable[[str], str], str]] = {
    "an empty file": (lambda text: "", "holds no steps"),
    "a log without steps": (lambda text: START, "holds no steps"),
    "another version's form": (lambda text: text.replace("elapsed time:", "took"), "line 4: .*form that is not known"),
    "a damaged line": (lambda text: text.replace(" ms, CPU", " ms, C\nPU", 1), "form that is not known"),
    "too few steps": (lambda text: "".join(text.splitlines(keepends=True)[:60]), "57 steps: must be at least 100"),
    "only prompts": (lambda text: no(text, "generation tokens"), "no step has decoded tokens"),
    "no prompts": (lambda text: no(text, "context tokens"), "no step has tokens of prompts"),
    "no configuration": (lambda text: text.replace("LLM engine", "engine"), "no configuration of an engine"),
    "no KV cache": (lambda text: text.replace("KV cache size", "size"), "no size of the KV cache"),
    "no token budget": (lambda text: text.replace("max_num_batched", "max_batched"), "max_num_batched_tokens"),
}


def no(text: str, what: str) -> str:
    """A log all of whose steps have none of some tokens."""
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        before, found, after = line.partition(f" {what}")
        if "Iteration" in line and found:
            lines[number] = f"{before.rpartition(' ')[0]} 0{found}{after}"
    return "".join(lines)


@pytest.mark.parametrize("name", CHANGES)
def test_a_log_that_says_too_little_is_refused(run: tuple[Path, Path], tmp_path: Path, name: str) -> None:
    change, message = CHANGES[name]
    path = tmp_path / "server.log"
    path.write_text(change(run[0].read_text("utf-8")), "utf-8")
    with pytest.raises(UsageError, match=message) as refused:
        read_step_log(path)
    assert refused.value.hint


def test_a_log_may_be_cut_off_in_its_last_line_and_packed(run: tuple[Path, Path], tmp_path: Path) -> None:
    whole = run[0].read_bytes()
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress(whole[:-30]))
    assert len(read_step_log(path).seconds) == len(read_step_log(run[0]).seconds) - 1


def test_a_result_without_times_is_refused(run: tuple[Path, Path], tmp_path: Path) -> None:
    log, result = run
    path = tmp_path / "result.json"
    path.write_text(result.read_text("utf-8").replace("median_tpot_ms", "x"), "utf-8")
    with pytest.raises(UsageError, match="no median TPOT"):
        fit_steps(read_step_log(log), read_results(path))


def test_the_command_writes_what_serve_reads(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, result = run
    out = tmp_path / "steps.toml"
    assert main(["fit-steps", str(log), str(result), "--out", str(out)]) == 0
    assert "vllm 0.32.0, TP 2" in capsys.readouterr().out
    steps = MeasuredSteps.read(out)
    assert steps_toml(steps) == out.read_text("utf-8")
    assert main(["fit-steps", str(result), str(result), "--out", str(out)]) == 2
    assert "holds no steps" in capsys.readouterr().err
