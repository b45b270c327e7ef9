"""The ``ladder-sim`` command, also as ``python -m ladder_sim``."""

import gc
import sys

# objects made between two collections of garbage; by default, and at the interpreter's end, a fifth of a command's time
# is spent on looking through what imports and tables made, which live as long as the command
_COLLECTED = 100_000


def main() -> int:
    """Run the command line; Ctrl-C while it is still imported ends it as it does later."""
    gc.set_threshold(_COLLECTED)
    try:
        from ladder_sim.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        # as `errors.exit_code`, which may not be imported yet
        print("error: interrupted", file=sys.stderr)
        return 130
    finally:
        gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
