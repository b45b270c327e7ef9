"""Runs `ladder-sim calibrate` as two ranks in network namespaces, joined by a link of limited rate. Needs root.

Gloo ranks communicate over that link as two machines would, while each computes on a core of its own::

    python benchmarks/link_lab.py check --tp 2 --backend gloo --model 1b --set model.layers=8 --gate
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ladder_sim.errors import MissingDependencyError, exit_code
from ladder_sim.system.processes import ending_children, start

DEVICE = "link0"
# of the store through which the ranks connect; nothing else runs in the namespaces
PORT = "29511"
_ADDRESSES = ("10.83.17.1", "10.83.17.2")
RATE, LIMIT_S = "200mbit", 600.0
# a window that does not collapse while the ranks compute
_SETTINGS = ("net.ipv4.tcp_congestion_control=reno", "net.ipv4.tcp_slow_start_after_idle=0")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default=RATE, help="of the link, as tc writes it (default %(default)s)")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of ladder-sim calibrate")
    options = parser.parse_args()
    with laboratory(options.rate) as lab:
        try:
            lab.run("ladder_sim_calibration", options.arguments, timeout_s=LIMIT_S)
        except subprocess.CalledProcessError as error:
            # the rank has said why
            return error.returncode
    return 0


@dataclass(frozen=True, slots=True)
class Laboratory:
    """The two namespaces."""

    spaces: tuple[str, str]
    """Their names."""

    def run(self, module: str, arguments: Sequence[str], *, timeout_s: float) -> None:
        """Run a module as two ranks, one in each namespace and on a core of its own where there are two.

        Raises
        ------
        subprocess.CalledProcessError
            A rank failed.
        subprocess.TimeoutExpired
            They did not end in time.
        """
        cores = sorted(os.sched_getaffinity(0))
        started = []
        try:
            for rank, space in enumerate(self.spaces):
                place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": PORT}
                environment = {name: str(value) for name, value in place.items()}
                environment |= {"MASTER_ADDR": _ADDRESSES[0], "GLOO_SOCKET_IFNAME": DEVICE}
                core = str(cores[rank % len(cores)])
                where = ["ip", "netns", "exec", space, "taskset", "-c", core]
                started.append(start([module, *arguments], last=signal.SIGKILL, env=environment, prefix=where))
            for process in started:
                if process.wait(timeout_s):
                    raise subprocess.CalledProcessError(process.returncode, process.args)
        finally:
            for process in started:
                process.kill()
                process.wait()


@contextlib.contextmanager
def laboratory(rate: str = RATE) -> Iterator[Laboratory]:
    """Set up the namespaces and their link; take both down at the end.

    Parameters
    ----------
    rate
        Of the link in each direction, as `tc` writes it.

    Raises
    ------
    MissingDependencyError
        No root, no iproute2, or a kernel without namespaces.
    """
    for tool in ("ip", "tc", "taskset"):
        if shutil.which(tool) is None:
            raise MissingDependencyError(f"the link laboratory needs '{tool}'", hint="apt install iproute2 util-linux")
    for space in stale(_listed()):
        _delete(space)
    spaces = (f"ladder-a{os.getpid()}", f"ladder-b{os.getpid()}")
    with ending_children(), contextlib.ExitStack() as stack:
        for space in spaces:
            stack.callback(_delete, space)
        for space in spaces:
            _sh("ip", "netns", "add", space)
        _sh("ip", "link", "add", DEVICE, "netns", spaces[0], "type", "veth", "peer", "name", DEVICE, "netns", spaces[1])
        for space, address in zip(spaces, _ADDRESSES, strict=True):
            _sh("ip", "-n", space, "addr", "add", f"{address}/24", "dev", DEVICE)
            for device in ("lo", DEVICE):
                _sh("ip", "-n", space, "link", "set", device, "up")
            inside = ("ip", "netns", "exec", space)
            bucket = ("rate", rate, "burst", "4000", "latency", "400ms")
            _sh(*inside, "tc", "qdisc", "add", "dev", DEVICE, "root", "tbf", *bucket)
            _sh(*inside, "sysctl", "-qw", *_SETTINGS)
        yield Laboratory(spaces)


def stale(spaces: Iterable[str]) -> list[str]:
    """Those of laboratories whose process was killed; each has its process id in its name."""
    made = ((space, re.fullmatch(r"ladder-[ab](\d+)", space)) for space in spaces)
    return [space for space, match in made if match and not os.path.exists(f"/proc/{match[1]}")]


def _listed() -> list[str]:
    shown = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    return [line.split()[0] for line in shown.splitlines() if line.strip()]


def _delete(space: str) -> None:
    subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)


def _sh(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingDependencyError(
            f"the link laboratory cannot be set up: {' '.join(command)}: {done.stderr.strip()}",
            hint="it needs root, network namespaces, and the kernel modules veth and sch_tbf",
        )


if __name__ == "__main__":
    sys.exit(exit_code(main))
