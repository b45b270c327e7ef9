"""Published quality of models with another wiring, next to that of the standard model that each is held against."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from ladder_sim.wirings.names import FAMILIES, parse

# a model of fewer parameters says little of one that is served
TINY = 100e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One published figure."""

    wiring: str
    """Canonical name of the variant."""
    model: str
    """As the source calls it."""
    parameters: float
    """Number of the model's parameters."""
    tokens: float
    """Number of tokens that the model was trained on with this wiring."""
    tokens_are_limit: bool
    """The source says only that they are fewer than so many."""
    recipe: str
    """How it was trained."""
    metric: str
    higher_is_better: bool
    value: float
    standard: float | None
    """Value of the standard model that the source compares with; None if the source gives none."""
    spread: float | None
    """Over seeds; None: the source gives none."""
    source: str
    secondary: bool
    """Read in a copy of the source's tables, not in the source."""

    @property
    def difference(self) -> float | None:
        """Difference from the standard model, in the metric's unit; None if the source has no standard."""
        # as many digits as published figures have at most
        return None if self.standard is None else round(self.value - self.standard, 6)

    @property
    def is_worse(self) -> bool:
        """Than the standard model."""
        difference = self.difference or 0.0
        return difference < 0 if self.higher_is_better else difference > 0

    @property
    def sums_up(self) -> bool:
        """It is an average of tasks or a perplexity, not a single task."""
        return self.metric.startswith("average") or not self.higher_is_better

    @property
    def tokens_text(self) -> str:
        """How many, or fewer than how many."""
        return ("under " if self.tokens_are_limit else "") + _count(self.tokens)

    @property
    def parameters_text(self) -> str:
        """Number of parameters as text, with the digits that the source has."""
        return _count(self.parameters)

    @property
    def citation(self) -> str:
        """The source, and whether a copy of it was read."""
        return self.source + (" (read in a copy)" if self.secondary else "")

    def __str__(self) -> str:
        standard = "" if self.standard is None else f" (standard {self.standard:g})"
        return f"{self.metric} {self.value:g}{standard}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What is published of a wiring that models must be trained with."""

    wiring: str
    """Canonical name of the variant."""
    rows: tuple[Measured, ...]
    """Figures of this wiring."""
    relatives: tuple[Measured, ...]
    """Figures of its family with another parameter or in other layers, which are other models."""

    @property
    def known(self) -> bool:
        """Something is published of the wiring, or of its relatives."""
        return bool(self.rows or self.relatives)

    @property
    def sentence(self) -> str:
        """What sums up the largest model, or that nothing is known of models that are served."""
        if _large(self.rows):
            return f"published quality of {self.wiring}: {self.summary}"
        tiny = ", only of tiny models" if self.rows else ""
        unknown = f"no published quality of {self.wiring} is known here{tiny}"
        return f"{unknown}; {self.summary}" if _large(self.relatives) else unknown

    @property
    def summary(self) -> str:
        """Summary of published quality; it names the related wiring that it is of, if it is of another one."""
        if rows := _large(self.rows):
            return _summary(rows)
        if relatives := _large(self.relatives):
            return f"of {relatives[0].wiring}: {_summary(relatives)}"
        return "of tiny models alone" if self.known else "none known"


@cache
def published() -> tuple[Measured, ...]:
    """Return every figure, in the order of the file."""
    file = resources.files("ladder_sim.quality") / "published.csv"
    lines = (line for line in file.read_text("utf-8").splitlines() if not line.startswith("#"))
    return tuple(map(_measured, csv.DictReader(lines)))


def without_figures() -> tuple[str, ...]:
    """Return the families that models must be trained with and of which nothing is known here."""
    known = {parse(row.wiring).family.name for row in published()}
    return tuple(family.shortest for name, family in FAMILIES.items() if family.retrained and name not in known)


def quality_of(variant: str) -> Quality | None:
    """Return what is published of a variant; None where no training is needed.

    Raises
    ------
    UsageError
        There is no such variant.

    Examples
    --------
    >>> print(quality_of("hybrid-ladder:20").sentence)
    published quality of hybrid-ladder:20: Llama-3.1-8B-Instruct, 3 B tokens, retrained on Infinity-Instruct: average of
    8 or 9 tasks 53.86 (standard 56.11) [arXiv 2501.06589 (read in a copy)]
    >>> quality_of("track:4").sentence
    'no published quality of track:4 is known here'
    """
    wanted = parse(variant)
    if not wanted.family.retrained:
        return None
    family = [row for row in published() if parse(row.wiring).family is wanted.family]
    # hybrids are the nearest to hybrids
    family.sort(key=lambda row: bool(parse(row.wiring).last) != bool(wanted.last))
    return Quality(
        wiring=wanted.name,
        rows=tuple(row for row in family if row.wiring == wanted.name),
        relatives=tuple(row for row in family if row.wiring != wanted.name),
    )


def _count(number: float) -> str:
    """Return a number as text, with the digits that a source has, which are few."""
    return f"{number / 1e9:g} B" if number >= 1e9 else f"{number / 1e6:g} M" if number else "0"


def _measured(cells: Mapping[str, str]) -> Measured:
    return Measured(
        wiring=cells["wiring"],
        model=cells["model"],
        parameters=float(cells["parameters"]),
        tokens=float(cells["tokens"].removeprefix("<")),
        tokens_are_limit=cells["tokens"].startswith("<"),
        recipe=cells["recipe"],
        metric=cells["metric"],
        higher_is_better={"higher": True, "lower": False}[cells["better"]],
        value=float(cells["value"]),
        standard=float(cells["standard"]) if cells["standard"] else None,
        spread=float(cells["spread"]) if cells["spread"] else None,
        source=cells["source"],
        secondary=cells["secondary"] == "1",
    )


def _large(rows: Sequence[Measured]) -> list[Measured]:
    """Return the rows of models large enough to be served."""
    return [row for row in rows if row.parameters >= TINY]


def _summary(rows: Sequence[Measured]) -> str:
    """Return the averages and perplexities of the largest and most trained model with the first row's wiring."""
    alike = [row for row in rows if row.wiring == rows[0].wiring and row.sums_up]
    best = max(alike, key=lambda row: (row.parameters, row.tokens))
    by_recipe: dict[str, list[str]] = {}
    for row in alike:
        if (row.model, row.tokens) == (best.model, best.tokens):
            by_recipe.setdefault(row.recipe, []).append(str(row))
    parts = [f"{recipe}: {', '.join(figures)}" for recipe, figures in by_recipe.items()]
    return f"{best.model}, {best.tokens_text} tokens, {'; '.join(parts)} [{best.citation}]"
