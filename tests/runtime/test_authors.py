"""The runtime against the logits that the authors' own code computed."""

import pytest
import torch
from torch import Tensor

from tests.support.authors import ENGINES, TOLERANCE, records, run_ranks

pytestmark = [pytest.mark.torch, pytest.mark.slow]

CASES = [(engine, tp, case["array"]) for engine in ENGINES for tp in (1, 2) for case in records().cases(tp)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[tuple[str, str], Tensor]]]:
    return {tp: run_ranks(tp, tmp_path_factory.mktemp(f"tp{tp}")) for tp in (1, 2)}


@pytest.mark.parametrize(("engine", "tp", "array"), CASES)
def test_logits_are_the_authors(
    ranks: dict[int, list[dict[tuple[str, str], Tensor]]], engine: str, tp: int, array: str
) -> None:
    """Every wiring, both precisions; in float32 the most likely token is the same at every position."""
    dtype = next(case["dtype"] for case in records().cases(tp) if case["array"] == array)
    expected = records().arrays[array]
    computed = [result[engine, array] for result in ranks[tp] if (engine, array) in result]
    assert computed
    for logits in computed:
        assert (logits - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max()
        if dtype == "fp32":
            assert torch.equal(logits.argmax(-1), expected.argmax(-1))


def test_another_wiring_is_far_away() -> None:
    """Guards the test above."""
    arrays = records().arrays
    for tp in (1, 2):
        standard, ladder = (arrays[f"logits/gqa/{name}/tp{tp}/rank0/fp32"] for name in ("standard", "ladder"))
        assert (standard - ladder).abs().max() > 0.4 * standard.abs().max()
