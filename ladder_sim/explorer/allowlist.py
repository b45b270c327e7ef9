"""What a browser may name: the catalog, and files that were named when the explorer was started.

Names from a browser are looked up here and nowhere else, so that none of them is ever read as a path.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ladder_sim.confidence import NO_PROFILE
from ladder_sim.costs.profile_file import load_profile, shipped_profiles
from ladder_sim.specs import catalog
from ladder_sim.specs.cluster import ClusterSpec
from ladder_sim.specs.stack import StackSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowlist:
    """Models, clusters, stacks and profiles by the names that the page shows."""

    models: tuple[str, ...]
    """Aliases and catalog ids."""
    clusters: Mapping[str, ClusterSpec]
    stacks: Mapping[str, StackSpec]
    profiles: Mapping[str, str]
    """What `predict` takes: a shipped name or a path."""
    paths: Mapping[str, str]
    """Name -> path as it was given, for those that come from files."""

    @classmethod
    def of(cls, *, cluster: str = "", stack: str = "", profile: str | None = None) -> Self:
        """The catalog, and what these name if they are files.

        Raises
        ------
        UsageError
            There is no such name and no such file, or the file cannot be read.
        """
        models = (*catalog.MODEL_ALIASES, *catalog.model_names())
        clusters = {name: catalog.cluster(name) for name in catalog.cluster_names()}
        stacks = {name: catalog.stack(name) for name in catalog.stack_names()}
        profiles = {name: name for name in (NO_PROFILE, *shipped_profiles())}
        paths = {}
        if cluster and cluster not in clusters:
            cluster_spec = catalog.cluster(cluster)
            clusters, paths[cluster_spec.name] = {cluster_spec.name: cluster_spec, **clusters}, cluster
        if stack and stack not in stacks:
            stack_spec = catalog.stack(stack)
            stacks, paths[stack_spec.name] = {stack_spec.name: stack_spec, **stacks}, stack
        if profile and profile not in profiles:
            load_profile(profile)
            name = Path(profile).name
            profiles, paths[name] = {name: profile, **profiles}, profile
        return cls(models=models, clusters=clusters, stacks=stacks, profiles=profiles, paths=paths)

    def name_of(self, given: str) -> str:
        """The name on the page of what was given when the explorer was started."""
        return next((name for name, path in self.paths.items() if path == given), given)
