"""``python -m tools.profiles.older --older DIR``: tables of an engine's version that is not its newest.

aiconfigurator-core holds the newest version of each engine alone. aiconfigurator 0.4.0 (Apache-2.0, the same authors)
has TensorRT-LLM 1.0's, in files of comma-separated values. Of these a profile gets what differs between versions: GEMMs
in fp8, attention of prompts and the all-reduce. Everything else is the engine's newest, decode attention as well: here
it was timed at up to 96 % of the memory's bandwidth, which caches must have served.
"""

import csv
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ladder_sim.costs.collectives.algorithms import OWN
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.costs.profile_file import SUFFIX, load_profile, save_profile
from ladder_sim.errors import UsageError, exit_code
from ladder_sim.system.arguments import Parser
from ladder_sim.system.files import read_text
from ladder_sim_calibration.options import add_created
from tools.profiles import package, parquet
from tools.profiles.aiconfigurator import QUANTISATION, SYSTEMS, make_table
from tools.profiles.allreduce import engine_curves
from tools.profiles.clean import static

PACKAGE, VERSION = "aiconfigurator", "0.4.0"
ENGINE = "trtllm"
# system -> version of the engine, and the name that profiles have it by (`ladder_sim.specs.stack.StackSpec.tables`)
VERSIONS = {"h100_sxm": "1.0.0rc3", "h200_sxm": "1.0.0rc3"}
NAME = "1.0"


def read_columns(path: Path) -> package.Columns:
    """Return all columns of a file of comma-separated values, 16-bit types by the name that 0.12.0 has for them."""
    rows = [*csv.DictReader(read_text(path, what="a table of the package", error=UsageError).splitlines())]
    columns: dict[str, Any] = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    for name, values in columns.items():
        if name == "latency":
            columns[name] = values.astype(float)
        elif np.char.isdigit(values).all():
            columns[name] = values.astype(int)
        else:
            columns[name] = np.where(values == "float16", "bfloat16", values)
    return columns


def make_older(system: str, source: Path | None, older: Path, *, created: str) -> CalibrationProfile:
    """Return the profile of the engine's older version, over the shipped one of its newest.

    Parameters
    ----------
    system
        One of `VERSIONS`.
    source
        aiconfigurator-core, as in `tools.profiles.aiconfigurator.read_system`: the kernels that quantise are its own.
    older
        Unpacked aiconfigurator 0.4.0, or its folder that holds ``systems``.
    created
        ISO date.
    """
    newest = load_profile(f"{SYSTEMS[system]}-{ENGINE}")
    label = f"{ENGINE} {VERSIONS[system]}"
    name = f"data/{system}/{ENGINE}/{VERSIONS[system]}"
    folder = package.find_systems(older if (older / "systems").is_dir() else older / PACKAGE) / name
    files = ("gemm_perf.txt", "context_attention_perf.txt", "custom_allreduce_perf.txt")
    gemm, attention, allreduce = (read_columns(folder / each) for each in files)
    reference = newest.reference
    new = package.SystemFiles(system, source)
    figures = package.read_gpu_figures(new.description)
    quantisation = new.data / "quantize" / newest.environment["engine"].replace(" ", "/")
    gemms = static(
        parquet.gemm_series(label, gemm, "fp8"),
        [parquet.quantise_series(label, new.columns(quantisation / f"{each}_perf.parquet")) for each in QUANTISATION],
        bandwidth_Bps=figures["mem_bw"],
        flops=figures["fp8_tc_flops"],
    )
    prompts = {kv: parquet.attention_series(label, attention, "attention_prefill", kv) for kv in parquet.KV_DTYPES}
    custom = {
        (ENGINE, ranks): [parquet.custom_series(label, allreduce, ranks)[1]]
        for ranks in np.unique(allreduce["num_gpus"]).tolist()
    }
    origin = package.source_of(system, f"fp8 GEMMs, attention of prompts and all-reduce of {label}", ())
    return replace(
        newest,
        name=f"{newest.name}-{NAME}",
        base=newest.name,
        created=created,
        environment={**newest.environment, "engine": label, "all-reduce": label},
        sources=(
            *newest.sources,
            replace(
                origin,
                version=VERSION,
                files=tuple(f"{name}/{each}" for each in files),
                citation=f"https://pypi.org/project/{PACKAGE}/{VERSION}/, (c) NVIDIA and affiliates",
                notes=(
                    f"gemm fp8: quantisation of {newest.environment['engine']} subtracted ({', '.join(QUANTISATION)})",
                ),
            ),
        ),
        gemm={**newest.gemm, "fp8": make_table("gemm", "fp8", [gemms], reference)},
        attention_prefill={
            "flash": {kv: make_table("attention_prefill", kv, [each], reference) for kv, each in prompts.items()}
        },
        collectives={
            **newest.collectives,
            "all_reduce": {**newest.collectives["all_reduce"], OWN: engine_curves(custom, ENGINE)[1]},
        },
    )


def main(argv: Sequence[str]) -> int:
    """Make the profile of one system or of every one; returns the exit code."""
    parser = Parser(prog="python -m tools.profiles.older", description=__doc__)
    parser.add_argument("--system", choices=VERSIONS, help="the package's name for the machine (default: every one)")
    parser.add_argument("--source", type=Path, help="folder of aiconfigurator-core (default: the installed package)")
    parser.add_argument("--older", type=Path, required=True, help=f"unpacked {PACKAGE} {VERSION}")
    parser.add_argument("--out", type=Path, default=Path(), help="folder to write to")
    add_created(parser)
    return exit_code(lambda: _make(parser.read(argv)))


def _make(options: Namespace) -> None:
    for system in (options.system,) if options.system else VERSIONS:
        profile = make_older(system, options.source, options.older, created=options.created)
        out = options.out / f"{profile.name}{SUFFIX}"
        save_profile(profile, out)
        print(out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
