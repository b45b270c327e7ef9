"""`calibrate evidence`: single ops, a profile, runs with captures and predictions next to them, in one archive."""

import argparse
import sys
from pathlib import Path
from typing import Any

from calibration.measure.command import budget_s, require_torch
from calibration.options import add_created
from ladder_sim.errors import UsageError
from ladder_sim.specs.values import whole
from ladder_sim.system.files import locked

# engines whose kernels differ most: math attention and NCCL, flash attention and all-reduces of its own
STACKS, BATCHES = ("gpt-fast", "vllm"), ("1", "16")


def add_to(commands: Any) -> None:
    """Add `evidence` to the command line."""
    parser = commands.add_parser("evidence", help="measure a borrowed machine in one go, and pack what it tells")
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder to fill, or to go on with; the archive is next to it")
    add("--model", default="70b", help="model whose shards are measured and run (default %(default)s)")
    add("--ranks", type=int, help="ranks with real links between them; default: one for each GPU")
    add("--tp", type=int, default=8, help="degree that a single rank emulates (default %(default)s)")
    add("--cluster", help="catalog cluster, or its .toml; default: one with this GPU, SXM if there is one")
    add("--budget", default="30m", help="time to spend (default %(default)s)")
    add("--stack", type=_words, default=STACKS, help=f"engines to run as (default {','.join(STACKS)})")
    add("--batch", type=_words, default=BATCHES, help=f"sequences served together (default {','.join(BATCHES)})")
    add("--prompt", type=int, default=1024, help="tokens of each prompt (default %(default)s)")
    add("--gen", type=int, default=128, help="new tokens of each sequence (default %(default)s)")
    add("--repeats", type=int, default=7, help="requests of each variant (default %(default)s)")
    add("--most", type=float, help="limit on the sizes of single ops, as of `calibrate run`")
    add_created(parser)
    parser.set_defaults(run=_run)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _run(options: argparse.Namespace) -> int:
    spend_s = budget_s(options.budget)
    require_torch()
    ranks = _gpus() if options.ranks is None else whole(options.ranks, "--ranks", 1, 1024)
    # imported here: the other commands need neither the simulator nor torch
    from calibration.evidence.steps import Evidence
    from runtime.environment import environment

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


def _gpus() -> int:
    import torch

    count = torch.cuda.device_count()
    if not count:
        raise UsageError(
            f"torch {torch.__version__} finds no GPU here",
            hint="is it for this driver? nvidia-smi shows its CUDA version; --ranks 2 measures CPUs, with gloo",
        )
    return count
