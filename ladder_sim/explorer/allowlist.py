"""What a browser may name: the catalog, and files that were named when the explorer was started.

Names from a browser are looked up here and nowhere else, so that none of them is ever read as a path.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from ladder_sim.costs.collectives.fabrics import SUFFIX
from ladder_sim.costs.profile import NO_PROFILE
from ladder_sim.costs.profile_file import load_profile, shipped_profiles
from ladder_sim.errors import UsageError
from ladder_sim.specs import catalog
from ladder_sim.specs.cluster import ClusterSpec
from ladder_sim.specs.stack import StackSpec
from ladder_sim.system.files import shown_path, stamp

_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowlist:
    """Models, clusters, stacks and profiles by the names that the page shows."""

    models: tuple[str, ...]
    """Aliases and catalog ids."""
    clusters: Mapping[str, ClusterSpec]
    stacks: Mapping[str, StackSpec]
    profiles: Mapping[str, str]
    """What `predict` takes: a shipped name or a path."""
    files: Mapping[tuple[str, str], str]
    """Kind ("cluster", "stack" or "profile") and name -> path as it was given, for those that come from files."""
    written: Mapping[str, tuple[int, ...]]
    """Path -> stamp of these files, and of the fabrics that they name, as they were when they were read."""

    @classmethod
    def of(cls, *, cluster: str = "", stack: str = "", profile: str | None = None) -> Self:
        """Return the catalog together with the files given; raise UsageError if one cannot be read."""
        clusters = {name: catalog.cluster(name) for name in catalog.cluster_names()}
        stacks = {name: catalog.stack(name) for name in catalog.stack_names()}
        profiles = {name: name for name in (NO_PROFILE, *shipped_profiles())}
        files: dict[tuple[str, str], str] = {}

        def with_file(kind: str, entries: dict[str, _Entry], name: str, path: str, entry: _Entry) -> dict[str, _Entry]:
            """Return the entries with that of a file first; a name that is taken gets " (file)" behind it."""
            unique = f"{name} (file)" if name in entries else name
            files[kind, unique] = path
            return {unique: entry, **entries}

        if cluster and _key(cluster) not in clusters:
            cluster_spec = catalog.cluster(cluster)
            clusters = with_file("cluster", clusters, cluster_spec.name, cluster, cluster_spec)
        if stack and _key(stack) not in stacks:
            stack_spec = catalog.stack(stack)
            stacks = with_file("stack", stacks, stack_spec.name, stack, stack_spec)
        if profile and profile not in profiles:
            load_profile(profile)
            profiles = with_file("profile", profiles, Path(profile).name, profile, profile)
        models = (*catalog.MODEL_ALIASES, *catalog.model_names())
        named = [clusters[name].inter.fabric for kind, name in files if kind == "cluster"]
        paths = (*files.values(), *(each for each in named if each.endswith(SUFFIX)))
        return cls(
            models=models,
            clusters=clusters,
            stacks=stacks,
            profiles=profiles,
            files=files,
            written={path: _stamp(path) for path in paths},
        )

    def check_unchanged(self) -> None:
        """Raise UsageError if a file was changed after it was read: clusters, stacks and answers are kept."""
        for path, written in self.written.items():
            if _stamp(path) != written:
                raise UsageError(f"{shown_path(path)} was changed after it was read", hint="start the explorer again")

    def name_of(self, kind: str, given: str | None) -> str | None:
        """Return the name on the page of what was given when the explorer was started; None stays None."""
        if given is None:
            return None
        names = (name for (file_kind, name), path in self.files.items() if (file_kind, path) == (kind, given))
        return next(names, _key(given))

    def given(self, kind: str, value: Any) -> Any:
        """Return what a command takes for a value on the page: the path of a file for its name, else the value."""
        return self.files.get((kind, value), value)


def _stamp(path: str) -> tuple[int, ...]:
    """Return the stamp of a file; empty if there is none."""
    try:
        return stamp(path)
    except OSError:
        return ()


def _key(name: str) -> str:
    """Return a name as the catalog spells it."""
    return name.strip().lower()
