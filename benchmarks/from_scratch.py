"""What a wiring costs a model that is trained in it from scratch: paired runs at small sizes, bytes as tokens.

    python benchmarks/from_scratch.py --text corpus/*.txt --out scratch
    python benchmarks/from_scratch.py --out scratch --table

Every seed is the first weights and the order of the text of one run in each wiring; gaps are means of their differences
on the same held-out text. Wirings in which ranks differ have two; `farskip` in a model without experts is `ladder`, so
that `farskip:own` stands for it. A file in `--out` for each size and wiring: seeds that are there are not run again.
A GPU trains all seeds at once; a CPU one after the other, and so many wirings as processes are started on a core each:

    OMP_NUM_THREADS=1 python benchmarks/from_scratch.py --text corpus/*.txt --out scratch --wirings standard ladder

`benchmarks/corpus.py` makes the text.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ladder_sim.system.files import write_file

if TYPE_CHECKING:
    import torch

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
    """Every size in every wiring, unless its file has all seeds."""
    started_s, rates = time.monotonic(), dict[str, float]()
    for size in arguments.sizes:
        for wiring in arguments.wirings:
            file = arguments.out / f"{size}-{wiring.replace(':', '-')}.json"
            held = json.loads(file.read_text()) if file.exists() else None
            for seeds in groups(arguments, held["seeds"] if held else []):
                left_s = arguments.budget - (time.monotonic() - started_s)
                # the larger of two sizes takes three times as long, at most
                if left_s < rates.get(size, 3 * max(rates.values(), default=0.0)):
                    print(f"{size} {wiring}: no time left", flush=True)
                    return
                begun_s = time.monotonic()
                held = joined(held, group(arguments, size, wiring, seeds))
                rates[size] = max(rates.get(size, 0.0), time.monotonic() - begun_s)
                write_file(file, json.dumps(held, indent=1) + "\n")
                print(f"{size} {wiring}: {statistics.mean(held['held_out']):.4f}, {rates[size]:.0f} s", flush=True)


def groups(arguments: argparse.Namespace, done: Sequence[int]) -> list[list[int]]:
    """Seeds that are missing, by what is trained at once."""
    missing = [seed for seed in range(arguments.seeds) if seed not in done]
    return [missing] if missing and where(arguments).type == "cuda" else [[seed] for seed in missing]


def joined(held: dict[str, Any] | None, more: dict[str, Any]) -> dict[str, Any]:
    """Results of further seeds next to those that are there."""
    if held is None:
        return more
    if differ := [name for name in ("tokens", "tokens_sha256", "config") if held[name] != more[name]]:
        raise SystemExit(f"{more['size']} {more['wiring']} is there with another {differ[0]}: give another --out")
    curve = [
        {"step": at["step"], "held_out": at["held_out"] + further["held_out"]}
        for at, further in zip(held["curve"], more["curve"], strict=True)
    ]
    lists = {name: held[name] + more[name] for name in ("seeds", "held_out")}
    return {**held, **lists, "curve": curve}


def where(arguments: argparse.Namespace) -> "torch.device":
    """A GPU, if there is one."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() and not arguments.cpu else "cpu")


def group(arguments: argparse.Namespace, size: str, wiring: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Seeds of one size and wiring that are trained at once."""
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
    ranks, device = WIRINGS.get(wiring, 1), where(arguments)
    stack = Stack(shape, lay_out(wiring, layers), config, seeds, ranks, device)
    if device.type == "cuda" and not arguments.eager:
        stack.record()
    batches = [Batches(corpus, config.context, seed) for seed in seeds]
    windows_BT = batches[0].held_out(arguments.eval_windows)
    curve = []
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
        "tokens_sha256": corpus.sha256,
        "config": config.fingerprint,
        "environment": environment(),
    }


class Gap(NamedTuple):
    """Held-out losses of a size and wiring, nats per byte, next to those of the same seeds in standard."""

    size: str
    wiring: str
    parameters: int
    """Of the standard model."""
    tokens: int
    """Learned from, by each seed."""
    loss: float
    """Mean of the seeds."""
    gaps: tuple[float, ...]
    """Of each seed, to standard."""

    @property
    def mean(self) -> float:
        """Of the gaps."""
        return statistics.mean(self.gaps)

    @property
    def half(self) -> float:
        """Of the mean's 95 % interval, by Student's t; infinite of one seed."""
        from scipy.stats import t

        if len(self.gaps) < 2:
            return math.inf
        return float(t.ppf(0.975, len(self.gaps) - 1)) * statistics.stdev(self.gaps) / math.sqrt(len(self.gaps))


def compare(out: Path) -> Iterator[Gap]:
    """What the files in a folder hold, in the order of `SIZES` and `WIRINGS`."""
    for size in SIZES:
        found = {
            result["wiring"]: result for file in out.glob(f"{size}-*.json") if (result := json.loads(file.read_text()))
        }
        for wiring in [name for name in WIRINGS if name in found]:
            result, standard = found[wiring], found["standard"]
            base = dict(zip(standard["seeds"], standard["held_out"], strict=True))
            losses = dict(zip(result["seeds"], result["held_out"], strict=True))
            gaps = tuple(losses[seed] - base[seed] for seed in losses if seed in base)
            parameters = standard["parameters_of_a_rank"]
            yield Gap(size, wiring, parameters, result["tokens"], statistics.mean(losses.values()), gaps)


def table(out: Path) -> None:
    """Gaps to standard with 95 % intervals."""
    print(f"{'size':6}{'wiring':13}{'seeds':>6}{'Mtokens':>9}{'nats/byte':>11}{'gap':>10}{'95 %':>9}")
    for each in compare(out):
        line = f"{each.size:6}{each.wiring:13}{len(each.gaps):6}{each.tokens / 1e6:9.2f}{each.loss:11.4f}"
        print(line if each.wiring == "standard" else f"{line}{each.mean:+10.4f}{each.half:9.4f}")


if __name__ == "__main__":
    main()
