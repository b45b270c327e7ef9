"""Ranges as typed: ``START:STOP[:xFACTOR|:+STEP][UNIT]``, or values separated by commas."""

import re
from decimal import Decimal

from ladder_sim.errors import UsageError

# values of one range; more is a typing error
MAX_VALUES = 2_000_000
# far above any quantity
_LARGEST = Decimal("1e30")
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"\s*({_NUMBER}):({_NUMBER})(?::([x+])({_NUMBER}))?\s*([^\d\s:.,+-][^:,]*)?", re.ASCII)
_PLAIN = re.compile(rf"\s*({_NUMBER})\s*([^\d\s:][^:]*)?", re.ASCII)
# ranges of other languages
_OTHER_FORM = re.compile(r"(\d+)\s*(?:\.\.+|-)\s*(\d+)\s*([A-Za-z]\S*)?", re.ASCII)
_FORM = "START:STOP:xFACTOR or START:STOP:+STEP, then a unit, e.g. 50:800:x2Gb/s"


def expand(text: str, *, name: str, factor: int | None = None) -> list[str]:
    """Return the values of a numeric range or list, each as text with its unit.

    Parameters
    ----------
    text
        A range, whose two ends are always among its values; or values and ranges separated by commas. A unit behind
        the last of several bare numbers is the unit of all.
    name
        What the range is for; errors begin with it.
    factor
        Step of a range without one; None: a range must have a step.

    Raises
    ------
    UsageError
        The range is malformed, runs backwards, does not advance, or is far too long.

    Examples
    --------
    >>> expand("50:800:x2Gb/s", name="inter.bandwidth")
    ['50Gb/s', '100Gb/s', '200Gb/s', '400Gb/s', '800Gb/s']
    >>> expand("1:10:+4us", name="inter.hop_latency")
    ['1us', '5us', '9us', '10us']
    >>> expand("2:16", name="tp", factor=2)
    ['2', '4', '8', '16']
    >>> expand("100,400Gb/s", name="inter.bandwidth")
    ['100Gb/s', '400Gb/s']
    """
    pieces = split(text, name=name)
    unit = _shared_unit(pieces)
    values: list[str] = []
    for piece in pieces:
        other = _OTHER_FORM.fullmatch(piece)
        if other:
            start, stop, unit = other.groups("")
            raise UsageError(f"{name}: '{piece}' is not a range", hint=f"write {start}:{stop}:x2{unit}")
        if ":" in piece:
            values += _steps(piece, name, factor)
        else:
            values.append(piece + (unit if re.fullmatch(_NUMBER, piece) else ""))
    return list(dict.fromkeys(values))


def split(text: str, *, name: str) -> list[str]:
    """Return the pieces between commas, none of them empty."""
    pieces = [piece.strip() for piece in text.split(",")]
    if not all(pieces):
        raise UsageError(f"{name}: '{text}' has an empty value", hint="separate values by single commas")
    return pieces


def _shared_unit(pieces: list[str]) -> str:
    """Return the unit of the last number, if no other number has a unit; empty otherwise."""
    number, steps = _PLAIN.fullmatch(pieces[-1]), _RANGE.fullmatch(pieces[-1])
    unit = number[2] if number else steps[5] if steps else None
    return unit or "" if all(re.fullmatch(_NUMBER, piece) for piece in pieces[:-1]) else ""


def _steps(piece: str, name: str, factor: int | None) -> list[str]:
    match = _RANGE.fullmatch(piece)
    if match is None:
        raise UsageError(f"{name}: '{piece}' is not a range", hint=_FORM)
    sign, unit = match[3] or "x", match[5] or ""
    if match[3] is None and factor is None:
        raise UsageError(
            f"{name}: '{piece}' has no step",
            hint=f"write {match[1]}:{match[2]}:x2{unit} or {match[1]}:{match[2]}:+1{unit}",
        )
    start, stop, step = (Decimal(number or 0) for number in (match[1], match[2], match[4] or factor))
    if stop > _LARGEST:
        raise UsageError(f"{name}: '{piece}' must end at 1e30 or below", hint=_FORM)
    if start > stop:
        raise UsageError(f"{name}: '{piece}' runs backwards", hint="put the smaller end first")
    if step <= (1 if sign == "x" else 0) or (sign == "x" and start <= 0):
        raise UsageError(
            f"{name}: '{piece}' does not advance", hint="a factor is above 1 and starts above 0; a step is above 0"
        )
    count = (stop - start) / step if sign == "+" else (stop / start).ln() / step.ln()
    if count > MAX_VALUES:
        raise UsageError(f"{name}: '{piece}' has {count:.2g} values", hint="take a larger step")
    values = []
    at = start
    while at < stop:
        values.append(at)
        at = at + step if sign == "+" else at * step
    return [f"{value.normalize():f}{unit}" for value in (*values, stop)]
