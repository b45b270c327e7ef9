"""How unevenly tokens choose experts: names, files and lists of tokens per expert."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim import Scenario
from ladder_sim.errors import LadderSimError, SpecError, UnknownNameError, UsageError
from ladder_sim.specs.workload import USUAL, ExpertLoads

COUNTS = [4.0, 0.0, 1.0, 3.0]


@pytest.mark.parametrize("text", ["[4, 0, 1, 3]", "4\n0\n1.0\n3\n", "4,0,1,3", " 4 0 1e0\t3 "])
def test_a_file_of_tokens_per_expert(text: str, tmp_path: Path) -> None:
    file = tmp_path / "layer12.json"
    file.write_text(text)
    loads = ExpertLoads.of(str(file))
    assert (loads.name, loads.counts, loads.tabled) == ("layer12.json", tuple(COUNTS), "balanced")


def test_the_busiest_part_of_the_experts() -> None:
    loads = ExpertLoads.of(COUNTS)
    assert [loads.busiest(ep) for ep in (1, 2, 4)] == [1.0, 1.0, 2.0]
    # a table's own name says all of it
    assert [ExpertLoads.of("power-law-1.2").busiest(ep) for ep in (1, 8)] == [1.0, 1.0]
    assert ExpertLoads.of(USUAL) is USUAL


@given(st.lists(st.floats(0.0, 1e6), min_size=8, max_size=8).filter(any), st.sampled_from([1, 2, 4, 8]))
def test_no_part_is_busier_than_all_experts(counts: list[float], ep: int) -> None:
    assert 1.0 - 1e-9 <= ExpertLoads.of(counts).busiest(ep) <= ep * (1.0 + 1e-9)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must hold a number for each expert"),
        ("12", "must hold a number for each expert"),
        ("1, two, 3", "must hold numbers only"),
        ('{"tokens": [1, 2]}', "must hold numbers only"),
        ("1, -2", "tokens of an expert is -2"),
        ("1, nan", "tokens of an expert is nan"),
        ("1, 1e400", "tokens of an expert is inf"),
        ("0 0 0", "no expert has any tokens"),
    ],
)
def test_files_that_hold_something_else(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "counts.txt"
    file.write_text(text)
    with pytest.raises(SpecError, match=problem):
        ExpertLoads.of(str(file))


@given(st.text(max_size=60))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    with contextlib.suppress(LadderSimError):
        assert ExpertLoads.of(text).name == text.strip()


def test_what_does_not_fit_the_model() -> None:
    def of(**given: Any) -> Scenario:
        return Scenario(**{"model": "mixtral-8x7b", "tp": 4, **given})

    assert of(imbalance=[1, 2, 3, 4, 5, 6, 7, 8]).workload.imbalance.counts[-1] == 8.0
    with pytest.raises(UsageError, match=r"tokens of 4 experts, and model 'mixtral-8x7b' has 8"):
        of(imbalance=COUNTS)
    with pytest.raises(UsageError, match=r"tokens of 4 experts, and model 'llama-3.1-8b' has none"):
        of(model="8b", imbalance=COUNTS)
    with pytest.raises(UnknownNameError, match=r"unknown imbalance 'power-law-1\.3'"):
        of(imbalance="power-law-1.3")
