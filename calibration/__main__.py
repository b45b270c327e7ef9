"""Command line of calibration: ``python -m calibration run ...``, ``fit ...``, ``import ...`` and so on."""

import argparse
import datetime
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calibration.crosscheck import command as crosscheck_command
from calibration.fit import command as fit_command
from calibration.measure import command as measure_command
from calibration.transfer.fit import DRAWS, fit_transfer
from ladder_sim.costs.profile import load_profile, save_profile
from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.validation.dataset import read_dataset
from ladder_sim.validation.splits import PROTOCOLS, split
from runtime.errors import RunError
from runtime.launch import leave_error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; data on stdout, the rest on stderr.

    Returns
    -------
    int
        Exit code: 0, or that of the error.
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(argv, argparse.Namespace(argv=argv))
    try:
        # only what starts ranks has an exit code of its own
        return options.run(options) or 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # the reader of stdout has seen enough; keep the interpreter from failing on it again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if options.debug:
            raise
        known = isinstance(error, LadderSimError | RunError)
        text = str(error) if known else f"{type(error).__name__}: {error}\n  hint: a bug; --debug shows where"
        if not leave_error(text):
            print(f"error: {text}", file=sys.stderr)
        return error.exit_code if isinstance(error, LadderSimError | RunError) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="calibration", description="From measurements to calibration profiles.")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    importer = commands.add_parser("import", help="make a profile from published measurements")
    packages = importer.add_subparsers(required=True, metavar="PACKAGE")
    package = packages.add_parser("aiconfigurator", help="the PyPI package aiconfigurator-core")
    package.add_argument("--system", required=True, help="the package's name of the machine, e.g. h100_sxm")
    package.add_argument("--source", type=Path, help="folder that holds 'systems'; default: the installed package")
    package.add_argument("--out", type=Path, help="profile to write; default: NAME.json.gz here")
    package.add_argument("--created", help="date to write into the profile; default: today")
    package.set_defaults(run=_import_aiconfigurator)

    tests = packages.add_parser("nccl-tests", help="a log of NVIDIA's nccl-tests, or a CSV file (bytes,time_us)")
    tests.add_argument("file", type=Path, help="what e.g. all_reduce_perf printed")
    tests.add_argument("--placement", choices=("in", "out"), default="in", help="in place (default) or out of place")
    tests.add_argument("--out", type=Path, help="file to write; default: named after FILE, here")
    tests.add_argument("--created", help="date to write into the file; default: today")
    across = tests.add_argument_group("across nodes: a fabric's file, to use with --set inter.fabric=FILE")
    across.add_argument("--cluster", help="catalog cluster whose links were measured")
    across.add_argument("--nodes", type=int, help="nodes in the group; default: as the log lists them")
    across.add_argument("--ranks-per-node", type=int, help="GPUs per node; default: as the log lists them")
    inside = tests.add_argument_group("in one node: a copy of a profile with this curve, to use with --profile FILE")
    inside.add_argument("--base", help="profile to start from: a shipped one's name, or a file")
    inside.add_argument("--ranks", type=int, help="GPUs in the group; default: as the log lists them")
    inside.add_argument("--algorithm", choices=("nccl", "one-shot", "two-shot"), default="nccl")
    tests.set_defaults(run=_import_nccl_tests)

    fit = commands.add_parser("transfer", help="fit a stack's figures to a few of its end-to-end runs")
    fit.add_argument("--runs", required=True, help="CSV file of runs (docs/accuracy.md), or a shipped data set's name")
    fit.add_argument("--base", required=True, help="measured profile of the GPU: a shipped one's name, or a file")
    fit.add_argument("--out", type=Path, required=True, help="profile to write")
    fit.add_argument("--protocol", choices=PROTOCOLS, help="rows that may be fitted (docs/accuracy.md); default: all")
    fit.add_argument("--draws", type=int, default=DRAWS, help="bootstrap replicates (default %(default)s)")
    fit.add_argument("--seed", type=int, default=0, help="of starting points and replicates (default %(default)s)")
    fit.add_argument("--created", help="date to write into the profile; default: today")
    fit.set_defaults(run=_transfer)

    for command in (measure_command, fit_command, crosscheck_command):
        command.add_to(commands)

    show = commands.add_parser("show", help="print a profile's interpolation errors")
    show.add_argument("profile", help="name of a shipped profile, or a file")
    show.add_argument("--source", type=Path, help="compute the errors again from this copy of its source package")
    show.set_defaults(run=_show)
    return parser


def _import_aiconfigurator(options: argparse.Namespace) -> None:
    from calibration.importers.aiconfigurator import make_profile, read_system

    measured = read_system(options.system, options.source)
    print(f"read {len(measured.files)} files of {options.system}", file=sys.stderr)
    profile = make_profile(measured, created=options.created or datetime.date.today().isoformat())
    out = options.out or Path(f"{profile.name}.json.gz")
    save_profile(profile, out)
    print(f"wrote {out.stat().st_size / 1000:.0f} KB", file=sys.stderr)
    print(out)


def _import_nccl_tests(options: argparse.Namespace) -> None:
    from calibration.importers import nccl_tests
    from ladder_sim.specs import catalog

    if (options.base is None) == (options.cluster is None):
        raise UsageError(
            "give either --cluster or --base",
            hint="--cluster makes a fabric's file of a log across nodes, --base a profile of a log in one node",
        )
    sweep = nccl_tests.read_sweep(options.file, options.placement)
    created = options.created or datetime.date.today().isoformat()
    listed = sum(sweep.hosts.values()) or None
    if options.base is not None:
        out = options.out or Path(f"{options.file.stem}.json.gz")
        name = out.name.removesuffix(".gz").removesuffix(".json")
        ranks = _count("--ranks", _first(options.ranks, listed), 2)
        base = load_profile(options.base)
        save_profile(
            nccl_tests.add_to_profile(
                base, sweep, name=name, ranks=ranks, algorithm=options.algorithm, created=created
            ),
            out,
        )
    else:
        cluster = catalog.cluster(options.cluster).name
        out = options.out or Path(f"{options.file.stem}.toml")
        if out.suffix != ".toml":
            raise UsageError(f"--out '{out}': a fabric's file must end in .toml", hint="the ending marks it as a file")
        nodes = _count("--nodes", _first(options.nodes, len(sweep.hosts) or None), 2)
        # a log of unequal nodes is refused by its number of ranks
        per_node = _count("--ranks-per-node", _first(options.ranks_per_node, listed and listed // nodes), 1)
        text = nccl_tests.fabric_text(sweep, cluster=cluster, nodes=nodes, ranks_per_node=per_node, created=created)
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"'{out}' cannot be written: {error.strerror or error}", hint="choose a folder that is there"
            ) from error
    print(f"{len(sweep.sizes)} sizes, {sweep.sizes[0]:.0f} to {sweep.sizes[-1]:.0f} bytes", file=sys.stderr)
    print(out)


def _transfer(options: argparse.Namespace) -> None:
    from calibration.show import describe_transfer

    if not options.out.parent.is_dir():
        raise UsageError(f"--out '{options.out}': there is no such folder", hint="choose a folder that is there")
    data = read_dataset(options.runs)
    runs = data.measurements
    if options.protocol:
        runs = split(runs, PROTOCOLS[options.protocol]).fit
    draws, seed = _count("--draws", options.draws, 2), _count("--seed", options.seed, 0)
    fit = fit_transfer(
        runs,
        load_profile(options.base),
        name=options.out.name.removesuffix(".gz").removesuffix(".json"),
        dataset=data.name,
        protocol=options.protocol or "",
        draws=draws,
        seed=seed,
        created=options.created,
    )
    save_profile(fit.profile, options.out)
    if fit.profile.transfer:
        print("\n".join(describe_transfer(fit.profile.transfer)), file=sys.stderr)
    for name in fit.left_out:
        print(f"not fitted: {name}, on which none of these runs depends", file=sys.stderr)
    errors = np.expm1(fit.log_errors)
    print(
        f"fitted runs: throughput errs {np.abs(errors).mean():.1%} on average, {np.abs(errors).max():.1%} at most",
        file=sys.stderr,
    )
    print(options.out)


def _first(given: int | None, listed: int | None) -> int | None:
    return listed if given is None else given


def _count(flag: str, value: int | None, least: int) -> int:
    if value is None:
        raise UsageError(f"{flag} is missing", hint=f"the file does not list its ranks: give {flag}")
    if value < least:
        raise UsageError(f"{flag} is {value}: must be {least} or more", hint=f"give the {flag} that was measured")
    return value


def _show(options: argparse.Namespace) -> None:
    from calibration.show import describe

    print(describe(load_profile(options.profile), options.source))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # a process group with a rank missing would wait in its destructor
    os._exit(code)
