"""The range grammar of sweeps, and the fields it is for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim.errors import UnitError, UnknownNameError, UsageError
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.sweeps.axes import axis, expand, value_at
from ladder_sim.sweeps.grid import Grid, check_size, scenario_at, variant_names
from ladder_sim.units import parse_quantity, unit_of


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("50:800:x2Gb/s", ["50Gb/s", "100Gb/s", "200Gb/s", "400Gb/s", "800Gb/s"]),
        ("1:100:x3", ["1", "3", "9", "27", "81", "100"]),
        ("0:1:+0.25us", ["0us", "0.25us", "0.5us", "0.75us", "1us"]),
        ("1:2:x1.5 GB/s", ["1GB/s", "1.5GB/s", "2GB/s"]),
        ("7:7:x2", ["7"]),
        ("1e3:4e3:x2", ["1000", "2000", "4000"]),
        ("10,50:200:x2Gb/s", ["10Gb/s", "50Gb/s", "100Gb/s", "200Gb/s"]),
        ("100,400Gb/s", ["100Gb/s", "400Gb/s"]),
        ("1GB/s,400Gb/s", ["1GB/s", "400Gb/s"]),
        ("4,4,2", ["4", "2"]),
    ],
)
def test_expand(text: str, values: list[str]) -> None:
    """Both ends are there, one unit serves all, and nothing is there twice."""
    assert expand(text, name="field") == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1:", "is not a range"),
        ("1:2:3", "is not a range"),
        ("1:8:y2", "is not a range"),
        ("1:8:x", "is not a range"),
        ("1us:8us:x2", "is not a range"),
        ("1:8:x2:x2", "is not a range"),
        ("1:8", "has no step"),
        ("8:1:x2", "runs backwards"),
        ("0:8:x2", "does not advance"),
        ("1:8:x1", "does not advance"),
        ("1:8:+0", "does not advance"),
        ("1,,2", "empty value"),
        ("", "empty value"),
        ("0:1:+1e-9", "has 1e+9 values"),
        ("1:2:x1.00000000000000000001", "values"),
        ("1:1e999999999:x10", "must end at"),
    ],
)
def test_malformed_ranges_say_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        expand(text, name="inter.bandwidth")
    assert message in caught.value.message
    assert "inter.bandwidth" in caught.value.message
    assert caught.value.hint


@given(
    start=st.integers(1, 1000),
    length=st.integers(0, 1000),
    step=st.integers(2, 50),
    sign=st.sampled_from("x+"),
)
def test_ends_are_always_included(start: int, length: int, step: int, sign: str) -> None:
    values = [int(value) for value in expand(f"{start}:{start + length}:{sign}{step}", name="field")]
    assert (values[0], values[-1]) == (start, start + length)
    assert values == sorted(set(values))


@pytest.mark.parametrize(
    ("given", "unit"),
    [
        ("50:800:x2Gb/s", "Gb/s"),
        ("100,400 Gb/s", "Gb/s"),
        ("50GB/s,400Gb/s", ""),
        ("16GiB/s", "GiB/s"),
        ([25e9, 50e9], ""),
    ],
)
def test_an_axis_keeps_the_unit_that_was_typed(given: object, unit: str) -> None:
    assert axis("inter.bandwidth_Bps", given).unit == unit


@pytest.mark.parametrize("given", [50e9, [25e9, 50e9], "25:100:x2", "0:100:+25", "400", "50GB/s,400"])
def test_an_axis_without_a_unit_is_refused(given: object) -> None:
    """Numbers of Python have it in the name of the field."""
    with pytest.raises(UnitError, match=r"inter\.bandwidth: .* a bandwidth needs a unit"):
        axis("inter.bandwidth", given)


NUMBERS = st.sampled_from(
    ["0", "1", "2", "25", "0.5", "1e4", "1e30", "1e400", "1e-300", "123456789012345678901", "-1", "nan"]
)
UNITS = st.sampled_from(["", "us", "s", "Gb/s", "GB/s", "GiB", "TFLOP/s", "parsec"])
FIELDS = st.sampled_from(
    ["batch", "tp", "gen", "inter.bandwidth", "intra.allreduce_floor", "gpu.hbm", "gpu.bf16", "model.heads"]
)


@given(
    FIELDS, st.lists(NUMBERS, min_size=1, max_size=3), st.sampled_from([":", ":", ","]), st.sampled_from("x+"), UNITS
)
def test_any_range_is_an_axis_or_refused(key: str, numbers: list[str], by: str, sign: str, unit: str) -> None:
    """Regression: 1:1e30:x1e5 ended in an overflow. What has a dimension is never read without its unit."""
    if by == ":" and len(numbers) == 3:
        numbers[2] = f"{sign}{numbers[2]}"
    text = by.join(numbers) + unit
    try:
        grid = Grid({key: text}, ["ladder"])
    except UsageError as error:
        assert error.hint  # noqa: PT017
        return
    (each,) = grid.axes
    dimension = unit_of(each.name)
    assert dimension == "count" or unit or set(each.values) == {0.0}
    values = [parse_quantity(f"{number}{unit}", dimension, name=key) for number in numbers if number[0] not in "x+"]
    assert {min(values), max(values)} <= {float(value) for value in each.values}


def test_tp_and_batch_double_by_themselves() -> None:
    assert axis("tp", "2:16").values == (2, 4, 8, 16)
    assert axis("batch", "1:5").values == (1, 2, 4, 5)
    with pytest.raises(UsageError, match="has no step"):
        axis("prompt", "128:4096")


@pytest.mark.parametrize(
    ("key", "given", "nearest"),
    [
        ("inter.bandwith", "1:2:x2", "inter.bandwidth"),
        ("bach", "1:2", "batch"),
        ("dtype", "fp9", "fp8"),
        ("model", "405bb", "405b"),
        ("cluster", "h100sxm", "h100-sxm"),
        ("allreduce", "ncl", "nccl"),
    ],
)
def test_unknown_names_suggest_the_nearest(key: str, given: str, nearest: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        axis(key, given)
    assert nearest in caught.value.hint


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("inter.bandwidth", "0:100:+10GB/s"),
        ("tp", "0:2:+1"),
        ("batch", "1.5"),
        ("intra.allreduce_floor", "5:20:x2Gb/s"),
    ],
)
def test_impossible_values_are_refused_before_anything_runs(key: str, given: str) -> None:
    """Hardware figures go into arrays that no spec checks: their ends are checked instead."""
    with pytest.raises(UsageError):
        Grid({key: given})


@pytest.mark.parametrize("name", [*ARGUMENTS, "inter.bandwidth_Bps", "cluster.rank_skew", "model.layers"])
def test_a_field_can_be_read_back_from_the_scenario(name: str) -> None:
    """`value_at` says where a break-even range starts from."""
    value = value_at(scenario_at({"model": "8b"}), name)
    assert value_at(scenario_at({"model": "8b", name: value}), name) == value


def test_a_field_is_given_once() -> None:
    with pytest.raises(UsageError, match=r"'inter\.bandwidth_Bps' is given twice"):
        Grid({"inter.bandwidth": "1GB/s", "inter.bandwidth_Bps": "2GB/s"})


def test_exploding_grids_ask_first() -> None:
    grid = Grid({"batch": "1:10000:+1", "prompt": "1:10000:+1"})
    with pytest.raises(UsageError, match=r"100,000,000 points \(10000 x 10000\)") as caught:
        check_size(grid, confirmed=False)
    assert "--yes" in caught.value.hint
    check_size(grid, confirmed=True)


def test_variants_take_ranges() -> None:
    assert variant_names(["hybrid-ladder:10:30:+10", "desync:2:8"]) == (
        "hybrid-ladder:10",
        "hybrid-ladder:20",
        "hybrid-ladder:30",
        "desync:2",
        "desync:4",
        "desync:8",
    )
