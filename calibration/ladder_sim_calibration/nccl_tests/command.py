"""`calibrate import`: makes a profile or a fabric file of a log of nccl-tests."""

import argparse
import sys
from pathlib import Path
from typing import Any

from ladder_sim.costs.collectives.fabrics import fabric_curve
from ladder_sim.costs.profile_file import load_profile, save_profile
from ladder_sim.errors import UsageError
from ladder_sim.specs import catalog
from ladder_sim.specs.cluster import GpuSpec
from ladder_sim.system.files import write_file
from ladder_sim.values import whole
from ladder_sim_calibration.nccl_tests.sweep import (
    DECODE_BYTES,
    Sweep,
    add_to_profile,
    collective_of,
    fabric_text,
    ranks_of,
    read_sweep,
)
from ladder_sim_calibration.options import add_created, profile_name


def add_to(commands: Any) -> None:
    """Add `import` and its packages to the command line."""
    importer = commands.add_parser("import", help="make a profile or a fabric file of a log of nccl-tests")
    packages = importer.add_subparsers(required=True, metavar="PACKAGE")
    tests = packages.add_parser(
        "nccl-tests", help="a log or JSON of NVIDIA's nccl-tests, or a CSV file (bytes,time_us)"
    )
    tests.add_argument("file", type=Path, help="log or JSON (-J) of e.g. all_reduce_perf")
    tests.add_argument("--out", type=Path, help="file to write; default: named after FILE, here")
    tests.add_argument("--force", action="store_true", help="import the right results of a log whose check failed")
    add_created(tests)
    across = tests.add_argument_group(
        "across nodes: makes a fabric file, for use with --set inter.fabric=FILE; of a log in one node a profile"
    )
    across.add_argument("--cluster", help="catalog cluster whose links were measured")
    across.add_argument("--nodes", type=int, help="nodes in the group; default: as the log lists them")
    across.add_argument("--ranks-per-node", type=int, help="GPUs per node; default: as the log lists them")
    inside = tests.add_argument_group(
        "in one node: makes a copy of a profile with this curve, for use with --profile FILE"
    )
    inside.add_argument("--base", help="profile to start from: a shipped one's name, or a file")
    inside.add_argument("--ranks", type=int, help="GPUs in the group; default: as the log lists them")
    tests.set_defaults(run=_import_nccl_tests)


def _import_nccl_tests(options: argparse.Namespace) -> None:
    if (options.base is None) == (options.cluster is None):
        raise UsageError(
            "give either --cluster or --base",
            hint="--cluster makes a fabric file of a log across nodes, --base a profile of a log in one node",
        )
    sweep = read_sweep(options.file, force=options.force)
    created, hosts, listed = options.created, len(sweep.hosts), ranks_of(sweep)
    base = options.base
    source = load_profile(base).cluster_name if base else options.cluster
    gpu = catalog.cluster(source).gpu if base is None or source in catalog.cluster_names() else None
    if gpu and min(sweep.seconds) < gpu.kernel_s:
        raise UsageError(
            f"{sweep.file}: {min(sweep.seconds) * 1e6:g} us is less than one kernel takes on {gpu.name}, "
            f"{gpu.kernel_s * 1e6:g} us",
            hint="times must be microseconds",
        )
    if base is None:
        cluster = catalog.cluster(options.cluster)
        if listed and not hosts:
            hosts = _full_nodes(listed, cluster.gpus_per_node, options)
        if hosts == 1 and options.nodes is None and cluster.profile:
            # all in one node: what its profile holds
            base = cluster.profile
    if base is not None:
        out = options.out or Path(f"{options.file.stem}.json.gz")
        if out.suffix == ".toml":
            raise UsageError(f"--out '{out}': must end in .json.gz", hint="a log in one node makes a profile")
        ranks = _flag_or_log(options.ranks, listed, "--ranks", 2)
        whole = load_profile(base)
        profile = add_to_profile(whole, sweep, name=profile_name(out), ranks=ranks, created=created)
        save_profile(profile, out)
        curves = whole.collectives.get(collective_of(sweep, ranks), {}).get("nccl", {})
        others = f"profile {whole.name}" if ranks in curves else ""
    else:
        out = options.out or Path(f"{options.file.stem}.toml")
        if out.suffix != ".toml":
            raise UsageError(
                f"--out '{out}': must end in .toml",
                hint="fabric files end in .toml, built-in ones are named without it",
            )
        nodes = _flag_or_log(options.nodes, hosts, "--nodes", 2)
        # a log of unequal nodes is refused by its number of ranks
        per_node = _flag_or_log(options.ranks_per_node, listed // nodes, "--ranks-per-node", 1)
        text = fabric_text(sweep, cluster=cluster.name, nodes=nodes, ranks_per_node=per_node, created=created)
        write_file(out, text)
        others = f"fabric {cluster.inter.fabric}" if fabric_curve(cluster.inter.fabric) else ""
    _tell(sweep, others, gpu)
    print(out)


def _full_nodes(ranks: int, gpus_per_node: int, options: argparse.Namespace) -> int:
    """Return the number of nodes that ranks fill, as far as no flag says otherwise; 0 if it is not known."""
    if options.nodes is not None or options.ranks_per_node is not None or ranks % gpus_per_node:
        return 0
    nodes = ranks // gpus_per_node
    print(f"busbw / algbw is that of {ranks} ranks: read as {nodes} x {gpus_per_node} GPUs", file=sys.stderr)
    return nodes


def _tell(sweep: Sweep, others: str, gpu: GpuSpec | None) -> None:
    """Say which sizes were measured, and what stands for others; empty: nothing that was measured."""
    low, high = sweep.sizes[0], sweep.sizes[-1]
    outside = f"stay as in {others}" if others else "are extrapolated from these"
    lines = [f"{len(sweep.sizes)} sizes, {low:.0f} to {high:.0f} bytes; smaller and larger messages {outside}"]
    if sweep.wrong:
        lines.append(
            f"warning: {len(sweep.wrong)} sizes from {min(sweep.wrong):.0f} bytes on are left out: results were wrong"
        )
    if low > DECODE_BYTES:
        lines.append(
            f"warning: no message of decode's size (at most {DECODE_BYTES:.0f} bytes) was measured; run the test from "
            "8 KB on (-b 8K)"
        )
    if sweep.falls:
        lines.append(
            f"warning: {len(sweep.falls)} sizes, the first of {sweep.falls[0]:.0f} bytes, took less than the size "
            "before: measure again, with more iterations (-n)"
        )
    if gpu and sweep.device and not gpu.is_called(sweep.device):
        lines.append(f"warning: the file was measured on {sweep.device}, and is taken for {gpu.name}")
    for line in lines:
        print(line, file=sys.stderr)


def _flag_or_log(given: int | None, listed: int, flag: str, minimum: int) -> int:
    """Return the value of a flag, by default what the file lists."""
    if given is None and not listed:
        raise UsageError(f"{flag} is missing", hint=f"the file does not list its ranks: give {flag}")
    value = listed if given is None else given
    return whole(value, flag, minimum, 1_000_000, hint=f"give the {flag} that was measured")
