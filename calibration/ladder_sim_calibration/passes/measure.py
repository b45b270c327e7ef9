"""`measure`: a profile of this machine from real passes of some wirings."""

from collections.abc import Sequence
from datetime import date

from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.errors import UsageError
from ladder_sim.graph.variants import canonical_names
from ladder_sim.specs.scenario import Scenario
from ladder_sim_calibration.passes.fit import profile_of
from ladder_sim_runtime.runs import require_ranks

# rounds of measurements whose medians are taken
ROUNDS = 9


def measure(
    scenario: Scenario, variants: Sequence[str] = ("standard", "ladder"), *, rounds: int = ROUNDS, threads: int = 1
) -> CalibrationProfile:
    """Time passes of a scenario on ranks of this machine, over gloo, and fit a profile to them.

    Parameters
    ----------
    scenario
        Model, workload and stack; its tensor-parallel degree is the number of ranks.
    variants
        Wirings whose kernels and messages are timed. Requests of standard run too, which show what waiting costs.
    rounds
        Measurements of each kind, in turns.
    threads
        CPU threads of each rank.

    Returns
    -------
    CalibrationProfile
        For the cluster "this-machine"; `ladder_sim.costs.profile_file.save_profile` writes it.

    Raises
    ------
    MissingPackageError
        torch is not installed.
    InfeasibleError
        There are fewer cores than ranks.
    RankError
        A rank failed; it has printed why.
    """
    if scenario.plan.tp < 2:
        raise UsageError("tp is 1: a single rank sends no messages", hint="measure tp 2 or more")
    require_ranks(scenario.plan.tp)
    # imported here: it needs torch
    from ladder_sim_calibration.passes.observe import Experiment, observe
    from ladder_sim_runtime.config import CommConfig

    experiment = Experiment(
        scenario=scenario,
        variants=canonical_names(variants),
        runs=("standard",),
        rounds=rounds,
        threads=threads,
        links=CommConfig(backend="gloo"),
    )
    observed = observe(experiment)
    if observed is None:
        raise UsageError(
            "this process is one of several ranks", hint="measure starts ranks by itself: leave out torchrun"
        )
    return profile_of(observed, created=date.today().isoformat())
