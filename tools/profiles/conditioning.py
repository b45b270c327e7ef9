"""``python -m tools.profiles.conditioning serving_dense.csv serving_moe.csv``: what one row of a server says of others.

Prints the `Prior` of `ladder_sim.condition`. The shares of servers that are not as their scenarios say are counted: the
median of their times per token is off by more than `DIFFERENT` (and half a server, as Jeffreys' prior has it). The
other figures maximise the likelihood of pairs of rows of one server, in which each row counts once. Errors are those of
models that no fit of the engines had seen, and each model is judged with a prior of the others.

Also prints how errors of two rows of a server correlate by the difference of their loads, repeats, and the groups that
conditioning makes worse by more than a paired bootstrap over the measured rows explains.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ladder_sim.closed_loop.step import LIMITS
from ladder_sim.conditioning import FACTORS, PRIOR, Prior, posterior, responses, width
from ladder_sim.des.shared import Floats
from ladder_sim.prediction import resolve_profile
from ladder_sim.validation.dataset import read_table
from ladder_sim.validation.serving_table import Serving, read_servings
from tools.profiles.serving_checks import unseen_of

# of the median of a server's errors, in the logarithm
DIFFERENT = 0.1
# of the paired bootstrap
DRAWS = 1000


class Row(NamedTuple):
    """A measured serving."""

    serving: Serving
    log_error: float
    """Logarithm of its time per token over the prediction."""
    by_factor: Floats
    """What each factor changes in that."""

    @property
    def server(self) -> tuple[str, ...]:
        """What rows of one server share."""
        setup = self.serving.setup
        return setup.model, setup.stack, setup.cluster, setup.dtype

    @property
    def load(self) -> Floats:
        """Requests in flight and lengths, as powers of two."""
        return np.log2([self.serving.concurrency, self.serving.prompt, self.serving.gen])


def rows_of(servings: Sequence[Serving]) -> Iterator[Row]:
    """Yield the servings that are predicted, with errors of fits without their models."""
    for serving, _, log_error, _ in unseen_of(servings):
        limits = ((f"stack.{name}", limit) for name in LIMITS if (limit := getattr(serving, name)))
        setup = replace(serving.setup, server=(*serving.setup.server, *limits))
        scenario = setup.scenario(serving.concurrency, serving.prompt, serving.gen)
        profile = resolve_profile(scenario, None)
        assert profile is not None
        _, slopes = responses(scenario, profile, np.zeros(len(FACTORS)))
        yield Row(serving, -log_error, slopes["tpot_s"])


def by_server(rows: Sequence[Row]) -> dict[tuple[str, ...], list[int]]:
    """Return the places of each server's rows."""
    servers: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        servers[row.server].append(place)
    return servers


def fit_prior(rows: Sequence[Row]) -> Prior:
    """Return the prior of some servings."""
    from scipy.optimize import minimize

    counted: dict[bool, list[bool]] = {True: [], False: []}
    for places in by_server(rows).values():
        scenario = rows[places[0]].serving.setup.scenario()
        median = np.median([rows[place].log_error for place in places])
        counted[PRIOR.share_different(scenario) == PRIOR.different_16_bits].append(abs(median) > DIFFERENT)
    shares = [(sum(counted[sixteen_bits]) + 0.5) / (len(counted[sixteen_bits]) + 1) for sixteen_bits in (False, True)]
    pairs = [
        (one, other, 2.0 / (len(places) - 1))
        for places in by_server(rows).values()
        for number, one in enumerate(places)
        for other in places[:number]
    ]
    first, second, weights = (np.array(column) for column in zip(*pairs, strict=True))
    errors, slopes = np.array([row.log_error for row in rows]), np.array([row.by_factor for row in rows])
    in_16_bits = [PRIOR.share_different(row.serving.setup.scenario()) == PRIOR.different_16_bits for row in rows]
    different = np.where(in_16_bits, shares[1], shares[0])[first]

    def prior_of(values: Floats) -> Prior:
        gpu_sd, cpu_sd, row_sd, odds, more = np.exp(values)
        return Prior(gpu_sd, cpu_sd, row_sd, odds / (1.0 + odds), 1.0 + more, *shares)

    def loss(values: Floats) -> float:
        prior = prior_of(values)
        own, both = np.square(slopes) @ prior.variance, (slopes[first] * slopes[second]) @ prior.variance
        odd = ((1.0 - prior.odd_share, 1.0), (prior.odd_share, prior.odd_times))
        density = np.full(len(first), -np.inf)
        for share, differs in ((1.0 - different, 0.0), (different, 1.0)):
            for chance, times in odd:
                for other_chance, other_times in odd:
                    one = differs * own[first] + (times * prior.row_sd) ** 2
                    other = differs * own[second] + (other_times * prior.row_sd) ** 2
                    log_density = _log_density(errors[first], errors[second], one, other, differs * both)
                    density = np.logaddexp(density, np.log(share * chance * other_chance) + log_density)
        return -float(weights @ density) / len(rows)

    start = np.log([PRIOR.gpu_sd, PRIOR.cpu_sd, PRIOR.row_sd, 0.25, PRIOR.odd_times - 1.0])
    return prior_of(minimize(loss, start, method="L-BFGS-B", bounds=[(-5.0, 2.0)] * len(start)).x)


def _log_density(one: Floats, other: Floats, variance: Floats, other_variance: Floats, both: Floats) -> Any:
    """Return the logarithm of the density of two errors, without its constant."""
    determinant = variance * other_variance - both**2
    square = other_variance * one**2 - 2.0 * both * one * other + variance * other**2
    return -0.5 * (square / determinant + np.log(determinant))


class Conditioned(NamedTuple):
    """A row, predicted from another of its server."""

    given: int
    row: Row
    same_plan: bool
    before: float
    """Error without the other row, as a fraction."""
    after: float
    """Error with it."""
    inside: bool
    """Whether the row lies in the interval."""


def conditioned(rows: Sequence[Row], prior: Callable[[str], Prior]) -> Iterator[Conditioned]:
    """Yield each row of each server from each other, by a prior for its model."""
    for (model, *_), places in by_server(rows).items():
        own = prior(model)
        different = own.share_different(rows[places[0]].serving.setup.scenario())
        for place in places:
            given = rows[place]
            log_factors, covariance = posterior(
                np.array([given.log_error]), given.by_factor[None, :], [own.row_sd], different, own
            )
            for other in places:
                row = rows[other]
                if other != place:
                    log_error = float(row.by_factor @ log_factors) - row.log_error
                    yield Conditioned(
                        place,
                        row,
                        row.serving.setup.plan == given.serving.setup.plan,
                        abs(math.expm1(-row.log_error)),
                        abs(math.expm1(log_error)),
                        abs(log_error) <= width(row.by_factor, covariance, own.elsewhere_sd),
                    )


def worse(pairs: Sequence[Conditioned]) -> Iterator[str]:
    """Yield groups of a model, engine and GPU that err by more, if the interval of the difference is above 0."""
    groups: dict[tuple[str, str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for pair in pairs:
        setup = pair.row.serving.setup
        groups[setup.model, setup.engine, setup.cluster][pair.given].append(pair.after - pair.before)
    draws = np.random.default_rng(0)
    for group, by_given in groups.items():
        sums, counts = (np.array([each(values) for values in by_given.values()]) for each in (sum, len))
        drawn = draws.integers(0, len(sums), (DRAWS, len(sums)))
        low, high = np.quantile(sums[drawn].sum(1) / counts[drawn].sum(1), (0.05, 0.95))
        if low > 0.0:
            yield f"{' '.join(group)} by {100 * sums.sum() / counts.sum():.1f} ({100 * low:.1f} to {100 * high:.1f})"


def correlations(rows: Sequence[Row]) -> Iterator[str]:
    """Yield how errors of two rows of a server correlate, on the same and on another plan, by the difference of loads.

    The difference is the number of times that requests in flight and lengths are doubled.
    """
    products: dict[tuple[bool, int], list[tuple[float, float]]] = defaultdict(list)
    for places in by_server(rows).values():
        for number, place in enumerate(places):
            for one, other in ((rows[place], rows[each]) for each in places[:number]):
                apart = round(float(np.abs(one.load - other.load).sum()))
                product = one.log_error * other.log_error, 0.5 * (one.log_error**2 + other.log_error**2)
                products[one.serving.setup.plan == other.serving.setup.plan, min(apart, 8)].append(product)
    for same_plan, words in ((True, "same plan"), (False, "another plan")):
        each = {apart: np.sum(products[same_plan, apart], axis=0) for apart in range(9) if products[same_plan, apart]}
        yield f"{words}: " + ", ".join(f"{apart} {both / own:.2f}" for apart, (both, own) in each.items())


def main(names: Sequence[str]) -> None:
    """Fit and judge the prior on tables of servings."""
    tables = {name: [*rows_of(read_servings(*read_table(name)))] for name in names}
    rows = [row for table in tables.values() for row in table]
    print("prior", fit_prior(rows))
    models = dict.fromkeys(row.serving.setup.model for row in rows)
    priors = {model: fit_prior([row for row in rows if row.serving.setup.model != model]) for model in models}
    for name, table in tables.items():
        pairs = [*conditioned(table, priors.__getitem__)]
        for words, same_plan in (("another load", True), ("another plan", False)):
            some = [pair for pair in pairs if pair.same_plan == same_plan]
            before, after = ([getattr(pair, each) for pair in some] for each in ("before", "after"))
            said = (f"{100 * np.mean(each):.2f} / {100 * np.median(each):.2f} %" for each in (before, after))
            inside = 100 * np.mean([pair.inside for pair in some])
            print(f"{name}, {words}, mean / median: {', conditioned '.join(said)}; {inside:.0f} % inside")
            print("  worse:", "; ".join(worse(some)) or "no group")
        print("  correlation by doublings,", "; ".join(correlations(table)))


if __name__ == "__main__":
    main(sys.argv[1:])
