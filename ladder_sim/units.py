"""Read quantities with units, and write them with three significant digits.

Inside the package every quantity is a float in its SI base unit (seconds, bytes, bytes per second, FLOP/s); units
exist at the edges only. This module imports the standard library and `ladder_sim.errors` only.
"""

import math
import re
import reprlib
from decimal import Decimal
from typing import Literal, NamedTuple

from ladder_sim.errors import UnitError

Unit = Literal["s", "Bps", "bytes", "flops", "count"]

_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*", re.ASCII | re.DOTALL)

# SI prefixes as powers of ten; K is tolerated for k
_DECIMAL = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}
# IEC prefixes as powers of two
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50}
_BITS_PER_BYTE = 8


class _Kind(NamedTuple):
    called: str
    accepted: str
    example: str
    likely: tuple[str, ...]
    """Likely units of a number without a unit."""
    scales: dict[str, Decimal]


def _prefixed(bases: dict[str, Decimal], *, binary: bool = True) -> dict[str, Decimal]:
    prefixes = {p: Decimal(10) ** e for p, e in _DECIMAL.items()}
    if binary:
        prefixes |= {p: Decimal(2) ** e for p, e in _BINARY.items()}
    return {p + base: factor * size for base, size in bases.items() for p, factor in prefixes.items()}


_BYTE, _BIT = Decimal(1), Decimal(1) / _BITS_PER_BYTE

_KINDS: dict[Unit, _Kind] = {
    "s": _Kind(
        "a time",
        "s, ms, us, ns",
        "5us",
        ("us", "ms"),
        {"s": Decimal(1), "ms": Decimal("1e-3"), "ns": Decimal("1e-9")}
        | {micro: Decimal("1e-6") for micro in ("us", "\N{MICRO SIGN}s", "\N{GREEK SMALL LETTER MU}s")},
    ),
    "Bps": _Kind(
        "a bandwidth",
        "B/s (bytes) or b/s (bits), each with k, M, G, T or Ki, Mi, Gi, Ti before it",
        "400Gb/s or 50GB/s",
        ("Gb/s", "GB/s"),
        _prefixed({"B/s": _BYTE, "Bps": _BYTE, "b/s": _BIT, "bps": _BIT, "bit/s": _BIT, "bits/s": _BIT}),
    ),
    "bytes": _Kind(
        "a size",
        "B, kB, MB, GB, TB or KiB, MiB, GiB, TiB",
        "16 GiB",
        ("GB", "GiB"),
        _prefixed({"B": _BYTE, "bytes": _BYTE}),
    ),
    "flops": _Kind(
        "a rate of operations",
        "FLOP/s with k, M, G, T, P before it",
        "989 TFLOP/s",
        ("TFLOP/s", "PFLOP/s"),
        _prefixed(dict.fromkeys(("FLOP/s", "FLOPS", "FLOPs", "FLOPs/s", "flop/s", "flops"), Decimal(1)), binary=False),
    ),
    "count": _Kind(
        "a number",
        "a plain number, or one with k, M, G (or B), T, Ki, Mi after it",
        "128 or 4Ki",
        (),
        _prefixed({"": Decimal(1)}) | {"B": Decimal(10) ** 9},
    ),
}


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


def quoted(value: object) -> str:
    """Write any value in one short line that every terminal can print."""
    try:
        return ascii(value) if isinstance(value, str) and len(value) <= 60 else _SHORT.repr(value)
    except ValueError:  # an integer with more digits than Python prints
        return "a number of thousands of digits"


def parse_quantity(text: str | float, unit: Unit, *, name: str, likely: tuple[str, ...] = ()) -> float:
    """Read a number with its unit, as a quantity in the SI base unit: zero or more, and finite.

    Text is such as ``"5us"``, ``"400Gb/s"`` (bits), ``"50GB/s"`` (bytes), ``"16 GiB"``, ``"989 TFLOP/s"``; only 0 and
    what is counted do without a unit. A unit's case matters: ``b`` is a bit, ``B`` a byte. A number of Python is in the
    base unit. `unit` says what is measured: ``"s"`` time, ``"Bps"`` bandwidth, ``"bytes"`` size, ``"flops"`` FLOP/s,
    ``"count"`` a number. Errors begin with `name`, and suggest the two `likely` units, by default those of hardware.

    Raises UnitError if there is no number, the unit is missing or of another quantity, or the number is negative, NaN
    or infinite.

    Examples
    --------
    >>> parse_quantity("5us", "s", name="latency")
    5e-06
    >>> parse_quantity("400Gb/s", "Bps", name="bandwidth") == parse_quantity("50GB/s", "Bps", name="bandwidth")
    True
    >>> parse_quantity("16 GiB", "bytes", name="memory")
    17179869184.0
    >>> parse_quantity("400", "Bps", name="bandwidth")
    Traceback (most recent call last):
    ...
    ladder_sim.errors.UnitError: bandwidth: '400': a bandwidth needs a unit
      hint: 400Gb/s or 400GB/s?
    >>> parse_quantity("5GB/s", "s", name="latency")
    Traceback (most recent call last):
    ...
    ladder_sim.errors.UnitError: latency: '5GB/s' is a bandwidth: must be a time; accepted are s, ms, us, ns
      hint: write it like 5us
    """
    kind = _KINDS[unit]
    hint = f"write it like {f'50{likely[0]}' if likely else kind.example}"
    if isinstance(text, str):
        match = _NUMBER.fullmatch(text)
        if match is None:
            raise UnitError(
                f"{name}: {quoted(text)} is not a number{' with a unit' if kind.likely else ''}: "
                f"accepted are {kind.accepted}",
                hint=hint,
            )
        digits, suffix = match.groups()
        value = float(digits)
    elif isinstance(text, (int, float)) and not isinstance(text, bool):
        try:
            value = float(text)
        except OverflowError:
            value = math.inf
    else:
        raise UnitError(f"{name}: {quoted(text)} is neither a number nor text: accepted are {kind.accepted}", hint=hint)
    if not math.isfinite(value) or value < 0:
        raise UnitError(f"{name}: {quoted(text)} must be finite and not negative", hint=hint)
    if not isinstance(text, str) or (value == 0 and not suffix):
        return value
    if suffix in kind.scales:
        # in decimal, so that "5us" is 5e-06 and not the neighbouring float
        return float(Decimal(digits) * kind.scales[suffix])
    if not suffix:
        raise missing_unit(digits, unit, name=name, likely=likely)
    others = [other.called for key, other in _KINDS.items() if key != "count" and suffix in other.scales]
    fault = f"is {others[0]}: must be {kind.called};" if others else "has no known unit:"
    raise UnitError(f"{name}: {quoted(text)} {fault} accepted are {kind.accepted}", hint=hint)


def missing_unit(text: str, unit: Unit, *, name: str, likely: tuple[str, ...] = ()) -> UnitError:
    """Return the error of a number, or a range, without a unit; its hint shows the likely units."""
    kind = _KINDS[unit]
    readings = " or ".join(f"{text.strip()}{suffix}" for suffix in likely or kind.likely)
    return UnitError(f"{name}: {quoted(text)}: {kind.called} needs a unit", hint=f"{readings}?")


def typed_unit(value: object, unit: Unit) -> str:
    """Return the unit of a quantity as it was typed; empty if it has none.

    Examples
    --------
    >>> typed_unit("400 Gb/s", "Bps"), typed_unit(5e10, "Bps")
    ('Gb/s', '')
    """
    match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    return match[2] if match and match[2] in _KINDS[unit].scales else ""


# sizes of the units that numbers are written in, largest first
_STEPS: dict[Unit, tuple[tuple[float, str], ...]] = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")),
    "Bps": ((1e15, "PB/s"), (1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")),
    "bytes": ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
    "flops": ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"), (1.0, "FLOP/s")),
    "count": ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"), (1.0, "")),
}

# endings of field names, and the unit that each stands for
_SUFFIXES: dict[str, Unit] = {"_s": "s", "_Bps": "Bps", "_bytes": "bytes", "_flops": "flops"}


def unit_of(field: str) -> Unit:
    """Return the unit that a field's name ends in.

    Examples
    --------
    >>> unit_of("inter.bandwidth_Bps"), unit_of("batch")
    ('Bps', 'count')
    """
    return next((unit for suffix, unit in _SUFFIXES.items() if field.endswith(suffix)), "count")


def short_name(field: str) -> str:
    """Return the field without its unit: ``bandwidth`` of ``bandwidth_Bps``."""
    return field.removesuffix(next((suffix for suffix in _SUFFIXES if field.endswith(suffix)), ""))


def base_unit(unit: Unit) -> str:
    """Return the SI unit in which values are held; empty for numbers.

    Examples
    --------
    >>> base_unit("Bps"), base_unit("flops")
    ('B/s', 'FLOP/s')
    """
    return next(name for size, name in _STEPS[unit] if size == 1)


def step_for(value: float, unit: Unit, typed: str = "") -> tuple[float, str]:
    """Return the size and name of the unit that a value is written in: the typed one, if any.

    For an axis, `value` is where the axis ends.

    Examples
    --------
    >>> step_for(5e10, "Bps"), step_for(5e10, "Bps", "Gb/s"), step_for(4e-5, "s")
    ((1000000000.0, 'GB/s'), (125000000.0, 'Gb/s'), (1e-06, 'us'))
    """
    if typed:
        return float(_KINDS[unit].scales[typed]), typed
    # a value that rounds to a step is written in it
    return next((step for step in _STEPS[unit] if abs(value) >= step[0] * (1 - 1e-12)), _STEPS[unit][-1])


def format_quantity(value: float, unit: Unit, typed: str = "") -> str:
    """Write a value with three significant digits, in the unit that was typed or else in one that suits it.

    Examples
    --------
    >>> format_quantity(5e10, "Bps"), format_quantity(5e10, "Bps", "Gb/s"), format_quantity(0.0, "s")
    ('50.0 GB/s', '400 Gb/s', '0 s')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {typed or base_unit(unit)}".strip()
    size, name = step_for(float(f"{value:.2e}"), unit, typed)
    scaled = float(f"{value / size:.2e}")
    if 0.001 <= abs(scaled) < 1e6:
        decimals = max(0, 2 - math.floor(math.log10(abs(scaled)) + 1e-12))
        return f"{scaled:.{decimals}f} {name}".strip()
    return f"{scaled:.2e} {name}".strip()


def format_seconds(seconds: float) -> str:
    """Write a time with three significant digits, e.g. ``12.3 ms``."""
    return format_quantity(seconds, "s")


def format_bytes(size_bytes: float) -> str:
    """Write a size in decimal units with three significant digits, e.g. ``50.7 GB``."""
    return format_quantity(size_bytes, "bytes")


def format_bandwidth(bandwidth_Bps: float) -> str:
    """Write a bandwidth in bytes per second with three significant digits, e.g. ``3.35 TB/s``."""
    return format_quantity(bandwidth_Bps, "Bps")


def counted_text(number: int, noun: str) -> str:
    """Return a number of things, e.g. 1 plan or 2 plans."""
    return f"{number} {noun}{'s' * (number != 1)}"


def format_count(count: float) -> str:
    """Write a number with three significant digits; whole numbers below 1000 stay as they are.

    Examples
    --------
    >>> format_count(405_853_388_800), format_count(126), format_count(8_192)
    ('406 B', '126', '8.19 k')
    """
    if abs(count) < 1000 and float(count).is_integer():
        return str(int(count))
    return format_quantity(count, "count")


def decimals_of(value: float) -> int:
    """Digits after the point that give a number three digits, or all of its whole part.

    Examples
    --------
    >>> decimals_of(19.268), decimals_of(3214.2), decimals_of(9.999)
    (1, 0, 1)
    """
    if not value or not math.isfinite(value):
        return 0
    # of the number as it is rounded: 9.999 is 10.0
    return max(0, 2 - math.floor(math.log10(float(f"{abs(value):.2e}"))))


def format_rate(per_s: float) -> str:
    """Write a rate with four digits, zeros at the end included and never with an exponent.

    Examples
    --------
    >>> format_rate(35.2), format_rate(1234.5), format_rate(45678.9)
    ('35.20', '1234', '45679')
    """
    return f"{per_s:#.4g}".rstrip(".") if per_s < 1e4 else f"{per_s:.0f}"
