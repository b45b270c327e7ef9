"""`ladder-sim doctor`: what is installed, which devices this machine has, and which commands work here or why not."""

import importlib.metadata
import importlib.util
import json as json_format
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import typer

from ladder_sim import __version__
from ladder_sim.errors import LadderSimError, install_command
from ladder_sim.system.files import Schema
from ladder_sim.system.processes import cores
from ladder_sim.units import format_bytes

SCHEMA = Schema()
EXIT_MISSING = 4
# what every installation brings
BASE = ("numpy", "scipy", "networkx", "simpy", "plotly", "typer", "rich", "pydantic")


class Extra(NamedTuple):
    """An optional part of the installation."""

    commands: tuple[str, ...]
    """Commands that need the part, some of them only with an option."""
    packages: tuple[str, ...]


EXTRAS: Mapping[str, Extra] = MappingProxyType(
    {
        "runtime": Extra(
            ("run", "trace capture", "calibrate run", "calibrate check", "calibrate evidence"),
            ("torch", "safetensors", "tokenizers"),
        ),
        "trace": Extra(("predict --model of a family without a reader",), ("torch", "transformers")),
        "plots": Extra(("predict --set plot=FILE.png",), ("kaleido",)),
        "parquet": Extra(("sweep --save FILE.parquet",), ("pyarrow",)),
        "dask": Extra(("sweep --dask",), ("dask", "distributed")),
    }
)

# how long nvidia-smi, and the import of torch in a process of its own, may take
_TOOL_SECONDS, _TORCH_SECONDS = 10.0, 60.0
# run in a process of its own: importing torch takes seconds and may crash
_TORCH_PROBE = (
    "import json, torch, torch.distributed as d; cuda = torch.cuda.is_available(); print(json.dumps({"
    "'cuda': torch.version.cuda or '', 'devices': [torch.cuda.get_device_name(i) for i in range("
    "torch.cuda.device_count() if cuda else 0)], 'gloo': d.is_available() and d.is_gloo_available(),"
    "'nccl': d.is_available() and d.is_nccl_available()}))"
)


@dataclass(frozen=True, slots=True)
class Limitation:
    """Something that will not work here."""

    what: str
    """Commands, or what else a user may want to do."""
    why: str
    """What is missing."""
    fix: str
    """What to do about it; may be empty."""


@dataclass(frozen=True, slots=True)
class Commands:
    """Commands that need the same."""

    names: tuple[str, ...]
    """As they are typed, some with an option."""
    needs: tuple[str, ...]
    """Packages, beyond those of every installation."""
    missing: tuple[str, ...]
    """Packages that are not installed here."""
    fix: str
    """What installs them; empty: nothing is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """State of the installation and of the machine."""

    python: str
    """Version."""
    platform: str
    """Operating system and architecture."""
    ladder_sim: str
    """Version."""
    packages: Mapping[str, str | None]
    """Version of every base and optional package; None: not installed."""
    cpu_cores: int
    """Number of CPU cores that this process may use."""
    memory_bytes: float | None
    """Memory of the machine; None if the system does not say."""
    gpus: tuple[str, ...]
    """As nvidia-smi, or else torch, names them."""
    torch: Mapping[str, object]
    """What torch says of CUDA and its communication backends; empty: torch is not installed or does not start."""
    profiles: Mapping[str, str]
    """Shipped profile -> GPU cluster it was measured on, or what is wrong with it."""
    commands: tuple[Commands, ...]
    """Every command, and those that need further packages with some option."""
    problems: tuple[Limitation, ...]
    """What else will not work here."""
    ready: bool
    """Whether predictions work."""


def doctor(json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False) -> None:
    """Show what is installed, which devices this machine has, and which commands work here or why not."""
    # imported here: it imports every command
    from ladder_sim.cli.commands import program

    report = examine(_leaves(program()))
    if json:
        print(json_format.dumps(SCHEMA.marked(**asdict(report)), indent=2))
    else:
        _show(report)
    if not report.ready:
        raise typer.Exit(EXIT_MISSING)


def examine(commands: Iterable[str]) -> Report:
    """Look at this installation and this machine, for all `commands`."""
    packages = {name: version(name) for name in (*BASE, *(n for extra in EXTRAS.values() for n in extra.packages))}
    profiles = _profiles()
    torch = _torch() if packages["torch"] else {}
    devices = torch.get("devices")
    gpus = _nvidia_smi() or tuple(map(str, devices if isinstance(devices, list) else ()))
    return Report(
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        ladder_sim=__version__,
        packages=packages,
        cpu_cores=cores(),
        memory_bytes=_memory_bytes(),
        gpus=gpus,
        torch=torch,
        profiles={name: gpu if isinstance(gpu, str) else "cannot be read" for name, gpu in profiles.items()},
        commands=tuple(_groups(commands, packages)),
        problems=tuple(_problems(packages, profiles, torch, gpus)),
        ready=all(packages[name] for name in BASE),
    )


def _leaves(command: Any, prefix: str = "") -> Iterator[str]:
    """Yield the names of the commands in a group."""
    for name, inner in command.commands.items():
        if hasattr(inner, "commands"):
            yield from _leaves(inner, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}"


def _groups(commands: Iterable[str], packages: Mapping[str, str | None]) -> Iterator[Commands]:
    more = {name for extra in EXTRAS.values() for name in extra.commands}
    base = tuple(name for name in BASE if not packages[name])
    yield Commands(tuple(name for name in commands if name not in more), (), base, install_command() if base else "")
    for name, extra in EXTRAS.items():
        missing = tuple(package for package in extra.packages if not packages[package])
        yield Commands(extra.commands, extra.packages, missing, install_command(name) if missing else "")


def _problems(
    packages: Mapping[str, str | None],
    profiles: Mapping[str, str | Exception],
    torch: Mapping[str, object],
    gpus: tuple[str, ...],
) -> Iterator[Limitation]:
    for name in BASE:
        if not packages[name]:
            yield Limitation("predictions", f"{name} is not installed", install_command())
    for name, gpu in profiles.items():
        if isinstance(gpu, Exception):
            yield Limitation(f"profile {name}", str(gpu).splitlines()[0], f"{install_command()} --force-reinstall")
    if packages["torch"] and not torch:
        way_out = f"see why: {os.path.basename(sys.executable)} -c 'import torch'"
        yield Limitation(", ".join(EXTRAS["runtime"].commands), "torch is installed, but does not start", way_out)
    if not gpus:
        way_out = "predictions need no GPU: they use the shipped profiles"
        yield Limitation("measuring GPUs", "no NVIDIA GPU is visible here", way_out)
    elif torch and not torch.get("devices"):
        why = "torch sees no CUDA device, although the machine has one"
        yield Limitation("measuring GPUs", why, "install a CUDA build of torch (pytorch.org/get-started)")
    if len(gpus) == 1:
        yield Limitation(
            "measuring all-reduces between GPUs", "there is one GPU here", "use a machine with two or more"
        )


def version(package: str) -> str | None:
    """Return the version of an installed package, without importing it; None if it is not there."""
    try:
        if importlib.util.find_spec(package) is None:
            return None
        return importlib.metadata.version(package)
    except (ImportError, ValueError):
        # ImportError holds PackageNotFoundError: a folder of that name is not an installed package
        return None


def _profiles() -> dict[str, str | Exception]:
    """Return the shipped profiles: the GPU cluster that each was measured on, or why it cannot be read."""
    try:
        from ladder_sim.costs.profile_file import load_profile, shipped_profiles
    except ImportError:
        # a base package is missing, and is reported
        return {}
    profiles: dict[str, str | Exception] = {}
    for name in shipped_profiles():
        try:
            profiles[name] = load_profile(name).cluster_name
        except (LadderSimError, ImportError) as error:
            profiles[name] = error
    return profiles


def _nvidia_smi() -> tuple[str, ...]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    printed = _output([tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"], _TOOL_SECONDS)
    return tuple(line.strip() for line in (printed or "").splitlines() if line.strip())


def _torch() -> dict[str, object]:
    """Return what torch says of its devices; empty if torch does not start."""
    printed = _output([sys.executable, "-c", _TORCH_PROBE], _TORCH_SECONDS)
    try:
        answer = json_format.loads((printed or "").strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _output(command: list[str], seconds: float) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _memory_bytes() -> float | None:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return None


def _show(report: Report) -> None:
    from ladder_sim.report.console import show, table

    versions = {name: number or "MISSING" for name, number in report.packages.items()}
    memory = [] if report.memory_bytes is None else [f"{format_bytes(report.memory_bytes)} memory"]
    rows: dict[str, Iterable[str]] = {
        "installed": [f"{name} {versions[name]}" for name in BASE],
        "optional": [f"{name} {versions[name]}" for name in versions if name not in BASE],
        "machine": [f"{report.cpu_cores} CPU core{'s'[: report.cpu_cores != 1]}", *memory],
        "GPUs": report.gpus or ["none visible"],
        "torch": _torch_parts(report.torch),
        "profiles": report.profiles,
    }
    about = f"ladder-sim {report.ladder_sim}"
    system = f"Python {report.python}, {report.platform}"
    show(table((about, system), ((name, ", ".join(parts)) for name, parts in rows.items()), left=2))
    print()
    works = [(_joined(each.names), ", ".join(each.needs) or "no extra", each.fix or "yes") for each in report.commands]
    show(table(columns := ("command", "needs", "installed here"), works, left=3, wrapped=columns[:2]))
    if report.problems:
        print()
        show(table(columns := ("not here", "why", "way out"), map(astuple, report.problems), left=3, wrapped=columns))


def _joined(names: Iterable[str]) -> str:
    """Return the names of commands in a line, which names a group once."""
    parents = groupby(names, key=lambda name: name.rpartition(" ")[0])
    return "; ".join(
        f"{parent} {', '.join(name.split()[-1] for name in members)}".strip() for parent, members in parents
    )


def _torch_parts(torch: Mapping[str, object]) -> list[str]:
    if not torch:
        return ["-"]
    backends = [name for name in ("gloo", "nccl") if torch.get(name)]
    return [f"CUDA {torch['cuda']}" if torch.get("cuda") else "CPU build", *backends]
