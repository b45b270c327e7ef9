"""The options of `python -m runtime`, by command. Imports no torch: the launcher parses them, too.

Each command sets `run`, what a rank does, and `check`, which refuses bad input before any rank is started
(`runtime.commands`). Options outside of groups are those that `ladder-sim run` has, too, with more meanings.
"""

import argparse
from collections.abc import Sequence
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import Any, get_args

from ladder_sim.system.arguments import Parser
from runtime import commands
from runtime.config import AllReduce, Dispatch, EngineConfig, ExecutionConfig, Wish, read_time
from runtime.prepare import BenchConfig, CompletionConfig

_DTYPES = "fp32, bf16 or fp16"
# commands of earlier versions, and what to use instead
GONE = dict.fromkeys(
    ("train", "adapt", "eval"),
    "examples/train/train.py trains on transformers' Trainer, and first says the loss of held-out text",
)


def argument_parser() -> Parser:
    """The commands and their options."""
    parser = Parser(prog="python -m runtime", description="Real tensor-parallel forward passes.")
    subcommands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for add in (_add_bench, _add_complete, _add_convert):
        add(subcommands)
    return parser


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults other than None and False, of options that may be left out."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        shows = action.default is not None and action.default is not False
        return super()._get_help_string(action) if shows and not action.required else action.help


def _add_bench(subcommands: Any) -> None:
    purpose = "Measure residual wirings with random weights, taking turns."
    parser = _add_command(subcommands, "bench", purpose, BenchConfig, EngineConfig, ExecutionConfig)
    parser.set_defaults(check=commands.check_bench, run=commands.run_bench)
    add = parser.add_argument
    add("--model", type=Path, required=True, help="config.json of a decoder")
    add("--variant", dest="variants", type=_names, action="extend", required=True, help="wirings; repeatable, commas")
    add("--save", type=Path, metavar="FILE", help="write the JSON to a file instead of stdout")

    add = parser.add_argument_group("workload").add_argument
    add("--batch", type=int, metavar="N", help="sequences served together")
    add("--prompt", type=_tokens, metavar="N", help="tokens of each prompt")
    add("--gen", type=int, metavar="N", help="new tokens of each sequence")
    add("--warmups", type=int, metavar="N", help="requests of each variant that do not count")
    add("--repeats", type=int, metavar="N", help="requests of each variant that count, at least")
    add("--within", type=_share, metavar="P%", help="go on until 95 %% intervals of speedups are +- this; 0.01 or 1%%")
    _add_time(add, "--budget", "600s", "limit of going on")
    add("--seed", type=_seed, metavar="N", help="of weights and prompts")
    add("--trace", type=Path, metavar="DIR", help="profile a few steps of each variant, for `ladder-sim trace`")

    add = parser.add_argument_group("engine").add_argument
    add("--attention", choices=("flash", "math"), help="math: over the whole static cache")
    add("--prefill-logits", choices=("all", "last"), help="positions with logits")
    add("--sharded-lm-head", action="store_true", help="split the LM head over the vocabulary")
    add("--sharded-embedding", action="store_true", help="split the embedding over the vocabulary")
    add("--fused-residual-add", action="store_true", help="add blocking outputs inside the norm")
    add("--fused-ladder-add", action="store_true", help="the same for ladder's outputs")
    purpose = "token-split[:K] or sequence-parallel; repeatable, or joined by +"
    add("--technique", dest="techniques", type=_techniques, action="extend", metavar="NAME", help=purpose)
    for flag, purpose in (
        ("--cuda-graphs", "replay decode steps"),
        ("--prefill-cuda-graphs", "replay the prefill"),
        ("--compile", "run blocks through torch.compile"),
    ):
        add(flag, nargs="?", choices=get_args(Wish), const="on", help=f"{purpose}; auto: on GPUs, if possible")

    add = _add_ranks(
        parser,
        dtype=f"{_DTYPES}; auto: bf16 on GPUs, fp32 on CPUs",
        backends=("auto", "nccl", "gloo", "emulate", "none"),
    )
    _add_stages(add)
    add("--attention-dp", type=int, metavar="N", help="groups of --tp ranks with a part of the batch each")
    add("--dispatch", choices=get_args(Dispatch), help="how tokens reach experts of other groups")
    add("--allreduce", choices=get_args(AllReduce), default="backend", help="others: in a node's symmetric memory")
    add("--emulate", dest="table", type=Path, metavar="TABLE", help="all-reduce latencies: CSV or JSON, bytes,seconds")


def _add_complete(subcommands: Any) -> None:
    purpose = "Continue prompts with a checkpoint, each token the most likely one."
    parser = _add_command(subcommands, "complete", purpose, CompletionConfig)
    parser.set_defaults(check=commands.check_complete, run=commands.run_complete)
    add = parser.add_argument
    add("--model", type=Path, required=True, help="folder of a checkpoint")
    add("--variant", help="residual wiring; auto: the checkpoint's")

    add = parser.add_argument_group("prompts").add_argument
    add("--prompt", dest="prompts", action="append", metavar="TEXT", help="text; repeatable")
    add("--tokens", dest="ids", type=_ids, action="append", metavar="N,N", help="numbers of tokens; repeatable")
    add("--gen", type=int, metavar="N", help="new tokens; by default 512, or what the context has room for")
    _add_stages(_add_ranks(parser))


def _add_convert(subcommands: Any) -> None:
    parser = _add_command(subcommands, "convert", "Wire a checkpoint's upper layers as ladder.")
    parser.set_defaults(backend="none", run=commands.run_convert)
    add = parser.add_argument
    add("model", type=Path, metavar="DIR", help="folder of a checkpoint")
    add("--ladder-layers", type=int, required=True, metavar="K", help="number of layers, from the top of the stack")
    add("--out", type=Path, required=True, metavar="DIR", help="new folder")
    add("--link", action="store_true", help="link to the weights instead of copying them")
    add("--hf-code", action="store_true", help="write the model's code for transformers, too (trust_remote_code)")


def _add_command(subcommands: Any, name: str, purpose: str, *configs: type) -> argparse.ArgumentParser:
    """Add a command; an option has the default of the field of `configs` that is named like it.

    But those of several values, which an option would add its own to.
    """
    parser: argparse.ArgumentParser = subcommands.add_parser(
        name, help=purpose, description=purpose, formatter_class=_Help
    )
    parser.add_argument("--debug", action="store_true", help="show a traceback on errors")
    # of commands without such options
    parser.set_defaults(tp=1, attention_dp=1, pp=1, table=None)
    for config in configs:
        own = {field.name: field.default for field in fields(config) if not isinstance(field.default, tuple)}
        parser.set_defaults(**{name: default for name, default in own.items() if default is not MISSING})
    return parser


def _add_ranks(
    parser: argparse.ArgumentParser,
    *,
    dtype: str = f"{_DTYPES}; auto: the checkpoint's",
    backends: Sequence[str] = ("auto", "nccl", "gloo"),
) -> Any:
    """Add what all commands with ranks share; returns the group's `add_argument`."""
    add = parser.add_argument_group("ranks").add_argument
    add("--tp", type=int, metavar="N", help="tensor-parallel degree")
    add("--ep", type=int, metavar="N", help="parts in which whole experts are distributed over ranks")
    add("--dtype", help=dtype)
    add("--threads", type=int, metavar="N", help="CPU threads of each rank")
    add("--backend", default="auto", choices=backends, help="auto: NCCL on GPUs, else gloo")
    add("--gloo-threads", type=int, default=1, metavar="N", help="1: collectives strictly in turn; 2: gloo's default")
    _add_time(add, "--timeout", "120s", "limit of waiting for ranks")
    return add


def _add_time(add: Any, option: str, default: str, purpose: str) -> None:
    read = partial(read_time, option=option)
    add(option, dest=f"{option[2:]}_s", type=read, default=default, metavar="TIME", help=purpose)


def _add_stages(add: Any) -> None:
    add("--pp", type=int, metavar="N", help="pipeline stages, of --tp ranks each")


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
