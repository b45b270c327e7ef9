"""The answer of `trace predict`: how long a recorded step takes in other wirings."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.display.document import Document
from ladder_sim.display.labels import wiring_label
from ladder_sim.report.columns import Column, cut, percent, table_of
from ladder_sim.report.report import Brief, Remark, Report
from ladder_sim.report.traces import communication_fields, missing_lines, notes_of, trace_document, trace_figure
from ladder_sim.traces.summary import VariantTime
from ladder_sim.traces.trace import Rewired
from ladder_sim.units import counted_text, format_seconds
from ladder_sim.wirings.names import NO_COMMUNICATION

# a smaller share of the all-reduces says little about the step
COVERED = 0.9
# share of the critical path from which on launching is the limit
LAUNCH_BOUND = 0.5
# smallest gain that is shown as one
SHOWN_GAIN = 0.005
# rows of the table; characters of a step's name
_SHOWN, _NAME = 6, 40
# traces of CPU ranks that were rewired, and measured as ladder next to it: docs/traces.md has the seven errors
_EVIDENCE = "7 traces of CPU ranks, rewired, then measured as ladder: steps off by 0.1 to 6.6 %."

_Row = tuple[str, VariantTime]


class RewiredReport(Report[Rewired]):
    """How a recorded step in other wirings looks."""

    figures: ClassVar = {"timeline": lambda self: trace_figure(self.answer.runs, "The recorded step in other wirings")}

    def _brief(self) -> Brief:
        rewired = self.answer
        rows = list(rewired.items())
        shown = [*rows[: _SHOWN - 1], rows[-1]] if len(rows) > _SHOWN else rows
        hidden = len(rows) - len(shown)
        return Brief(
            sentence=self._sentence(),
            asked=self._asked(),
            table=table_of(self._columns(), shown) if rows else None,
            remarks=self._remarks() if rows else [],
            more=counted_text(hidden, "more wiring") if hidden else "",
            cautions=missing_lines(rewired.step, *(time.graph for time in rewired.values())),
        )

    def _columns(self) -> Sequence[Column[_Row]]:
        own = self.answer.own
        columns: list[Column[_Row]] = [
            Column("", lambda row: f"{row[0]}, replayed" if row[0] == own else wiring_label(row[0]), "variant"),
            Column("step_s", lambda row: row[1].seconds, "step"),
            Column("", lambda row: "1" if row[0] == own else f"{row[1].speedup:.2f}", "speedup"),
            Column("comm_s", lambda row: row[1].comm.comm_s, "communication"),
            Column("exposed_s", lambda row: row[1].comm.exposed_s, "exposed"),
        ]
        if any(time.speedup_waits_stay is not None for time in self.answer.values()):
            columns.insert(3, Column("", lambda row: f"{row[1].speedup_waits_stay or 0.0:.2f}", "if waits stay"))
        return columns

    @property
    def _best(self) -> _Row | None:
        """The wiring that gains most, of those that can be run."""
        rewired = [each for each in self.answer.items() if each[0] not in (self.answer.own, NO_COMMUNICATION)]
        return max(rewired, key=lambda each: each[1].speedup, default=None)

    def _sentence(self) -> str:
        rewired, best = self.answer, self._best
        if not rewired:
            error, limit = percent(rewired.replayed.error, sign="+"), percent(rewired.max_error, 0)
            return f"No gain can be predicted: the replay of this step is off by {error}, more than {limit}."
        if self._launch_bound:
            most, share = max(each.speedup for each in rewired.values()), percent(rewired.launch_share, 0)
            limit = f"The CPU that launches is the limit ({share} of the critical path)"
            return f"{limit}: other wirings gain at most {most:.2f}x."
        unit = "token" if len(rewired.step.weights) > 1 else "step"
        step = f"{'recorded' if rewired.step.origin is None else 'predicted'} {unit}"
        if best is None:
            name, time = next(iter(rewired.items()))
            return f"{wiring_label(name, sentence=True)} takes {format_seconds(time.seconds)} for this {step}."
        name, time = best
        before = format_seconds(time.seconds * time.speedup)
        sentence = f"Rewired as {name}, this {step} takes {format_seconds(time.seconds)} instead of {before}"
        if self._drowned:
            return f"{sentence}: less than the replay's error."
        return f"{sentence}: {'at most ' if self._optimistic else ''}{time.speedup:.2f}x."

    @property
    def _optimistic(self) -> bool:
        """Whether kernels of a GPU overlap in the best wiring as if they did not slow each other."""
        rewired, best = self.answer, self._best
        alone = rewired.step.origin is None and rewired.contention is None
        return alone and best is not None and best[1].speedup > 1.0 and any(lane.device for lane in rewired.step.lanes)

    @property
    def _launch_bound(self) -> bool:
        """Whether launching limits the step, whatever is hidden."""
        return self.answer.launch_share > LAUNCH_BOUND and self._best is not None

    @property
    def _drowned(self) -> bool:
        """Whether the replay's error is larger than what any wiring saves."""
        best = max((time.speedup for time in self.answer.values()), default=1.0)
        return SHOWN_GAIN <= best - 1.0 <= abs(self.answer.replayed.error) * best

    def _asked(self) -> str:
        rewired, covered, replayed = self.answer, self.answer.cover, self.answer.replayed
        passes = f"{covered.passes} passes of up to " if covered.passes > 1 else ""
        found = f"{passes}{covered.layers} layers, {covered.covered} of {covered.reduces} all-reduces found"
        error = f"{percent(abs(replayed.error))} {'slower' if replayed.error > 0.0 else 'faster'} than"
        if percent(abs(replayed.error)) == percent(0.0):
            error = "as long as"
        recorded = "recorded" if rewired.step.origin is None else "predicted"
        return f"{cut(replayed.name, _NAME)}, {found}; replayed {error} {recorded}"

    def _remarks(self) -> list[Remark]:
        rewired, covered, best = self.answer, self.answer.cover, self._best
        remarks = []
        if covered.share < COVERED:
            text = f"Less than {percent(COVERED, 0)} of the all-reduces are in passes; the others stay where they are."
            remarks.append(Remark("caution", text))
        if best is not None:
            remarks.append(Remark("why", _reason(*best)))
        if self._launch_bound:
            remarks.append(
                Remark("instead", "--no-launch-gaps predicts a CPU that launches in no time, as with CUDA graphs.")
            )
        recorded = rewired.step.origin is None
        if recorded:
            remarks.append(Remark("evidence", _EVIDENCE))
        if any(time.speedup_waits_stay is not None for time in rewired.values()):
            text = (
                "Ranks without a trace were waited for: 'speedup' counts that as communication, 'if waits stay' as "
                "work of theirs, which no wiring shortens."
            )
            remarks.append(Remark("caution", text))
        remarks.append(Remark("caution" if recorded else "evidence", self._overlap()))
        for name, time in rewired.items():
            if time.unrecorded:
                kernels = ", ".join(time.unrecorded)
                text = f"{wiring_label(name)} runs kernels that the trace lacks, as long as predicted: {kernels}."
                remarks.append(Remark("caution", text))
        return remarks

    def _overlap(self) -> str:
        rewired = self.answer
        if rewired.step.origin is not None:
            slowed = "slow each other as predicted" if rewired.contended else "are not slowed down"
            return f"Kernels keep the times of the trace; those that overlap {slowed}."
        if rewired.contention is not None:
            shared = "GPU" if rewired.contention.overlap is not None else "core"
            return f"Kernels keep their recorded time; those that overlap in other wirings share the {shared}."
        if not self._optimistic:
            return "Kernels keep their recorded time; those that overlap are not slowed down."
        return "Kernels keep recorded times, and overlap slows them: --contention says by how much."

    def details(self) -> RenderableType:
        """Return all wirings, the replay of the step, weights of its passes, and what the trace lacks."""
        rewired, replayed = self.answer, self.answer.replayed
        recorded, again = format_seconds(replayed.recorded_s), format_seconds(replayed.replayed_s)
        lines = [f"{replayed.name}: recorded and replayed {recorded} and {again}, error {replayed.error:+.2%}"]
        if len(weights := rewired.step.weights) > 1:
            lines.append(f"a token takes {', '.join(f'{weight:.3g} x {step}' for step, weight in weights.items())}")
        lines.append(f"launching takes {percent(rewired.launch_share)} of the critical path")
        every: list[RenderableType] = [table_of(self._columns(), list(rewired.items())), Text()] if rewired else []
        return Group(*every, *map(Text, lines), *notes_of(rewired.step, *(time.graph for time in rewired.values())))

    def values(self) -> Document:
        rewired = self.answer
        origin = rewired.step.origin
        variants = {
            name: {
                "seconds": time.seconds,
                "speedup": time.speedup,
                "speedup_waits_stay": time.speedup_waits_stay,
                **communication_fields(time.comm),
                **({"unrecorded": list(time.unrecorded)} if origin is not None else {}),
            }
            for name, time in rewired.items()
        }
        error = rewired.replayed.error
        return trace_document(
            rewired.step,
            rows=[{"variant": name, **each} for name, each in variants.items()],
            **asdict(rewired.cover),
            step={**asdict(rewired.replayed), "error": error},
            check={"max_error": rewired.max_error, "passed": abs(error) <= rewired.max_error},
            launch_share=rewired.launch_share,
            variants=variants,
            **({"weights": rewired.step.weights} if origin is not None else {}),
        )


def _reason(name: str, time: VariantTime) -> str:
    comm = time.comm
    label = wiring_label(name, sentence=True)
    if not comm.comm_s:
        return f"{label} has no communication."
    hidden = percent(comm.hidden_s / comm.comm_s, 0)
    return f"{label} hides {hidden} of its {format_seconds(comm.comm_s)} of communication behind kernels."
