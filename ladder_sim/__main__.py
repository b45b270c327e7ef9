"""The ``ladder-sim`` command, also as ``python -m ladder_sim``."""

import sys


def main() -> int:
    """Run the command line; Ctrl-C while it is still imported ends it as it does later."""
    try:
        from ladder_sim.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        # as `errors.exit_code`, which may not be imported yet
        print("error: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
