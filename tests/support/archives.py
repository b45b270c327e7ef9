"""An archive of `calibrate evidence`, made without a GPU."""

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ladder_sim.validation.archive import figures, scenario_of

ARGUMENTS: Mapping[str, Any] = {
    "stack": "gpt-fast",
    "tp": 8,
    "p2p": True,
    "batch": 1,
    "prompt": 64,
    "gen": 9,
    "dtype": "fp16",
}
# measured over predicted
SLOWER = {"standard": 1.25, "ladder": 1.0}


def pack(
    path: Path,
    *,
    rehearsal: str = "",
    gpu: str = "NVIDIA H100 80GB HBM3",
    measured: bool = True,
    repeats: int = 7,
) -> Path:
    """An archive of two runs: the first measured, in times that are a fixed multiple of the predicted ones."""
    predicted = figures(scenario_of(ARGUMENTS, "8b", "h100-sxm"), list(SLOWER))
    rows = [
        {"run": name, "model": "8b", "scenario": ARGUMENTS, "variant": variant, **predicted[variant]}
        for name in ("first", "second")
        for variant in SLOWER
    ]
    head = {
        "ladder_sim": "1.0",
        "commit": "0123456789abcdef",
        "cluster": "h100-sxm",
        "gpu": gpu,
        "rehearsal": rehearsal,
    }
    around = range(-(repeats // 2), (repeats + 1) // 2)
    times = {name: (SLOWER[name] * each["ttft_s"], SLOWER[name] * each["tpot_s"]) for name, each in predicted.items()}
    result = {
        name: {
            "ttft_s": ttft_s,
            "tpot_s": tpot_s,
            "speedup": each["speedup"],
            "speedup_95": [0.9, 1.5],
            "repeats": [{"ttft_s": ttft_s * (1 + n / 100), "decode_s": 8 * tpot_s} for n in around],
        }
        for (name, (ttft_s, tpot_s)), each in zip(times.items(), predicted.values(), strict=True)
    }
    files = {"predicted.json": {**head, "rows": rows}, "failures.json": {"failures": ["not measured: second: no time"]}}
    files |= {"first.json": {"variants": result}} if measured else {}
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            data = json.dumps(content).encode()
            entry = tarfile.TarInfo(f"folder/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path
