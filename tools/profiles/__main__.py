"""``python -m tools.profiles``: makes the shipped profiles of the package aiconfigurator-core."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ladder_sim.costs.profile import CalibrationProfile, MoeTables
from ladder_sim.costs.profile_file import MOE_FOLDER, SUFFIX, load_profile, save_profile
from ladder_sim.errors import UsageError, exit_code
from ladder_sim.system.arguments import Parser
from ladder_sim_calibration.options import add_created
from tools.profiles.aiconfigurator import ENGINES, SYSTEMS, make_engine_profile, make_profile, read_system
from tools.profiles.moe import make_engine_moe, make_moe, read_moe_system, write_moe


def main(argv: Sequence[str]) -> int:
    """Make the profiles of one system or of every one; returns the exit code."""
    return exit_code(lambda: _make(argument_parser().read(argv)))


def argument_parser() -> Parser:
    """Return the parser of the options."""
    parser = Parser(prog="python -m tools.profiles", description=__doc__)
    parser.add_argument("--system", help="the package's name for the machine, e.g. h100_sxm (default: every one)")
    parser.add_argument("--source", type=Path, help="folder that holds 'systems' (default: the installed package)")
    parser.add_argument(
        "--out", type=Path, default=Path(), help="folder to write to: the GPU's NAME.json.gz, then an engine's each"
    )
    add_created(parser)
    return parser


def _make(options: argparse.Namespace) -> None:
    if not options.out.is_dir():
        raise UsageError(f"--out '{options.out}': must be a folder that exists", hint="files are named after profiles")
    for system in (options.system,) if options.system else SYSTEMS:
        measured = read_system(system, options.source)
        print(f"read {len(measured.files)} files of {system}", file=sys.stderr)
        _save(make_profile(measured, created=options.created), options.out)
        # over the shipped profile, which is this one if it was written in its place
        base = load_profile(SYSTEMS[system])
        for engine in ENGINES:
            _save(make_engine_profile(measured, engine, base, created=options.created), options.out)
        experts = read_moe_system(system, base, options.source)
        print(f"read {len(experts.files)} files of {system} on experts and latent attention", file=sys.stderr)
        if not experts.files:
            continue
        of_gpu = make_moe(experts, base)
        _save_moe(of_gpu, base, "", None, options)
        for engine in ENGINES:
            own = make_engine_moe(experts, engine, of_gpu, base.reference)
            _save_moe(own, base, f"-{engine}", of_gpu, options)


def _save(profile: CalibrationProfile, folder: Path) -> None:
    out = folder / f"{profile.name}{SUFFIX}"
    save_profile(profile, out)
    _tell(out)


def _save_moe(
    tables: MoeTables, profile: CalibrationProfile, engine: str, base: MoeTables | None, options: argparse.Namespace
) -> None:
    name = f"{profile.name}{engine}"
    out = options.out / MOE_FOLDER / f"{name}{SUFFIX}"
    write_moe(tables, out, name=name, created=options.created, base=base, reference=profile.reference)
    _tell(out)


def _tell(out: Path) -> None:
    print(f"wrote {out.stat().st_size / 1000:.0f} KB", file=sys.stderr)
    print(out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
