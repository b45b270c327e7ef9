"""What a measurement depends on next to the code: machine, versions, threads, and how warm the GPUs are."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch

from ladder_sim.system.processes import cores

# of variables that change how libraries communicate, compute or allocate
_PREFIXES = (
    "NCCL_",
    "TORCH_NCCL_",
    "CUDA_",
    "CUBLAS_",
    "NVIDIA_",
    "GLOO_",
    "PYTORCH_",
    "ENABLE_INTRA_NODE_COMM",
    "OMP_",
)
# what nvidia-smi is asked (nvidia-smi --help-query-gpu), by the names in results; text, the others are numbers
_TEXTS = {"uuid": "uuid", "driver": "driver_version"}
_NUMBERS = {
    "sm_clock_MHz": "clocks.sm",
    "sm_clock_max_MHz": "clocks.max.sm",
    "memory_clock_MHz": "clocks.mem",
    "power_W": "power.draw",
    "power_limit_W": "power.limit",
    "temperature_C": "temperature.gpu",
}
# it takes a second on an idle GPU without persistence mode
_PATIENCE_S = 10.0


def environment() -> dict[str, object]:
    """Return the fingerprint of the environment that is in every result."""
    facts: dict[str, object] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ladder_sim": version("ladder-sim"),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cpu_cores": cores(),
        "torch_threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
        facts["gpus"] = torch.cuda.device_count()
        facts["cuda"] = torch.version.cuda
        facts["driver"] = _smi("--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0]
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return facts


def variables() -> dict[str, str]:
    """Return the environment variables that change how libraries communicate, compute or allocate."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(_PREFIXES)}


def gpu_states() -> list[dict[str, str | float | None]]:
    """Return the clocks, power and temperature of this node's GPUs by now; empty if nvidia-smi does not say."""
    names = [*_TEXTS, *_NUMBERS]
    asked = ",".join([*_TEXTS.values(), *_NUMBERS.values()])
    rows = [line.split(", ") for line in _smi(f"--query-gpu={asked}", "--format=csv,noheader,nounits").splitlines()]
    return [
        {name: text if name in _TEXTS else _number(text) for name, text in zip(names, row, strict=True)}
        for row in rows
        if len(row) == len(names)
    ]


def gpu_links() -> str:
    """Return nvidia-smi's matrix of the links of this node's GPUs and network cards; empty if there is none."""
    return _smi("topo", "-m")


def _smi(*arguments: str) -> str:
    """Return what nvidia-smi prints, which comes with the driver; empty without one."""
    if not torch.cuda.is_available():
        return ""
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout


def _number(text: str) -> float | None:
    """Return a number of nvidia-smi; None if the GPU has no such sensor."""
    try:
        return float(text)
    except ValueError:
        return None


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
