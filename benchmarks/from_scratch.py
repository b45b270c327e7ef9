"""What a wiring costs a model that is trained in it from scratch: paired runs at small sizes, bytes as tokens.

    python benchmarks/from_scratch.py --text corpus/*.txt --out scratch
    python benchmarks/from_scratch.py --out scratch --table

Every seed is the first weights and the order of the text of one run in each wiring; gaps are means of their differences
on the same held-out text. Wirings in which ranks differ have two; `farskip` in a model without experts is `ladder`, so
that `farskip:own` stands for it. A file in `--out` for each size and wiring: what is there is not run again.
`benchmarks/corpus.py` makes the text.
"""

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from ladder_sim.system.files import write_file

# size: layers, hidden, heads, MLP width
SIZES = {"0.5M": (4, 96, 4, 256), "1.6M": (8, 128, 4, 344), "4M": (9, 192, 6, 512)}
# with their tensor-parallel degree
WIRINGS = {"standard": 1, "ladder": 1, "parallel": 1, "desync:2": 2, "farskip:own": 2}
EVALUATIONS = 10


def main() -> None:
    """Run what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--text", type=Path, nargs="+", default=[])
    add("--out", type=Path, required=True)
    add("--table", action="store_true", help="print what is there")
    add("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    add("--wirings", nargs="+", default=list(WIRINGS))
    add("--seeds", type=int, default=8, metavar="N")
    add("--steps", type=int, default=3000)
    add("--batch", type=int, default=16, help="sequences of each seed")
    add("--context", type=int, default=256)
    add("--lr", type=float, default=2e-3)
    add("--eval-windows", type=int, default=512, metavar="N")
    add("--budget", type=float, default=math.inf, metavar="S", help="begin nothing that would end later")
    add("--eager", action="store_true", help="record no CUDA graphs")
    add("--cpu", action="store_true", help="do not use a GPU")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.table:
        table(arguments.out)
    else:
        run(arguments)


def run(arguments: argparse.Namespace) -> None:
    """Every size in every wiring, unless its file is there."""
    started_s, rates = time.monotonic(), dict[str, float]()
    for size in arguments.sizes:
        for wiring in arguments.wirings:
            file = arguments.out / f"{size}-{wiring.replace(':', '-')}.json"
            left_s = arguments.budget - (time.monotonic() - started_s)
            if file.exists():
                continue
            # the larger of two sizes takes three times as long, at most
            if left_s < rates.get(size, 3 * max(rates.values(), default=0.0)):
                print(f"{size} {wiring}: no time left", flush=True)
                return
            begun_s = time.monotonic()
            result = group(arguments, size, wiring)
            rates[size] = max(rates.get(size, 0.0), time.monotonic() - begun_s)
            write_file(file, json.dumps(result, indent=1) + "\n")
            print(f"{size} {wiring}: {statistics.mean(result['held_out']):.4f}, {rates[size]:.0f} s", flush=True)


def group(arguments: argparse.Namespace, size: str, wiring: str) -> dict[str, Any]:
    """All seeds of one size and wiring."""
    import torch

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from benchmarks.stacked import Stack
    from runtime.config import ModelConfig
    from runtime.environment import environment
    from runtime.model.wiring import lay_out
    from runtime.training.batches import Batches
    from runtime.training.config import TrainingConfig
    from runtime.training.corpus import Corpus

    torch.set_float32_matmul_precision("high")
    where = torch.device("cuda" if torch.cuda.is_available() and not arguments.cpu else "cpu")
    layers, hidden, heads, width = SIZES[size]
    shape = ModelConfig.from_hf(
        {
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": width,
            "vocab_size": 256,
            "tie_word_embeddings": True,
        }
    )
    config = TrainingConfig(
        model=Path(size),
        texts=tuple(arguments.text),
        out=arguments.out,
        variant=wiring,
        steps=arguments.steps,
        batch=arguments.batch,
        context=arguments.context,
        lr=arguments.lr,
        warmup=arguments.steps // 20,
    )
    corpus = Corpus.open(config.texts, None, shape, config.context, config.out)
    seeds, ranks = range(arguments.seeds), WIRINGS.get(wiring, 1)
    stack = Stack(shape, lay_out(wiring, layers), config, seeds, ranks, where)
    if where.type == "cuda" and not arguments.eager:
        stack.record()
    batches = [Batches(corpus, config.context, seed) for seed in seeds]
    windows_BT = batches[0].held_out(arguments.eval_windows)
    started_s, curve = time.monotonic(), []
    every = max(1, config.steps // EVALUATIONS)
    for step in range(config.steps):
        stack.step(step, torch.stack([of_seed.training(step, config.batch) for of_seed in batches]))
        if (step + 1) % every == 0 or step + 1 == config.steps:
            curve.append({"step": step + 1, "held_out": stack.held_out(windows_BT).tolist()})
    weights = sum(weight[0, 0].numel() for weight in stack.weights.values())
    return {
        "size": size,
        "wiring": wiring,
        "tp": ranks,
        "parameters_of_a_rank": weights,
        "seeds": list(seeds),
        "held_out": curve[-1]["held_out"],
        "curve": curve,
        "tokens": config.steps * config.batch * config.context,
        "eval_windows": arguments.eval_windows,
        "seconds": time.monotonic() - started_s,
        "tokens_sha256": corpus.sha256,
        "config": config.fingerprint,
        "environment": environment(),
    }


def table(out: Path) -> None:
    """Gaps to standard with 95 % intervals of Student's t."""
    from scipy.stats import t

    results = [json.loads(file.read_text()) for file in sorted(out.glob("*M-*.json"))]
    standard = {result["size"]: result["held_out"] for result in results if result["wiring"] == "standard"}
    print(f"{'size':6}{'wiring':13}{'seeds':>6}{'Mtokens':>9}{'nats/byte':>11}{'gap':>10}{'95 %':>9}")
    for result in results:
        losses, base = result["held_out"], standard.get(result["size"])
        line = f"{result['size']:6}{result['wiring']:13}{len(losses):6}{result['tokens'] / 1e6:9.1f}"
        line += f"{statistics.mean(losses):11.4f}"
        if base and result["wiring"] != "standard" and len(losses) > 1:
            gaps = [loss - other for loss, other in zip(losses, base, strict=True)]
            half = t.ppf(0.975, len(gaps) - 1) * statistics.stdev(gaps) / math.sqrt(len(gaps))
            line += f"{statistics.mean(gaps):+10.4f}{half:9.4f}"
        print(line)


if __name__ == "__main__":
    main()
