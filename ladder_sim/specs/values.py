"""Rules that one value must keep."""

from collections.abc import Iterable

from ladder_sim.errors import SpecError, UnknownNameError
from ladder_sim.specs.answers import answer
from ladder_sim.units import quoted, unit_of


def whole(value: object, what: str, minimum: int, maximum: int, *, hint: str = "") -> int:
    """Require a whole number within bounds, both included; `what` names it."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise SpecError(
            f"{what} is {quoted(value)}: must be a whole number from {minimum} to {maximum}",
            hint=hint or "give a whole number in that range",
        )
    return value


def real(value: object, what: str, maximum: float, *, zero: bool = False, hint: str = "") -> float:
    """Require a number above zero (or from zero, with `zero`) and up to `maximum`."""
    # NaN fails every comparison, infinity the last
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else -1
    if 0 < number <= maximum or (zero and number == 0):
        return number
    floor = "from 0" if zero else "above 0"
    raise SpecError(
        f"{what} is {quoted(value)}: must be a number {floor} and up to {maximum:g}",
        hint=hint or "give a number in that range" + (", in SI base units" if unit_of(what) != "count" else ""),
    )


def flag(value: object, what: str) -> bool:
    """Require true or false."""
    if not isinstance(value, bool):
        raise SpecError(f"{what} is {quoted(value)}: must be true or false", hint="write true or false")
    return value


def choice(value: object, what: str, names: Iterable[str]) -> str:
    """Require one of some names; the nearest is suggested."""
    names = tuple(names)
    if not isinstance(value, str):
        raise SpecError(f"{what} is {quoted(value)}: must be one of {', '.join(names)}", hint=f"write e.g. {names[0]}")
    if value not in names:
        raise UnknownNameError(what, value, names, answer=answer(what.rpartition(".")[2], value))
    return value


def nonempty(value: object, what: str) -> str:
    """Require text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise SpecError(f"{what} is {quoted(value)}: must be text, not empty", hint=f"give {what} a name")
    return value
