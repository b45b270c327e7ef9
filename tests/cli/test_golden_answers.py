"""Answers of 200 commands, held to what they were; `tests.support.golden` says what to do when a change is meant."""

from typing import Any

import pytest

from tests.support.golden import answer, golden

PARTS = 10
# of values that optimisers find
RTOL = 1e-5


# some commands use names of earlier versions
@pytest.mark.filterwarnings("default::FutureWarning")
@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_answers_are_as_they_were(part: int) -> None:
    expected = golden()
    commands = list(expected)[part::PARTS]
    changed = {command: found for command in commands if not _same(found := answer(command), expected[command])}
    assert not changed, f"see tests/support/golden.py: {changed}"


def _same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return found.keys() == expected.keys() and all(
        found[key] == (value if isinstance(value, str) else pytest.approx(value, rel=RTOL, abs=1e-12))
        for key, value in expected.items()
    )
