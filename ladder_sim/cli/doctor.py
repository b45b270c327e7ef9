"""`ladder-sim doctor`: what is installed, which devices are there, and what will not work here and why."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Annotated

import typer

from ladder_sim import __version__
from ladder_sim.errors import LadderSimError
from ladder_sim.units import format_bytes

EXIT_MISSING = 4
# what every installation brings
BASE = ("numpy", "scipy", "networkx", "simpy", "plotly", "typer", "rich", "pydantic")
# optional packages, by the extra that brings them
EXTRAS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "runtime": ("torch", "safetensors", "tokenizers", "jinja2"),
        "explorer": ("dash",),
        "plots": ("kaleido",),
        "import": ("pyarrow",),
        "parquet": ("pyarrow",),
        "dask": ("dask", "distributed"),
    }
)
# what an extra is for
PURPOSES: Mapping[str, str] = MappingProxyType(
    {
        "runtime": "running real forward passes, and measuring this machine with them",
        "explorer": "the what-if explorer in the browser",
        "plots": "figures as png and svg (html needs nothing more)",
        "import": "importing published tables (calibrate import aiconfigurator)",
        "parquet": "sweeps written as Parquet",
        "dask": "sweeps spread over several machines",
    }
)
_WIDTH = 80
# how long nvidia-smi, and the import of torch in a process of its own, may take
_TOOL_SECONDS, _TORCH_SECONDS = 10.0, 60.0
# asked of torch in a process of its own: importing it here would cost seconds, and its faults would be ours
_TORCH_PROBE = (
    "import json, torch, torch.distributed as d; cuda = torch.cuda.is_available(); print(json.dumps({"
    "'cuda': torch.version.cuda or '', 'devices': [torch.cuda.get_device_name(i) for i in range("
    "torch.cuda.device_count() if cuda else 0)], 'gloo': d.is_available() and d.is_gloo_available(),"
    "'nccl': d.is_available() and d.is_nccl_available()}))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that will not work here."""

    what: str
    """What the user cannot do."""
    why: str
    """The reason."""
    fix: str
    """What to do about it; may be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found."""

    python: str
    """Version."""
    platform: str
    """System and machine."""
    ladder_sim: str
    """Version."""
    packages: Mapping[str, str | None]
    """Version of every base and optional package; None: not installed."""
    cpu_cores: int
    """That this process may use."""
    memory_bytes: float | None
    """Of the machine; None: the system does not say."""
    gpus: tuple[str, ...]
    """As nvidia-smi, or else torch, names them."""
    torch: Mapping[str, object]
    """What torch says of CUDA and its communication backends; empty: torch is not installed or does not start."""
    profiles: Mapping[str, str]
    """Shipped profile -> GPU cluster it was measured on, or what is wrong with it."""
    problems: tuple[Problem, ...]
    """What will not work here."""
    ready: bool
    """Whether predictions work."""


def doctor(
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show what is installed, which devices are there, and what will not work here and why."""
    report = examine()
    if json:
        # imported here, because the flag has its name
        from json import dumps

        print(dumps(asdict(report) | {"schema_version": 1}, indent=2))
    else:
        print("\n".join(_lines(report)))
    if not report.ready:
        raise typer.Exit(EXIT_MISSING)


def examine() -> Report:
    """Look at this installation and this machine."""
    packages = {name: version(name) for name in (*BASE, *(name for names in EXTRAS.values() for name in names))}
    profiles, broken = _profiles()
    torch, torch_problem = _torch() if packages["torch"] else ({}, None)
    gpus = _nvidia_smi() or tuple(str(name) for name in _items(torch.get("devices")))
    missing = [name for name in BASE if packages[name] is None]
    problems = [
        *(
            Problem(what="predictions", why=f"{name} is not installed", fix="pip install ladder-sim")
            for name in missing
        ),
        *broken,
        *_extras(packages),
        *([torch_problem] if torch_problem else []),
        *_devices(gpus, packages, torch),
    ]
    return Report(
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        ladder_sim=__version__,
        packages=packages,
        cpu_cores=_cores(),
        memory_bytes=_memory_bytes(),
        gpus=gpus,
        torch=torch,
        profiles=profiles,
        problems=tuple(problems),
        ready=not missing,
    )


def version(package: str) -> str | None:
    """Version of an installed package, without importing it; None if it is not there."""
    try:
        if importlib.util.find_spec(package) is None:
            return None
        return importlib.metadata.version(package)
    except (ImportError, ValueError):
        # ImportError holds PackageNotFoundError: a folder of that name is no installed package
        return None


def _profiles() -> tuple[dict[str, str], list[Problem]]:
    found: dict[str, str] = {}
    problems: list[Problem] = []
    try:
        from ladder_sim.costs.profile_file import load_profile, shipped_profiles
    except ImportError:
        # a base package is missing, and is reported
        return found, problems
    for name in shipped_profiles():
        try:
            found[name] = load_profile(name).gpu
        except (LadderSimError, ImportError) as error:
            found[name] = "cannot be read"
            problems.append(
                Problem(
                    what=f"profile {name}",
                    why=str(error).splitlines()[0],
                    fix="pip install --force-reinstall ladder-sim",
                )
            )
    return found, problems


def _extras(packages: Mapping[str, str | None]) -> Iterable[Problem]:
    for extra, names in EXTRAS.items():
        absent = [name for name in names if packages[name] is None]
        if absent:
            yield Problem(
                what=PURPOSES[extra],
                why=f"{' and '.join(absent)} not installed",
                fix=f"pip install 'ladder-sim[{extra}]'",
            )


def _devices(
    gpus: tuple[str, ...], packages: Mapping[str, str | None], torch: Mapping[str, object]
) -> Iterable[Problem]:
    if not gpus:
        yield Problem(
            what="measuring GPUs",
            why="no NVIDIA GPU is visible here",
            fix="predictions need none: they rest on shipped profiles",
        )
    elif packages["torch"] and torch and not torch.get("devices"):
        yield Problem(
            what="measuring GPUs",
            why="torch sees no CUDA device, although the machine has one",
            fix="install a CUDA build of torch (pytorch.org/get-started)",
        )
    if len(gpus) == 1:
        yield Problem(
            what="measuring all-reduces between GPUs", why="there is one GPU here", fix="use a machine with two or more"
        )


def _nvidia_smi() -> tuple[str, ...]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    said = _output([tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"], _TOOL_SECONDS)
    return tuple(line.strip() for line in (said or "").splitlines() if line.strip())


def _torch() -> tuple[dict[str, object], Problem | None]:
    from json import loads

    said = _output([sys.executable, "-c", _TORCH_PROBE], _TORCH_SECONDS)
    try:
        found = loads((said or "").strip().splitlines()[-1])
    except (ValueError, IndexError):
        found = None
    if isinstance(found, dict):
        return found, None
    return {}, Problem(
        what=PURPOSES["runtime"],
        why="torch is installed, but does not start",
        fix=f"see why: {os.path.basename(sys.executable)} -c 'import torch'",
    )


def _output(command: list[str], seconds: float) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


def _memory_bytes() -> float | None:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return None


def _lines(report: Report) -> Iterable[str]:
    yield f"ladder-sim {report.ladder_sim} on Python {report.python}, {report.platform}"
    yield ""
    yield from _section("installed", (f"{name} {report.packages[name] or 'MISSING'}" for name in BASE))
    optional = (name for names in EXTRAS.values() for name in names)
    yield from _section("optional", (f"{name} {report.packages[name] or '-'}" for name in optional))
    memory = [] if report.memory_bytes is None else [f"{format_bytes(report.memory_bytes)} memory"]
    yield from _section("machine", [f"{report.cpu_cores} CPU core{'s'[: report.cpu_cores != 1]}", *memory])
    yield from _section("GPUs", report.gpus or ["none visible"])
    if report.torch:
        backends = [name for name in ("gloo", "nccl") if report.torch.get(name)]
        cuda = report.torch.get("cuda")
        yield from _section("torch", [f"CUDA {cuda}" if cuda else "CPU build", *backends])
    yield from _section("profiles", report.profiles)
    yield ""
    if report.ready:
        yield "works here: predict, list, show, calibrate show, calibrate import nccl-tests"
    for problem in report.problems:
        yield from textwrap.wrap(
            f"not here: {problem.what}: {problem.why}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False
        )
        if problem.fix:
            yield from textwrap.wrap(
                problem.fix, _WIDTH, initial_indent="  -> ", subsequent_indent="     ", break_on_hyphens=False
            )


def _section(title: str, items: Iterable[str]) -> list[str]:
    # a name stays beside its version: only the commas between items may break a line
    text = ", ".join(item.replace(" ", "\0") for item in items)
    lines = textwrap.wrap(
        text, _WIDTH, initial_indent=f"{title:<10} ", subsequent_indent=" " * 11, break_on_hyphens=False
    )
    return [line.replace("\0", " ") for line in lines]
