"""The steps in the log of a vLLM server that was started with ``--enable-logging-iteration-details``.

References
----------
vLLM 0.32.0: v1/metrics/loggers.py (`_log_iteration_details`), config/vllm.py, v1/core/kv_cache_utils.py.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ladder_sim.des.shared import Floats
from ladder_sim.errors import UsageError
from ladder_sim.system.files import read_text, shown_path

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

    Raises
    ------
    UsageError
        It is no such log, or holds too few steps, or steps of one kind only.
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
