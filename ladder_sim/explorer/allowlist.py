"""What a browser may name: the catalog, and files that were named when the explorer was started.

Names from a browser are looked up here and nowhere else, so that none of them is ever read as a path.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

from ladder_sim.confidence import NO_PROFILE
from ladder_sim.costs.profile_file import load_profile, shipped_profiles
from ladder_sim.specs import catalog
from ladder_sim.specs.cluster import ClusterSpec
from ladder_sim.specs.stack import StackSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Clusters, stacks and profiles by the names that the page shows."""

    clusters: Mapping[str, ClusterSpec]
    stacks: Mapping[str, StackSpec]
    profiles: Mapping[str, str]
    """What `predict` takes: a shipped name or a path."""
    typed: Mapping[str, str]
    """Name -> path as it was typed, for those that come from files."""

    @classmethod
    def of(cls, *, cluster: str = "", stack: str = "", profile: str | None = None) -> Self:
        """The catalog, and what these name if they are files.

        Raises
        ------
        UsageError
            There is no such name and no such file, or the file cannot be read.
        """
        clusters = {name: catalog.cluster(name) for name in catalog.cluster_names()}
        stacks = {name: catalog.stack(name) for name in catalog.stack_names()}
        profiles = {name: name for name in (NO_PROFILE, *shipped_profiles())}
        typed = {}
        if cluster and cluster not in clusters:
            own = catalog.cluster(cluster)
            clusters, typed[own.name] = {own.name: own, **clusters}, cluster
        if stack and stack not in stacks:
            engine = catalog.stack(stack)
            stacks, typed[engine.name] = {engine.name: engine, **stacks}, stack
        if profile and profile not in profiles:
            load_profile(profile)
            name = Path(profile).name
            profiles, typed[name] = {name: profile, **profiles}, profile
        return cls(clusters=clusters, stacks=stacks, profiles=profiles, typed=typed)

    def name_of(self, given: str) -> str:
        """The name on the page of what was given when the explorer was started."""
        return next((name for name, path in self.typed.items() if path == given), given)


@cache
def model_names() -> tuple[str, ...]:
    """Aliases and catalog ids of the models."""
    return (*catalog.MODEL_ALIASES, *catalog.model_names())
