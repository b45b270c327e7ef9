"""A link laboratory: two network namespaces on one machine, joined by a link of limited rate. Needs root and iproute2.

Gloo ranks in them communicate over that link as two machines would, while each computes on a core of its own.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ladder_sim.errors import MissingDependencyError
from ladder_sim.system.processes import ending_children, start

DEVICE = "link0"
# of the store through which the ranks connect; nothing else runs in the namespaces
PORT = "29511"
_ADDRESSES = ("10.83.17.1", "10.83.17.2")
# as large as the kernel's own segments get
LARGE_FRAME_BYTES = 60_000
# Ethernet's, which a bucket counts
_HEADER_BYTES = 14
# a window that does not collapse while the ranks compute
_SETTINGS = ("net.ipv4.tcp_congestion_control=reno", "net.ipv4.tcp_slow_start_after_idle=0")


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
def laboratory(rate: str = "200mbit", *, frame_bytes: int = 1500) -> Iterator[Laboratory]:
    """Set up the namespaces and their link; take both down at the end.

    Parameters
    ----------
    rate
        Of the link in each direction, as `tc` writes it.
    frame_bytes
        Largest packet. A network card cuts messages into packets of 1,500 bytes by itself; here the kernel does, which
        takes 3 to 8 ms of a rank's core for 256 KB. `LARGE_FRAME_BYTES` leaves that out: 0.8 ms.

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
            _sh("ip", "-n", space, "link", "set", DEVICE, "mtu", str(frame_bytes))
            inside = ("ip", "netns", "exec", space)
            bucket = ("rate", rate, "burst", str(max(4000, frame_bytes + _HEADER_BYTES)), "latency", "400ms")
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
