"""What the commands of `python -m runtime` do with their options. Imports no torch but in what a rank runs."""

import argparse
import json
import os
from dataclasses import fields
from typing import TypeVar

from ladder_sim.system.files import write_file
from runtime.checkpoint.convert import convert
from runtime.checkpoint.tokenizer import Text
from runtime.config import EngineConfig, ExecutionConfig, ModelConfig
from runtime.model.wiring import lay_out
from runtime.prepare import BenchConfig, CompletionConfig, prepare_completion

_Config = TypeVar("_Config")


def _config(config: type[_Config], arguments: argparse.Namespace) -> _Config:
    """A config from the options named like its fields; its own defaults where an option was left out."""
    names = {field.name for field in fields(config)}  # type: ignore[arg-type]
    given = {name: value for name, value in vars(arguments).items() if name in names and value is not None}
    return config(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


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
    if not _is_first_rank():
        return
    text = json.dumps(result, indent=1) + "\n"
    if arguments.save:
        write_file(arguments.save, text)
    else:
        print(text, end="")


def check_complete(arguments: argparse.Namespace) -> None:
    """Refuse what `run_complete` could not do."""
    prepare_completion(_config(CompletionConfig, arguments))


def run_complete(arguments: argparse.Namespace) -> None:
    """Print what follows each prompt: text after a text, tokens after tokens."""
    from runtime.comm.rendezvous import CommConfig
    from runtime.complete import complete

    config = _config(CompletionConfig, arguments)
    answers = complete(config, _config(CommConfig, arguments))
    if not _is_first_rank():
        return
    text = Text.open(config.model, ModelConfig.from_file(config.model)) if config.prompts else None
    texts = [text.decode(tokens) if text else "" for tokens in answers[: len(config.prompts)]]
    for prompt, answer in zip(config.prompts, texts, strict=True):
        print(answer if len(answers) == 1 else f"> {prompt}\n{answer}\n")
    for tokens in answers[len(config.prompts) :]:
        print(",".join(map(str, tokens)))


def run_convert(arguments: argparse.Namespace) -> None:
    """Rewire a checkpoint."""
    convert(arguments.model, arguments.out, arguments.ladder_layers, link=arguments.link, hf_code=arguments.hf_code)


def _is_first_rank() -> bool:
    """Whether this process is the rank that prints."""
    return os.environ.get("RANK", "0") == "0"
