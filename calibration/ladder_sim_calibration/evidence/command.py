"""`calibrate evidence`: single ops, a profile, runs with captures and predictions next to them, in one archive."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ladder_sim.errors import UsageError
from ladder_sim.system.files import locked
from ladder_sim.values import whole
from ladder_sim_calibration.measure.command import budget_s, require_torch
from ladder_sim_calibration.options import add_created, words

# engines whose kernels differ most: math attention and NCCL, flash attention and all-reduces of its own
STACKS, BATCHES = ("gpt-fast", "vllm"), ("1", "16")
DEFAULTS: Mapping[str, Any] = {
    "model": "70b",
    "stack": STACKS,
    "batch": BATCHES,
    "degrees": None,
    "p2p": None,
    "prompt": 1024,
    "gen": 128,
    "dtype": "bf16",
    "repeats": 7,
    "warmups": 2,
}

# the table of the Ladder Residual paper (arXiv 2501.06589) under gpt-fast; six requests have a 95 % interval
PAPER: Mapping[str, Any] = {
    "stack": ("gpt-fast",),
    "batch": ("1", "16", "64", "4"),
    "degrees": ("8", "4", "2", "1"),
    "p2p": ("on", "off"),
    "gen": 512,
    "dtype": "fp16",
    "repeats": 6,
    "warmups": 1,
}


def add_to(commands: Any) -> None:
    """Add `evidence` to the command line."""
    parser = commands.add_parser("evidence", help="measure a borrowed machine in one go, and pack what it tells")
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder to fill, or to go on with; the archive is next to it")
    add(
        "--paper",
        action="store_true",
        help="the table of the Ladder Residual paper: 70B, TP 8 to 1, P2P on and off, an hour",
    )
    add("--model", help="model whose shards are measured and run (default 70b)")
    add("--ranks", type=int, help="ranks with real links between them; default: one for each GPU")
    add("--tp", type=int, default=8, help="degree that a single rank emulates (default %(default)s)")
    add("--degrees", type=words, help="tensor-parallel degrees of runs, the most valuable first; default: all ranks")
    add("--p2p", type=words, help="links of runs: on,off runs each with and without NCCL_P2P_DISABLE=1")
    add("--cluster", help="catalog cluster, or its .toml; default: one with this GPU, SXM if there is one")
    add("--budget", help="time to spend (default 30m, with --paper 55m)")
    add("--stack", type=words, help=f"engines to run as (default {','.join(STACKS)})")
    add("--batch", type=words, help=f"sequences served together (default {','.join(BATCHES)})")
    add("--prompt", type=int, help="tokens of each prompt (default 1024)")
    add("--gen", type=int, help="new tokens of each sequence (default 128, with --paper 512)")
    add("--dtype", help="precision of runs (default bf16, with --paper fp16)")
    add("--repeats", type=int, help="requests of each variant (default 7, with --paper 6)")
    add("--warmups", type=int, help="requests of each variant before those (default 2, with --paper 1)")
    add("--most", type=float, help="limit on the sizes of single ops, as of `calibrate run`")
    add_created(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    _fill(options)
    spend_s = budget_s(options.budget)
    require_torch()
    ranks = _gpus() if options.ranks is None else whole(options.ranks, "--ranks", 1, 1024)
    # imported here: the other commands need neither the simulator nor torch
    from ladder_sim_calibration.evidence.steps import Evidence
    from ladder_sim_runtime.environment import environment

    options.out.mkdir(parents=True, exist_ok=True)
    with locked(options.out):
        evidence = Evidence(options.out, options, ranks, environment())
        try:
            failed = evidence.collect(spend_s)
        finally:
            print(evidence.pack())
    for line in failed:
        print(line, file=sys.stderr)
    return int(bool(failed))


def _fill(options: argparse.Namespace) -> None:
    """Give options that were left out their defaults: those of the paper's table, if it is asked for."""
    for name, value in {**DEFAULTS, **(PAPER if options.paper else {})}.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.budget is None:
        options.budget = "55m" if options.paper else "30m"


def _gpus() -> int:
    import torch

    count = torch.cuda.device_count()
    if not count:
        raise UsageError(
            f"torch {torch.__version__} finds no GPU here",
            hint="is it for this driver? nvidia-smi shows its CUDA version; --ranks 2 measures CPUs, with gloo",
        )
    return count
