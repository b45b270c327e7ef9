"""The all-reduce across nodes as a fabric file; a profile holds collectives in one node only."""

from calibration.fit.samples import SampleStore, medians
from calibration.fit.tables import curve_of
from calibration.importers.nccl_tests import Sweep, fabric_text
from ladder_sim.errors import ProfileError


def widest_fabric(store: SampleStore, *, cluster: str, created: str) -> str:
    """Return the TOML text of the all-reduce over the most nodes and ranks.

    Parameters
    ----------
    store
        The samples.
    cluster
        Whose links were measured.
    created
        ISO date.

    Raises
    ------
    ProfileError
        No all-reduce was measured across nodes.
    """
    across = {
        (op.nodes, op.ranks): points
        for op, points in medians(store.samples).items()
        if op.op == "all_reduce" and op.nodes > 1
    }
    if not across:
        raise ProfileError(
            f"samples '{store.path}' hold no all-reduce across nodes", hint="run `calibrate run` on several nodes"
        )
    nodes, ranks = max(across)
    curve = curve_of(across[nodes, ranks])
    sweep = Sweep(
        file=store.path.name,
        op="all_reduce",
        sizes=tuple(curve.size_bytes.tolist()),
        seconds=tuple(curve.seconds.tolist()),
        program="calibrate run",
        device=str(store.environment.get("gpu", "")),
    )
    return fabric_text(sweep, cluster=cluster, nodes=nodes, ranks_per_node=ranks // nodes, created=created)
