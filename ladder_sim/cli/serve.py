"""`ladder-sim serve` and `capacity`: what becomes of a load, and what it needs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from ladder_sim.cli.options import REQUESTS, PointFlags, split_names, with_options
from ladder_sim.cli.output import Output
from ladder_sim.errors import UsageError
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.values import whole

if TYPE_CHECKING:
    from ladder_sim.confidence import Confidence
    from ladder_sim.display.notes import Notes
    from ladder_sim.serve import MeasuredSteps, Trace, Traffic
    from ladder_sim.specs.plan import Plan

_LOAD = "Load"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFlags(PointFlags):
    """A scenario, and requests that arrive."""

    without: ClassVar[tuple[str, ...]] = REQUESTS
    ignored: ClassVar[Mapping[str, str]] = {
        f"workload.{name}": "requests arrive as --prompt, --gen, --rate, --concurrency or --trace say"
        for name in REQUESTS
    }

    prompt: Annotated[
        str,
        typer.Option(help="Tokens of prompts: 1024, uniform:512:1536 or lognormal:1024:0.5.", rich_help_panel=_LOAD),
    ] = "1024"
    gen: Annotated[str, typer.Option(help="Tokens of answers, likewise.", rich_help_panel=_LOAD)] = "256"
    rate: Annotated[float, typer.Option(help="Requests per second.", rich_help_panel=_LOAD)] = 0.0
    concurrency: Annotated[
        int,
        typer.Option(
            help="Requests in flight at all times, instead of a rate; with --rate, the most at a time.",
            rich_help_panel=_LOAD,
        ),
    ] = 0
    burstiness: Annotated[
        float,
        typer.Option(
            help="Of times between requests: 1 is a Poisson process, less comes in bursts.", rich_help_panel=_LOAD
        ),
    ] = 1.0
    prefix: Annotated[
        int, typer.Option(help="Tokens that all prompts begin with, in addition.", rich_help_panel=_LOAD)
    ] = 0
    requests: Annotated[
        int | None, typer.Option(help="How many requests: 1000 by default, or all of a trace.", rich_help_panel=_LOAD)
    ] = None
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.", rich_help_panel=_LOAD)] = 0
    seeds: Annotated[
        int | None,
        typer.Option(help="Seeds to simulate, for intervals: 5 by default, in capacity 3.", rich_help_panel=_LOAD),
    ] = None
    router: Annotated[
        str,
        typer.Option(
            help="How replicas share requests: round-robin, least-loaded or prefix-aware.", rich_help_panel=_LOAD
        ),
    ] = "round-robin"
    steps: Annotated[
        Path | None,
        typer.Option(
            help="Step times of a running vLLM, from `calibrate fit-steps`, instead of simulated ones.",
            rich_help_panel=_LOAD,
        ),
    ] = None
    speculate: Annotated[
        str | None,
        typer.Option(
            help="Speculative decoding, drafts and their acceptance: 3:0.7, or 0.8/0.6/0.4 by position.",
            rich_help_panel=_LOAD,
        ),
    ] = None

    def scenario(self) -> Scenario:
        """Resolve names and check everything, with a request on each replica."""
        return self._scenario(**self.arguments)

    def _scenario(self, **arguments: Any) -> Scenario:
        replicas = arguments["dp"] * arguments["attention_dp"]
        return Scenario.of(**arguments, concurrency=replicas, overrides=self.settings)

    def prefill(self, replicas: int, tp: int | None) -> Scenario | None:
        """The scenario of replicas that run prompts only, if there are any."""
        if not replicas:
            if tp is not None:
                raise UsageError(
                    f"--prefill-tp {tp} without --prefill-replicas: no replica runs prompts only",
                    hint="say how many, e.g. --prefill-replicas 2",
                )
            return None
        self.check_prefill("--prefill-replicas")
        whole(replicas, "--prefill-replicas", 1, 10_000)
        tp = self.scenario().plan.tp if tp is None else tp
        return self._scenario(**{**self.arguments, "dp": replicas, "tp": tp})

    def check_prefill(self, flag: str) -> None:
        """Refuse a flag of replicas that run prompts only where steps were measured."""
        if self.steps is not None:
            raise UsageError(f"{flag} with --steps: only a whole server was measured", hint="leave out one of them")

    def trace(self, path: Path, speed: float | None) -> "Trace":
        """Requests of a file."""
        from ladder_sim.serve import Trace

        # acceptance of drafted tokens is drawn all the same
        drawn = ["rate", "concurrency", "burstiness", "prompt", "gen", "prefix", *([] if self.speculate else ["seed"])]
        for name in drawn:
            if (value := getattr(self, name)) != _default(name):
                raise UsageError(
                    f"--{name} {value} with --trace: a trace has its own times and lengths, and nothing is drawn",
                    hint="leave out one of them; --speed and --requests say how fast and how much of a trace is played",
                )
        speed = 1.0 if speed is None else speed
        if not 1e-6 <= speed <= 1e6:
            raise UsageError(f"--speed {speed:g}: must be 1e-6 to 1e6", hint="2 plays a trace twice as fast")
        return Trace(path=path, requests=self.requests, speed=speed)

    def traffic(self) -> "Traffic":
        """Requests drawn at random."""
        from ladder_sim.serve import Lengths, Traffic

        if not self.rate and self.burstiness != _default("burstiness"):
            raise UsageError(
                f"--burstiness {self.burstiness:g} without --rate: requests have no times of their own",
                hint="give --rate, or leave it out",
            )
        return Traffic(
            prompt=Lengths.parse(self.prompt),
            gen=Lengths.parse(self.gen),
            rate=self.rate,
            concurrency=self.concurrency,
            requests=1000 if self.requests is None else self.requests,
            burstiness=self.burstiness,
            prefix=self.prefix,
            seed=self.seed,
        )

    def how(self) -> dict[str, Any]:
        """Fields of a `Service`."""
        from ladder_sim.serve import MeasuredSteps
        from ladder_sim.serve.engine.speculation import Speculation

        changed: dict[str, Any] = {}
        if self.speculate is not None:
            changed["speculation"] = Speculation.parse(self.speculate, self.seed)
        return {
            "router": self.router,
            "profile": self.profile,
            "changed": changed,
            "steps": None if self.steps is None else MeasuredSteps.read(self.steps),
        }


def _default(name: str) -> Any:
    """Of a flag that is left out."""
    return next(each.default for each in fields(LoadFlags) if each.name == name)


@with_options
def serve(
    *,
    flags: LoadFlags,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="File of requests instead of a rate: Mooncake, Azure LLM, BurstGPT, AIPerf or vllm bench serve.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    speed: Annotated[
        float | None, typer.Option(help="Play a trace so many times as fast as recorded.", rich_help_panel=_LOAD)
    ] = None,
    slo: Annotated[
        str | None, typer.Option(help="Latency promise, e.g. ttft_p95=500ms,tpot_p95=30ms.", rich_help_panel=_LOAD)
    ] = None,
    variant: Annotated[list[str] | None, typer.Option(help="As in predict; standard and ladder by default.")] = None,
    price: Annotated[float | None, typer.Option(help="US dollars per GPU and hour.")] = None,
    prefill_replicas: Annotated[
        int,
        typer.Option(
            help="Replicas that run prompts only, in addition to the --dp ones that decode.", rich_help_panel=_LOAD
        ),
    ] = 0,
    prefill_tp: Annotated[
        int | None,
        typer.Option(help="Tensor parallelism of the prefill replicas; by default as --tp.", rich_help_panel=_LOAD),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="vllm: an installed vLLM schedules; its steps take predicted times.", rich_help_panel=_LOAD),
    ] = None,
    perfetto: Annotated[
        Path | None, typer.Option(help="Write a minute of one replica for ui.perfetto.dev: .json or .json.gz.")
    ] = None,
    output: Output,
) -> None:
    """Simulate requests that arrive under load, one by one, and show their times for each variant."""
    from ladder_sim.report.documents.serve import serve_document
    from ladder_sim.report.figures.serve import load_figure
    from ladder_sim.report.tables.serve import load_label, load_subtitle, serve_report
    from ladder_sim.serve import Promise, estimate
    from ladder_sim.serve.load import DEFAULT_VARIANTS
    from ladder_sim.sweeps.price import check_price
    from ladder_sim.system.files import check_folder
    from ladder_sim.system.progress import Progress
    from ladder_sim.traces.serving import write_steps

    scenario = flags.scenario()
    how = {"prefill": flags.prefill(prefill_replicas, prefill_tp), "engine": engine, **flags.how()}
    check_folder("--perfetto", perfetto)
    usd_per_gpu_hour = None if price is None else check_price(price)
    promise = Promise.parse(slo) if slo is not None else None
    if speed is not None and trace is None:
        raise UsageError(
            f"--speed {speed:g} without --trace: nothing is played", hint="name a file of requests, or change --rate"
        )
    requests = flags.traffic() if trace is None else flags.trace(trace, speed)
    with Progress(1, "requests") as progress:
        estimates = estimate(
            scenario,
            requests,
            split_names(variant) or DEFAULT_VARIANTS,
            seeds=flags.seeds,
            concurrency=flags.concurrency,
            promise=promise,
            record=output.plot is not None or perfetto is not None,
            watch=progress,
            **how,
        )
    if perfetto is not None:
        write_steps(perfetto, {name: each.outcome for name, each in estimates.variants.items()})
    output.give(
        lambda: serve_document(scenario, requests, how, estimates, usd_per_gpu_hour),
        lambda: serve_report(load_label(scenario, requests, how), estimates, usd_per_gpu_hour),
        lambda: load_figure(load_subtitle(scenario, requests, how), estimates),
        _notes(scenario, {"": estimates.confidence}, how["steps"], estimates.variants, estimates.cautions),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFlags(LoadFlags):
    """The same for a search over plans of a replica: each degree takes several values, by default all."""

    ranged: ClassVar[tuple[str, ...]] = ("tp", "pp", "ep", "attention_dp", "sp")
    without: ClassVar[tuple[str, ...]] = (*LoadFlags.without, "dp")

    def scenario(self) -> Scenario:
        """Resolve names and check everything but the plan."""
        fixed = {name: value for name, value in self.arguments.items() if name not in self.ranged}
        base = Scenario.of(**fixed, tp=1, concurrency=1, overrides=self.settings)
        gpus = base.nodes * base.cluster.gpus_per_node
        return replace(base, workload=replace(base.workload, concurrency=gpus))

    def plans(self, scenario: Scenario) -> "Sequence[Plan]":
        """Those of one replica that are legal, within what was typed."""
        from ladder_sim.analysis.plans import legal_plans
        from ladder_sim.sweeps.axes import axis

        typed = {name: self.arguments[name] for name in self.ranged if self.arguments[name] is not None}
        given = {name: axis(name, text).values for name, text in typed.items()}
        if self.steps is not None:
            # those of a running engine are of one plan
            given = {"tp": (scenario.cluster.gpus_per_node,), "pp": (1,), "ep": (1,), "attention_dp": (1,), **given}
        return legal_plans(scenario, scenario.workload.in_flight, {**given, "dp": [1]}).legal

    def prefill_tps(self, text: str | None) -> Sequence[int]:
        """Of replicas that run prompts only."""
        from ladder_sim.sweeps.axes import axis

        if text is None:
            return ()
        self.check_prefill("--prefill-tp")
        return axis("tp", text).values


@with_options
def capacity(
    *,
    flags: FleetFlags,
    slo: Annotated[
        str, typer.Option(help="Latency promise, e.g. ttft_p95=500ms,tpot_p95=30ms.", rich_help_panel=_LOAD)
    ],
    variant: Annotated[list[str] | None, typer.Option(help="As in predict; standard and ladder by default.")] = None,
    price: Annotated[float | None, typer.Option(help="US dollars per GPU and hour.")] = None,
    prefill_tp: Annotated[
        str | None,
        typer.Option(
            help="Also let replicas of their own run the prompts, as many as it takes, with this tensor parallelism; "
            "ranges double.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a search with --save was killed.")] = False,
    output: Output,
) -> None:
    """Find the fewest GPUs that keep a promise at a rate, over plans, and the rate at which one replica breaks it."""
    from ladder_sim.report.documents.serve import capacity_document
    from ladder_sim.report.figures.serve import capacity_figure
    from ladder_sim.report.tables.serve import capacity_label, capacity_report
    from ladder_sim.serve import Promise, smallest_fleets
    from ladder_sim.serve.load import DEFAULT_VARIANTS
    from ladder_sim.sweeps.price import check_price
    from ladder_sim.system.progress import Progress

    if resume and output.save is None:
        raise UsageError("--resume without --save", hint="name the file whose search was killed")
    scenario, traffic, promise = flags.scenario(), flags.traffic(), Promise.parse(slo)
    prefill_tps, how = flags.prefill_tps(prefill_tp), flags.how()
    usd_per_gpu_hour = None if price is None else check_price(price)
    with Progress(1, "points") as progress:
        fleets = smallest_fleets(
            scenario,
            traffic,
            promise,
            split_names(variant) or DEFAULT_VARIANTS,
            plans=flags.plans(scenario),
            prefill_tps=prefill_tps,
            seeds=flags.seeds,
            path=output.save,
            resume=resume,
            curves=output.plot is not None,
            watch=progress,
            **how,
        )
    confidences = {name: each.confidence for name, each in fleets.variants.items() if each.confidence}
    output.give(
        lambda: capacity_document(scenario, how, fleets, usd_per_gpu_hour),
        lambda: capacity_report(capacity_label(scenario, how, fleets), fleets, usd_per_gpu_hour),
        lambda: capacity_figure(f"{scenario.model.name}, {scenario.cluster.name}, {scenario.stack.name}", fleets),
        _notes(scenario, confidences, how["steps"], fleets.variants, fleets.cautions),
    )


def _notes(
    scenario: Scenario,
    confidences: "Mapping[str, Confidence]",
    steps: "MeasuredSteps | None",
    variants: Iterable[str],
    about: tuple[str, ...],
) -> "Notes":
    """The end of an answer; what predictions were compared with says nothing of a running engine's own steps."""
    from ladder_sim.display.notes import Notes
    from ladder_sim.serve.confidence import steps_note

    if steps is None:
        return Notes(confidences=confidences, about=about)
    rewired = [name for name in variants if name != "standard"]
    confidence = next(iter(confidences.values()), None)
    of_rewired = {", ".join(rewired): confidence} if rewired and confidence else {}
    return Notes(confidences=of_rewired, about=(steps_note(steps, scenario, rewired), *about))
