"""`ladder-sim predict`, and the answers that take many: `versus`, `advise`, `breakeven`, `compare`, `sensitivity`."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Annotated, cast

import typer

from ladder_sim.cli import flags
from ladder_sim.cli.flags import in_asked, in_load
from ladder_sim.cli.output import check_plot, draw, in_output, write
from ladder_sim.errors import UsageError
from ladder_sim.specs.arguments import ARGUMENTS, keywords_of
from ladder_sim.system.processes import cores
from ladder_sim.units import parse_quantity


def advise(
    context: typer.Context,
    nodes: Annotated[int | None, in_asked(help="Number of nodes; default: as many as --gpus fill, else 1.")] = None,
    gpus: Annotated[int | None, in_asked(help="GPUs that may be used; default: all of --nodes.")] = None,
    objective: Annotated[
        str | None,
        in_asked(
            help="tpot, ttft, tokens_per_s or tokens_per_gpu; default: tokens_per_s with --concurrency, else "
            "tokens_per_gpu."
        ),
    ] = None,
    max_tpot: Annotated[str | None, in_asked(help="Longest time per token, e.g. 30ms.")] = None,
    max_ttft: Annotated[
        str | None, in_asked(help="Longest time to first token, of a static batch that of all its prompts; e.g. 2s.")
    ] = None,
    price: flags.Price = None,
    workers: Annotated[
        int | None, in_asked(min=1, help="Processes for hundreds of plans; default: every core.")
    ] = None,
    batches: Annotated[
        str | None, in_load(help="Static batches to try, without --concurrency; default: 1:256.")
    ] = None,
) -> None:
    """Find the plan and variant that serve requests best, or the plan, static batch and variant.

    Every plan on at most --gpus GPUs is searched; --tp, --pp, --ep, --attention-dp and --dp restrict it to their
    values, e.g. --tp 8 --ep 1,8. Without --concurrency it is not a recommendation for serving.
    """
    from ladder_sim.analysis import advise as search
    from ladder_sim.analysis.advice import Objective

    asked = flags.Asked.of(context, "nodes", "batch", ranged=True)
    searched = ("tp", "pp", "ep", "attention_dp", "dp", "sp")
    advice = search.advise(
        None,
        # checked there
        cast(Objective | None, objective),
        asked.variants or search.CANDIDATES,
        gpus=gpus,
        max_tpot_s=_seconds(max_tpot, "--max-tpot"),
        max_ttft_s=_seconds(max_ttft, "--max-ttft"),
        usd_per_gpu_hour=price,
        profile=asked.moved_profile({}),
        workers=workers or cores(),
        **keywords_of({**asked.point("nodes", "batch", *searched), "nodes": nodes, "batch": batches}),
    )
    asked.output.give(advice)


def _seconds(text: str | None, flag: str) -> float:
    """Return a limit in seconds; infinite if none is given."""
    return inf if text is None else parse_quantity(text, "s", name=flag, likely=("ms", "s"))


def breakeven(
    context: typer.Context,
    field: Annotated[
        str,
        typer.Argument(
            help="FIELD=START:STOP[UNIT], e.g. gpu.kernel=1:9us; FIELD alone searches from a sixteenth of "
            "the scenario's value to sixteen times it.",
            metavar="FIELD[=RANGE]",
        ),
    ],
    variant: Annotated[str, in_asked(help="Whose gain it is.")] = "ladder",
    over: Annotated[str, in_asked(help="The variant to compare with, e.g. parallel.")] = "standard",
    gain: Annotated[str, in_asked(help="The gain to search for, e.g. 20% or 0.2.")] = "0%",
) -> None:
    """Find the value of a field at which a variant's gain crosses a target."""
    from ladder_sim.analysis.breakeven import breakeven as search

    asked = flags.Asked.of(context)
    name, equals, given = field.partition("=")
    asked.output.give(
        search(
            None,
            name,
            given if equals else None,
            variant=variant,
            over=over,
            gain=gain,
            **asked.how("ignore_memory"),
            **keywords_of(asked.point()),
        )
    )


def compare(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(help="Clusters or stacks, by catalog id or file.", metavar="NAME...")],
    price: Annotated[
        list[float] | None, in_output(help="US dollars per GPU and hour; once, or once per name in their order.")
    ] = None,
) -> None:
    """Predict the same scenario on several clusters, or under several stacks, side by side."""
    from ladder_sim.analysis import compare as analysis

    asked = flags.Asked.of(context)
    asked.output.give(
        analysis.compare(
            None,
            names,
            asked.variants or None,
            usd_per_gpu_hour=price or (),
            **asked.how("ignore_memory"),
            **keywords_of(asked.point()),
        )
    )


def sensitivity(
    context: typer.Context, step: Annotated[float, in_asked(help="Change of each figure in percent.")] = 10.0
) -> None:
    """Change each hardware figure and cost a little, and report how time and speedup change."""
    from ladder_sim.analysis import sensitivity as analysis
    from ladder_sim.sweeps.grid import scenario_at

    asked = flags.Asked.of(context)
    scenario = scenario_at(asked.point())
    how = asked.how("ignore_memory")
    asked.output.give(analysis.sensitivity(scenario, asked.variants or None, step=step / 100.0, **how))


def predict(context: typer.Context) -> None:
    """Predict latency, throughput and speedup of residual wirings, for a static batch or requests in flight."""
    # imported here: `--help` and `list` need no simulator
    from ladder_sim.prediction import predict as simulate

    asked = flags.Asked.of(context)
    timeline = asked.knobs["timeline"] and Path(asked.knobs["timeline"])
    check_plot(timeline)
    how = asked.how("engine", "jitter", "seed", "ignore_memory")
    predictions = simulate(asked.scenario(), asked.variants or None, **how)
    draw(lambda: predictions.plot("timeline"), timeline)
    asked.output.give(predictions)


def versus(
    context: typer.Context,
    variant: Annotated[
        list[str] | None, in_asked(help="Wirings to compare; default: those that suit the model.")
    ] = None,
    technique: Annotated[
        list[str] | None,
        in_asked(
            help="Techniques to compare, joined by + for several at once; default: all that apply.",
            autocompletion=flags.completion(ARGUMENTS["technique"]),
        ),
    ] = None,
    rate: Annotated[
        float, in_load(help="Requests per second: GPUs that the leading options need.", show_default=False)
    ] = 0.0,
    slo: Annotated[
        list[str] | None, in_load(help="Bounds on times at that rate, e.g. ttft_p95=500ms,tpot_p95=30ms; repeatable.")
    ] = None,
    requests: Annotated[int, in_load(help="How many are simulated.")] = 500,
    seeds: Annotated[int, in_load(help="Seeds to simulate.")] = 3,
    map_: Annotated[
        Path | None,
        in_output("--map", help="Draw what gains most by link latency and number of requests: .html, .png or .svg."),
    ] = None,
    search: Annotated[
        Path | None, in_asked(help="File of what each layer may choose: find the best wiring instead.")
    ] = None,
    write_: Annotated[Path | None, in_output("--write", help="With --search: write the best as a wiring file.")] = None,
) -> None:
    """Compare what hides communication: techniques without retraining, and wirings that need it."""
    from ladder_sim.analysis.versus import under_load
    from ladder_sim.analysis.versus import versus as compare
    from ladder_sim.sweeps.grid import scenario_at
    from ladder_sim.system.progress import Progress

    asked = flags.Asked.of(context, "technique")
    check_plot(map_)
    if search is not None:
        if variant or rate or slo or map_ or asked.output.plot:
            raise UsageError(
                "--search: finds a wiring alone", hint="leave out --variant, --rate, --slo, --map and plot"
            )
        _search(asked, search, write_, flags.split_names(technique))
        return
    if write_ is not None:
        raise UsageError("--write: there is nothing to write", hint="--search space.toml finds a wiring")
    if (not slo) != (not rate):
        raise UsageError("--rate and --slo: must be given together", hint="e.g. --rate 20 --slo ttft_p95=500ms")
    bounds = None
    if slo:
        # imported where they are needed: they take as long as the rest of the answer's modules
        from ladder_sim.serving import SLO, Lengths, Traffic

        bounds = SLO.parse(",".join(slo))
    # requests of a rate are in flight
    scenario = scenario_at({**({"stack": "vllm"} if bounds else {}), **asked.point("technique")})
    how = asked.how("ignore_memory")
    options = asked.variants or None, flags.split_names(technique) or None
    result = compare(scenario, *options, every=map_ is not None, **how)
    if map_ is not None:
        from ladder_sim.analysis.winners import winners
        from ladder_sim.report.versus import winners_figure

        with Progress(1, "points") as progress:
            best = winners(result, profile=how["profile"], watch=progress)
        draw(lambda: winners_figure(best), map_)
    if bounds is not None:
        workload = scenario.workload
        prompts, answers = (Lengths.parse(str(tokens)) for tokens in (workload.prompt, workload.gen))
        traffic = Traffic(prompt=prompts, gen=answers, rate=rate, requests=requests)
        with Progress(1, "points") as progress:
            result = under_load(result, traffic, bounds, seeds=seeds, profile=how["profile"], watch=progress)
    asked.output.give(result)


def _search(asked: flags.Asked, space: Path, written: Path | None, techniques: Sequence[str]) -> None:
    """Find the best wiring of a search space, and write it to a file if there is one."""
    from ladder_sim.search.search import search
    from ladder_sim.search.space import read_space
    from ladder_sim.specs.techniques import Techniques
    from ladder_sim.sweeps.grid import scenario_at
    from ladder_sim.system.progress import Progress
    from ladder_sim.wirings.names import is_file, parse

    if written is not None and not is_file(str(written)):
        raise UsageError(f"--write '{written}': must end in .toml", hint=f"--variant reads {written.stem}.toml")
    scenario = scenario_at(asked.point("technique")).having(techniques=Techniques.of(techniques))
    with Progress(1, "wirings") as progress:
        found = search(scenario, read_space(space), watch=progress, **asked.how("ignore_memory"))
    if written is not None and found.best is not None:
        write(parse(found.best.variant).toml, written)
        found = replace(found, file=written)
    asked.output.give(found)
