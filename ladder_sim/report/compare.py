"""The answer of `compare`: what each cluster or engine does, and what a variant gains there."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from rich.console import RenderableType

from ladder_sim.analysis.compare import Candidate, Comparison, kind_of
from ladder_sim.display.document import Document, scenario_fields
from ladder_sim.display.labels import asked_text, evidence_text, wiring_label, workload_label
from ladder_sim.report.columns import Column, number_text, percent, table_of, times_text
from ladder_sim.report.console import WholeTable
from ladder_sim.report.figures.style import SERIES_COLOURS, Figure, error_bars, figure
from ladder_sim.report.prediction import prediction_fields
from ladder_sim.report.report import WIDTH, Brief, Remark, Report
from ladder_sim.units import counted_text
from ladder_sim.wirings.names import NO_COMMUNICATION

# rows of the default answer
_SHOWN = 6


class ComparisonReport(Report[Comparison]):
    """How clusters or engines side by side look."""

    figures: ClassVar = {"rates": lambda self: comparison_figure(self.answer)}

    @property
    def kind(self) -> str:
        """What the candidates are."""
        return "cluster" if kind_of(self.answer[0].name) == "cluster" else "engine"

    @property
    def base(self) -> str:
        """The variant whose times are shown."""
        variants = list(self.answer[0].predictions)
        return "standard" if "standard" in variants else variants[0]

    @property
    def leading(self) -> str:
        """The variant that gains most on most of them; empty: only standard was asked for."""
        variants = [name for name in self.answer[0].predictions if name != "standard"]
        variants = [name for name in variants if name != NO_COMMUNICATION] or variants

        def gain(name: str) -> float:
            gains: list[float] = sorted(each.predictions[name].request_speedup for each in self.answer)
            return gains[len(gains) // 2]

        return max(variants, key=gain, default="")

    def table(self) -> WholeTable:
        """Return a table with a row for each candidate."""
        base, leading = self.base, self.leading

        def figure(variant: str, name: str) -> Column[Candidate]:
            read = {"speedup": "speedup", "tokens_per_s": f"{variant} tok/s"}
            decimals = 2 if name == "speedup" else None
            return Column("", lambda each: getattr(each.predictions[variant], name), read[name], decimals=decimals)

        plans = {str(each.scenario.plan) for each in self.answer}
        columns: list[Column[Candidate]] = [
            Column("", lambda each: each.name, self.kind),
            *([Column("", lambda each: str(each.scenario.plan), "plan")] if len(plans) > 1 else []),
            Column("", lambda each: each.scenario.plan.gpus, "GPUs"),
            *([figure(leading, "speedup")] if leading else []),
            *(figure(name, "tokens_per_s") for name in dict.fromkeys((base, leading or base))),
            *([Column("", lambda each: each.token_price(base), f"{base} $/Mtoken")] if self._priced else []),
            Column("tpot_s", lambda each: each.predictions[base].tpot, "TPOT"),
        ]
        return table_of(columns, self.answer[:_SHOWN], left=1 + (len(plans) > 1), wrapped=(self.kind,), width=WIDTH)

    @property
    def _priced(self) -> bool:
        return any(each.usd_per_gpu_hour is not None for each in self.answer)

    def _brief(self) -> Brief:
        first = self.answer[0].scenario
        hidden = len(self.answer) - _SHOWN
        plans = {str(each.scenario.plan) for each in self.answer}
        # of engines the cluster is the same
        asked = (
            asked_text(first, where=plans.pop() if len(plans) == 1 else f"each {self.kind}'s own plan")
            if self.kind == "cluster"
            else asked_text(first, varied=("stack",))
        )
        return Brief(
            sentence=self._verdict(),
            asked=asked,
            table=self.table(),
            remarks=list(self._remarks()),
            more=counted_text(hidden, f"more {self.kind}") if hidden > 0 else "",
        )

    def _verdict(self) -> str:
        """Return the gains in a sentence, and in another on which names the scenario cannot run."""
        absent = ", ".join(reason.split(":")[0] for reason in self.answer.left_out)
        return f"{self._gains()} The scenario cannot run on {absent}." if absent else self._gains()

    def _gains(self) -> str:
        """Return the least and the largest gain, or rates where there is only standard, as a sentence."""
        name = self.leading
        if not name:
            rates = ", ".join(
                f"{each.name} {number_text(each.predictions[self.base].rate)}" for each in self.answer[:_SHOWN]
            )
            return f"Tokens per second of standard: {rates}."
        least, most = (end(self.answer, key=lambda each: each.predictions[name].request_speedup) for end in (min, max))
        low, high = (each.predictions[name].speedup for each in (least, most))
        if least is most:
            on = least.name if len(self.answer) == 1 else f"each {self.kind}"
            return f"{wiring_label(name, sentence=True)}'s speedup: {times_text(low)} on {on}."
        tie = ", overlapping" if low.high >= high.low else ""
        said = f"{times_text(low)} on {least.name} to {times_text(high)} on {most.name}"
        return f"{wiring_label(name, sentence=True)}'s speedup: {said}{tie}."

    def _remarks(self) -> Iterator[Remark]:
        bases = {each.name: each.predictions[self.base] for each in self.answer}
        shares = {name: each.breakdown.exposed_comm_s / each.request_s for name, each in bases.items()}
        least, most = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
        few, many = (percent(shares[name], 0) for name in (least, most))
        waits = f"{wiring_label(self.base, sentence=True)} waits for communication {many} of the time"
        others = f", on {least} {few}" if few != many else ""
        where = f"on {most}" if others else "on each"
        yield Remark("why", f"{waits} {where}{others}.")
        if self.answer.left_out:
            yield Remark("left out", f"{'; '.join(self.answer.left_out)}.")
        confidences = [each.predictions.confidence for each in self.answer]
        wirings = [self.base, self.leading] if self.leading else [self.base]
        yield Remark("evidence", evidence_text(*confidences, wirings=wirings))

    def details(self) -> RenderableType:
        """Return a table of every variant on each candidate, and how much faster it is than on the first."""
        first = self.answer[0]
        rows = [(variant, each) for variant in first.predictions for each in self.answer]

        def read(name: str) -> Any:
            return lambda row: getattr(row[1].predictions[row[0]], name)

        def over(row: tuple[str, Candidate]) -> float:
            times: list[float] = [each.predictions[row[0]].request_s for each in (first, row[1])]
            return times[0] / times[1]

        columns: list[Column[tuple[str, Candidate]]] = [
            Column("", lambda row: wiring_label(row[0]) if row[1] is first else "", "variant"),
            Column("", lambda row: row[1].name, "on"),
            Column("", lambda row: f"{row[1].scenario.plan}", "plan"),
            Column("", lambda row: row[1].predictions.confidence.profile, "profile"),
            Column("", read("speedup"), "speedup", decimals=2),
            Column("tokens_per_s", read("tokens_per_s"), "tok/s"),
            Column("", lambda row: f"{over(row):.2f}", f"over {first.name}"),
            Column("ttft_s", read("ttft_s"), "TTFT"),
            Column("tpot_s", read("tpot_s"), "TPOT"),
            *([Column("", lambda row: row[1].token_price(row[0]), "$/Mtoken")] if self._priced else []),
        ]
        return table_of(columns, rows, left=4, wrapped=())

    def values(self) -> Document:
        """Return one row per candidate and variant."""
        rows = [
            {
                "name": each.name,
                **scenario_fields(each.scenario),
                "variant": variant,
                **prediction_fields(prediction),
                "usd_per_Mtoken": each.token_price(variant),
            }
            for each in self.answer
            for variant, prediction in each.predictions.items()
        ]
        head = {
            "batching": self.answer[0].scenario.workload.batching,
            "compared": [each.name for each in self.answer],
            **({"left_out": list(self.answer.left_out)} if self.answer.left_out else {}),
        }
        return Document.of_rows(head, rows)


def comparison_figure(candidates: Sequence[Candidate]) -> Figure:
    """Draw the tokens per second of every variant on every candidate, with the 90 % intervals."""
    scenario = candidates[0].scenario
    data = []
    for candidate, colour in zip(candidates, SERIES_COLOURS, strict=False):
        rates = [prediction.tokens_per_s for prediction in candidate.predictions.values()]
        data.append(
            {
                "type": "bar",
                "name": candidate.name,
                "x": list(candidate.predictions),
                "y": [rate.value for rate in rates],
                "marker": {"color": colour},
                "error_y": error_bars(rates),
                "text": [f"{prediction.speedup.value:.2f}x" for prediction in candidate.predictions.values()],
                "textposition": "inside",
                "insidetextanchor": "start",
                "hovertemplate": "%{x}: %{y:.1f} tok/s<extra></extra>",
            }
        )
    return figure(
        "Tokens per second, and in the bars the speedup over standard",
        f"{scenario.model.name}, {workload_label(scenario)}; 90 % intervals",
        data=data,
        layout={"barmode": "group", "bargap": 0.3, "yaxis": {"title": {"text": "tokens per second"}}},
    )
