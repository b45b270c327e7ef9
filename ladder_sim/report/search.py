"""The answer of `versus --search`: the wirings worth a choice, what each gains, and what is known of its quality."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from ladder_sim.confidence import Interval
from ladder_sim.display.document import Document, Notes, scenario_fields
from ladder_sim.display.labels import asked_text, evidence_text, gain_text, wiring_label
from ladder_sim.quality.published import quality_of
from ladder_sim.report.columns import Column, fields_of, percent, table_of
from ladder_sim.report.report import WIDTH, Brief, Remark, Report
from ladder_sim.search.search import Candidate, SearchResult
from ladder_sim.system.files import shown_path
from ladder_sim.units import counted_text
from ladder_sim.wirings.names import parse

# rows of the default answer for each front
_SHOWN = 2


class SearchReport(Report[SearchResult]):
    """How the wirings that a search found look."""

    @property
    def notes(self) -> Notes:
        return Notes(confidences={"": self.answer.predictions.confidence})

    @property
    def columns(self) -> Sequence[Column[Candidate]]:
        """Figures of each wiring."""
        return (
            Column("name", lambda each: str(each.variant), "wiring", kind=str),
            Column("layers", lambda each: each.layers, "layers", kind=int),
            Column(
                "speedup",
                lambda each: self.answer.predictions[each.variant].speedup,
                "speedup",
                kind=Interval,
                decimals=2,
            ),
            Column("tpot_s", lambda each: self.answer.predictions[each.variant].tpot_s, "TPOT", null=True),
            Column("lost", lambda each: each.loss and each.loss[1], "lost", _lost, kind=float, null=True),
            Column("metric", lambda each: each.loss and each.loss[0].metric, kind=str, null=True),
            Column("source", lambda each: each.loss and each.loss[0].source, kind=str, null=True),
        )

    def _brief(self) -> Brief:
        found = self.answer
        rows = [*_spread(found.known), *_spread(found.unknown)]
        hidden = len(found.known) + len(found.unknown) - len(rows)
        return Brief(
            sentence=self._verdict(),
            asked=asked_text(found.scenario),
            table=table_of(self.columns, rows, width=WIDTH, spare=("TPOT",)) if rows else None,
            remarks=list(self._remarks()),
            more=counted_text(hidden, "more wiring") if hidden else "",
        )

    def _verdict(self) -> str:
        best = self.answer.best
        if best is None:
            return "No choice of wirings is faster than standard here."
        gain = gain_text(self.answer.predictions[best.variant].speedup, "standard")
        lost = f"{best.loss[0].metric}: {_lost(best)}" if best.loss else "its quality is unknown"
        return f"{wiring_label(best.variant, sentence=True)} {gain}; {lost}."

    def _remarks(self) -> Iterator[Remark]:
        found, best = self.answer, self.answer.best
        if best is None:
            return
        named, fastest = found.best_named, min((*found.known, *found.unknown), key=lambda each: each.request_s)
        if fastest.variant == named:
            yield Remark("instead", f"The fastest is a named wiring, {named}.")
        else:
            gain = gain_text(found.predictions.over(fastest.variant, named), named)
            yield Remark("instead", f"Of named wirings {named} is the fastest; {fastest.variant} {gain}.")
        made = "" if found.file else "--write best.toml makes it a file: "
        yield Remark("try", f"{made}run, train and vLLM take --variant {shown_path(found.file or 'best.toml')}.")
        if best.loss:
            yield Remark("quality", f"the loss is of {best.loss[0].source}.")
        elif quality := quality_of(best.variant):
            yield Remark("quality", f"{quality.sentence}.")
        candidates = (len(found.space.choices) + 1) ** len(found.space.groups(found.scenario.model.layers))
        yield Remark(
            "why",
            f"{found.simulated} of {candidates:.2g} candidates were simulated; the sums of layers that chose them "
            f"erred by {percent(found.error, 2)} at most.",
        )
        yield Remark("evidence", evidence_text(found.predictions.confidence, wirings=[best.variant]))

    def details(self) -> RenderableType:
        found = self.answer
        return table_of(self.columns, [*found.known, *found.unknown])

    def values(self) -> Document:
        found = self.answer
        rows = [fields_of(self.columns, each) for each in (*found.known, *found.unknown)]
        head = {
            "scenario": scenario_fields(found.scenario),
            "best": found.best and str(found.best.variant),
            "toml": found.best and parse(found.best.variant).toml,
            "best_named": found.best_named,
            "simulated": found.simulated,
        }
        return Document.of_rows(head, rows)


def _lost(each: Candidate) -> str:
    if each.loss is None:
        return "unknown"
    penalty, lost = each.loss
    return f"{'' if each.layers in penalty.layers else '~'}{lost:.3g}"


def _spread(front: Sequence[Candidate]) -> list[Candidate]:
    """Return a few wirings of a front at equal distances, the last among them."""
    count = min(_SHOWN, len(front))
    return [front[len(front) * number // count - 1] for number in range(1, count + 1)]
