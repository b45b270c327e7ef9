"""What rewiring a pretrained model costs, and how much of it training brings back.

    python benchmarks/smollm2.py FILE.gguf smollm2
    python benchmarks/corpus.py corpus
    python benchmarks/recovery.py --model smollm2 --text corpus/*.txt --out recovery
    python benchmarks/recovery.py --out recovery --plot recovery.svg

First the perplexity of held-out text under numbers and places of ladder layers, without training; then each hybrid is
trained by self-distillation and, next to it, on the text itself, as is the standard model: what it gains by the text is
no recovery. Losses are in a folder for each run in `--out`, all results in ``recovery.json``. A run that was stopped
goes on from its last state, and one that is done is not run again.
"""

import argparse
import contextlib
import csv
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ladder_sim.system.files import write_file

if TYPE_CHECKING:
    import plotly.graph_objects as go

# wired as ladder, without training: the last K layers, and the first
LAST, FIRST = (4, 8, 15, 19, 30), (8,)
RESULTS = "recovery.json"
NAMES = {"distill": "self-distillation", "next-token": "on the text"}


def main() -> None:
    """Run what is missing, or draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=Path)
    add("--text", type=Path, nargs="+")
    add("--out", type=Path, required=True)
    add("--plot", type=Path, metavar="FILE", help="draw what is there, and run nothing")
    add("--layers", type=int, nargs="+", default=[8, 15], help="last layers that are ladder and trained")
    add("--objectives", nargs="+", default=["distill", "next-token"])
    add("--steps", type=int, default=400)
    add("--batch", type=int, default=32)
    add("--accumulate", type=int, default=1)
    add("--context", type=int, default=512)
    add("--lr", type=float, default=2e-4)
    add("--eval-every", type=int, default=25)
    add("--eval-windows", type=int, default=128)
    add("--threads", type=int, default=1)
    add("--budget", type=float, default=math.inf, metavar="S", help="begin no run that would end later")
    add("--compile", action="store_true", help="fuse kernels through torch.compile; on GPUs alone")
    arguments = parser.parse_args()
    if arguments.plot:
        from ladder_sim.report.figures.style import save_figure

        save_figure(recovery_figure(json.loads((arguments.out / RESULTS).read_text())), arguments.plot)
        return
    import torch

    torch.set_num_threads(arguments.threads)
    eager = contextlib.nullcontext() if arguments.compile else torch.compiler.set_stance("force_eager")
    with eager:
        run(arguments)


def run(arguments: argparse.Namespace) -> None:
    """Perplexities without training, then every run for which there is time."""
    from runtime.comm.rendezvous import CommConfig
    from runtime.training.config import TrainingConfig
    from runtime.training.loop import evaluated, train

    started_s, longest_s = time.monotonic(), 0.0
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = arguments.out / RESULTS
    held: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {"runs": {}}
    if "untrained" not in held:
        held["untrained"] = untrained(arguments)
        write_file(results, json.dumps(held, indent=1) + "\n")
    for objective in arguments.objectives:
        for layers in [*arguments.layers, *([0] if objective == "next-token" else [])]:
            name = f"last-{layers}-{objective}"
            if name in held["runs"]:
                continue
            if time.monotonic() - started_s + longest_s > arguments.budget:
                print(f"{name}: no time left", flush=True)
                return
            out, begun_s = arguments.out / name, time.monotonic()
            out.mkdir(exist_ok=True)
            for file in ("tokens.bin", "tokens.bin.json"):
                if not (out / file).exists():
                    (out / file).hardlink_to(arguments.out / file)
            config = TrainingConfig(
                model=arguments.model,
                texts=tuple(arguments.text),
                out=out,
                pretrained=True,
                variant=f"hybrid-ladder:{layers}" if layers else "standard",
                objective=objective,
                steps=arguments.steps,
                batch=arguments.batch,
                accumulate=arguments.accumulate,
                context=arguments.context,
                lr=arguments.lr,
                warmup=arguments.steps // 10,
                eval_every=arguments.eval_every,
                eval_windows=arguments.eval_windows,
                save_every=max(1, arguments.steps // 4),
                dtype="bf16" if on_gpu() else "fp32",
                threads=arguments.threads,
                resume=True,
            )
            result = train(config, CommConfig())
            with (out / "loss.csv").open() as file:
                rows = [row for row in csv.DictReader(file) if row["held_out"]]
            curve = [{"tokens": int(row["tokens"]), **evaluated(row)} for row in rows]
            held["runs"][name] = {**json.loads((out / "run.json").read_text()), "curve": curve}
            write_file(results, json.dumps(held, indent=1) + "\n")
            longest_s = max(longest_s, time.monotonic() - begun_s)
            print(f"{name}: {result['first_held_out']:.4f} to {result['held_out']:.4f}, {longest_s:.0f} s", flush=True)


def untrained(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Of held-out text in each wiring, nats per token: the mean of -log p, and the divergence from standard."""
    import torch

    from runtime.assemble import TORCH_DTYPES, device_of, load
    from runtime.checkpoint.files import Checkpoint
    from runtime.comm.base import Alone
    from runtime.config import EngineConfig
    from runtime.memory import Workload
    from runtime.model.wiring import lay_out
    from runtime.training.batches import Batches
    from runtime.training.corpus import Corpus
    from runtime.training.loss import divergence, next_token

    checkpoint, comm = Checkpoint.open(arguments.model), Alone()
    shape = checkpoint.shape
    tokenizer = arguments.model if (arguments.model / "tokenizer.json").exists() else None
    corpus = Corpus.open(arguments.text, tokenizer, shape, arguments.context, arguments.out)
    wirings = {"standard": lay_out("standard", shape.layers)}
    last = [count for count in LAST if count <= shape.layers]
    wirings |= {f"last {count}": lay_out(f"hybrid-ladder:{count}", shape.layers) for count in last}
    first = [count for count in FIRST if count <= shape.layers]
    wirings |= {f"first {count}": lay_out(f"hybrid-ladder:{count}", shape.layers, range(count)) for count in first}
    dtype = TORCH_DTYPES[checkpoint.dtype] if on_gpu() else torch.float32
    work = Workload(batch=1, prompt=arguments.context, gen=0, dtype=dtype)
    model = load(shape, EngineConfig(prefill_logits="all"), comm, checkpoint.source, work, device_of(comm))
    windows_BT = Batches(corpus, arguments.context, 0).held_out(arguments.eval_windows).to(device_of(comm))
    sums = {name: {"held_out": 0.0, "divergence": 0.0} for name in wirings}
    with torch.inference_mode():
        for part_BT in windows_BT.split(1):
            standard_BTV = model(part_BT[:, :-1], wirings["standard"]).clone()
            for name, wiring in wirings.items():
                logits_BTV = model(part_BT[:, :-1], wiring)
                sums[name]["held_out"] += next_token(logits_BTV, part_BT[:, 1:]).item() / len(windows_BT)
                sums[name]["divergence"] += divergence(logits_BTV, standard_BTV).item() / len(windows_BT)
    for name, of_it in sums.items():
        print(f"{name}: {of_it['held_out']:.4f}, {of_it['divergence']:.4f} from standard", flush=True)
    return sums


def recovery_figure(held: dict[str, Any]) -> "go.Figure":
    """Held-out perplexity over tokens, a line for each run, and that of the model that was rewired."""
    import plotly.graph_objects as go

    from ladder_sim.report.figures.style import SERIES_COLOURS, TEXT_COLOUR, figure, log_axis

    drawn = figure("SmolLM2-135M with its last layers as ladder", "held-out perplexity while it is adapted")
    before = math.exp(held["untrained"]["standard"]["held_out"])
    values = [math.exp(point["held_out"]) for run in held["runs"].values() for point in run["curve"]]
    drawn.update_layout(xaxis_title="tokens", yaxis=log_axis("perplexity", [before, *values]))
    layers = sorted({int(name.split("-")[1]) for name in held["runs"]})
    for name, run in held["runs"].items():
        _, count, objective = name.split("-", 2)
        drawn.add_trace(
            go.Scatter(
                x=[point["tokens"] for point in run["curve"]],
                y=[math.exp(point["held_out"]) for point in run["curve"]],
                name=f"last {count}, {NAMES[objective]}" if count != "0" else f"standard, {NAMES[objective]}",
                line={
                    "color": SERIES_COLOURS[layers.index(int(count))],
                    "dash": "solid" if objective == "distill" else "dot",
                },
            )
        )
    last = max(point["tokens"] for run in held["runs"].values() for point in run["curve"])
    line = {"color": TEXT_COLOUR, "dash": "dash"}
    drawn.add_trace(go.Scatter(x=[0, last], y=[before] * 2, mode="lines", line=line, name="before it was rewired"))
    return drawn


def on_gpu() -> bool:
    """Whether a rank computes on one."""
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    main()
