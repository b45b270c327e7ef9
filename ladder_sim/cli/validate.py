"""`ladder-sim validate`: predictions compared with measured runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from ladder_sim.cli import flags
from ladder_sim.errors import UsageError
from ladder_sim.system.files import shown_path
from ladder_sim.validation.dataset import DEFAULT_DATASET, read_runs, read_table, result_file

if TYPE_CHECKING:
    from ladder_sim.validation.serving_table import Serving

# endings of results of load generators; tables are CSV
_RESULTS = (".json", ".jsonl", ".gz")


def validate(
    context: typer.Context,
    dataset: Annotated[
        str,
        typer.Argument(
            help="CSV file of runs or servings, a data set of the package, JSON of vllm bench serve, SGLang, AIPerf, "
            "GenAI-Perf, GuideLLM or InferenceX, or an archive of `calibrate evidence`."
        ),
    ] = DEFAULT_DATASET,
    level: Annotated[
        str, typer.Option(help="Evidence behind the predictions: roofline, microbench, protocol-a, protocol-b, or all.")
    ] = "all",
    max_error: Annotated[
        str | None,
        typer.Option(
            help="In percent: exit 1 if the mean absolute error of ladder's speedup over rows with P2P on that no fit "
            "has used exceeds it, at the last level shown; of servings and loads, that of TPOT."
        ),
    ] = None,
    ranking: Annotated[
        bool,
        typer.Option(
            "--ranking",
            help="Of servings that differ in their plan alone: the throughput lost by running the plan that is "
            "predicted to be best.",
        ),
    ] = False,
) -> None:
    """Compare measured runs of static batches, servings with requests in flight, or loads, with predictions.

    Flags of the scenario are for results of a load generator, which do not say all of it.
    """
    # imported here: `--help` needs no simulator
    from ladder_sim.validation import compare as comparison
    from ladder_sim.validation.archive import is_archive, read_archive
    from ladder_sim.validation.serving_table import is_serving_table, read_servings

    asked = flags.Asked.of(context, requests="the file has the requests")
    maximum = None if max_error is None else _fraction(max_error)
    if ranking and maximum is not None:
        raise UsageError("--max-error bounds errors, and --ranking prints losses", hint="leave one of them out")
    path = result_file(dataset)
    if is_archive(path):
        _no_ranking(ranking)
        if level != "all" or maximum is not None or asked.arguments or asked.settings or asked.profile:
            raise UsageError("an archive holds its scenarios and its predictions", hint="leave other flags out")
        asked.output.give(read_archive(path))
        return
    if path.suffix in _RESULTS:
        _no_ranking(ranking)
        if level != "all":
            raise UsageError("--level is for runs of static batches", hint="leave it out for a measured load")
        name = shown_path(path) if path == Path(dataset) else dataset
        _validate_loads(path, name, asked, maximum)
        return
    if asked.arguments or asked.settings:
        raise UsageError("the scenario is in the table: its flags are for a measured load", hint="leave them out")
    content, name = read_table(dataset)
    if is_serving_table(content):
        if level != "all":
            raise UsageError("--level is for runs of static batches", hint="leave it out for a table of servings")
        _validate_servings(read_servings(content, name), name, asked, maximum, ranking=ranking)
        return
    _no_ranking(ranking)
    # checked there
    chosen = cast(comparison.Level, level)
    compared = comparison.validate(read_runs(content, name), chosen, profile=asked.profile)
    _require([each.note for each in compared.rows], any(each.tokens_per_s for each in compared.rows), name)
    asked.output.give(compared)
    if maximum is not None:
        comparison.gate(compared.rows, maximum)


def _validate_loads(path: Path, name: str, asked: flags.Asked, maximum: float | None) -> None:
    from ladder_sim.serving.requests.results import read_results
    from ladder_sim.system.progress import StatusLine
    from ladder_sim.validation.load import compare_loads, gate_loads

    results = read_results(path)
    with StatusLine() as line:
        compared = compare_loads(
            results,
            asked.arguments,
            asked.settings,
            name=name,
            profile=asked.profile,
            watch=lambda done: line.show(f"{done} of {len(results)} loads simulated"),
        )
    _require([each.note for each in compared], any(each.figures for each in compared), name)
    asked.output.give(compared)
    if maximum is not None:
        gate_loads(compared, maximum)


def _validate_servings(
    servings: "Sequence[Serving]", name: str, asked: flags.Asked, maximum: float | None, *, ranking: bool
) -> None:
    from ladder_sim.validation import serving
    from ladder_sim.validation.ranking import rank_plans

    compared = serving.compare_servings(servings, name=name, profile=asked.profile)
    _require([each.note for each in compared], any(each.ttft for each in compared), name)
    asked.output.give(rank_plans(compared, name=name) if ranking else compared)
    if maximum is not None:
        serving.gate(compared, maximum)


def _no_ranking(asked: bool) -> None:
    if asked:
        raise UsageError("--ranking is for tables of servings", hint="leave it out, or give a CSV file of servings")


def _require(notes: Sequence[str], predicted: bool, name: str) -> None:
    """Refuse a file of which nothing could be predicted."""
    if not predicted:
        reason = next(filter(None, notes), "").removeprefix("not predicted: ")
        raise UsageError(
            f"{name}: none of its {len(notes)} rows could be predicted; the first: {reason}",
            hint="correct the file, or give rows that can run",
        )


def _fraction(percent: str) -> float:
    try:
        value = float(percent.strip().removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1000.0:
        raise UsageError(
            f"--max-error '{percent}' must be a percentage from 0 to 1000",
            hint="--max-error 8 allows a mean error of 8 %",
        )
    return value / 100.0
