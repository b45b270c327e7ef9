"""The commands of `python -m ladder_sim_runtime`, an option for each field of what they run. Only ranks need torch.

Each command sets `run`, what a rank does, and `check`, which refuses bad input before any rank is started. Options
outside of groups are those that `ladder-sim run` has, too, with more meanings.
"""

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from ladder_sim.errors import MissingPackageError
from ladder_sim.hf.fields import QUANTIZATION, read_config
from ladder_sim.system.arguments import Parser
from ladder_sim.system.files import write_file
from ladder_sim.values import field_kinds, meanings
from ladder_sim.wirings.layout import lay_out
from ladder_sim_runtime.checkpoint.files import convert
from ladder_sim_runtime.checkpoint.prompts import Text, prepare_completion
from ladder_sim_runtime.config import (
    BenchConfig,
    CommConfig,
    CompletionConfig,
    EngineConfig,
    ExecutionConfig,
    ModelConfig,
    Wish,
    read_time,
)

_Config = TypeVar("_Config")


def argument_parser() -> Parser:
    """Return the parser of the runtime's commands and their options."""
    parser = Parser(prog="python -m ladder_sim_runtime", description="Real tensor-parallel forward passes.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")

    bench = _add_command(commands, "bench", "Measure residual wirings with random weights, taking turns.")
    bench.set_defaults(check=_check_bench, run=_run_bench)
    _add_options(bench, BenchConfig, "model", "variants")
    bench.add_argument("--save", type=Path, metavar="FILE", help="Write the JSON to a file instead of stdout.")
    group = bench.add_argument_group("workload")
    _add_options(group, BenchConfig, "batch", "prompt", "gen", "warmups", "repeats", "within", "budget_s", "seed")
    purpose = "Profile a few steps of each variant, for `ladder-sim trace`."
    group.add_argument("--trace", type=Path, metavar="DIR", help=purpose)
    group = bench.add_argument_group("engine")
    _add_options(group, EngineConfig, "attention", "prefill_logits", "sampling", "sharded_lm_head", "sharded_embedding")
    _add_options(group, EngineConfig, "fused_residual_add", "fused_ladder_add", "techniques")
    _add_options(group, ExecutionConfig, "cuda_graphs", "prefill_cuda_graphs", "compile")
    group = bench.add_argument_group("ranks")
    _add_options(group, BenchConfig, "tp", "pp", "attention_dp", "dtype", "threads")
    _add_options(group, EngineConfig, "ep", "dispatch")
    _add_options(group, CommConfig, "backend", "gloo_threads", "timeout_s", "allreduce", "table")

    complete = _add_command(commands, "complete", "Continue prompts with a checkpoint, each token the most likely one.")
    complete.set_defaults(check=lambda given: prepare_completion(_config(CompletionConfig, given)), run=_run_complete)
    _add_options(complete, CompletionConfig, "model", "variant")
    _add_options(complete.add_argument_group("prompts"), CompletionConfig, "prompts", "ids", "gen")
    group = complete.add_argument_group("ranks")
    _add_options(group, CompletionConfig, "tp", "ep", "pp", "dtype", "threads")
    group.add_argument(
        "--backend", default="auto", choices=("auto", "nccl", "gloo"), help="auto: NCCL on GPUs, else gloo."
    )
    _add_options(group, CommConfig, "gloo_threads", "timeout_s")
    # nothing is measured: collectives need not wait for each other as on NCCL's stream
    complete.set_defaults(gloo_threads=2)

    converting = _add_command(commands, "convert", "Wire a checkpoint's upper layers as ladder.")
    converting.set_defaults(backend="none", run=_run_convert)
    add = converting.add_argument
    add("model", type=Path, metavar="DIR", help="Folder of a checkpoint.")
    add("--ladder-layers", type=int, required=True, metavar="K", help="Number of layers, from the top of the stack.")
    add("--out", type=Path, required=True, metavar="DIR", help="New folder.")
    add("--link", action="store_true", help="Link to the weights instead of copying them.")
    add("--hf-code", action="store_true", help="Write the model's code for transformers, too (trust_remote_code).")

    listing = _add_command(commands, "layers", "List the layers of any decoder that transformers knows, as JSON.")
    listing.set_defaults(backend="none", run=_run_layers)
    add = listing.add_argument
    add("config", type=Path, metavar="FILE", help="config.json or its folder; -: read it from stdin.")
    add("--source", help="What errors call it.")
    add("--save", type=Path, metavar="FILE", help="Write a config.json that predictions read without torch.")
    return parser


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults other than None and False, of options that may be left out."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        shows = action.default is not None and action.default is not False
        return super()._get_help_string(action) if shows and not action.required else action.help


def _add_command(commands: Any, name: str, purpose: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=purpose, description=purpose, formatter_class=_Help
    )
    parser.add_argument("--debug", action="store_true", help="Show a traceback on errors.")
    # of commands without such options
    parser.set_defaults(tp=1, attention_dp=1, pp=1, table=None)
    return parser


def _add_options(group: Any, config: type, *names: str) -> None:
    """Add an option for each of these fields: its docstring is the help, and its default the option's.

    But an option that may be repeated would add to its default.
    """
    kinds, texts = field_kinds(config), meanings(config)
    defaults = {field.name: field.default for field in fields(config)}
    for name in names:
        flag = _FLAGS.get(name, f"--{name.removesuffix('_s').replace('_', '-')}")
        own: dict[str, Any] = {"default": defaults[name], **_read_as(name, kinds[name], flag)}
        if own["default"] is MISSING:
            own |= {"default": None, "required": True}
        elif name.endswith("_s"):
            own["default"] = f"{own['default']:g}s"
        elif own.get("action") in ("append", "extend"):
            own["default"] = None
        group.add_argument(flag, dest=name, help=texts[name].replace("%", "%%"), **own)


def _read_as(name: str, kind: Any, flag: str) -> Mapping[str, Any]:
    """Return how argparse reads a field."""
    if name in _READERS:
        return _READERS[name]
    if name.endswith("_s"):
        return {"type": partial(read_time, option=flag), "metavar": "TIME"}
    if kind is bool:
        return {"action": "store_true"}
    if kind == Wish:
        return {"nargs": "?", "choices": get_args(kind), "const": "on"}
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    if Path in (kind, *get_args(kind)):
        return {"type": Path}
    return {} if kind is str else {"type": int, "metavar": "N"}


def _names(text: str) -> list[str]:
    return text.split(",")


def _techniques(text: str) -> list[str]:
    return [name for name in text.strip().lower().split("+") if name != "none"]


def _tokens(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of tokens")
    return int(text)


def _ids(text: str) -> tuple[int, ...]:
    return tuple(map(_tokens, text.split(",")))


def _share(text: str) -> float:
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a share, for example 1%") from None


def _seed(text: str) -> int:
    if not text.isdigit() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 0 to 10^18")
    return int(text)


# options that are not called as their fields, and what their types do not say
_FLAGS = {
    "variants": "--variant",
    "techniques": "--technique",
    "prompts": "--prompt",
    "ids": "--tokens",
    "table": "--emulate",
}
_READERS: Mapping[str, Mapping[str, Any]] = {
    "variants": {"type": _names, "action": "extend"},
    "techniques": {"type": _techniques, "action": "extend", "metavar": "NAME"},
    "prompts": {"action": "append", "metavar": "TEXT"},
    "ids": {"type": _ids, "action": "append", "metavar": "N,N"},
    "prompt": {"type": _tokens, "metavar": "N"},
    "within": {"type": _share, "metavar": "P%"},
    "seed": {"type": _seed, "metavar": "N"},
}


def _config(config: type[_Config], arguments: argparse.Namespace) -> _Config:
    """Return a config from the options of its fields; where an option was left out, the field's default holds."""
    names = {field.name for field in fields(config)}  # type: ignore[arg-type]
    given = {name: value for name, value in vars(arguments).items() if name in names and value is not None}
    return config(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def _check_bench(arguments: argparse.Namespace) -> None:
    """Refuse what `_run_bench` could not do."""
    config, engine = _config(BenchConfig, arguments), _config(EngineConfig, arguments)
    shape = ModelConfig.from_file(config.model)
    shape.check_ranks(config.tp, engine.ep, config.attention_dp)
    engine.check_degrees(config.attention_dp, config.pp)
    shape.layers_of(0, config.pp)
    for variant in config.variants:
        wiring = lay_out(variant, shape.layers)
        shape.check_wiring(wiring, config.tp)
        if engine.sequence_parallel and config.tp > 1:
            wiring.check_shares()


def _run_bench(arguments: argparse.Namespace) -> None:
    """Measure wirings."""
    if arguments.trace:
        # the profiler would print to stderr each time that it starts and stops
        os.environ.update(TORCH_CPP_LOG_LEVEL="ERROR", KINETO_LOG_LEVEL="99")
    # imported here, as below: the launcher needs no torch
    from ladder_sim_runtime.bench import bench

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


def _run_complete(arguments: argparse.Namespace) -> None:
    """Print what follows each prompt: text after a text, tokens after tokens."""
    from ladder_sim_runtime.complete import complete

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


def _run_convert(arguments: argparse.Namespace) -> None:
    """Rewire a checkpoint."""
    convert(arguments.model, arguments.out, arguments.ladder_layers, link=arguments.link, hf_code=arguments.hf_code)


def _run_layers(arguments: argparse.Namespace) -> None:
    """Write the layers of a model as data."""
    if importlib.util.find_spec("transformers") is None:
        raise MissingPackageError("layers of any model need transformers", extra="trace")
    from ladder_sim_runtime.model_trace import trace

    piped = str(arguments.config) == "-"
    config = json.load(sys.stdin) if piped else read_config(arguments.config)
    layers = trace(config, source=arguments.source or str(arguments.config))
    text = json.dumps({**layers, **{key: config[key] for key in QUANTIZATION if config.get(key)}}) + "\n"
    if arguments.save:
        write_file(arguments.save, text)
    else:
        print(text, end="")


def _is_first_rank() -> bool:
    """Whether this process is the rank that prints."""
    return os.environ.get("RANK", "0") == "0"
