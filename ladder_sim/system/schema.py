"""Versions of the documents that this package writes: how they are marked, and which are read.

A JSON object or a TOML file has its version under ``schema_version``. One without it is of version 1: not every
document of ladder-sim 0.1 was marked, and a file that was written by hand need not be.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ladder_sim.errors import LadderSimError

KEY = "schema_version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The versions of one kind of document."""

    version: int = 1
    """Version that is written."""
    oldest: int = 1
    """Oldest version that can still be read."""
    stale: str = ""
    """The way out of an older one."""

    def marked(self, /, **content: Any) -> dict[str, Any]:
        """Return a document with its version."""
        return {KEY: self.version, **content}

    def check(self, document: Mapping[str, Any], origin: str, *, error: type[LadderSimError]) -> int:
        """Return the version of a document, called `origin` in errors; raise `error` if it cannot be read."""
        version = document.get(KEY, 1)
        if type(version) is not int or version < 1:
            raise error(
                f"{origin}: {KEY} is {ascii(version)[:60]}: must be a whole number from 1 on",
                hint="create it again; it was edited or damaged",
            )
        if version > self.version:
            raise error(
                f"{origin} has {KEY} {version}; this ladder-sim reads up to {self.version}",
                hint="it was written by a newer ladder-sim; upgrade",
            )
        if version < self.oldest:
            raise error(f"{origin} has {KEY} {version}; this ladder-sim reads from {self.oldest} on", hint=self.stale)
        return version
