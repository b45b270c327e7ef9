"""Quantities are read exactly, refused clearly and written with three digits."""

import math
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim.errors import UnitError
from ladder_sim.units import (
    Unit,
    format_bandwidth,
    format_bytes,
    format_count,
    format_quantity,
    format_seconds,
    parse_quantity,
    typed_unit,
)


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("5us", "s", 5e-6),
        ("5 \N{MICRO SIGN}s", "s", 5e-6),
        ("1.5ms", "s", 1.5e-3),
        ("250 ns", "s", 250e-9),
        ("2s", "s", 2.0),
        ("1e-6 s", "s", 1e-6),
        ("0", "s", 0.0),
        ("0.0", "Bps", 0.0),
        (" .5s ", "s", 0.5),
        ("400Gb/s", "Bps", 50e9),
        ("400Gbps", "Bps", 50e9),
        ("200 Mbit/s", "Bps", 25e6),
        ("50GB/s", "Bps", 50e9),
        ("50GBps", "Bps", 50e9),
        ("3.35 TB/s", "Bps", 3.35e12),
        ("1 GiB/s", "Bps", 2.0**30),
        ("5e10 B/s", "Bps", 5e10),
        ("16 GiB", "bytes", 2.0**34),
        ("16GB", "bytes", 16e9),
        ("81559 MiB", "bytes", 81559 * 2.0**20),
        ("80GB", "bytes", 80e9),
        ("4KiB", "bytes", 4096.0),
        ("64KB", "bytes", 64e3),
        ("989 TFLOP/s", "flops", 989e12),
        ("989TFLOPS", "flops", 989e12),
        ("1.98 PFLOP/s", "flops", 1.98e15),
        ("128", "count", 128.0),
        ("4Ki", "count", 4096.0),
        ("128k", "count", 128e3),
        ("8B", "count", 8e9),
        (132, "count", 132.0),
        (0.25, "s", 0.25),
        (0, "s", 0.0),
    ],
)
def test_reads(text: str | float, unit: Unit, expected: float) -> None:
    assert parse_quantity(text, unit, name="x") == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "fast",
        "5 parsecs",
        "1,000",
        "0x10",
        "--5",
        "5e",
        "nan",
        "inf",
        "1e999",
        "-1",
        "-0.5",
        "٣",
        "5us5",
        "us",
    ],
)
def test_refuses_text(text: str) -> None:
    units: tuple[Unit, ...] = ("s", "Bps", "bytes", "flops", "count")
    for unit in units:
        with pytest.raises(UnitError) as caught:
            parse_quantity(text, unit, name="inter.allreduce_floor")
        error = caught.value
        assert error.exit_code == 2
        assert error.message.startswith("inter.allreduce_floor: ")
        assert ascii(text) in error.message
        assert "accepted are" in error.message or "finite and not negative" in error.message
        assert "write it like" in error.hint


@pytest.mark.parametrize(
    "value", [True, None, [5], math.nan, math.inf, -1, -0.5, 10**400, pytest.param(10**5000, id="5001 digits")]
)
def test_refuses_values(value: object) -> None:
    with pytest.raises(UnitError, match=r"^x: "):
        parse_quantity(value, "s", name="x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "unit", "accepted", "example"),
    [
        ("5 m", "s", "s, ms, us, ns", "5us"),
        ("400G", "Bps", "B/s (bytes) or b/s (bits)", "400Gb/s or 50GB/s"),
        ("400 gb/s", "Bps", "B/s (bytes) or b/s (bits)", "400Gb/s"),
        ("5us", "Bps", "is a time: must be a bandwidth; accepted are B/s (bytes)", "50GB/s"),
        ("989T", "flops", "FLOP/s", "989 TFLOP/s"),
        ("80G", "bytes", "B, kB, MB", "16 GiB"),
        ("16 Gb", "bytes", "B, kB, MB", "16 GiB"),
        ("5 GB", "flops", "FLOP/s", "989 TFLOP/s"),
        ("5 tokens", "count", "a plain number", "128"),
    ],
)
def test_names_accepted_units_and_an_example(text: str, unit: Unit, accepted: str, example: str) -> None:
    """Guards the ambiguous ones: a bare 400G and a lower-case gb could be bits or bytes."""
    with pytest.raises(UnitError) as caught:
        parse_quantity(text, unit, name="x")
    assert accepted in caught.value.message
    assert example in caught.value.hint


@pytest.mark.parametrize(
    ("text", "unit", "message", "readings"),
    [
        ("400", "Bps", "x: '400': a bandwidth needs a unit", "400Gb/s or 400GB/s?"),
        (" 5 ", "s", "x: '5': a time needs a unit", "5us or 5ms?"),
        ("80", "bytes", "x: '80': a size needs a unit", "80GB or 80GiB?"),
        ("989.4", "flops", "x: '989.4': a rate of operations needs a unit", "989.4TFLOP/s or 989.4PFLOP/s?"),
    ],
)
def test_a_bare_number_shows_the_likely_readings(text: str, unit: Unit, message: str, readings: str) -> None:
    """It was read in SI units: a bandwidth of 400 was 400 bytes a second."""
    with pytest.raises(UnitError) as caught:
        parse_quantity(text, unit, name="x")
    assert (caught.value.message, caught.value.hint) == (message, readings)
    for suffix in readings.rstrip("?").split(" or "):
        assert parse_quantity(suffix, unit, name="x") > 0


@given(st.floats(1e-3, 1e6), st.sampled_from([("s", "ms"), ("Bps", "Gb/s"), ("Bps", "GiB/s"), ("bytes", "MiB")]))
def test_what_is_typed_is_written_in_its_unit(number: float, quantity: tuple[Unit, str]) -> None:
    unit, suffix = quantity
    text = f"{number:f} {suffix}"
    written = format_quantity(parse_quantity(text, unit, name="x"), unit, typed_unit(text, unit))
    digits, _, written_suffix = written.partition(" ")
    assert written_suffix == suffix
    assert float(digits) == pytest.approx(float(f"{number:f}"), rel=5.1e-3)


def test_an_example_is_of_the_likely_unit() -> None:
    """A bound on a token's time is no link's latency."""
    for text in ("-50ms", "50Gb/s", "fast", "50"):
        with pytest.raises(UnitError, match="--max-tpot") as caught:
            parse_quantity(text, "s", name="--max-tpot", likely=("ms", "s"))
        assert "50ms" in (caught.value.hint or "")


def test_long_input_is_cut_in_the_message() -> None:
    with pytest.raises(UnitError) as caught:
        parse_quantity("z" * 10_000, "s", name="x")
    assert len(str(caught.value)) < 300


@given(st.text(max_size=20), st.sampled_from(["s", "Bps", "bytes", "flops", "count"]))
def test_any_text_is_read_or_refused(text: str, unit: Unit) -> None:
    try:
        value = parse_quantity(text, unit, name="x")
    except UnitError:
        return
    assert math.isfinite(value)
    assert value >= 0


@given(st.integers(0, 10**6), st.sampled_from([("ns", 9), ("us", 6), ("ms", 3), ("s", 0)]))
def test_decimal_units_are_exact(number: int, unit: tuple[str, int]) -> None:
    """5us must be the float nearest 5e-6; 5 * 1e-6 is not."""
    name, power = unit
    assert parse_quantity(f"{number}{name}", "s", name="x") == float(Fraction(number, 10**power))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0123, "12.3 ms"),
        (0.0, "0 s"),
        (5e-6, "5.00 us"),
        (1.0, "1.00 s"),
        (999.6e-6, "1.00 ms"),
        (0.9996, "1.00 s"),
        (12.345, "12.3 s"),
        (1234.5, "1230 s"),
        (2.5e-9, "2.50 ns"),
        (2.5e-12, "0.00250 ns"),
        (-0.0123, "-12.3 ms"),
        (math.inf, "inf s"),
        (math.nan, "nan s"),
        (1e30, "1.00e+30 s"),
    ],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_other_formats() -> None:
    assert format_bytes(50.7e9) == "50.7 GB"
    assert format_bytes(0) == "0 B"
    assert format_bytes(1) == "1.00 B"
    assert format_bytes(999_999) == "1.00 MB"
    assert format_bandwidth(450e9) == "450 GB/s"
    assert format_bandwidth(3.35e12) == "3.35 TB/s"
    assert format_count(0) == "0"
    assert format_count(999) == "999"
    assert format_count(0.5) == "0.500"
    assert format_count(128_256) == "128 k"
    assert format_count(405_853_388_800) == "406 B"
    assert format_count(math.inf) == "inf"
    assert format_count(math.nan) == "nan"


@given(st.floats(1e-9, 1e5))
def test_formatted_time_reads_back(seconds: float) -> None:
    text = format_seconds(seconds)
    assert parse_quantity(text, "s", name="x") == pytest.approx(seconds, rel=5.1e-3)
    digits = re.sub(r"\D", "", text.split()[0]).lstrip("0")
    assert len(digits) >= 3


@given(st.floats(1, 1e17))
def test_formatted_size_reads_back(size_bytes: float) -> None:
    assert parse_quantity(format_bytes(size_bytes), "bytes", name="x") == pytest.approx(size_bytes, rel=5.1e-3)
    assert parse_quantity(format_bandwidth(size_bytes), "Bps", name="x") == pytest.approx(size_bytes, rel=5.1e-3)
