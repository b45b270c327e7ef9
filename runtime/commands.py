"""What the commands of `python -m runtime` do with their options. Imports no torch but in what a rank runs."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from ladder_sim.system.files import write_file
from runtime.checkpoint.convert import convert
from runtime.config import EngineConfig, ExecutionConfig, ModelConfig
from runtime.model.wiring import lay_out
from runtime.prepare import BenchConfig, CompletionConfig, EvaluationConfig, SamplingConfig
from runtime.training.config import TrainingConfig

_Config = TypeVar("_Config")


def _config(config: type[_Config], arguments: argparse.Namespace) -> _Config:
    """A config from the options named like its fields; its own defaults where an option was left out."""
    names = {field.name for field in fields(config)}  # type: ignore[arg-type]
    given = {name: value for name, value in vars(arguments).items() if name in names and value is not None}
    return config(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def checked_by(prepare: Callable[[_Config], object], config: type[_Config]) -> Callable[[argparse.Namespace], object]:
    """What refuses input that a command could not use, by preparing it."""
    return lambda arguments: prepare(_config(config, arguments))


def check_bench(arguments: argparse.Namespace) -> None:
    """Refuse what `run_bench` could not do."""
    config, engine = _config(BenchConfig, arguments), _config(EngineConfig, arguments)
    shape = ModelConfig.from_file(config.model)
    shape.check_ranks(config.tp, engine.ep, config.attention_dp)
    engine.check_degrees(config.attention_dp, config.pp)
    shape.layers_of(0, config.pp)
    for variant in config.variants:
        wiring = lay_out(variant, shape.layers)
        wiring.check_norms(shape, config.tp)
        if engine.sequence_parallel and config.tp > 1:
            wiring.check_shares()


def run_bench(arguments: argparse.Namespace) -> None:
    """Measure wirings."""
    if arguments.trace:
        # the profiler would print to stderr each time that it starts and stops
        os.environ.update(TORCH_CPP_LOG_LEVEL="ERROR", KINETO_LOG_LEVEL="99")
    # imported here, as below: the launcher needs no torch
    from runtime.bench import bench
    from runtime.comm.rendezvous import CommConfig

    result = bench(
        _config(BenchConfig, arguments),
        _config(EngineConfig, arguments),
        _config(CommConfig, arguments),
        trace=arguments.trace,
        execution=_config(ExecutionConfig, arguments),
    )
    if _is_first_rank():
        _write(json.dumps(result, indent=1), arguments.save)


def run_complete(arguments: argparse.Namespace) -> None:
    """Complete prompts, and print them as they come."""
    from runtime.comm.rendezvous import CommConfig
    from runtime.complete import complete

    streams = _is_first_rank() and not arguments.json and len(arguments.prompts) == 1
    result: Any = complete(
        _config(CompletionConfig, arguments),
        _config(SamplingConfig, arguments),
        _config(CommConfig, arguments),
        lambda _, piece: print(piece, end="", flush=True) if streams else None,
    )
    if not _is_first_rank():
        return
    if arguments.save is not None:
        _write(json.dumps(result, indent=1), arguments.save)
    if arguments.json:
        _write(json.dumps(result, indent=1))
        return
    completions = result["completions"]
    if streams:
        print()
    else:
        for completion in completions:
            print(f"> {completion['prompt']}\n{completion['text']}\n")
    tokens = sum(len(completion["tokens"]) for completion in completions)
    degrees = f"TP {arguments.tp}" + (f", PP {arguments.pp}" if arguments.pp > 1 else "")
    speed = f"{result['tokens_per_s']:.4g} tok/s, TTFT {result['ttft_s'] * 1e3:.3g} ms"
    print(f"[{tokens} tokens, {speed}, {result['run']['variant']}, {degrees}]", file=sys.stderr)


def run_evaluate(arguments: argparse.Namespace) -> None:
    """Perplexities, a line each."""
    from runtime.comm.rendezvous import CommConfig
    from runtime.evaluate import evaluate

    prints = _is_first_rank()
    width = max(len("model"), *(len(str(folder)) for folder in arguments.models))
    line = f"{{:{width}}}  {{:16}}  {{:>10}}  {{:>10}}  {{:>8}}"
    for number, row in enumerate(evaluate(_config(EvaluationConfig, arguments), _config(CommConfig, arguments))):
        if prints and not arguments.json and number == 0:
            print(line.format("model", "variant", "perplexity", "nats/token", "tokens"))
        cells = (f"{row['perplexity']:.4g}", f"{row['nats_per_token']:.4f}", row["tokens"])
        if prints:
            print(json.dumps(row) if arguments.json else line.format(row["model"], row["variant"], *cells), flush=True)


def run_convert(arguments: argparse.Namespace) -> None:
    """Rewire a checkpoint."""
    convert(arguments.model, arguments.out, arguments.ladder_layers, link=arguments.link, hf_code=arguments.hf_code)


def run_train(arguments: argparse.Namespace) -> None:
    """Train, from scratch or a checkpoint on."""
    from runtime.comm.rendezvous import CommConfig
    from runtime.training.loop import train

    result: Any = train(_config(TrainingConfig, arguments), _config(CommConfig, arguments))
    if not _is_first_rank():
        return
    if arguments.json:
        _write(json.dumps(result, indent=1))
        return
    names = {"held_out": "held-out loss", "divergence": "divergence from the teacher"}
    losses = (f"{names[name]} {result[f'first_{name}']:.4f} to {result[name]:.4f}" for name in names if name in result)
    print(
        f"{', '.join(losses)} nats/token, {result['tokens']:,} tokens, {result['steps_now']:,} steps in "
        f"{result['seconds_now']:.0f} s: {arguments.out / 'checkpoint'}"
    )


def _is_first_rank() -> bool:
    """Whether this process is the rank that prints."""
    return os.environ.get("RANK", "0") == "0"


def _write(text: str, save: Path | None = None) -> None:
    """Print, or write to the file of `--save`."""
    if save is None:
        print(text)
        return
    write_file(save, text + "\n")
