"""A recorded run, and what is asked about it: what it holds, whether its graph explains it, what other wirings take."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ladder_sim.answer import Answer, Named
from ladder_sim.errors import UsageError
from ladder_sim.traces.blocks import Cover, cover
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.iterations import between, choose_step
from ladder_sim.traces.load import load
from ladder_sim.traces.replay import MAX_ERROR, Contention, Replay, StepError, default_contention
from ladder_sim.traces.replay import replay as run
from ladder_sim.traces.summary import RunSummary, VariantTime, summarize_run
from ladder_sim.traces.whatif import UNCHANGED, Changes, with_gaps, without_communication
from ladder_sim.traces.wirings import DEFAULT_VARIANTS, baseline, launch_share, predict_variants
from ladder_sim.values import real, typed


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class TraceInfo(Answer):
    """What a recorded run holds, and where its time goes."""

    shown_by = "traces.InfoReport"

    graph: TraceGraph
    """The run."""
    totals: RunSummary
    """Sums over its ops, ranks and streams."""
    top: int = 15
    """Number of ops that `explain` lists."""
    spread: bool = False
    """Whether tables show the spread of each op's time."""

    @property
    def runs(self) -> Mapping[str, TraceGraph]:
        """What is drawn."""
        return {"recorded": self.graph}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class TraceReplay(Answer):
    """A recorded run and its replay, with or without changes."""

    shown_by = "traces.ReplayReport"

    recorded: Replay
    """Replay of the run as it was recorded."""
    changed: Replay | None
    """Replay of the run with changes; None without any."""

    @property
    def replayed(self) -> TraceGraph:
        """The run at its simulated times, with the changes."""
        return (self.changed or self.recorded).simulated

    @property
    def worst(self) -> StepError:
        """The step whose replay is the furthest off."""
        return max(self.recorded.steps, key=lambda step: abs(step.error))

    @property
    def runs(self) -> Mapping[str, TraceGraph]:
        """What is drawn."""
        return {"recorded": self.recorded.graph, "replayed": self.replayed}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Rewired(Named[str, VariantTime]):
    """A recorded step in other wirings, by variant; empty if its replay is too far off."""

    shown_by = "rewired.RewiredReport"
    parts = "times"

    step: TraceGraph
    """The step as recorded, with its changes."""
    cover: Cover
    """Passes that were found in it."""
    replayed: StepError
    """The step replayed in its own wiring, without changes."""
    max_error: float
    """Largest relative error of the replay for which other wirings are predicted."""
    launch_share: float
    """Share of the critical path on which a CPU launches."""
    times: Mapping[str, VariantTime]
    """The step in each wiring."""
    contention: Contention | None
    """How ops that overlap in other wirings slow each other; None: they do not, or as predicted in a predicted run."""
    contended: bool
    """Whether ops of a predicted run slow each other."""

    @property
    def own(self) -> str:
        """Wiring of the recorded run."""
        return "standard" if self.step.origin is None else self.step.origin.scenario.variant

    @property
    def runs(self) -> Mapping[str, TraceGraph]:
        """What is drawn."""
        return {name: time.graph for name, time in self.items()}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class TraceDiff(Answer):
    """Two runs, recorded or simulated, next to each other."""

    shown_by = "traces.DiffReport"

    runs: Mapping[str, TraceGraph]
    """The two, by name."""
    summaries: tuple[RunSummary, RunSummary]
    """Their totals."""


class Trace:
    """A recorded run: files of `torch.profiler` or Nsight Systems, or one of `ladder-sim trace export`.

    Parameters
    ----------
    paths
        Files of one run, one for each rank or one of all, or their folder.
    step
        Name or number of the only step to look at; None: all, and for `predict` the last.
    annotation
        Pattern of the names of annotations or NVTX ranges at which steps begin; None: marks of the profiler.
    start_s, end_s
        Only what starts in this stretch of time, in seconds since the first op; None: no bound.

    Raises
    ------
    UsageError
        A file cannot be read, or nothing in it was asked for.

    Examples
    --------
    >>> from ladder_sim import Trace
    >>> rewired = Trace("tests/data/traces/tp/h100_compiled_graph").predict()
    >>> f"{rewired['ladder'].speedup:.2f}"
    '1.28'
    """

    @typed(unless={"paths"})
    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        step: str | int | None = None,
        annotation: str | None = None,
        start_s: float | None = None,
        end_s: float | None = None,
    ) -> None:
        files = [paths] if isinstance(paths, str | os.PathLike) else paths
        self.paths = tuple(map(Path, files))
        if not self.paths:
            raise UsageError("no trace: must be at least one file", hint="name the files of a run, or their folder")
        self._step = None if step is None else str(step)
        graph = load(self.paths, marks=annotation)
        self.graph = graph if start_s is None and end_s is None else between(graph, start_s, end_s)

    @property
    def part(self) -> TraceGraph:
        """The named step, or the whole run."""
        return self.graph if self._step is None else choose_step(self.graph, self._step)

    def info(self, *, top: int = 15, spread: bool = False) -> TraceInfo:
        """Sum up ops by time, communication and the critical path."""
        graph = self.part
        return TraceInfo(graph=graph, totals=summarize_run(graph), top=top, spread=spread)

    def replay(self, changes: Changes = UNCHANGED, *, no_communication: bool = False) -> TraceReplay:
        """Run the recorded graph through the simulator, and again with changes, if there are any."""
        loaded = self.part
        recorded = with_gaps(loaded)
        graph = changes.apply(loaded, recorded)
        graph = without_communication(graph) if no_communication else graph
        return TraceReplay(recorded=run(recorded), changed=None if graph is recorded else run(graph))

    @typed()
    def predict(
        self,
        variants: str | Sequence[str] | None = None,
        *,
        changes: Changes = UNCHANGED,
        stream_wait_s: float | None = None,
        contention: str | None = None,
        max_error: float = MAX_ERROR,
    ) -> Rewired:
        """Predict how long a recorded standard step takes in other wirings.

        Parameters
        ----------
        variants
            Wirings; None: standard, ladder and upper-bound.
        changes
            What else is different.
        stream_wait_s
            Time that a stream takes to wait for another; None: 1 us, in a predicted run its stack's.
        contention
            Cluster of the catalog whose GPU says how ops that overlap slow each other, or "none"; None: none on GPUs;
            on CPUs gloo's threads take time of their rank's core; in a predicted run as predicted.
        max_error
            Relative error of the step's replay from which no other wiring is predicted.
        """
        real(max_error, "max_error", math.inf, zero=True, hint="a share of the step, e.g. 0.1")
        if stream_wait_s is not None:
            real(stream_wait_s, "stream_wait_s", 1.0, zero=True, hint="seconds, e.g. 1e-6")
        names = [variants] if isinstance(variants, str) else variants
        graph = self.graph
        if graph.origin is not None and contention not in (None, "none"):
            raise UsageError(
                f"--contention {contention}: the trace was predicted, its GPU is known",
                hint="leave it out, or give none",
            )
        kept = with_gaps(graph)
        replayed = baseline(kept, self._step)
        step = changes.apply(choose_step(graph, self._step), choose_step(kept, self._step))
        shared = default_contention(step) if contention is None else None
        if contention not in (None, "none"):
            shared = Contention.of_gpu(contention)
        covered, launching = cover(step), launch_share(step)
        times: Mapping[str, VariantTime] = {}
        if abs(replayed.error) <= max_error:
            times = predict_variants(
                step,
                names or DEFAULT_VARIANTS,
                stream_wait_s=stream_wait_s,
                contention=shared,
                contended=contention is None,
            )
        return Rewired(
            step=step,
            cover=covered,
            replayed=replayed,
            max_error=max_error,
            launch_share=launching,
            times=times,
            contention=shared,
            contended=contention is None,
        )

    def diff(self, other: "Trace") -> TraceDiff:
        """Compare with another run."""
        names = [each.paths[0].name for each in (self, other)]
        if names[0] == names[1]:
            whole = [str(each.paths[0]) for each in (self, other)]
            names = whole if whole[0] != whole[1] else [f"{names[0]} (1)", f"{names[1]} (2)"]
        parts = self.part, other.part
        first, second = map(summarize_run, parts)
        return TraceDiff(runs=dict(zip(names, parts, strict=True)), summaries=(first, second))
