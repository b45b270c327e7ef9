"""`ladder-sim crosscheck`: predictions beside the same runs on this machine, made by the calibration package."""

import importlib.util
import json as json_format
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from ladder_sim.cli.output import chosen_format, write
from ladder_sim.errors import MissingDependencyError, UsageError

_WORK, _HOW, _OUTPUT = "Workload", "Stack and communication", "Output"


def crosscheck(
    model: Annotated[
        str | None, typer.Option(help="Alias, catalog id, or path of a config.json or its folder.")
    ] = None,
    variant: Annotated[
        str, typer.Option(help="Wirings, separated by commas.")
    ] = "standard,parallel,ladder,hybrid-ladder:4,desync:4,upper-bound",
    tp: Annotated[int, typer.Option(help="Tensor-parallel degree: emulated, or processes started.")] = 8,
    batch: Annotated[int, typer.Option(help="Requests served together.", rich_help_panel=_WORK)] = 1,
    prompt: Annotated[int, typer.Option(help="Tokens of each prompt.", rich_help_panel=_WORK)] = 32,
    gen: Annotated[int, typer.Option(help="New tokens of each request.", rich_help_panel=_WORK)] = 8,
    stack: Annotated[str, typer.Option(help="gpt-fast, vllm, trtllm or a stack .toml.", rich_help_panel=_HOW)] = (
        "gpt-fast"
    ),
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE of model or stack, e.g. model.layers=8.", rich_help_panel=_HOW),
    ] = None,
    backend: Annotated[
        str, typer.Option(help="emulate: one process and emulated links; gloo: CPU ranks.", rich_help_panel=_HOW)
    ] = "emulate",
    share: Annotated[
        str, typer.Option(help="Emulated links: messages' parts of standard's time.", rich_help_panel=_HOW)
    ] = "0.2,0.3,0.4,0.5",
    threads: Annotated[int, typer.Option(help="CPU threads of each rank.", rich_help_panel=_HOW)] = 1,
    rounds: Annotated[int, typer.Option(help="Requests of each wiring on each link.", rich_help_panel=_HOW)] = 15,
    calibration: Annotated[
        Path | None, typer.Option(help="Earlier result's JSON whose calibration is used.", rich_help_panel=_HOW)
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option("--from", help="Show an earlier result's JSON instead of measuring.", rich_help_panel=_OUTPUT),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.", rich_help_panel=_OUTPUT)] = False,
    save: Annotated[
        Path | None, typer.Option(help="Write to a file instead of stdout: .json or .txt.", rich_help_panel=_OUTPUT)
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots as well.", rich_help_panel=_OUTPUT)] = None,
    gate: Annotated[
        bool, typer.Option("--gate", help="Exit 1 where an error lies beyond its bound.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """Measure this machine, predict every wiring from it, run them all, and compare."""
    form = chosen_format(json=json, csv=False, save=save)
    if form == "csv":
        raise UsageError(f"--save '{save}': no CSV of a cross-check", hint="use .json or .txt")
    if (model is None) == (from_ is None):
        raise UsageError(
            "give either --model or --from", hint="--model 1b measures, --from FILE shows an earlier result"
        )
    for flag, file in (("--html", html), ("--save", save)):
        if file is not None and not file.parent.is_dir():
            raise UsageError(f"{flag} '{file}': there is no such folder", hint="choose one that is there")
    if from_ is not None:
        result = _read(from_)
    else:
        flags = {"model": model, "tp": tp, "batch": batch, "prompt": prompt, "gen": gen, "stack": stack}
        flags |= {"backend": backend, "threads": threads, "rounds": rounds}
        lists = {"variant": variant.split(","), "set": set_ or [], "share": share.split(",")}
        if calibration is not None:
            flags["calibration"] = str(calibration)
        arguments = [f"--{name}={value}" for name, value in flags.items()]
        result = _measure([*arguments, *(f"--{name}={one}" for name, found in lists.items() for one in found)])
    # imported here: `--help` needs no tables
    from ladder_sim.report.pages import crosscheck_page
    from ladder_sim.report.tables import console
    from ladder_sim.report.tables import crosscheck as report

    if html is not None:
        write(crosscheck_page(result), html, flag="--html")
    if form == "json":
        write(json_format.dumps(result, indent=1) + "\n", save)
    elif save is not None:
        write(console.to_text(report.crosscheck_report(result)), save)
    else:
        console.show(report.crosscheck_report(result))
    if gate and any(row["beyond"] for row in result["rows"]):
        raise typer.Exit(1)


def _read(file: Path) -> dict[str, Any]:
    try:
        result = json_format.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--from '{file}' cannot be read: {error}", hint="give what --json wrote") from error
    if not isinstance(result, dict) or result.get("schema_version") != 2 or "rows" not in result:
        raise UsageError(f"--from '{file}' is no result of a cross-check", hint="give what --json wrote")
    return result


def _measure(arguments: list[str]) -> dict[str, Any]:
    for package in ("torch", "runtime", "calibration"):
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(
                f"real forward passes need the '{package}' package", hint="pip install 'ladder-sim[runtime]'"
            )
    with tempfile.TemporaryDirectory(prefix="ladder-sim-") as folder:
        out = Path(folder, "crosscheck.json")
        code = subprocess.call([sys.executable, "-m", "calibration", "crosscheck", *arguments, f"--out={out}"])
        if code:
            # it has said why
            raise typer.Exit(code)
        return _read(out)
