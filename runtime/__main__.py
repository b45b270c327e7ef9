"""`python -m runtime COMMAND`: alone it starts its ranks itself, under torchrun it is one of them."""

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from runtime.comm.launch import launch, leave_error
from runtime.commands import add_commands, write
from runtime.config import EngineConfig, ModelConfig
from runtime.errors import RunError
from runtime.model.wiring import lay_out

EXIT_FAILURE, EXIT_INTERRUPTED = 1, 130


def main(argv: Sequence[str]) -> int:
    """Parse, and start the ranks or be one."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.tp > 1 and not _emulates(arguments) and "RANK" not in os.environ:
            arguments.check(arguments)
            return launch(argv, arguments.tp)
        arguments.run(arguments)
        return 0
    except RunError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # python must not complain once more when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _fail("nobody reads the output any more", EXIT_FAILURE)
    except Exception as error:
        if arguments.debug:
            traceback.print_exc()
        return _fail(f"{type(error).__name__}: {error}\n  hint: a bug; --debug shows where", EXIT_FAILURE)


def _emulates(arguments: argparse.Namespace) -> bool:
    """Whether one process stands for all ranks."""
    return arguments.backend in ("emulate", "none") or (arguments.backend == "auto" and arguments.emulate is not None)


def _check(arguments: argparse.Namespace) -> None:
    """What can be refused before any process starts."""
    shape = ModelConfig.from_file(arguments.model)
    shape.check_ranks(arguments.tp)
    for variant in arguments.variant:
        lay_out(variant, shape.layers)


def _bench(arguments: argparse.Namespace) -> None:
    if arguments.trace:
        # the profiler would tell stderr each time that it starts and stops
        os.environ.update(TORCH_CPP_LOG_LEVEL="ERROR", KINETO_LOG_LEVEL="99")
    # imported here: the launcher needs no torch
    from runtime.bench import BenchConfig, bench
    from runtime.comm.rendezvous import CommConfig, Place

    result = bench(
        BenchConfig(variants=tuple(arguments.variant), **_chosen(arguments, BenchConfig)),
        EngineConfig(**_chosen(arguments, EngineConfig)),
        CommConfig(table=arguments.emulate, timeout_s=arguments.timeout, **_chosen(arguments, CommConfig)),
        trace=arguments.trace,
    )
    if Place.from_environment().rank == 0:
        write(json.dumps(result, indent=1), arguments.save)


def _chosen(arguments: argparse.Namespace, config: type) -> dict[str, Any]:
    """The flags that are fields of `config` by name."""
    names = {field.name for field in fields(config)} - {"variants", "table", "timeout_s"}
    return {name: value for name, value in vars(arguments).items() if name in names}


def _fail(message: str, code: int) -> int:
    if not leave_error(message):
        print(f"error: {message}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m runtime", description="Real tensor-parallel forward passes.")
    commands = parser.add_subparsers(required=True)
    add_commands(commands)
    bench = commands.add_parser(
        "bench",
        help="Measure residual wirings, taking turns.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    bench.set_defaults(check=_check, run=_bench)

    what = bench.add_argument_group("what runs")
    what.add_argument("--model", type=Path, required=True, help="config.json of a Llama-family decoder")
    what.add_argument("--variant", action="append", required=True, help="residual wiring; repeatable")
    what.add_argument("--tp", type=int, default=1, help="tensor-parallel degree")
    what.add_argument("--batch", type=int, default=1, help="sequences served together")
    what.add_argument("--prompt", type=int, default=1024, help="tokens of each prompt")
    what.add_argument("--gen", type=int, default=512, help="new tokens of each sequence")
    what.add_argument("--dtype", default="auto", help="bf16, fp16 or fp32; auto: bf16 on GPUs, fp32 on CPUs")
    what.add_argument("--warmups", type=int, default=5, help="requests of each variant that do not count")
    what.add_argument("--repeats", type=int, default=10, help="requests of each variant that count")
    what.add_argument("--seed", type=int, default=0, help="of weights and prompts")
    what.add_argument("--threads", type=int, default=1, help="CPU threads of each rank")

    how = bench.add_argument_group("how it runs")
    how.add_argument(
        "--attention", choices=("flash", "math"), default="flash", help="math: over the whole static cache"
    )
    how.add_argument("--prefill-logits", choices=("all", "last"), default="last", help="positions with logits")
    how.add_argument("--sharded-lm-head", action="store_true", help="split the LM head over the vocabulary")
    how.add_argument("--sharded-embedding", action="store_true", help="split the embedding over the vocabulary")
    how.add_argument("--fused-residual-add", action="store_true", help="add blocking outputs inside the norm")
    how.add_argument("--fused-ladder-add", action="store_true", help="the same for ladder's outputs")
    how.add_argument("--cuda-graphs", action="store_true", help="replay decode steps (GPUs, math attention)")
    how.add_argument("--compile", action="store_true", help="run blocks through torch.compile")

    links = bench.add_argument_group("how ranks communicate")
    links.add_argument("--backend", default="auto", help="auto, nccl, gloo, emulate or none")
    links.add_argument("--emulate", type=Path, metavar="TABLE", help="all-reduce latencies: CSV or JSON, bytes,seconds")
    links.add_argument("--gloo-threads", type=int, default=1, help="1: collectives strictly in turn; 2: gloo's default")
    links.add_argument("--timeout", type=float, default=120.0, help="seconds that ranks wait for each other")

    output = bench.add_argument_group("output")
    output.add_argument("--save", type=Path, help="write the JSON to a file instead of stdout")
    output.add_argument("--trace", type=Path, metavar="DIR", help="profile a few steps of each variant")
    output.add_argument("--debug", action="store_true", help="show a traceback on errors")
    return parser


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # a process group with a rank missing would wait in its destructor
    os._exit(code)
