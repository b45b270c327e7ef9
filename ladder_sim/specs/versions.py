"""Versions of an inference engine: those that its stack's file knows, and what was different before some of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ladder_sim.errors import SpecError, UsageError

# a release, as in "1.2.0rc6.post1": what follows the numbers changes no figure here
_RELEASE = re.compile(r"v?(\d{1,6}(?:\.\d{1,6}){0,3})(?:[.+-]?[a-z][a-z0-9.+-]{0,30})?", re.ASCII | re.IGNORECASE)


def release(version: str) -> tuple[int, ...] | None:
    """Return the numbers of a version, without zeros at the end; None if it is not one.

    Examples
    --------
    >>> release("1.2.0rc6.post1"), release("newest")
    ((1, 2), None)
    """
    match = _RELEASE.fullmatch(version.strip())
    if match is None:
        return None
    numbers = [int(number) for number in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The versions that a stack's file covers."""

    oldest: str = ""
    newest: str = ""
    """Empty, as `oldest`: the stack has no versions."""
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Fields that were different before a version, by version."""

    def before(self, version: str, *, stack: str) -> dict[str, Any]:
        """Return the fields that differ in a version, from all changes that came after it.

        Raises
        ------
        UsageError
            The file does not cover it; the nearest version is named.
        """
        if not self.newest:
            raise UsageError(f"stack '{stack}' has no versions", hint=f"write '{stack}'")
        asked = release(version)
        if asked is None:
            raise UsageError(
                f"version '{version}' of stack '{stack}': must be numbers with dots between them",
                hint=f"for example {stack}@{self.newest}",
            )
        for nearest, outside in ((self.oldest, asked < _release(self.oldest)), (self.newest, self._is_newer(asked))):
            if outside:
                raise UsageError(
                    f"version {version} of stack '{stack}' is not known: known are {self.oldest} to {self.newest}",
                    hint=f"nearest is {stack}@{nearest}; a stack .toml of your own can hold other figures",
                )
        fields: dict[str, Any] = {}

        # the earliest change that is still to come says how it was
        for changed in sorted(self.changes, key=_release, reverse=True):
            if asked < _release(changed):
                fields |= self.changes[changed]
        return fields

    def _is_newer(self, asked: tuple[int, ...]) -> bool:
        """Say whether a version is beyond the newest: 0.32.1 belongs to 0.32."""
        newest = _release(self.newest)
        return asked[: len(newest)] > newest

    @classmethod
    def read(cls, table: object, file: str) -> Self:
        """Return the versions of a file's table ``[versions]``."""
        where = f"{file}: [versions]"
        if not isinstance(table, dict) or set(table) - {"oldest", "newest", "before", "source"}:
            raise SpecError(f"{where} must hold oldest, newest and before", hint="vllm.toml shows the form")
        oldest, newest, changes = table.get("oldest", ""), table.get("newest", ""), table.get("before", {})
        if not isinstance(changes, dict) or not all(isinstance(fields, dict) for fields in changes.values()):
            raise SpecError(f"{where}: before must hold a table for each version", hint="vllm.toml shows the form")
        for version in (oldest, newest, *changes) if table else ():
            if not isinstance(version, str) or release(version) is None:
                raise SpecError(f"{where}: '{version}' is not a version", hint='write e.g. "0.22"')
        return cls(oldest=oldest, newest=newest, changes=changes)


def _release(version: str) -> tuple[int, ...]:
    return release(version) or ()
