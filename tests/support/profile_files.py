"""Whether two profile files hold the same."""

import gzip
import json
from pathlib import Path

import pytest

# of a decimal: some units in the last place of errors that were fitted, which another processor rounds otherwise
TOLERANCE = 1e-12


def check_same(made: Path, shipped: Path) -> None:
    """Require the same decimals to within the tolerance, and all else but the version of the file's form exactly."""
    (document, decimals), (expected, expected_decimals) = _parts(made), _parts(shipped)
    assert document == expected
    assert decimals == pytest.approx(expected_decimals, rel=TOLERANCE, abs=0.0)


def _parts(path: Path) -> tuple[object, list[float]]:
    """A document without its decimals, and these in their order."""
    decimals = []

    def take(text: str) -> str:
        decimals.append(float(text))
        return "decimal"

    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=take, object_pairs_hook=list)
    return [entry for entry in document if entry[0] != "schema_version"], decimals
