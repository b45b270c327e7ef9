"""What a measurement depends on next to the code: machine, versions, threads."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch


def environment() -> dict[str, object]:
    """The fingerprint in every result."""
    facts: dict[str, object] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ladder_sim": version("ladder-sim"),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cpu_cores": len(os.sched_getaffinity(0)),
        "torch_threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
        facts["gpus"] = torch.cuda.device_count()
        facts["cuda"] = torch.version.cuda
        facts["driver"] = torch._C._cuda_getDriverVersion()  # type: ignore[attr-defined]
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return facts


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
