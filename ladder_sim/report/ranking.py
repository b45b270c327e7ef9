"""The answer of `validate --ranking`: what is lost by running the plan that is predicted to be best."""

from collections.abc import Sequence
from operator import attrgetter
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.display.document import Document
from ladder_sim.report.columns import Column, fields_of, percent, table_of
from ladder_sim.report.figures.style import Figure, figure
from ladder_sim.report.report import Brief, Remark, Report
from ladder_sim.validation.ranking import CHOICES, LIMITS_S, Choice, Losses, Pick, Ranking

_LABELS: dict[Choice, str] = {
    "same GPUs": "tok/s, same GPUs",
    "per GPU": "tok/s per GPU",
    "per GPU within TPOT": "tok/s per GPU, TPOT limit",
}

# in JSON and CSV
VALUES: Sequence[Column[Pick]] = (
    Column("choice", lambda each: each.choice, kind=Choice),
    Column("line", lambda each: each.serving.line, kind=int),
    *(Column(name, attrgetter(f"serving.setup.{name}"), kind=str) for name in ("model", "cluster", "stack", "dtype")),
    *(Column(name, attrgetter(f"serving.{name}")) for name in ("concurrency", "prompt", "gen")),
    Column("plans", lambda each: each.plans, kind=int),
    Column("picked", lambda each: str(each.serving.setup.plan), kind=str),
    Column("best", lambda each: str(each.best), kind=str),
    Column("max_tpot_s", lambda each: each.max_tpot_s, null=True),
    Column("tpot_s", lambda each: each.tpot_s),
    Column("loss", lambda each: each.loss),
    Column("random_loss", lambda each: each.random_loss),
)

# in JSON and in a table
LOSSES: Sequence[Column[Losses]] = (
    Column("choice", lambda each: each.choice, "highest", lambda each: _LABELS[each.choice], kind=Choice),
    Column("picks", lambda each: each.picks, "picks", kind=int),
    Column("mean_loss", lambda each: each.mean_loss, "mean loss", lambda each: percent(each.mean_loss)),
    Column("p90_loss", lambda each: each.p90_loss, "90th pct.", lambda each: percent(each.p90_loss)),
    Column("max_loss", lambda each: each.max_loss, "largest", lambda each: percent(each.max_loss)),
    Column("right", lambda each: each.right, "best", share=True),
    Column("over", lambda each: each.over, "over", share=True),
    Column("random_loss", lambda each: each.random_loss, "random", lambda each: percent(each.random_loss)),
)

# in a table: a pick that is not the best plan
WRONG: Sequence[Column[Pick]] = (
    Column("", lambda each: str(each.serving.line), "line"),
    Column("", lambda each: str(each.serving), "picked"),
    Column("", lambda each: str(each.best), "best"),
    Column("max_tpot_s", lambda each: each.max_tpot_s, "TPOT limit"),
    Column("tpot_s", lambda each: each.tpot_s, "measured"),
    Column("", lambda each: percent(each.loss), "loss"),
    Column("", lambda each: percent(each.random_loss), "random pick"),
)


class RankingReport(Report[Ranking]):
    """How picks among measured plans look."""

    figures: ClassVar = {"losses": lambda self: _figure(self.answer)}

    def _brief(self) -> Brief:
        ranking = self.answer
        first = ranking.losses[0] if ranking.losses else None
        limits = f"{1e3 * LIMITS_S[0]:g} to {1e3 * LIMITS_S[-1]:g} ms"
        return Brief(
            sentence=_sentence(first),
            asked=f"{ranking.name}: {ranking.groups} groups of servings that differ in their plan alone",
            table=table_of(LOSSES, ranking.losses) if first else None,
            remarks=[
                Remark(
                    "loss", "Measured throughput of the picked plan below the best plan's; best: picks that are it."
                ),
                Remark("limit", f"TPOT of {limits}. A pick over the limit loses at least what its TPOT exceeds it by."),
            ],
            more="every pick that was not the best plan",
        )

    def details(self) -> RenderableType:
        """Return every pick that is not the best plan, the most costly first."""
        parts: list[RenderableType] = []
        for choice in CHOICES:
            wrong = [pick for pick in self.answer.picks if pick.choice == choice and pick.loss]
            if wrong:
                wrong.sort(key=lambda pick: -pick.loss)
                parts += [table_of(WRONG, wrong, left=2, wrapped=("picked",), title=_LABELS[choice]), Text()]
        return Group(*parts)

    def values(self) -> Document:
        """Return every pick, and losses by choice; losses and shares as fractions."""
        ranking = self.answer
        head = {
            "dataset": ranking.name,
            "groups": ranking.groups,
            "losses": [fields_of(LOSSES, each) for each in ranking.losses],
        }
        return Document.of_rows(head, [fields_of(VALUES, pick) for pick in ranking.picks])


def _sentence(losses: Losses | None) -> str:
    if losses is None:
        return "No plans differ by more than repeats of one run."
    mean, random = percent(losses.mean_loss), percent(losses.random_loss)
    return f"The plan predicted to be best loses {mean} on average, a random pick {random} ({_LABELS[losses.choice]})."


def _figure(ranking: Ranking) -> Figure:
    """Draw the mean loss of each choice, next to that of a random pick."""
    labels = [_LABELS[each.choice] for each in ranking.losses]
    losses = {
        "predicted best": [each.mean_loss for each in ranking.losses],
        "random pick": [each.random_loss for each in ranking.losses],
    }
    return figure(
        "Throughput lost by the plan that is predicted to be best",
        ranking.name,
        data=[{"type": "bar", "name": name, "x": labels, "y": shares} for name, shares in losses.items()],
        layout={"yaxis": {"title": {"text": "mean loss"}, "tickformat": ".1%"}},
    )
