"""Peak memory and time of loading a checkpoint, compared with the weights that the rank keeps.

Writes a checkpoint of random weights and loads one rank's part of it in a fresh process for each tensor-parallel
degree. The peak is resident memory, including mapped pages of the file, less what the process held before, with torch
and all that it loads on first use. Exits 1 if a peak is above 1.2 times the rank's own weights.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ladder_sim_runtime.model.decoder import Decoder

# of the rank's own weights
BOUND = 1.2
DEGREES = (1, 2, 4, 8)


def main() -> int:
    if len(sys.argv) > 1:
        folder, tp = sys.argv[1:]
        print(json.dumps(loaded(Path(folder), int(tp))))
        return 0
    worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        for folder, layers, hidden in (("tiny", 1, 512), ("real", 12, 1024)):
            write(Path(name, folder), layers, hidden)
        print(f"{'TP':>2}  {'weights':>9}  {'peak':>9}  {'ratio':>5}  {'seconds':>7}")
        for tp in DEGREES:
            command = [sys.executable, __file__, name, str(tp)]
            result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            ratio = result["peak_bytes"] / result["weight_bytes"]
            worst = max(worst, ratio)
            sizes = f"{result['weight_bytes'] / 1e6:6.0f} MB  {result['peak_bytes'] / 1e6:6.0f} MB"
            print(f"{tp:2}  {sizes}  {ratio:5.2f}  {result['seconds']:7.2f}")
    print(f"worst ratio {worst:.2f} (bound {BOUND:g})")
    return 0 if worst <= BOUND else 1


def write(folder: Path, layers: int, hidden: int) -> None:
    """Write a Llama of eight KV heads in bfloat16, in files of 200 MB."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=8,
        intermediate_size=4 * hidden,
        vocab_size=32000,
        dtype=torch.bfloat16,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder, max_shard_size="200MB")


def loaded(root: Path, tp: int) -> dict[str, float]:
    """Load the first rank's part in this process, after a tiny model, for which torch loads what it needs."""
    part(root / "tiny", tp)
    before = memory_bytes("VmRSS")
    # the peak counts from here
    Path("/proc/self/clear_refs").write_text("5")
    start_s = time.perf_counter()
    model = part(root / "real", tp)
    return {
        "weight_bytes": sum(weight.nbytes for weight in model.parameters()),
        "peak_bytes": memory_bytes("VmHWM") - before,
        "seconds": time.perf_counter() - start_s,
    }


def part(folder: Path, tp: int) -> "Decoder":
    """Return the first rank's part of a checkpoint."""
    import torch

    from ladder_sim_runtime.assemble import load
    from ladder_sim_runtime.checkpoint.files import Checkpoint
    from ladder_sim_runtime.comm.base import Communicator
    from ladder_sim_runtime.config import EngineConfig
    from ladder_sim_runtime.memory import Workload

    checkpoint = Checkpoint.open(folder)
    work = Workload(batch=1, prompt=1, gen=1, dtype=torch.bfloat16)
    return load(checkpoint.shape, EngineConfig(), Communicator(tp), checkpoint.source, work, torch.device("cpu"))


def memory_bytes(field: str) -> int:
    """Return the bytes of a field of this process's /proc status."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text("ascii").splitlines())
    return int(lines[field].split()[0]) * 1024


if __name__ == "__main__":
    sys.exit(main())
