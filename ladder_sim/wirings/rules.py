"""A wiring as a file: the keys of a block's rule, and slices of layers whose blocks have it."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from ladder_sim.errors import UsageError, nearest

Part = Literal["attention", "mlp", "both"]
Instead = Literal["nothing", "own", "shared"]
Reduce = Literal["sum", "mean", "none"]
Head = Literal["", "mean", "own"]
Weight = float | Literal["learned"]
Table = Mapping[str, Any]
_T = TypeVar("_T")
# names of blocks in a file, in the order in which a layer has them
PARTS: Mapping[str, Part] = {"attention": "attention", "mlp": "mlp", "fused": "both"}
NAMES: Mapping[Part, str] = {part: name for name, part in PARTS.items()}

# start, stop and step; a percentage is one of the layers
_SLICE = re.compile(r"(-?\d+%?)?(?:(:)(-?\d+%?)?(?::([1-9]\d*))?)?")


class WiringError(UsageError):
    """A wiring file that is wrong or does not fit the model; the hint is the line to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a block reads, and what becomes of its output; docs/wirings.md has the equation."""

    delay: int = 0
    """Newest outputs whose sums the block does not wait for."""
    instead: Instead = "nothing"
    """What the block reads of these: the rank's own part, or what shared experts put out without an exchange."""
    reduce: Reduce = "sum"
    """All-reduce of the output and of open ones, which "mean" averages; "none": the output stays open."""
    percent: int = 100
    """First channels that its all-reduce covers; the others stay open."""
    lane: str = "x"
    """Copy of the residual stream that the block reads."""
    weight: Weight | Mapping[str, Weight] = 1
    """Factor of the output in every lane; a table names the lanes that the output enters."""


_KEYS = tuple(each.name for each in fields(Rule))
_CHOICES = {"instead": get_args(Instead), "reduce": get_args(Reduce)}


class Placed(NamedTuple):
    """A block of a model, and its rule."""

    layer: int
    part: Part
    rule: Rule


@contextmanager
def in_file(path: str) -> Iterator[None]:
    """Name the file in what is wrong in it."""
    try:
        yield
    except WiringError as error:
        raise WiringError(f"{path}: {error.message}", hint=error.hint) from None


def check_tables(tables: Sequence[Table]) -> None:
    """Raise WiringError unless every table `[[layers]]` has known keys with possible values."""
    for number, table in enumerate(tables):
        where = f"layers[{number}]"
        if not isinstance(table, Mapping):
            raise WiringError(f"{where} must be a table", hint="[[layers]]")
        check_keys(where, table, (*_KEYS, *PARTS, "at", "blocks"))
        parts = [part for part in PARTS if part in table]
        if "blocks" in table and ("at" in table or parts):
            raise WiringError(
                f"{where}.blocks already chooses blocks of layers", hint='blocks = "3::4"\nreduce = "sum"'
            )
        for name in ("at", "blocks"):
            if name in table:
                _check_slice(f"{where}.{name}", table[name])
        for part in parts:
            if not isinstance(table[part], Mapping):
                raise WiringError(f"{where}.{part} must be a table", hint=f"{part}.delay = 1")
            check_keys(f"{where}.{part}", table[part], _KEYS)
            _check_values(f"{where}.{part}", part, table[part])
        _check_values(where, "", {key: value for key, value in table.items() if key in _KEYS})


def check_keys(where: str, table: Table, known: Iterable[str]) -> None:
    """Raise WiringError if a table has a key that is not known."""
    for key in table:
        if key not in known:
            near = nearest(key, known)
            hint = f"did you mean '{near}'?" if near else f"keys: {', '.join(known)}"
            raise WiringError(f"{where} has no key '{key}'", hint=hint)


def _check_slice(where: str, given: Any) -> None:
    if isinstance(given, list):
        good = all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in given)
    else:
        good = isinstance(given, str) and given != "" and _SLICE.fullmatch(given) is not None
    if not good:
        ends = re.fullmatch(r"(\d+%?)\s*-\s*(\d+%?)", str(given))
        hint = f'at = "{ends[1]}:{ends[2]}"' if ends else 'at = "-16:"'
        raise WiringError(f"{where} is {given!r}: must be a slice, or a list of numbers", hint=hint)


def _check_values(where: str, part: str, table: Table) -> None:
    line = f"{part}." if part else ""
    for key, value in table.items():
        is_count = isinstance(value, int) and not isinstance(value, bool)
        if key == "delay" and is_count and value < 0:
            raise WiringError(f"{where}.delay is {value}: that output does not exist yet", hint="0 waits for all")
        if key == "delay" and not is_count:
            raise WiringError(f"{where}.delay is {value!r}: must be a whole number", hint=f"{line}delay = 1")
        if key == "percent" and not (is_count and 1 <= value <= 100):
            hint = f'{line}reduce = "none"' if value == 0 else f"{line}percent = 50"
            raise WiringError(f"{where}.percent is {value!r}: must be a whole number from 1 to 100", hint=hint)
        if key in _CHOICES and value not in _CHOICES[key]:
            choices = ", ".join(f'"{each}"' for each in _CHOICES[key])
            near = nearest(value, _CHOICES[key]) if isinstance(value, str) else ""
            # the first is what there is without the line
            hint = f'{line}{key} = "{near or _CHOICES[key][1]}"'
            raise WiringError(f"{where}.{key} is {value!r}: must be {choices}", hint=hint)
        if key == "lane" and not (isinstance(value, str) and re.fullmatch(r"\w+", value)):
            raise WiringError(f"{where}.lane is {value!r}: must be a name", hint=f'{line}lane = "m"')
        if key == "weight":
            for each in value.values() if isinstance(value, Mapping) else (value,):
                is_number = isinstance(each, int | float) and not isinstance(each, bool) and math.isfinite(each)
                if not (is_number or each == "learned"):
                    raise WiringError(
                        f"{where}.weight is {value!r}: must be numbers, or learned", hint=f'{line}weight = "learned"'
                    )


def place(
    tables: Sequence[Table], layers: int, within: Sequence[int] | None = None, *, strict: bool = True
) -> list[Placed]:
    """Return every block of a model with its rule; of tables that set the same key the last counts.

    Tables are those of a file, as `check_tables` takes them. They choose among the layers `within`, by default all; the
    others are standard. If `strict`, tables that change nothing are refused. Raises WiringError if a table chooses no
    layer, has no effect, or contradicts another.
    """
    within = range(layers) if within is None else within

    # by layer, the tables that choose it, or a block of it
    choosing: dict[int, list[tuple[int, str]]] = {layer: [] for layer in within}
    for number, table in enumerate(tables):
        if "blocks" in table:
            blocks = [(layer, part) for layer in within for part in ("attention", "mlp")]
            for layer, part in _chosen(f"layers[{number}].blocks", table["blocks"], blocks, "blocks", strict=strict):
                choosing[layer].append((number, part))
        else:
            for layer in _chosen(f"layers[{number}].at", table.get("at", ":"), within, "layers", strict=strict):
                choosing[layer].append((number, ""))
    effective: set[int] = set()
    placed: list[Placed] = []
    alike: dict[tuple[tuple[int, str], ...], list[tuple[Part, Rule]]] = {}
    for layer in range(layers):
        chosen_by = tuple(choosing.get(layer, ()))
        if chosen_by not in alike:
            alike[chosen_by] = _blocks(tables, chosen_by, layer, effective)
        placed += [Placed(layer, part, rule) for part, rule in alike[chosen_by]]
    for number, table in enumerate(tables) if strict else ():
        for line, keys in (("", table), *((f"{part}.", table[part]) for part in PARTS if part in table)):
            if "instead" in keys and number not in effective:
                message = f"layers[{number}].{line}instead has no effect at delay 0"
                raise WiringError(message, hint=f"{line}delay = 1, or remove it")
    return placed


def _blocks(
    tables: Sequence[Table], chosen_by: Iterable[tuple[int, str]], layer: int, effective: set[int]
) -> list[tuple[Part, Rule]]:
    """Return the blocks of a layer that these tables choose, and note tables whose `instead` has an effect."""
    # each with the number of the table that set it last
    keys: dict[str, dict[str, tuple[Any, int]]] = {part: {} for part in PARTS}
    named: dict[str, int] = {}
    for number, only in chosen_by:
        table = tables[number]
        common = {key: (table[key], number) for key in _KEYS if key in table}
        for part in (only,) if only else PARTS:
            own = table.get(part, {})
            keys[part] |= common | {key: (own[key], number) for key in own}
            if only or part in table:
                named[part] = number
    _check_parts(layer, named)
    blocks: list[tuple[Part, Rule]] = []
    for part in ("fused",) if "fused" in named else ("attention", "mlp"):
        rule = Rule(**{key: value for key, (value, _) in keys[part].items()})
        blocks.append((PARTS[part], rule))
        if "instead" in keys[part] and (rule.delay or rule.instead == "nothing"):
            effective.add(keys[part]["instead"][1])
    return blocks


def _check_parts(layer: int, named: Mapping[str, int]) -> None:
    for part in ("attention", "mlp"):
        if part in named and "fused" in named:
            first, last = sorted((part, "fused"), key=named.__getitem__)
            raise WiringError(
                f"layer {layer}: layers[{named[first]}] sets {first}, layers[{named[last]}] {last}",
                hint=f'at = ":{layer}" in layers[{named[first]}]',
            )


def _chosen(where: str, given: str | Sequence[int], items: Sequence[_T], what: str, *, strict: bool) -> Sequence[_T]:
    """Return the items of a slice, or at the numbers of a list."""
    count = len(items)
    if not isinstance(given, str):
        chosen: Sequence[_T] = [items[number] for number in given if number < count]
        strict = strict or len(chosen) < len(given)
        fits = chosen and len(chosen) == len(given)
    else:
        first, colon, last, step = _SLICE.fullmatch(given).groups()  # type: ignore[union-attr]
        start = _bound(first, count, 0)
        chosen = items[start : _bound(last, count, count) if colon else start + 1 : int(step or 1)]
        fits = bool(chosen)
    if strict and not fits:
        text = f'"{given}"' if isinstance(given, str) else str(list(given))
        amount = "none" if not chosen else f"only {len(chosen)}"
        raise WiringError(f"{where} {text} selects {amount} of {count} {what}", hint='"50%:" fits any depth')
    return chosen


def _bound(text: str | None, count: int, default: int) -> int:
    """Return the position that a bound of a slice is, among `count` items; -0 is their end."""
    if text is None:
        return default
    number = int(text.strip("-%"))
    number = count * number // 100 if text.endswith("%") else number
    return max(0, count - number) if text.startswith("-") else number


def period_of(tables: Sequence[Table]) -> int:
    """Return the layers after which all slices repeat."""
    period = 1
    for table in tables:
        for name, blocks in (("at", 1), ("blocks", 2)):
            given = table.get(name, "")
            step = int(given.split(":")[2]) if isinstance(given, str) and given.count(":") == 2 else 1
            period = math.lcm(period, math.lcm(step, blocks) // blocks)
    return period


def narrowed(tables: Sequence[Table], last: int) -> list[Table]:
    """Return tables that choose among the last layers as the given ones do among all; no slice may have a stop."""
    result: list[Table] = []
    for table in tables:
        name, count = ("blocks", 2 * last) if "blocks" in table else ("at", last)
        first, colon, _, step = _SLICE.fullmatch(table.get(name, ":")).groups()  # type: ignore[union-attr]
        start = f"-{count - _bound(first, count, 0)}{colon or ''}" + (f":{step}" if step else "")
        result.append({name: start, **{key: value for key, value in table.items() if key != name}})
    return result
