"""Wirings by name: families, each a file of `data`, with their parameters; hybrids; and files of one's own.

A variant names a family, its parameter, and maybe how many of the last layers have it; or it is the path of a file.
"""

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self, get_args

from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.specs.techniques import Support
from ladder_sim.system.files import read_text
from ladder_sim.wirings.rules import (
    NAMES,
    PARTS,
    Head,
    Placed,
    Rule,
    Table,
    WiringError,
    check_keys,
    check_tables,
    in_file,
    narrowed,
    place,
)

# of another form of files there is another number
FORM = 1
_SHIPPED = Path(__file__).parent / "data"
_KEYS = ("wiring", "name", "summary", "paper", "head", "layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """The number behind a family's name."""

    letter: str
    """In the name's pattern."""
    meaning: str
    """What the letter stands for, in a sentence with it."""
    counts: Literal["layers", "blocks", "percent"]
    """What it counts: at most as many as the model has, or 100."""
    example: int
    """A number that fits most models."""
    smallest: int = 1
    default: int | None = None
    """Value of the parameter if the name has none; None if the name must have one."""
    too_large: str = ""
    """What a number above the largest would do."""
    instead: str = ""
    """What to write instead of a number that is too small or too large."""

    def largest(self, layers: int) -> int:
        """Return the largest value of this parameter in a model, or its last part, of `layers` layers."""
        return {"layers": layers, "blocks": 2 * layers, "percent": 100}[self.counts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Wirings of one file."""

    name: str
    summary: str
    """In a line."""
    tables: tuple[Table, ...] = ()
    """Tables `[[layers]]`, with the parameter's letter where its value is to stand."""
    head: Head = ""
    """What the LM head reads of open outputs: their mean over the ranks, or each rank its own."""
    paper: str = ""
    """Where it was published; empty: it is the usual one, no model, or one's own."""
    parameter: Parameter | None = None
    support: tuple[Support, ...] = ()
    """Engines that run models with it."""
    title: str = ""
    """Name that a file of one's own gives itself, while `name` is its path; empty for shipped families."""

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def is_own(self) -> bool:
        """It is a file of one's own."""
        return self.title != ""

    @property
    def shortest(self) -> str:
        """Name of the family, with the letter of a parameter that a variant must have."""
        if self.parameter is None or self.parameter.default is not None:
            return self.name
        return f"{self.name}:{self.parameter.letter}"

    @property
    def pattern(self) -> str:
        """Name of the family, with the letter of its parameter in brackets where it may be left out."""
        if self.parameter is None or self.parameter.default is None:
            return self.shortest
        return f"{self.name}[:{self.parameter.letter}]"

    @property
    def retrained(self) -> bool:
        """Only a model that was trained with it computes anything useful."""
        return self.is_own or bool(self.paper)

    @property
    def sentence(self) -> str:
        """The summary, and what using it takes."""
        source = f" ({self.paper})" if self.paper else ""
        needs = f"; for models trained with it{source}" if self.retrained else ""
        return f"{self.summary[:1].upper()}{self.summary[1:]}{needs}."

    @property
    def is_tail(self) -> bool:
        """The parameter says how many of the last layers have it; the others are standard."""
        letter = self.parameter.letter if self.parameter else ""
        return any(table.get("at") == f"-{letter}:" for table in self.tables)

    @property
    def fits_hybrids(self) -> bool:
        """It may be the wiring of the last layers of a model that is standard otherwise."""
        return self.retrained and not (self.is_tail or self.is_own)


def _families() -> Iterator[Family]:
    files = [tomllib.loads(file.read_text("utf-8")) for file in sorted(_SHIPPED.glob("*.toml"))]
    for table in sorted(files, key=lambda table: table.get("order", len(files))):
        yield Family(
            name=table["name"],
            summary=table["summary"],
            tables=tuple(table.get("layers", ())),
            head=table.get("head", ""),
            paper=table.get("paper", ""),
            parameter=Parameter(**table["parameter"]) if "parameter" in table else None,
            support=tuple(Support(*each) for each in table.get("support", ())),
        )


FAMILIES: Mapping[str, Family] = {family.name: family for family in _families()}

# a bound that nobody can run: no block is all-reduced
NO_COMMUNICATION = "upper-bound"
DEFAULT_VARIANTS = ("standard", "parallel", "ladder", NO_COMMUNICATION)
HYBRID = "hybrid-"
# of hybrids
_LAST = Parameter(letter="K", meaning="the last K layers are {name}", counts="layers", example=16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A residual wiring, for a model of any depth."""

    family: Family
    number: int = 0
    """The family's parameter; 0 also where it has none."""
    last: int = 0
    """How many of the last layers have it, the others being standard; 0: every layer has it."""

    @property
    def name(self) -> str:
        """Canonical name of the variant."""
        parameter = self.family.parameter
        if self.family.is_own:
            return self.family.name
        numbers = [self.number] if parameter and self.number != parameter.default else []
        numbers += [self.last] if self.last else []
        return ":".join([(HYBRID if self.last else "") + self.family.name, *map(str, numbers)])

    @property
    def sentence(self) -> str:
        """What it is, and what using it takes."""
        return (f"The last {self.last} layers: " if self.last else "") + self.family.sentence

    @property
    def tables(self) -> list[Table]:
        """Tables `[[layers]]` of the wiring, without letters; those of a hybrid choose among its last layers."""
        letter = self.family.parameter.letter if self.family.parameter else ""
        return [_filled(table, letter, self.number) for table in self.family.tables]

    def layers(self, layers: int) -> range:
        """Return the layers that the variant rewires, in a model of `layers` layers."""
        last = self.number if self.family.is_tail else self.last or layers
        return range(layers - last, layers)

    def place(self, layers: int, ladder_layers: tuple[int, ...] = ()) -> list[Placed]:
        """Return the blocks of a model with their rules; ``hybrid-ladder:K`` means K `ladder_layers` of a config."""
        self.check(layers)
        within: Sequence[int] = range(layers - (self.last or layers), layers)
        if self.name == f"hybrid-ladder:{len(ladder_layers)}":
            within = sorted(ladder_layers)
        family, title = self.family, self.family.title
        with in_file(self.name):
            placed = place(self.tables, layers, within, strict=family.is_own)
            if family.is_own and is_variant(title) and not is_file(title):
                named = _parse(title)
                if (named.place(layers), named.family.head) != (placed, family.head):
                    raise WiringError(f"name '{title}' is a named wiring with other rules", hint=f'name = "my-{title}"')
        return placed

    @property
    def table(self) -> dict[str, Any]:
        """The wiring as a file has it, and a config.json in `ladder_sim_wiring`."""
        tables = narrowed(self.tables, self.last) if self.last else self.tables
        family = self.family
        given = {"wiring": FORM, "name": family.title or self.name, "summary": family.summary, "paper": family.paper}
        given |= {"head": family.head, "layers": tables}
        return {key: value for key, value in given.items() if value}

    def expanded(self, layers: int) -> dict[str, Any]:
        """Return `table` for a model of `layers` layers: its slices are lists of layers, its blocks have all keys."""
        blocks: dict[int, dict[str, Any]] = {}
        for layer, part, rule in self.place(layers):
            given = {key: value for key, value in asdict(rule).items() if value != getattr(Rule(), key)}
            if given or part == "both":
                blocks.setdefault(layer, {})[NAMES[part]] = given
        alike: dict[str, list[int]] = {}
        for layer, keys in blocks.items():
            alike.setdefault(json.dumps(keys), []).append(layer)
        return {**self.table, "layers": [{"at": at, **json.loads(keys)} for keys, at in alike.items()]}

    @property
    def toml(self) -> str:
        """The wiring as a file."""
        table = self.table
        lines = [f"{key} = {_toml(value)}" for key, value in table.items() if key != "layers"]
        for each in table.get("layers", ()):
            lines += ["", "[[layers]]"]
            for key, value in each.items():
                parts = {f"{key}.{name}": inner for name, inner in value.items()} if key in PARTS and value else {}
                lines += [f"{name} = {_toml(inner)}" for name, inner in (parts or {key: value}).items()]
        return "\n".join(lines) + "\n"

    def check(self, layers: int) -> None:
        """Refuse what does not fit a model of so many layers; raises UsageError if a parameter is too large."""
        family, parameter = self.family.name, self.family.parameter
        if self.last > layers:
            fitting = Variant(family=self.family, number=self.number, last=layers)
            raise UsageError(
                f"variant '{self.name}': the model has {layers} layers, so at most {layers} can be {family}",
                hint=f"use '{fitting.name}' or '{Variant(family=self.family, number=self.number).name}'",
            )
        largest = parameter.largest(self.last or layers) if parameter else 0
        if parameter and self.number > largest:
            where = f"the last {self.last} layers have" if self.last else "the model has"
            raise UsageError(
                f"variant '{self.name}': {where} {largest} {parameter.counts}, so {parameter.too_large}",
                hint=f"use a number up to {largest}" + (f", or {parameter.instead}" if parameter.instead else ""),
            )


class OwnWiring(str):
    """Path of a wiring file, with what was read there: a file that was changed since is another wiring."""

    variant: Variant
    """The wiring."""

    def __new__(cls, path: str, variant: Variant) -> Self:
        """Return a path that knows its wiring."""
        own = super().__new__(cls, path)
        own.variant = variant
        return own

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True and (not isinstance(other, OwnWiring) or self.variant == other.variant)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.variant)


def parse(variant: str) -> Variant:
    """Return the variant of a name, or of the path of a wiring file, which ends in .toml.

    Raises UnknownNameError if there is no such variant; UsageError if a parameter is missing, out of range, or not
    wanted; WiringError if the file is wrong.

    Examples
    --------
    >>> parse("Hybrid-Delayed:2:016").name, parse("ladder:1").name
    ('hybrid-delayed:2:16', 'ladder')
    """
    if isinstance(variant, OwnWiring):
        return variant.variant
    own = _own(variant.strip())
    return own.variant if own else _parse(variant)


def is_file(variant: str) -> bool:
    """Whether a variant is the path of a wiring file."""
    return variant.strip().endswith(".toml")


def _own(variant: str) -> OwnWiring | None:
    """Return the wiring in a file, or in the text of one as a config.json has it; None: it has a name."""
    if variant.startswith("{"):
        table = json.loads(variant)
        return own_wiring(table, str(table.get("name") or "own"))
    if not is_file(variant):
        return None
    return own_wiring(read_wiring_toml(Path(variant), "a wiring file"), variant)


def read_wiring_toml(path: Path, what: str) -> dict[str, Any]:
    """Read the tables of a file that holds rules of layers; raise WiringError if it is no TOML."""
    text = read_text(path, what=what, error=WiringError)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as fault:
        reason = "nested too deeply" if isinstance(fault, RecursionError) else fault
        raise WiringError(f"{path}: not valid TOML ({reason})", hint="a key a line: mlp.delay = 1") from None


def own_wiring(table: Mapping[str, Any], path: str) -> OwnWiring:
    """Return the wiring that a table says, as a variant named `path`.

    Raises WiringError if a key is unknown, or a value impossible.
    """
    if table.get("wiring") != FORM:
        raise WiringError(f"{path}: wiring is {table.get('wiring')!r}: must be {FORM}", hint=f"wiring = {FORM}")
    check_keys(f"{path}: the file", table, _KEYS)
    for key in ("name", "summary", "paper"):
        if not isinstance(table.get(key, ""), str):
            raise WiringError(f"{path}: {key} is {table[key]!r}: must be text", hint=f'{key} = "..."')
    if (head := table.get("head", "")) not in get_args(Head):
        raise WiringError(f'{path}: head is {head!r}: must be "mean" or "own"', hint='head = "mean"')
    tables = table.get("layers", [])
    if not isinstance(tables, list):
        raise WiringError(f"{path}: layers must be tables", hint="[[layers]]")
    with in_file(path):
        check_tables(tables)
    name = table.get("name") or Path(path).stem
    family = Family(
        name=path,
        summary=table.get("summary") or name,
        tables=tuple(tables),
        head=head,
        paper=table.get("paper", ""),
        title=name,
    )
    return OwnWiring(path, Variant(family=family))


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key} = {_toml(each)}" for key, each in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    return json.dumps(value)


def _filled(value: Any, letter: str, number: int) -> Any:
    """Return a part of a table with the number in place of its letter, as in "N-1::N"."""
    if isinstance(value, Mapping):
        return {key: _filled(each, letter, number) for key, each in value.items()}
    if not letter or not isinstance(value, str):
        return value
    filled = re.sub(rf"\b{letter}\b(-\d+)?", lambda found: str(number + int(found[1] or 0)), value)
    return number if value == letter else filled


@lru_cache(maxsize=1024)
def _parse(variant: str) -> Variant:
    text = variant.strip().lower()
    body = text.removeprefix(HYBRID)
    hybrid = body != text
    names = [name for name, family in FAMILIES.items() if family.fits_hybrids or not hybrid]
    # the longest one: names may hold colons
    name = max((name for name in names if f"{body}:".startswith(f"{name}:")), key=len, default="")
    if not name:
        hybrids = [f"{HYBRID}{family.shortest}:K" for family in FAMILIES.values() if family.fits_hybrids]
        raise UnknownNameError(
            "variant", variant, [*(family.shortest for family in FAMILIES.values()), *hybrids, "mine.toml"]
        )
    family = FAMILIES[name]
    given = body[len(name) + 1 :].split(":") if body != name else []
    last = _number(variant, family, _LAST, given.pop() if given else "", hybrid=hybrid) if hybrid else 0
    parameter = family.parameter
    if parameter is None:
        if given:
            raise UsageError(f"variant '{variant}': '{name}' takes no parameter", hint=f"write '{name}'")
        return Variant(family=family, last=last)
    if not given and parameter.default is not None:
        return Variant(family=family, number=parameter.default, last=last)
    number = _number(variant, family, parameter, ":".join(given), hybrid=hybrid)
    return Variant(family=family, number=number, last=last)


def _number(variant: str, family: Family, parameter: Parameter, text: str, *, hybrid: bool) -> int:
    percent = parameter.counts == "percent"
    most = 100 if percent else math.inf
    digits = text.lstrip("0") or text[:1]
    # int() reads no more than some thousand digits
    if digits.isascii() and digits.isdigit() and len(digits) < 10 and parameter.smallest <= int(digits) <= most:
        return int(digits)
    wanted = "whole number" if parameter.smallest == 0 else "positive whole number"
    wanted += f" {parameter.letter}" + (" up to 100" if percent else "")
    example = Variant(
        family=family, number=family.parameter.example if family.parameter else 0, last=_LAST.example if hybrid else 0
    )
    prefix = HYBRID if hybrid else ""
    raise UsageError(
        f"variant '{variant}': '{prefix}{family.name}' needs a {wanted} ({parameter.meaning.format(name=family.name)})",
        hint=f"for example '{example.name}'" + (f", or {parameter.instead}" if parameter.instead else ""),
    )


def canonical(variant: str) -> str:
    """Return the canonical name of a variant, or its path, with what is read there; raise what `parse` raises."""
    if isinstance(variant, OwnWiring):
        return variant
    return _own(variant.strip()) or _parse(variant).name


def named(variant: str) -> str:
    """Return the canonical name of a variant, and read no file: what another process asks for may name any path."""
    return _parse(variant).name


def is_variant(text: str) -> bool:
    """Whether it is a variant's name, or may be the path of a file."""
    try:
        _parse(text)
    except UsageError:
        return is_file(text)
    return True


def canonical_names(given: str | Iterable[str], check: Callable[[str], str] = canonical) -> tuple[str, ...]:
    """Check one name or several, of which there must be one, and leave out what is repeated; `named` reads no file.

    Examples
    --------
    >>> canonical_names("ladder"), canonical_names(["Ladder", "desync:4", "ladder"])
    (('ladder',), ('ladder', 'desync:4'))
    """
    names = tuple(dict.fromkeys(map(check, [given] if isinstance(given, str) else given)))
    if not names:
        raise UsageError("no variants: must be at least one", hint="for example 'ladder'")
    return names
