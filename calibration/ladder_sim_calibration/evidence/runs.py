"""Which runs `calibrate evidence` makes, the most valuable first, and the scenario that predicts each."""

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ladder_sim.costs.collectives.algorithms import ALL_REDUCE
from ladder_sim.errors import UsageError
from ladder_sim.specs.stack import AllReduce
from ladder_sim.specs.values import whole
from ladder_sim.validation.archive import scenario_of

# all-reduces between GPUs that stand for an engine's own, as far as the links can do them
BETWEEN_GPUS: tuple[AllReduce, ...] = ("nccl", "one-shot", "multimem")
VARIANTS: tuple[str, ...] = ("standard", "parallel", "ladder", "upper-bound")


class Run(NamedTuple):
    """A `run --bench`."""

    name: str
    """Name of the run's file, without its ending."""
    stack: str
    """Stack that real passes follow."""
    batch: int
    tp: int
    p2p: bool = True
    """GPUs reach each other directly; else NCCL_P2P_DISABLE=1 is set."""
    allreduce: AllReduce | Literal["own"] = "own"
    """Kernel of all-reduces; own: the stack's, which an emulated link takes the time of."""

    def flags(self, options: argparse.Namespace) -> list[str]:
        """Return the options of `python -m ladder_sim_runtime bench` for this run."""
        sizes = {name: getattr(options, name) for name in ("prompt", "gen", "dtype", "repeats")}
        flags = [f"--tp={self.tp}", f"--batch={self.batch}", *(f"--{name}={value}" for name, value in sizes.items())]
        flags += [] if self.allreduce in ("own", "nccl") else [f"--allreduce={self.allreduce}"]
        return [*flags, f"--warmups={options.warmups}"]


def arguments_of(run: Run, options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `Scenario` for a run, without the model and the cluster."""
    return {
        "stack": run.stack,
        "allreduce": None if run.allreduce == "own" else run.allreduce,
        "tp": run.tp,
        "p2p": run.p2p,
        "batch": run.batch,
        **{name: getattr(options, name) for name in ("prompt", "gen", "dtype")},
    }


def planned(options: argparse.Namespace, cluster: str, *, ranks: int, on_gpus: bool) -> Iterator[Run]:
    """Yield every run: all batches and links at the first degree, then at the next one.

    Between GPUs NCCL, and kernels in symmetric memory, stand for those that an engine has of its own.
    """
    whole_tp = ranks if ranks > 1 else whole(options.tp, "--tp", 2, 1024)
    degrees = [_number(text, "--degrees") for text in options.degrees or (str(whole_tp),)]
    if ranks == 1:
        # a rank alone stands for several
        degrees = [tp for tp in degrees if tp > 1]
    for stack in options.stack:
        for tp in degrees:
            for batch in [_number(text, "--batch") for text in options.batch]:
                for p2p in links(options, on_gpus=on_gpus and ranks > 1):
                    if tp == 1 and not p2p:
                        continue
                    parts = (f"{stack}-batch-{batch}", f"tp-{tp}" * (tp != whole_tp), "p2p-off" * (not p2p))
                    run = Run("-".join(filter(None, parts)), stack, batch, tp, p2p)
                    scenario = scenario_of(arguments_of(run, options), options.model, cluster)
                    if ranks == 1 or not on_gpus or scenario.stack.allreduce == "nccl":
                        yield run
                        continue
                    for allreduce in BETWEEN_GPUS:
                        if not ALL_REDUCE[allreduce].unmet(scenario):
                            yield run._replace(name=f"{run.name}-{allreduce}", allreduce=allreduce)


def links_here() -> bool:
    """Whether GPUs reach each other directly, as far as the environment says."""
    return os.environ.get("NCCL_P2P_DISABLE") != "1"


@contextlib.contextmanager
def linked(*, p2p: bool) -> Iterator[None]:
    """Let ranks that are started meanwhile reach each other directly, or not."""
    before = os.environ.get("NCCL_P2P_DISABLE")
    if not p2p:
        os.environ["NCCL_P2P_DISABLE"] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("NCCL_P2P_DISABLE", None)


def links(options: argparse.Namespace, *, on_gpus: bool) -> tuple[bool, ...]:
    """Return whether runs have peer-to-peer access, as asked for; by default as the environment has it."""
    if not options.p2p:
        return (links_here() or not on_gpus,)
    unknown = [text for text in options.p2p if text not in ("on", "off")]
    if unknown:
        raise UsageError(f"--p2p {unknown[0]}: must be on or off", hint="for example --p2p on,off")
    if "on" in options.p2p and on_gpus and not links_here():
        raise UsageError("--p2p on: NCCL_P2P_DISABLE is 1", hint="unset it")
    return tuple(text == "on" for text in options.p2p)


def _number(text: str, flag: str) -> int:
    return whole(int(text) if text.isdecimal() else text, flag, 1, 100_000)


def own_files(options: argparse.Namespace, cluster: str, folder: Path) -> dict[str, Path]:
    """Return the user's own files that come along: the given path, and the place in the folder."""
    return {
        given: folder / f"{name}{Path(given).suffix}"
        for name, given in (("model", options.model), ("cluster", cluster))
        if Path(given).suffix in (".json", ".toml")
    }
