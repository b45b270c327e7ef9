"""`ladder-sim run`: real forward passes, measured by the runtime package in processes of its own."""

import importlib.util
import json as json_format
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

from ladder_sim.cli.output import chosen_format, write
from ladder_sim.errors import MissingDependencyError, UnknownNameError, UsageError
from ladder_sim.specs import catalog
from ladder_sim.specs.hf_config import read_config
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.settings import Parts, override_parts, settings
from ladder_sim.specs.stack import StackSpec
from ladder_sim.specs.workload import Workload
from ladder_sim.units import format_seconds

# settings of a model that a config.json can carry to the runtime
_HF_KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate": "intermediate_size",
    "vocab": "vocab_size",
    "gated_mlp": "gated_mlp",
    "tied_embeddings": "tie_word_embeddings",
}
# of a stack, flags of the runtime by the same name
_SWITCHES = ("sharded_lm_head", "sharded_embedding", "fused_residual_add", "fused_ladder_add")
_WORK, _TEXT, _HOW, _OUTPUT = "Workload", "Text", "Stack and communication", "Output"


def run(
    context: typer.Context,
    model: Annotated[
        str, typer.Option(help="Folder of a checkpoint; with --bench also an alias, catalog id or config.json.")
    ],
    bench: Annotated[
        bool, typer.Option("--bench", help="Measure random weights: warm-ups, then repeats in turns.")
    ] = False,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="standard, parallel, ladder, hybrid-ladder:K, desync:N or upper-bound; repeatable, commas."),
    ] = None,
    tp: Annotated[int, typer.Option(help="Tensor-parallel degree: processes started, or emulated.")] = 1,
    batch: Annotated[int, typer.Option(help="Requests served together.", rich_help_panel=_WORK)] = 1,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            help="Text to complete; repeatable. With --bench: tokens of each prompt, 1024.", rich_help_panel=_WORK
        ),
    ] = None,
    gen: Annotated[
        int | None, typer.Option(help="New tokens of each request, 512.", rich_help_panel=_WORK, show_default=False)
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            help="bf16, fp16 or fp32; auto: the checkpoint's, with --bench bf16 on GPUs and fp32 on CPUs.",
            rich_help_panel=_WORK,
        ),
    ] = "auto",
    warmups: Annotated[int, typer.Option(help="Requests that do not count.", rich_help_panel=_WORK)] = 5,
    repeats: Annotated[int, typer.Option(help="Requests that count.", rich_help_panel=_WORK)] = 10,
    seed: Annotated[int, typer.Option(help="Of sampling; with --bench of weights.", rich_help_panel=_WORK)] = 0,
    temperature: Annotated[float, typer.Option(help="0: the most likely token.", rich_help_panel=_TEXT)] = 0,
    top_k: Annotated[int, typer.Option(help="Only the K most likely tokens; 0: all.", rich_help_panel=_TEXT)] = 0,
    top_p: Annotated[
        float, typer.Option(help="Only the most likely tokens with this probability.", rich_help_panel=_TEXT)
    ] = 1,
    stop: Annotated[
        list[str] | None, typer.Option(help="String that ends a text; repeatable.", rich_help_panel=_TEXT)
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Leave out the chat template.", rich_help_panel=_TEXT)] = False,
    stack: Annotated[str, typer.Option(help="gpt-fast, vllm, trtllm or a stack .toml.", rich_help_panel=_HOW)] = (
        "gpt-fast"
    ),
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE of model or stack, e.g. model.layers=4.", rich_help_panel=_HOW),
    ] = None,
    backend: Annotated[str, typer.Option(help="auto, nccl, gloo, emulate or none.", rich_help_panel=_HOW)] = "auto",
    emulate: Annotated[
        Path | None,
        typer.Option(help="All-reduce latencies of the link to emulate: CSV, bytes,seconds.", rich_help_panel=_HOW),
    ] = None,
    gloo_threads: Annotated[
        int, typer.Option(help="1: collectives strictly in turn; 2: gloo's default.", rich_help_panel=_HOW)
    ] = 1,
    threads: Annotated[int, typer.Option(help="CPU threads of each rank.", rich_help_panel=_HOW)] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds that ranks wait for each other.", rich_help_panel=_HOW)] = 120,
    cuda_graphs: Annotated[
        bool, typer.Option("--cuda-graphs", help="Replay decode steps (GPUs).", rich_help_panel=_HOW)
    ] = False,
    compile_: Annotated[
        bool, typer.Option("--compile", help="Run blocks through torch.compile.", rich_help_panel=_HOW)
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(help="Profile a few steps of each variant here, for `ladder-sim trace`.", rich_help_panel=_OUTPUT),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.", rich_help_panel=_OUTPUT)] = False,
    save: Annotated[
        Path | None, typer.Option(help="Write to a file instead of stdout: .json or .txt.", rich_help_panel=_OUTPUT)
    ] = None,
) -> None:
    """Run tensor-parallel forward passes for real: complete prompts with a checkpoint, or measure residual wirings."""
    if not bench:
        if not prompt:
            raise UsageError(
                "run has nothing to do",
                hint="--prompt TEXT completes it with a checkpoint, --bench measures the model with random weights",
            )
        _require_torch()
        _complete(context)
        return
    _refuse(context, _TEXT_ONLY, "is for texts, without --bench")
    prompt_tokens = _prompt_tokens(prompt)
    form = chosen_format(json=json, csv=False, save=save)
    if form == "csv":
        raise UsageError(f"--save '{save}': no CSV of measurements", hint="use .json or .txt")
    _require_torch()
    spec, engine, config = _resolve(model, stack, settings(set_ or []))
    names = [name for given in variant or _default_variants(spec) for name in given.split(",")]
    with tempfile.TemporaryDirectory(prefix="ladder-sim-") as folder:
        file = Path(folder, "config.json")
        file.write_text(json_format.dumps(config), "utf-8")
        flags: dict[str, object] = {
            "model": file,
            "tp": tp,
            "batch": batch,
            "prompt": prompt_tokens,
            "gen": 512 if gen is None else gen,
            "dtype": dtype,
            "warmups": warmups,
            "repeats": repeats,
            "seed": seed,
            "backend": backend,
            "emulate": emulate,
            "gloo-threads": gloo_threads,
            "threads": threads,
            "timeout": timeout,
            "cuda-graphs": cuda_graphs,
            "compile": compile_,
            "trace": trace,
            "attention": engine.attention,
            "prefill-logits": engine.prefill_logits,
            **{name.replace("_", "-"): getattr(engine, name) for name in _SWITCHES},
        }
        result = _measure([*_arguments(flags), *(f"--variant={name}" for name in names)])
    result["run"] |= {"model": spec.name, "stack": engine.name}
    if form == "json":
        write(json_format.dumps(result, indent=1) + "\n", save)
        return
    # imported here: `--help` needs no tables
    from ladder_sim.report.tables import console

    report = _report(result)
    if save is not None:
        write(console.to_text(report), save)
    else:
        console.show(report)


def _prompt_tokens(prompt: Sequence[str] | None) -> int:
    """Length of the random prompts that are measured."""
    given = prompt or ["1024"]
    if len(given) > 1 or not given[0].isdigit():
        raise UsageError(f"--prompt '{given[-1]}': with --bench a number of tokens", hint="for example --prompt 1024")
    return int(given[0])


def _require_torch() -> None:
    for package in ("torch", "runtime"):
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(
                f"real forward passes need the '{package}' package", hint="pip install 'ladder-sim[runtime]'"
            )


def _default_variants(spec: ModelSpec) -> tuple[str, ...]:
    from ladder_sim.prediction import default_variants

    return default_variants(Scenario.of(model=spec, tp=1))


def _resolve(model: str, stack: str, changes: Mapping[str, str]) -> tuple[ModelSpec, StackSpec, dict[str, Any]]:
    """The model, the stack and the config.json that says what runs, settings included."""
    for key in changes:
        section, _, name = key.partition(".")
        if section not in ("model", "stack"):
            raise UsageError(f"--set {key}: a real run takes its machine as it is", hint="set fields of model or stack")
        if section == "model" and name not in _HF_KEYS:
            raise UnknownNameError("setting of a real run", key, [f"model.{one}" for one in _HF_KEYS])
    before = catalog.model(model)
    parts = Parts(before, catalog.cluster("h100-sxm"), catalog.stack(stack), Workload())
    after = override_parts(parts, changes)
    changed = {name: getattr(after.model, name) for name in _HF_KEYS}
    config = _raw_config(model, before) | {
        _HF_KEYS[name]: value for name, value in changed.items() if value != getattr(before, name)
    }
    return after.model, after.stack, config


def _raw_config(model: str, spec: ModelSpec) -> dict[str, Any]:
    """The config.json behind a model, with what a ModelSpec leaves out: norms, rotary wavelengths, activation."""
    key = model.strip().lower()
    if catalog.MODEL_ALIASES.get(key, key) not in catalog.model_names():
        return read_config(Path(model))
    shipped = resources.files("ladder_sim.specs") / "data" / "models" / f"{spec.name}.json"
    raw: dict[str, Any] = json_format.loads(shipped.read_text("utf-8"))
    return raw


def _measure(arguments: list[str]) -> dict[str, Any]:
    output = _runtime("bench", arguments, capture=True)
    result: dict[str, Any] = json_format.loads(output)
    return result


def _report(result: Mapping[str, Any]) -> Any:
    from rich.console import Group
    from rich.text import Text

    from ladder_sim.report.tables.console import table

    how, machine = result["run"], result["environment"]
    where = machine.get("gpu", machine["cpu"])
    title = (
        f"{how['model']}, TP {how['tp']}, backend {how['backend']}, {how['dtype']} on {where}\n"
        f"batch {how['batch']}, prompt {how['prompt']}, {how['gen']} new tokens, stack {how['stack']}, "
        f"median of {how['repeats']} requests\n"
    )
    columns = ["variant", "TTFT", "TPOT", "tok/s", "speedup"]
    if how["backend"] == "emulate" and "gpu" not in machine:
        # on a CPU the emulated link knows how long it was busy and waited for
        columns += ["communication", "hidden"]
    rows = [_row(name, found)[: len(columns)] for name, found in result["variants"].items()]
    return Group(Text(title), table(columns, rows))


def _row(name: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    comm_s = found.get("comm_s", 0.0)
    return (
        name,
        format_seconds(found["ttft_s"]),
        format_seconds(found["tpot_s"]) if found["tpot_s"] is not None else "-",
        f"{found['tokens_per_s']:.4g}",
        f"{found['speedup']:.2f}" if "speedup" in found else "-",
        format_seconds(comm_s),
        f"{max(0.0, 1 - found['exposed_comm_s'] / comm_s):.0%}" if comm_s else "-",
    )


# options that a benchmark has no use for
_TEXT_ONLY = ("temperature", "top_k", "top_p", "stop", "raw")


_SINGLE = (
    *("model", "tp", "gen", "dtype", "seed", "temperature", "top_k", "top_p", "raw"),
    *("backend", "gloo_threads", "threads", "timeout", "json", "save"),
)


# options that travel to the runtime under their own names
_REPEATED = ("prompt", "stop", "variant")


def _complete(context: typer.Context) -> None:
    """Complete the prompts of a command line; the process writes to this one's stdout."""
    given = context.params
    _refuse(context, set(given) - {*_SINGLE, *_REPEATED, "bench"}, "is for measurements, with --bench")
    if len(given["variant"] or ()) > 1:
        raise UsageError("--variant: a text has one wiring", hint="--bench compares several")
    if given["save"] is not None and given["save"].suffix.lower() != ".json":
        raise UsageError(f"--save '{given['save']}': texts go to stdout, and their JSON to a file", hint="use .json")
    flags = [*_arguments({name.replace("_", "-"): given[name] for name in _SINGLE})]
    flags += [f"--{name}={value}" for name in _REPEATED for value in given[name] or ()]
    _runtime("text", flags, capture=False)


def _refuse(context: typer.Context, names: Collection[str], why: str) -> None:
    """Raise UsageError if one of these options was given."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"{parameter.opts[0]} {why}", hint="leave it out")


def _arguments(flags: Mapping[str, object]) -> Iterator[str]:
    """Flags of a command line; false and none are left out."""
    for name, value in flags.items():
        if value is True:
            yield f"--{name}"
        elif value is not None and value is not False:
            yield f"--{name}={value}"


def _runtime(command: str, given: Sequence[str], *, capture: bool) -> str:
    """Run ``python -m runtime`` to its end; returns what it printed, if that is to be captured."""
    stdout = subprocess.PIPE if capture else None
    process = subprocess.Popen([sys.executable, "-m", "runtime", command, *given], stdout=stdout, text=True)
    try:
        output, _ = process.communicate()
    finally:
        # the runtime ends its ranks when it is asked to end
        process.terminate()
        process.wait()
    if process.returncode:
        # it has said why
        raise typer.Exit(process.returncode)
    return output or ""
