"""Engines that have a technique or a wiring today."""

from collections.abc import Sequence
from typing import NamedTuple


class Support(NamedTuple):
    """One engine, or several."""

    engine: str
    """Its name, and the part of the technique that it has."""
    source: str
    """Version and file, change or paper that says so."""


def engines(support: Sequence[Support]) -> str:
    """Their names; "none" if there are none."""
    return "; ".join(each.engine for each in support) or "none"


def with_sources(support: Sequence[Support]) -> str:
    """The same with the sources."""
    return "; ".join(f"{each.engine} ({each.source})" for each in support) or "none"
