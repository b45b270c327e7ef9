"""A search space as a file: the wirings that each layer may choose, and the quality that they are known to cost."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal, TypeGuard, get_args

import numpy as np

from ladder_sim.wirings.names import OwnWiring, own_wiring, read_wiring_toml
from ladder_sim.wirings.rules import Table, WiringError, check_keys, check_tables, in_file

# of another form of files there is another number
FORM = 1
Where = Literal["top", "bottom", "any"]
_KEYS = ("search", "group", "most_lost", "choices", "penalty")
# choice of each group of layers: 0 is standard, others are numbered as in the file
Chosen = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalty:
    """Published or measured loss of quality of a model, standard but for some layers."""

    choice: str
    """Name of the choice."""
    where: Where
    """Layers that had it: those next to the LM head, those next to the embedding, or any."""
    metric: str
    """What was lost, with its unit."""
    layers: tuple[int, ...]
    """Numbers of layers that had the choice, ascending."""
    lost: tuple[float, ...]
    """Loss at each number of layers; below 0: a gain."""
    source: str
    """Where it was published or measured."""

    def at(self, layers: int) -> float | None:
        """Return the loss with so many layers, linear between points; None outside of them."""
        inside = self.layers[0] <= layers <= self.layers[-1]
        return float(np.interp(layers, self.layers, self.lost)) if inside else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What each group of a model's layers may choose."""

    choices: Mapping[str, Table]
    """Rules of one layer, as in a wiring file, by name; standard, which is always possible, is not among them."""
    penalties: Mapping[str, Penalty]
    """Known losses of quality by choice."""
    group: int = 1
    """Neighbouring layers that choose together."""
    most_lost: float = math.inf
    """Largest loss that the best wiring may have."""

    def groups(self, layers: int) -> list[range]:
        """Return the layers of each group, counted from the LM head: the first group may be smaller."""
        starts = [0, *range(layers % self.group or self.group, layers, self.group)]
        return [range(start, stop) for start, stop in zip(starts, [*starts[1:], layers], strict=True)]

    def placed(self, chosen: Chosen, layers: int) -> Iterator[tuple[str, Table, list[int]]]:
        """Yield each choice but standard, its rules and its layers."""
        for number, (name, rules) in enumerate(self.choices.items(), 1):
            groups = (group for each, group in zip(chosen, self.groups(layers), strict=True) if each == number)
            if having := list(chain(*groups)):
                yield name, rules, having

    def wiring(self, chosen: Chosen, layers: int) -> OwnWiring:
        """Return a candidate as a wiring file has it; its name says which layers have what."""
        placed = [(name, rules, _at(having, layers)) for name, rules, having in self.placed(chosen, layers)]
        tables = [{**({} if at == ":" else {"at": at}), **rules} for _, rules, at in placed]
        name = ", ".join(f"{name} in {_words(at)}" for name, _, at in placed)
        return own_wiring({"wiring": 1, "name": name, "layers": tables}, name)

    def lost(self, chosen: Chosen, layers: int) -> tuple[Penalty, float] | None:
        """Return the known loss of a candidate, and what says it; None: its quality is unknown."""
        placed = [(name, having) for name, _, having in self.placed(chosen, layers)]
        if len(placed) != 1 or placed[0][0] not in self.penalties:
            return None
        ((name, having),) = placed
        penalty, count = self.penalties[name], len(having)
        first = {"top": layers - count, "bottom": 0}.get(penalty.where)
        loss = penalty.at(count)
        inside = first is None or having == list(range(first, first + count))
        return (penalty, loss) if inside and loss is not None else None


def read_space(path: Path) -> Space:
    """Read a search space; raise WiringError if it is wrong."""
    table = read_wiring_toml(path, "a search space")
    with in_file(str(path)):
        return _space(table)


def _space(table: Mapping[str, Any]) -> Space:
    if table.get("search") != FORM:
        raise WiringError(f"search is {table.get('search')!r}: must be {FORM}", hint=f"search = {FORM}")
    check_keys("the file", table, _KEYS)
    group, most_lost, choices = table.get("group", 1), table.get("most_lost", math.inf), table.get("choices")
    if type(group) is not int or group < 1:
        raise WiringError(f"group is {group!r}: must be a number of layers", hint="group = 4")
    if not _is_number(most_lost) or math.isnan(most_lost):
        raise WiringError(f"most_lost is {most_lost!r}: must be a number", hint="most_lost = 0.5")
    if not isinstance(choices, Mapping) or not any(choices.values()):
        raise WiringError("[choices] has no wiring besides standard", hint="ladder = { delay = 1 }")
    for name, rules in choices.items():
        if not name.strip() or (name == "standard" and rules):
            raise WiringError(f"choices: {name!r} cannot be a name", hint="standard is what has no rules")
        try:
            check_tables([rules])
        except WiringError as error:
            raise WiringError(error.message.replace("layers[0]", f"choices.{name}"), hint=error.hint) from None
        for key in ("at", "blocks"):
            if key in rules:
                raise WiringError(f"choices.{name} has '{key}': the search chooses the layers", hint=f"leave out {key}")
    given = table.get("penalty", [])
    if not isinstance(given, list) or not all(isinstance(each, Mapping) for each in given):
        raise WiringError("penalty must be tables", hint="[[penalty]]")
    penalties = [_penalty(f"penalty[{number}]", each, choices) for number, each in enumerate(given)]
    if len({each.choice for each in penalties}) < len(penalties):
        raise WiringError("two penalties are of one choice", hint="leave one out")
    return Space(
        choices={name: rules for name, rules in choices.items() if rules},
        penalties={each.choice: each for each in penalties},
        group=group,
        most_lost=most_lost,
    )


def _penalty(where: str, table: Table, choices: Mapping[str, Table]) -> Penalty:
    keys = tuple(Penalty.__slots__)
    check_keys(where, table, keys)
    for key in keys:
        if key not in table:
            raise WiringError(f"{where} has no {key}", hint=f"keys: {', '.join(keys)}")
        if key not in ("layers", "lost") and not isinstance(table[key], str):
            raise WiringError(f"{where}.{key} is {table[key]!r}: must be text", hint=f'{key} = "..."')
    if table["choice"] not in choices:
        raise WiringError(f"{where}.choice is {table['choice']!r}: no choice", hint=f"one of {', '.join(choices)}")
    if table["where"] not in get_args(Where):
        raise WiringError(f"{where}.where is {table['where']!r}", hint='"top", "bottom" or "any"')
    layers, lost = table["layers"], table["lost"]
    ascends = isinstance(layers, list) and all(type(each) is int and each >= 0 for each in layers)
    known = isinstance(lost, list) and all(_is_number(each) and math.isfinite(each) for each in lost)
    if not ascends or not known or not layers or sorted(set(layers)) != layers or len(layers) != len(lost):
        hint = "layers = [0, 16]\nlost = [0.0, 0.5]"
        raise WiringError(f"{where}: layers must ascend from 0 or more, and lost have a number for each", hint=hint)
    return Penalty(**{**table, "layers": tuple(layers), "lost": tuple(map(float, lost))})


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _words(at: str | list[int]) -> str:
    """Return which layers a slice chooses, for a table."""
    if not isinstance(at, str):
        return f"{len(at)} layers"
    first, *_, last = at.split(":")
    if at == ":":
        return "all layers"
    if at.count(":") > 1 or (first.strip("-") and last):
        return at
    return f"the last {first.strip('-')}" if first else f"the first {last}"


def _at(having: Sequence[int], layers: int) -> str | list[int]:
    """Return the shortest `at` for some layers: a slice, or a list."""
    steps = {late - early for early, late in pairwise(having)}
    if len(steps) > 1:
        return list(having)
    first, step = having[0], min(steps, default=1)
    last = "" if having[-1] + step >= layers else having[-1] + 1
    start = f"-{len(having)}" if step == 1 and first and last == "" else first or ""
    return f"{start}:{last}" + (f":{step}" if step > 1 else "")
