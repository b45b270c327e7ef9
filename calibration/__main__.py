"""Command line of calibration: ``python -m calibration import ...`` and ``python -m calibration show ...``."""

import argparse
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

from ladder_sim.costs.profile import load_profile, save_profile
from ladder_sim.errors import LadderSimError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; data on stdout, the rest on stderr.

    Returns
    -------
    int
        Exit code: 0, or that of the error.
    """
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except LadderSimError as error:
        if options.debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # the reader of stdout has seen enough; keep the interpreter from failing on it again at exit
        sys.stdout = None  # type: ignore[assignment]
    return 0


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


def _show(options: argparse.Namespace) -> None:
    from calibration.show import describe

    print(describe(load_profile(options.profile), options.source))


if __name__ == "__main__":
    sys.exit(main())
