"""Commands that need a checkpoint: `text`, `eval` and `convert`. Imports no torch: the launcher parses too."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.checkpoint.convert import convert
from runtime.errors import InputError
from runtime.tasks import EvalConfig, TextConfig, prepare_eval, prepare_text

if TYPE_CHECKING:
    from runtime.comm.rendezvous import CommConfig


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add them to the parser; each sets `check`, what the launcher can refuse, and `run`, what a rank does."""
    _add_text(commands)
    _add_eval(commands)
    _add_convert(commands)


def write(text: str, save: Path | None = None) -> None:
    """Print, or write to the file of `--save`."""
    if save is None:
        print(text)
        return
    try:
        save.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"--save {save}: {error.strerror}", hint="choose a folder that is there") from None


def _add_text(commands: Any) -> None:
    parser = _parser(commands, "text", "Complete prompts with a checkpoint.")
    parser.add_argument("--model", type=Path, required=True, help="folder of a checkpoint")
    parser.add_argument("--prompt", action="append", required=True, help="text to complete; repeatable, one batch")
    parser.add_argument("--raw", action="store_true", help="leave out the checkpoint's chat template")
    parser.add_argument("--gen", type=int, help="new tokens at most; 512 or what the context has room for")
    parser.add_argument("--stop", action="append", default=[], help="string that ends a text; repeatable")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: the most likely token")
    parser.add_argument("--top-k", type=int, default=0, help="only so many of the most likely tokens; 0: all")
    parser.add_argument("--top-p", type=float, default=1.0, help="only the likeliest with this probability together")
    parser.add_argument("--seed", type=int, default=0, help="of sampling")
    parser.add_argument("--variant", default="auto", help="residual wiring; auto: the checkpoint's")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end instead of the texts")
    parser.add_argument("--save", type=Path, help="write that JSON object to a file, too")
    _add_ranks(parser)
    parser.set_defaults(check=lambda arguments: prepare_text(_text_config(arguments)), run=_text)


def _add_eval(commands: Any) -> None:
    parser = _parser(commands, "eval", "Perplexity of checkpoints on a text file.")
    parser.add_argument("models", type=Path, nargs="+", metavar="DIR", help="folders of checkpoints")
    parser.add_argument("--text", type=Path, required=True, help="text file, UTF-8")
    parser.add_argument("--variant", action="append", help="residual wiring; repeatable; the checkpoint's by default")
    parser.add_argument("--context", type=int, help="tokens of a window; 1024 or what the model has")
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of a table")
    _add_ranks(parser)
    parser.set_defaults(check=lambda arguments: prepare_eval(_eval_config(arguments)), run=_eval)


def _add_convert(commands: Any) -> None:
    parser = _parser(commands, "convert", "Wire a checkpoint's upper layers as ladder.")
    parser.add_argument("model", type=Path, metavar="DIR", help="folder of a checkpoint")
    parser.add_argument("--ladder-layers", type=int, required=True, help="how many, from the top of the stack")
    parser.add_argument("--out", type=Path, required=True, help="new folder")
    parser.add_argument("--link", action="store_true", help="link to the weights instead of copying them")
    parser.set_defaults(tp=1, run=_convert)


def _parser(commands: Any, name: str, purpose: str) -> argparse.ArgumentParser:
    form = argparse.ArgumentDefaultsHelpFormatter
    parser: argparse.ArgumentParser = commands.add_parser(name, help=purpose, description=purpose, formatter_class=form)
    parser.add_argument("--debug", action="store_true", help="show a traceback on errors")
    return parser


def _add_ranks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel degree")
    parser.add_argument("--dtype", default="auto", help="fp32, bf16 or fp16; auto: the checkpoint's")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each rank")
    parser.add_argument("--backend", choices=("auto", "nccl", "gloo"), default="auto", help="auto: NCCL on GPUs")
    parser.add_argument(
        "--gloo-threads", type=int, default=1, help="1: collectives strictly in turn; 2: gloo's default"
    )
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds that ranks wait for each other")
    parser.set_defaults(emulate=None)


def _text_config(arguments: argparse.Namespace) -> TextConfig:
    return TextConfig(
        model=arguments.model,
        prompts=tuple(arguments.prompt),
        variant=arguments.variant,
        tp=arguments.tp,
        gen=arguments.gen,
        stops=tuple(arguments.stop),
        raw=arguments.raw,
        dtype=arguments.dtype,
        threads=arguments.threads,
    )


def _text(arguments: argparse.Namespace) -> None:
    from runtime.complete import complete
    from runtime.sampling import SamplingConfig

    sampling = SamplingConfig(
        temperature=arguments.temperature, top_k=arguments.top_k, top_p=arguments.top_p, seed=arguments.seed
    )
    streams = _first() and not arguments.json and len(arguments.prompt) == 1
    result: Any = complete(
        _text_config(arguments), sampling, _links(arguments), _print_piece if streams else lambda number, piece: None
    )
    if not _first():
        return
    if arguments.save is not None:
        write(json.dumps(result, indent=1), arguments.save)
    if arguments.json:
        write(json.dumps(result, indent=1))
        return
    if streams:
        print()
    else:
        for one in result["completions"]:
            print(f"> {one['prompt']}\n{one['text']}\n")
    tokens = sum(len(one["tokens"]) for one in result["completions"])
    speed = f"{result['tokens_per_s']:.4g} tok/s, TTFT {result['ttft_s'] * 1e3:.3g} ms"
    print(f"[{tokens} tokens, {speed}, {result['run']['variant']}, TP {arguments.tp}]", file=sys.stderr)


def _print_piece(_number: int, piece: str) -> None:
    print(piece, end="", flush=True)


def _eval_config(arguments: argparse.Namespace) -> EvalConfig:
    return EvalConfig(
        models=tuple(arguments.models),
        text=arguments.text,
        variants=tuple(name for given in arguments.variant or ["auto"] for name in given.split(",")),
        tp=arguments.tp,
        context=arguments.context,
        dtype=arguments.dtype,
        threads=arguments.threads,
    )


def _eval(arguments: argparse.Namespace) -> None:
    from runtime.evaluate import evaluate

    width = max(len("model"), *(len(str(folder)) for folder in arguments.models))
    line = f"{{:{width}}}  {{:16}}  {{:>10}}  {{:>10}}  {{:>8}}"
    if _first() and not arguments.json:
        print(line.format("model", "variant", "perplexity", "nats/token", "tokens"))
    for row in evaluate(_eval_config(arguments), _links(arguments)):
        figures = (f"{row['perplexity']:.4g}", f"{row['nats_per_token']:.4f}", row["tokens"])
        if _first():
            print(
                json.dumps(row) if arguments.json else line.format(row["model"], row["variant"], *figures), flush=True
            )


def _convert(arguments: argparse.Namespace) -> None:
    convert(arguments.model, arguments.out, arguments.ladder_layers, link=arguments.link)


def _links(arguments: argparse.Namespace) -> "CommConfig":
    from runtime.comm.rendezvous import CommConfig

    return CommConfig(backend=arguments.backend, gloo_threads=arguments.gloo_threads, timeout_s=arguments.timeout)


def _first() -> bool:
    """Whether this process is the rank that speaks."""
    return os.environ.get("RANK", "0") == "0"
