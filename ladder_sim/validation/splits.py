"""Which measurements a calibration may see, and which it is tested on. The rules are data."""

from collections.abc import Sequence
from dataclasses import dataclass

from ladder_sim.validation.dataset import Measurement

# degrees that a calibration may see; the others test how it carries over
FIT_TPS = (2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """A rule that parts measurements into those for fitting and those for testing."""

    variants: tuple[str, ...]
    """Of the rows that may be fitted."""
    tps: tuple[int, ...]
    """Their tensor-parallel degrees."""

    def fits(self, row: Measurement) -> bool:
        """Whether a calibration may see the row."""
        return row.variant in self.variants and row.configuration.tp in self.tps


PROTOCOLS = {
    "A": Protocol(variants=("standard", "upper-bound"), tps=FIT_TPS),
    "B": Protocol(variants=("standard", "upper-bound", "ladder"), tps=FIT_TPS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Measurements parted by a protocol; every one is in exactly one part."""

    fit: tuple[Measurement, ...]
    """All that a calibration may be given."""
    test: tuple[Measurement, ...]
    """All that it is judged by."""


def split(rows: Sequence[Measurement], protocol: Protocol) -> Split:
    """Part measurements by a protocol.

    Examples
    --------
    >>> from ladder_sim.validation.dataset import read_dataset
    >>> parts = split(read_dataset().measurements, PROTOCOLS["A"])
    >>> len(parts.fit), len(parts.test)
    (18, 52)
    """
    return Split(
        fit=tuple(row for row in rows if protocol.fits(row)),
        test=tuple(row for row in rows if not protocol.fits(row)),
    )


def tp_group(tp: int) -> str:
    """The group of tensor-parallel degrees that a row is summarised in.

    Examples
    --------
    >>> tp_group(4), tp_group(8)
    ('2 and 4', '8')
    """
    return " and ".join(map(str, FIT_TPS)) if tp in FIT_TPS else str(tp)
