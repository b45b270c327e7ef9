"""`ladder-sim run` and `calibrate`: what other packages do in processes of their own, the runtime and calibration.

Resolved here for `run`: the model, the stack and their settings. All other options are those of
`python -m ladder_sim_runtime`.
"""

import importlib.util
import json as json_format
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ladder_sim.cli.flags import PASSED_ON, of_context
from ladder_sim.cli.output import check_result_file, in_output, write_result
from ladder_sim.errors import MissingDependencyError, MissingPackageError, UnknownNameError, UsageError, install_command
from ladder_sim.hf.types import WRITTEN
from ladder_sim.specs import catalog
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.settings import Parts, override_parts, settings
from ladder_sim.specs.stack import StackSpec
from ladder_sim.specs.workload import Workload
from ladder_sim.system import processes
from ladder_sim.system.arguments import flags
from ladder_sim.units import format_seconds

# fields of a stack that real passes follow
_ENGINE = ("attention", "prefill_logits", "sampling", "vocab_parallel", "residual_add", "cuda_graphs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What is measured with random weights, and where the result goes."""

    model: Annotated[
        str, typer.Option(help="Folder of a checkpoint; with --bench also an alias, catalog id or config.json.")
    ]
    variant: Annotated[
        list[str] | None, typer.Option(help="Any wiring, as in predict; repeatable, commas allowed.")
    ] = None
    stack: Annotated[
        str | None, typer.Option(help="With --bench: gpt-fast, vllm, trtllm, sglang or a stack .toml.")
    ] = None
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="With --bench: KEY=VALUE of model or stack, e.g. model.layers=4.")
    ] = None
    json: Annotated[bool, in_output("--json", help="With --bench: one JSON object.")] = False
    save: Annotated[Path | None, in_output(help="With --bench: write to a file, .json or .txt.")] = None

    def measure(self, options: Sequence[str]) -> None:
        """Measure random weights and show the result; `options` are the runtime's."""
        check_result_file(self.save, json=self.json)
        require_torch()
        # imported here: `--help` needs no simulator
        from ladder_sim.prediction import default_variants

        spec, engine, config = _resolve(self.model, self.stack or "gpt-fast", settings(self.set_ or []))
        with tempfile.TemporaryDirectory(prefix="ladder-sim-") as folder:
            file = Path(folder, "config.json")
            file.write_text(json_format.dumps(config), "utf-8")
            own = {"model": file, **_engine_options(engine)}
            variants = [f"--variant={names}" for names in self.variant or default_variants(Scenario(model=spec, tp=1))]
            result = json_format.loads(runtime(["bench", *flags(own), *variants, *options], capture=True))
        result["run"] |= {"model": spec.name, "stack": engine.name}
        write_result(result, _report(result), self.save, json=self.json)


def _show_help(context: typer.Context, wanted: bool) -> None:
    if not wanted:
        return
    # typer prints it; what it returns is empty
    context.get_help()
    for given, command in (("--prompt or --tokens", "complete"), ("--bench", "bench")):
        *_, groups = runtime([command, "--help"], capture=True).split("\n\n", 3)
        print(f"With {given}, the options of `python -m ladder_sim_runtime {command}`:\n\n{groups}")
    raise typer.Exit


def run(
    context: typer.Context,
    bench: Annotated[
        bool, typer.Option("--bench", help="Measure random weights: warm-ups, then repeats in turns.")
    ] = False,
    _help: Annotated[
        bool, typer.Option("--help", "-h", is_eager=True, callback=_show_help, help="Show this message.")
    ] = False,
) -> None:
    """Run tensor-parallel forward passes for real: measure residual wirings, or continue prompts with a checkpoint."""
    debug = ["--debug"] if context.find_root().params.get("debug") else []
    options = [*debug, *context.args]
    asked = of_context(Bench, context)
    if bench:
        asked.measure(options)
        return
    if not any(option.partition("=")[0] in ("--prompt", "--tokens") for option in options):
        raise UsageError(
            "nothing to run: give --bench, --prompt or --tokens",
            hint="--bench measures the model with random weights, the others are continued with a checkpoint",
        )
    for name in ("stack", "set_", "json", "save"):
        if getattr(asked, name):
            raise UsageError(f"--{name.rstrip('_')} is for measurements, with --bench", hint="leave it out")
    if len(asked.variant or ()) > 1:
        raise UsageError("--variant: a prompt has one wiring", hint="--bench compares several")
    require_torch()
    own = {"model": asked.model, "variant": asked.variant[0] if asked.variant else None}
    runtime(["complete", *flags(own), *options], capture=False)


def require_torch() -> None:
    """Raise MissingPackageError unless passes can run here."""
    for package in ("torch", "ladder_sim_runtime"):
        if importlib.util.find_spec(package) is None:
            raise MissingPackageError(f"real forward passes need {package}")


def _resolve(model: str, stack: str, changes: Mapping[str, str]) -> tuple[ModelSpec, StackSpec, dict[str, Any]]:
    """Return the model, the stack and the config.json that says what runs, settings included."""
    for key in changes:
        section, _, name = key.partition(".")
        if section not in ("model", "stack"):
            raise UsageError(
                f"--set {key}: a real run uses this machine's hardware", hint="set fields of model or stack"
            )
        read = WRITTEN if section == "model" else _ENGINE
        if name not in read:
            raise UnknownNameError("setting of a real run", key, [f"{section}.{field}" for field in read])
    before = catalog.model(model)
    parts = Parts(before, catalog.cluster("h100-sxm"), catalog.stack(stack), Workload())
    after = override_parts(parts, changes)
    changed = {name: getattr(after.model, name) for name in WRITTEN}
    config = catalog.model_config(model) | {
        WRITTEN[name]: value for name, value in changed.items() if value != getattr(before, name)
    }
    return after.model, after.stack, config


def _engine_options(stack: StackSpec) -> dict[str, object]:
    """Return the runtime's options that act as a stack does; launches follow it as far as the device can."""
    launches = {
        "cuda_graphs": stack.cuda_graphs != "off",
        "prefill_cuda_graphs": stack.cuda_graphs == "all",
        "compile": stack.residual_add == "compiled",
    }
    return {
        **{
            name: getattr(stack, name)
            for name in ("attention", "prefill_logits", "sampling", "fused_residual_add", "fused_ladder_add")
        },
        **dict.fromkeys(("sharded_lm_head", "sharded_embedding"), stack.vocab_parallel),
        **{name: "auto" for name, follows in launches.items() if follows},
    }


def _report(result: Mapping[str, Any]) -> Any:
    from rich.console import Group
    from rich.text import Text

    from ladder_sim.report.console import table

    how, machine = result["run"], result["environment"]
    where = machine.get("gpu", machine["cpu"])
    more = {"attention DP": how["attention_dp"], "EP": result["engine"]["ep"], "PP": how["pp"]}
    degrees = ", ".join([f"TP {how['tp']}", *(f"{name} {degree}" for name, degree in more.items() if degree > 1)])
    techniques = "".join(f", {name}" for name in result["engine"]["techniques"])
    title = (
        f"{how['model']}, {degrees}{techniques}, backend {how['backend']}, {how['dtype']} on {where}\n"
        f"static batch of {how['batch']}, prompt {how['prompt']}, {how['gen']} new tokens, stack {how['stack']}, "
        f"median of {how['repeats']} requests\n"
        f"{_launches(result['execution'])}\n"
    )
    measured = result["variants"].values()
    # it takes six requests of each
    known = any(medians.get("speedup_95") for medians in measured)
    columns = ["variant", "TTFT", "TPOT", "tok/s", "speedup (95%)" if known else "speedup"]
    if any("comm_s" in medians for medians in measured):
        columns += ["communication", "hidden"]
    rows = [_row(name, medians)[: len(columns)] for name, medians in result["variants"].items()]
    return Group(Text(title), table(columns, rows))


def _launches(done: Mapping[str, Any]) -> str:
    """Return what was recorded and compiled, and why not more, as text."""
    parts = {name: done[name] for name in ("decode", "prefill", "blocks", "kernels")}
    if set(parts.values()) == {"eager"}:
        text = "all eager"
    else:
        text = ", ".join(f"{name} {how}" for name, how in parts.items())
    return ": ".join([text, *(["; ".join(done["missing"])] if done["missing"] else [])])


def _row(name: str, medians: Mapping[str, Any]) -> tuple[str, ...]:
    comm_s, interval = medians.get("comm_s", 0.0), medians.get("speedup_95")
    spread = " ({:.2f}-{:.2f})".format(*interval) if interval and name != "standard" else ""
    return (
        name,
        format_seconds(medians["ttft_s"]),
        format_seconds(medians["tpot_s"]) if medians["tpot_s"] is not None else "-",
        f"{medians['tokens_per_s']:.4g}",
        f"{medians['speedup']:.2f}{spread}" if "speedup" in medians else "-",
        format_seconds(comm_s),
        f"{max(0.0, 1 - medians['exposed_comm_s'] / comm_s):.0%}" if comm_s else "-",
    )


def runtime(arguments: Sequence[str], *, capture: bool) -> str:
    """Run ``python -m ladder_sim_runtime`` to its end; returns what it printed, if that is to be captured."""
    code, output = processes.run(["ladder_sim_runtime", *arguments], capture=capture)
    if code:
        # it has printed why
        raise typer.Exit(code)
    return output


COMMANDS = {
    "run": "Measure ops on this machine; under torchrun: `-m ladder_sim_calibration run` on every rank.",
    "evidence": "Measure a borrowed machine in one go: ops, runs, captures, and an archive to bring home.",
    "fit": "Make a profile of the samples that `calibrate run` took.",
    "check": "Measure this machine, predict every wiring from it, run them all, and compare.",
    "diff": "Compare the times of two profiles.",
    "import": "Make a profile or a fabric file of a log of nccl-tests.",
    "fit-stack": "Fit a stack's figures that microbenchmarks cannot see to a few of its end-to-end runs.",
    "fit-steps": "Fit times of steps to the log of a running vLLM server, for `serve --steps`.",
    "show": "Show what a profile holds, where it comes from and how well it interpolates.",
}

calibrate = typer.Typer(help="Make, read and compare measured profiles.", no_args_is_help=True, add_completion=False)


def _passing_on(command: str) -> Callable[[typer.Context], None]:
    """Return what runs ``python -m ladder_sim_calibration COMMAND`` with its arguments, and exits with its code."""

    def run(context: typer.Context) -> None:
        if importlib.util.find_spec("ladder_sim_calibration") is None:
            raise MissingDependencyError("the package 'ladder_sim_calibration' is missing", hint=install_command())
        debug = ["--debug"] if context.find_root().params["debug"] else []
        code, _ = processes.run(["ladder_sim_calibration", *debug, command, *context.args])
        raise typer.Exit(code)

    return run


for _name, _help in COMMANDS.items():
    calibrate.command(_name, help=_help, context_settings=PASSED_ON)(_passing_on(_name))
