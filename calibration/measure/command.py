"""`calibrate run`: measures ops on this machine into a samples file; under torchrun every rank takes part."""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from calibration.fit.samples import Sample, SampleStore
from calibration.measure.grid import COLLECTIVES, ops_of
from ladder_sim.errors import UsageError
from ladder_sim.specs import catalog

_SUFFIXES = {"s": 1.0, "m": 60.0, "h": 3600.0}


def add_to(commands: Any) -> None:
    """Add the command to a parser's."""
    run = commands.add_parser("run", help="measure ops on this machine, in a samples file that can be continued")
    run.add_argument("--samples", type=Path, required=True, help="file to write, or to continue")
    run.add_argument("--model", action="append", required=True, help="whose shards are measured; repeatable")
    run.add_argument("--tp", action="append", type=int, help="tensor-parallel degrees of the shards; repeatable")
    run.add_argument("--budget", default="10m", help="time to spend, e.g. 90s, 10m (default %(default)s)")
    run.add_argument("--most", type=float, default=float("inf"), help="largest tokens, context, and KB of a message")
    run.set_defaults(run=_run)


def budget_s(text: str) -> float:
    """Seconds of ``90s``, ``10m`` or ``1h``."""
    try:
        seconds = float(text[:-1]) * _SUFFIXES[text[-1:]]
    except (ValueError, KeyError):
        seconds = -1.0
    if not 0.0 < seconds < 1e6:
        raise UsageError(f"--budget '{text}' is no time", hint="for example 90s, 10m or 1h")
    return seconds


def next_op(ops: list[Sample], store: SampleStore) -> Sample:
    """The op to measure next: one that has fewest samples; of those, one whose last time was least certain."""
    counts = store.counts()
    spread = {sample.key: sample.spread for sample in store.samples}
    # those that did not fit the memory are not tried again
    skipped = {sample.key for sample in store.samples if sample.seconds is None}
    left = [op for op in ops if op.key not in skipped]
    return min(left, key=lambda op: (counts[op.key], -spread.get(op.key, 0.0)))


def _run(options: argparse.Namespace) -> None:
    # imported here: they need torch
    import torch
    import torch.distributed as dist

    from calibration.measure.ops import measure
    from runtime.environment import environment

    end_s = time.monotonic() + budget_s(options.budget)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    if ranks > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    ops = ops_of([catalog.model(name) for name in options.model], options.tp or [1], ranks, most=options.most)
    if device.type == "cpu":
        # gloo has no reduce-scatter
        ops = [op for op in ops if op.op != "reduce_scatter"]
    # every rank measures every op, so that a node is as warm as in use; rank 0 writes
    store = SampleStore(options.samples, environment()) if rank == 0 else None
    if store and store.dropped:
        print(f"dropped {store.dropped} bytes of a sample that was cut short", file=sys.stderr)
    while True:
        chosen = [next_op(ops, store) if store and time.monotonic() < end_s else None]
        if ranks > 1:
            dist.broadcast_object_list(chosen)
        op = chosen[0]
        if op is None:
            break
        if ranks > 1 and op.op in COLLECTIVES:
            dist.barrier()
        sample = measure(op, device)
        if store:
            store.append(sample)
            print(f"\r{len(store.samples)} samples of {len(ops)} ops", end="", file=sys.stderr, flush=True)
    if ranks > 1:
        dist.destroy_process_group()
    if store:
        print(f"\n{options.samples}")
