"""Rules that the specs share: each returns the value or raises with value, rule and way out."""

import reprlib
from collections.abc import Iterable
from pathlib import Path

from ladder_sim.errors import SpecError, UnknownNameError

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


def shown(value: object) -> str:
    """Write any value in one short line that every terminal can print."""
    try:
        return ascii(value) if isinstance(value, str) and len(value) <= 60 else _SHORT.repr(value)
    except ValueError:  # an integer with more digits than Python prints
        return "a number of thousands of digits"


def shown_path(path: str | Path) -> str:
    """Write a path in full, with escapes for what a terminal cannot print."""
    text = str(path)
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def whole(value: object, what: str, least: int, most: int, *, hint: str = "") -> int:
    """Require a whole number within bounds, both included; `what` names it."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise SpecError(
            f"{what} is {shown(value)}: must be a whole number from {least} to {most}",
            hint=hint or "give a whole number in that range",
        )
    return value


def real(value: object, what: str, most: float, *, zero: bool = False, hint: str = "") -> float:
    """Require a number above zero (or from zero, with `zero`) and up to `most`."""
    # NaN fails every comparison, infinity the last
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else -1
    if 0 < number <= most or (zero and number == 0):
        return number
    floor = "from 0" if zero else "above 0"
    raise SpecError(
        f"{what} is {shown(value)}: must be a number {floor} and up to {most:g}",
        hint=hint or "give a number in that range, in SI base units",
    )


def flag(value: object, what: str) -> bool:
    """Require true or false."""
    if not isinstance(value, bool):
        raise SpecError(f"{what} is {shown(value)}: must be true or false", hint="write true or false")
    return value


def choice(value: object, what: str, known: Iterable[str]) -> str:
    """Require one of the known names; the nearest is suggested."""
    names = tuple(known)
    if not isinstance(value, str):
        raise SpecError(f"{what} is {shown(value)}: must be one of {', '.join(names)}", hint=f"write e.g. {names[0]}")
    if value not in names:
        raise UnknownNameError(what, value, names)
    return value


def label(value: object, what: str) -> str:
    """Require text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise SpecError(f"{what} is {shown(value)}: must be text, not empty", hint=f"give {what} a name")
    return value
