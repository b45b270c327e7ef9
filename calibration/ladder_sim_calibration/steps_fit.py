"""`calibrate fit-steps`: fits times of steps to the log of a running vLLM server, for `ladder-sim serve --steps`.

The log says what each step ran, and how long the engine waited for the model: robust least squares on the logarithm
gives what a step takes, a new token of a prompt, a decoded token and a token that it reads, none of them negative. What
the log leaves out comes from the requests of the same runs as a load generator measured them. Served again by the fit,
the time between two steps makes their median time per further token right, and what the API server does before the
engine has a request their median time to first token. Runs at several rates also tell what each decoded token adds to
the time between two steps.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group
from rich.text import Text

from ladder_sim.des.shared import Floats
from ladder_sim.errors import UsageError
from ladder_sim.report.console import show, table
from ladder_sim.serving import MeasuredSteps, Outcome
from ladder_sim.serving.engine.measured_steps import SCHEMA
from ladder_sim.serving.replicas.simulation import Pool, simulate
from ladder_sim.serving.requests.result import Result
from ladder_sim.serving.requests.results import read_results
from ladder_sim.system.files import check_folder, read_text, shown_path, write_file
from ladder_sim.units import format_seconds

# two hours of 100 steps a second
_LOG_BYTES = 200_000_000
# fewer say little about four figures
LEAST_STEPS = 100

_STEP = re.compile(
    r"Iteration\(\d+\): \d+ context requests, (\d+) context tokens, \d+ generation requests, (\d+) generation tokens, "
    r"iteration elapsed time: (\d+\.\d+) ms( \(dummy\))?, \w+ KV cache usage: (\d+\.\d+)%(, encoder inputs)?"
)
_ENGINE = re.compile(
    r"LLM engine \(v(\S+)\) with config: .*max_seq_len=(\d+), .*tensor_parallel_size=(\d+), "
    r".*device_config=(\w+), .*enable_prefix_caching=(\w+),"
)
_KV_CACHE = re.compile(r"KV cache size: ([\d,]+) tokens")
# flags of the server
_FLAGS = {"step_tokens": "max_num_batched_tokens", "step_requests": "max_num_seqs", "block_tokens": "block_size"}


@dataclass(frozen=True, kw_only=True)
class StepLog:
    """Steps in the order in which they ran, one value each."""

    chunk: Floats
    """New tokens of prompts."""
    decoded: Floats
    """Tokens that were decoded, drafted ones included."""
    kv_share: Floats
    """Share of the KV cache in use at the end of each step."""
    seconds: Floats
    """How long the engine waited for the model."""
    server: dict[str, Any]
    """What ran and how it schedules: fields of `ladder_sim.serving.MeasuredSteps`."""


def read_step_log(path: Path) -> StepLog:
    """Read the log of a server; it may be gzipped.

    Raises UsageError if it is no such log, or holds too few steps, or steps of one kind only.

    References
    ----------
    vLLM 0.32.0: v1/metrics/loggers.py (`_log_iteration_details`), config/vllm.py, v1/core/kv_cache_utils.py.
    """
    name = shown_path(path)
    text = read_text(path, what="the log of a vLLM server", limit_bytes=_LOG_BYTES, unpack=True, error=UsageError)
    lines = text.splitlines()
    if lines and not text.endswith("\n"):
        # it was copied while the server wrote it
        lines.pop()
    rows = [row for number, line in enumerate(lines, 1) if (row := _step(f"{name}, line {number}", line))]
    if not rows:
        raise UsageError(
            f"{name}: holds no steps",
            hint="start the server with --enable-logging-iteration-details, and send it requests",
        )
    if len(rows) < LEAST_STEPS:
        raise UsageError(
            f"{name}: {len(rows)} steps: must be at least {LEAST_STEPS}", hint="a truncated file? send more requests"
        )
    chunk, decoded, seconds, kv_share = np.array(rows).T
    for what, tokens in (("tokens of prompts", chunk), ("decoded tokens", decoded)):
        if not tokens.any():
            raise UsageError(f"{name}: no step has {what}: their time cannot be fitted", hint="send other requests")
    return StepLog(chunk=chunk, decoded=decoded, kv_share=kv_share, seconds=seconds, server=_server(name, lines))


def _step(where: str, line: str) -> tuple[float, ...] | None:
    """Return a step's prompt tokens, decoded tokens, seconds and share of the KV cache; None for other lines."""
    if "Iteration(" not in line:
        return None
    step = _STEP.search(line)
    if step is None:
        raise UsageError(
            f"{where}: a step in a form that is not known, {line.strip()[-100:]!r}",
            hint="must be as vLLM 0.32 writes it; delete the line if it is damaged",
        )
    chunk, decoded, elapsed_ms, dummy, kv_percent, encoder = step.groups()
    # a step without requests, and one that runs more than the model
    if dummy or encoder:
        return None
    # times are in hundredths; scheduling ahead, an engine may not wait at all
    return float(chunk), float(decoded), 1e-3 * max(0.01, float(elapsed_ms)), 1e-2 * float(kv_percent)


def _server(name: str, lines: Sequence[str]) -> dict[str, Any]:
    """Return the server's settings from the lines it logs when it starts."""
    starts = [match for line in lines if (match := _ENGINE.search(line))]
    sizes = [match for line in lines if (match := _KV_CACHE.search(line))]
    if not starts or not sizes:
        raise UsageError(
            f"{name}: no {'configuration of an engine' if sizes else 'size of the KV cache'}",
            hint="give the whole log of a vLLM 0.32 server, from its start",
        )
    version, context, tp, device, prefix_cache = starts[-1].groups()
    given = " ".join(line for line in lines if "non-default args" in line)
    server: dict[str, Any] = {
        "engine": f"vllm {version}, TP {tp}",
        "kv_tokens": int(sizes[-1][1].replace(",", "")),
        "context": int(context),
        "prefix_cache": prefix_cache == "True",
        # on a CPU it never does, on GPUs by default
        "ahead": device != "cpu" and "'async_scheduling': False" not in given,
    }
    for key, flag in _FLAGS.items():
        setting = re.search(rf"'{flag}': (\d+)", given)
        if setting is None:
            option = f"--{flag.replace('_', '-')}"
            raise UsageError(f"{name}: does not say {flag}", hint=f"start the server with {option}, whatever its value")
        server[key] = int(setting[1])
    return server


# larger errors of the logarithm of a time count less than their squares
USUAL_ERROR = 0.05
# how closely times between steps are found, as a share of what they usually are
_CLOSE = 1e-3


def _serve_again(steps: MeasuredSteps, result: Result) -> Outcome:
    """Serve the requests of a run with measured steps."""
    pool = Pool(times=steps, spec=steps.spec)
    return simulate("standard", pool, result.requests, concurrency=result.concurrency)


def fit_steps(log: StepLog, results: Sequence[Result]) -> MeasuredSteps:
    """Fit times of steps to a log, and what it leaves out to what the requests of the same runs met.

    Raises UsageError if a result lacks a median time to first token or per further token, or contradicts itself.
    """
    for result in results:
        if result.left_out:
            raise UsageError(f"a result {result.left_out}", hint="leave it out, or measure again")
    for time in ("ttft", "tpot"):
        if any(f"{time}_p50_s" not in result.figures for result in results):
            raise UsageError(
                f"the result holds no median {time.upper()}", hint="give one of `vllm bench serve --save-result`"
            )
    steps = _with_rest(_fit(log), results)
    waits_s = [result.figures["ttft_p50_s"] - _serve_again(steps, result).seconds("ttft", 50) for result in results]
    return replace(steps, frontend_s=max(0.0, float(np.median(waits_s))))


def _with_rest(steps: MeasuredSteps, results: Sequence[Result]) -> MeasuredSteps:
    """Return the steps with the time between two of them that gives the measured times per token."""
    from scipy.optimize import minimize

    measured_s = np.array([result.figures["tpot_p50_s"] for result in results])
    # of a step and, if there are several runs, of each token that is decoded
    usual_s = np.array([0.1, 0.01])[: len(results)] * measured_s.min()

    def with_rest(shares: Floats) -> MeasuredSteps:
        step_s, token_s = np.append(shares * usual_s, 0.0)[:2].tolist()
        return replace(steps, between_s=step_s, decode_token_s=steps.decode_token_s + token_s)

    def error(shares: Floats) -> float:
        served = with_rest(shares)
        tpot_s = np.array([_serve_again(served, result).seconds("tpot", 50) for result in results])
        return float(np.square(np.log(tpot_s / measured_s)).sum())

    # served again, medians are not smooth
    first = np.vstack([np.zeros(len(usual_s)), np.eye(len(usual_s))])
    solved = minimize(
        error,
        first[0],
        method="Nelder-Mead",
        bounds=[(0.0, None)] * len(usual_s),
        options={"initial_simplex": first, "xatol": _CLOSE, "fatol": _CLOSE**2},
    )
    return with_rest(solved.x)


def _fit(log: StepLog) -> MeasuredSteps:
    """Fit what the log holds."""
    from scipy.optimize import least_squares, nnls

    # the KV cache holds prompts as well, and of each request half a block that is empty
    held = log.kv_share * log.server["kv_tokens"] - log.chunk - log.server["block_tokens"] / 2.0 * log.decoded
    context = np.maximum(0.0, held) * (log.decoded > 0.0)
    parts = np.stack([np.ones_like(context), log.chunk, log.decoded, context], axis=1)
    # figures are fitted as multiples of what would be the whole time of a step
    scales = np.median(log.seconds) / np.maximum(1.0, parts.max(axis=0))
    parts *= scales
    start, _ = nnls(parts / log.seconds[:, None], np.ones_like(log.seconds))

    # a step counts as often as requests met it
    weights = np.sqrt(log.decoded + (log.chunk > 0.0))

    def residuals(figures: Floats) -> Floats:
        errors = np.log(parts @ figures / log.seconds) / USUAL_ERROR
        robust: Floats = np.sign(errors) * np.sqrt(2.0 * (np.sqrt(1.0 + errors**2) - 1.0))
        return weights * robust

    solved = least_squares(residuals, np.maximum(start, 1e-3), bounds=(0.0, np.inf))
    names = ("step_s", "prompt_token_s", "decode_token_s", "context_token_s")
    return MeasuredSteps(
        steps=len(log.seconds),
        error=float(np.median(np.abs(parts @ solved.x / log.seconds - 1.0))),
        **dict(zip(names, (scales * solved.x).tolist(), strict=True)),
        between_s=0.0,
        frontend_s=0.0,
        **log.server,
    )


def steps_toml(steps: MeasuredSteps) -> str:
    """Return the TOML text of measured steps, which `ladder-sim serve --steps` reads."""
    lines = []
    for name, value in SCHEMA.marked(**asdict(steps)).items():
        text = f"{round(value, 12):.4g}" if isinstance(value, float) else json.dumps(value)
        lines.append(f"{name} = {text}")
    return "\n".join(["# `ladder-sim calibrate fit-steps`", *lines, ""])


def add_to(commands: Any) -> None:
    """Add `fit-steps` to the command line."""
    fit = commands.add_parser("fit-steps", help="fit times of steps to the log of a running vLLM server")
    fit.add_argument("log", type=Path, help="output of `vllm serve` with --enable-logging-iteration-details")
    fit.add_argument(
        "result", type=Path, nargs="+", help="file of `vllm bench serve --save-result --save-detailed` on it"
    )
    fit.add_argument("--out", type=Path, required=True, help="TOML file for `ladder-sim serve --steps`")
    fit.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    check_folder("--out", options.out)
    log = read_step_log(options.log)
    steps = fit_steps(log, [result for file in options.result for result in read_results(file)])
    write_file(options.out, steps_toml(steps))
    figures = [
        (name.removesuffix("_s").replace("_", " "), format_seconds(value))
        for name, value in asdict(steps).items()
        if name.endswith("_s")
    ]
    title = f"{steps.engine}: {steps.steps} steps, half of them within {steps.error:.1%}"
    show(Group(Text(title), table(("", "time"), figures)), sys.stdout)
