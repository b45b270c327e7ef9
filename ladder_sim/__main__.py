"""``python -m ladder_sim`` is the ``ladder-sim`` command."""

import sys

from ladder_sim.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
