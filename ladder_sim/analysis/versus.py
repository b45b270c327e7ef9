"""Every wiring and every technique that applies to one scenario, side by side, and which of them gains most.

All gains are over standard without techniques. Two options are told apart if the 90 % interval of the ratio of their
times, with what runs alike differ by, leaves out 1: errors that both share cancel, so that intervals over standard may
overlap all the same.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any, Unpack

from ladder_sim.analysis.adaptation import Adaptation, adaptation
from ladder_sim.answer import Answer
from ladder_sim.best_standard import BestStandard
from ladder_sim.confidence import Confidence, Interval
from ladder_sim.confidence.runs import is_faster
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.display.document import Notes
from ladder_sim.errors import UsageError
from ladder_sim.prediction import Prediction, Predictions, own_variant, predict
from ladder_sim.specs.arguments import ScenarioFields
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.scenario import Scenario, scenario_asked
from ladder_sim.specs.scenario_warnings import used_settings
from ladder_sim.specs.techniques import NO_TECHNIQUES, TECHNIQUES, Support, Technique, Techniques, family_of
from ladder_sim.values import typed
from ladder_sim.wirings.layout import Wiring, lay_out
from ladder_sim.wirings.names import NO_COMMUNICATION, canonical_names, parse

if TYPE_CHECKING:
    from ladder_sim.serving.requests.slo import SLO
    from ladder_sim.serving.requests.traffic import Traffic
    from ladder_sim.serving.sizing.fleet import Fleet

# one of each family, and ladder in more than one form; "drop" and "hybrid-ladder" in the upper half of the layers
WIRINGS = ("parallel", "ladder", "ladder:2", "delayed:1", "farskip", "track:4", "desync:4", "partial:50")
_HALVED = ("drop", "hybrid-ladder")
# kernels that engines have besides NCCL's, where the stack or --allreduce says otherwise
ENGINES_OWN = "all-reduce auto"
_OWN_KERNELS = Technique(
    summary="all-reduces by an engine's own kernels where these are faster than NCCL's",
    needs="GPUs of one node that access each other's memory",
    support=(
        Support("vLLM", "0.32.0, custom_all_reduce.py"),
        Support("TensorRT-LLM", "allreducePlugin.cpp"),
        Support("SGLang", "0.5.23, custom_all_reduce_v2.py"),
    ),
)
# of which the name of an option is the plan's
_OTHER_PLAN = Technique(
    summary="the same GPUs in the plan on which standard is fastest",
    needs="weights and KV cache that fit fewer GPUs",
    support=tuple(Support(engine, "any") for engine in ("vLLM", "TensorRT-LLM", "SGLang")),
)


def wirings_for(model: ModelSpec) -> tuple[list[str], dict[str, str]]:
    """Return those that suit a model, and why others do not."""
    names, left_out = [], {}
    for name in (*WIRINGS, *(f"{family}:{max(1, model.layers // 2)}" for family in _HALVED)):
        try:
            parse(name).check(model.layers)
        except UsageError as error:
            left_out[name] = error.message.partition(": ")[2]
            continue
        if name == "farskip" and not model.experts:
            left_out[name] = "it is ladder in a model without experts"
        else:
            names.append(name)
    return names, left_out


def changes_to(
    base: Scenario, techniques: str | Sequence[str] | None
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield what is compared besides wirings, and the fields of the scenario that it changes: nothing first."""
    sets = list(dict.fromkeys((NO_TECHNIQUES, *_technique_sets(techniques))))
    yield from ((chosen.chosen, {"techniques": chosen}) for chosen in sets)
    if techniques is None and base.stack.allreduce != "auto":
        engine = replace(base.stack, allreduce="auto")
        for chosen in sets:
            if len(chosen.chosen) < 2 and not any(TECHNIQUES[family_of(name)].limit for name in chosen.chosen):
                yield (ENGINES_OWN, *chosen.chosen), {"stack": engine, "techniques": chosen}


def _technique_sets(given: str | Sequence[str] | None) -> Iterator[Techniques]:
    """Yield the sets of techniques asked for; by default each alone, and every two that can be combined."""
    if given is not None:
        yield from (Techniques.of(each) for each in ([given] if isinstance(given, str) else given))
        return
    for name in TECHNIQUES:
        yield Techniques.of(name)
    for pair in combinations((name for name, each in TECHNIQUES.items() if not each.limit), 2):
        try:
            yield Techniques.of(pair)
        except UsageError:
            continue


def change(name: str) -> Technique:
    """Return a change other than the wiring: a technique, an engine's own kernels, or another plan."""
    return TECHNIQUES.get(family_of(name), _OWN_KERNELS if name == ENGINES_OWN else _OTHER_PLAN)


# of two gains: from which one is seen to be larger
SEEN = 1.01


# no slots: an interval is computed once, and only if it is read
@dataclass(frozen=True, kw_only=True, eq=False)
class Option:
    """A wiring with some techniques, or none."""

    prediction: Prediction = field(repr=False)
    """Prediction of the scenario with these techniques."""
    plain: Predictions = field(repr=False)
    """Predictions of all wirings without techniques."""
    retrained: bool
    """The model's weights were trained with another wiring."""
    changes: tuple[str, ...]
    """What is done besides the wiring: `ENGINES_OWN`, techniques, or the name of another plan."""

    @cached_property
    def gain(self) -> Interval:
        """Time of a request with standard and no technique over its time with this option."""
        plain = self.plain.confidence
        if self.on_other_plan:
            widths = (self.confidence.over_plan(plain), self.confidence.ratio(self.prediction.variant, "standard"))
            return Interval.around(self.gain_alone, math.hypot(*(each.log_width for each in widths)))
        return self.confidence.over(self.prediction.variant, plain, "standard", plain)

    @property
    def gain_alone(self) -> float:
        """Value of `gain` without its interval, which takes as long as a prediction."""
        return self.plain["standard"].request_s / self.prediction.request_s

    @property
    def ttft_gain(self) -> float:
        """Time to first token with standard and no technique over that with this option."""
        return self.plain["standard"].ttft_s / self.prediction.ttft_s

    @property
    def tpot_gain(self) -> float | None:
        """Time per output token with standard and no technique over that with this option; None: there is none."""
        standard_s, own_s = self.plain["standard"].tpot_s, self.prediction.tpot_s
        return standard_s / own_s if standard_s and own_s else None

    @property
    def on_other_plan(self) -> bool:
        """Whether the same GPUs have another plan than the one asked about."""
        return self.scenario.plan != self.plain.confidence.scenario.plan

    @property
    def scenario(self) -> Scenario:
        """With these changes."""
        return self.confidence.scenario

    @property
    def confidence(self) -> Confidence:
        """How sure the predictions with these techniques are."""
        return self.prediction.confidence

    @property
    def name(self) -> str:
        """E.g. "ladder + fused-norm"; of standard the changes alone."""
        wiring = self.prediction.variant
        return " + ".join([*([wiring] if wiring != "standard" or not self.changes else []), *self.changes])

    @property
    def is_limit(self) -> bool:
        """Nothing that can be run."""
        techniques = self.scenario.techniques.chosen
        return self.prediction.variant == NO_COMMUNICATION or any(
            TECHNIQUES[family_of(name)].limit for name in techniques
        )

    @property
    def lossy(self) -> bool:
        """A technique changes the answers."""
        return bool(self.scenario.techniques.lossy)

    @property
    def engines(self) -> list[str]:
        """Engines that have every part of it."""
        wiring = self.prediction.variant
        # an engine has another wiring for one model, and a technique for many
        unchanged = wiring == "standard" and self.changes
        parts = [] if unchanged else [[each.engine for each in parse(wiring).family.support]]
        parts += [[each.engine.partition(",")[0] for each in change(name).support] for name in self.changes]
        return list(dict.fromkeys(name for name in parts[0] if all(name in part for part in parts)))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderLoad:
    """GPUs that the leading options need under load."""

    fleets: "Mapping[str, Fleet]"
    """Fleets by the name of the option."""
    traffic: "Traffic"
    """Requests to serve."""
    slo: "SLO"
    """Bounds on their times."""


# no slots: which options are told apart is computed once
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Versus(Answer):
    """The options of a scenario."""

    shown_by = "versus.VersusReport"

    scenario: Scenario
    """Without techniques."""
    options: Mapping[str, Option]
    """Options by name: standard, then those that gain most."""
    left_out: Mapping[str, str]
    """Wirings and techniques that do not apply, with the reason."""
    predicted: Sequence[Option] = field(repr=False)
    """Every wiring with each technique that fits it and every two that may add, limits with standard: plain first."""
    plain: Predictions = field(repr=False)
    """Predictions of all wirings without techniques."""
    profile: str | CalibrationProfile | None = None
    """As given."""
    bound: float
    """Gain if neither communication nor norms took any time: no exact option with standard's GEMMs gains more."""
    load: UnderLoad | None = None
    """GPUs under load; None if no load was given."""
    named: tuple[str, ...] = ()
    """Names of the options that were asked for by name."""

    @cached_property
    def own(self) -> list[Option]:
        """Without retraining, best first; without limits."""
        return _ranked([each for each in self.options.values() if not each.retrained and not each.is_limit])

    @cached_property
    def retrained(self) -> list[Option]:
        """With retraining, best first; without limits."""
        return _ranked([each for each in self.options.values() if each.retrained and not each.is_limit])

    @property
    def limits(self) -> list[Option]:
        """What is possible at best."""
        return [each for each in self.options.values() if each.is_limit]

    @property
    def best_own(self) -> Option:
        """The best without retraining that an engine has and that keeps the answers."""
        return next(each for each in _ranked(_exact(self.own)) if each.engines)

    @property
    def best_retrained(self) -> Option | None:
        """The best with retraining, likewise."""
        return next(iter(_exact(self.retrained)), None)

    @property
    def leading(self) -> list[Option]:
        """Standard, the best with and without retraining, and ladder: what is worth a closer look."""
        chosen = (self.options["standard"], self.best_own, self.options.get("ladder"), self.best_retrained)
        return list({each.name: each for each in chosen if each}.values())

    @property
    def cost(self) -> Adaptation | None:
        """Price of adapting the model to the best wiring; None: no wiring needs it, or `no_cost` says why."""
        return self._priced if isinstance(self._priced, Adaptation) else None

    @property
    def no_cost(self) -> str:
        """Why the price of adapting the model to the best wiring is not known; empty if it is, or none is needed."""
        return self._priced.message if isinstance(self._priced, UsageError) else ""

    @cached_property
    def _priced(self) -> Adaptation | UsageError | None:
        if self.best_retrained is None:
            return None
        try:
            return adaptation(self.plain, self.best_retrained.prediction.variant)
        except UsageError as error:
            return error

    @cached_property
    def best_standard(self) -> BestStandard | None:
        """Standard on the fastest plan for these GPUs; None: that is the plan asked about."""
        return self.plain.best_standard

    @property
    def wirings(self) -> Mapping[str, Wiring]:
        """Those that need retraining, by name."""
        model = self.scenario.model
        names = dict.fromkeys(each.prediction.variant for each in self.options.values() if each.retrained)
        return {name: _wiring(name, model) for name in names if name != "standard"}

    @property
    def techniques(self) -> Mapping[str, Technique]:
        """Techniques of the options, by name."""
        names = dict.fromkeys(name for each in self.options.values() for name in each.changes if not each.is_limit)
        return {name: change(name) for name in names}

    def ratio(self, option: Option, other: Option) -> Interval:
        """Return how many times as fast one option is as the other; of two plans errors are taken as independent."""
        if option.on_other_plan != other.on_other_plan:
            value = other.prediction.request_s / option.prediction.request_s
            return Interval.around(value, math.hypot(option.gain.log_width, other.gain.log_width))
        return option.confidence.over(
            option.prediction.variant, other.confidence, other.prediction.variant, self.plain.confidence
        )

    def faster(self, option: Option, other: Option) -> bool:
        """Whether one is told apart from the other, as the faster one."""
        return is_faster(self.ratio(option, other))

    def tied(self, option: Option, others: Sequence[Option]) -> list[Option]:
        """Return the options, of some others, that are tied with one."""
        return [each for each in others if each is not option and not self.faster(option, each)]

    @property
    def ladder_on_top(self) -> Option | None:
        """Ladder with the techniques of the best option without retraining; None: that has none."""
        ladder, best = self.options.get("ladder"), self.best_own
        if not (ladder and ladder.retrained and best.changes):
            return None
        alike = (each for each in self.predicted if each.changes == best.changes)
        return next((each for each in alike if each.prediction.variant == "ladder"), None)

    @property
    def earlier(self) -> list[Option]:
        """Exact options without retraining whose first tokens come earlier than without communication, earliest first.

        Requests in flight alone have them: a slower decode sends fewer prompts.
        """
        bound = self.options.get(NO_COMMUNICATION)
        if bound is None or self.scenario.workload.concurrency is None:
            return []
        same_plan = (each for each in _exact(self.own) if not each.on_other_plan)
        earlier = [each for each in same_plan if each.ttft_gain > SEEN * bound.ttft_gain]
        return sorted(earlier, key=lambda each: -each.ttft_gain)

    @property
    def earlier_text(self) -> str:
        """Why they come earlier, in a sentence."""
        first, bound = self.earlier[0], self.options[NO_COMMUNICATION]
        return (
            f"First tokens come {first.ttft_gain:.2f} times as fast with {first.name} and {bound.ttft_gain:.2f} "
            "times without communication: its tokens take longer, so that fewer prompts are in the queue at a time."
        )

    @property
    def notes(self) -> Notes:
        """What the reader should know about the predictions; what holds without techniques is about all of them."""
        return self.notes_of(self.options.values())

    def notes_of(self, options: Iterable[Option]) -> Notes:
        """Return the notes about some options."""
        confidences = {" + ".join(option.changes) or "none": option.confidence for option in options}
        # a load uses settings that a static batch does not
        used = used_settings(_served(self.scenario)) if self.load else frozenset[str]()
        return Notes(confidences=confidences, about=self.plain.confidence.warnings, used=used)


@typed()
def versus(
    scenario: Scenario | None = None,
    variants: str | Sequence[str] | None = None,
    techniques: str | Sequence[str] | None = None,
    *,
    profile: str | CalibrationProfile | None = None,
    ignore_memory: bool = False,
    every: bool = False,
    **fields: Unpack[ScenarioFields],
) -> Versus:
    """Compare wirings and techniques on one scenario.

    Parameters
    ----------
    scenario
        Its own techniques do not count; or its arguments as keywords.
    variants
        Wirings; by default one of each family, and ladder in more than one form.
    techniques
        Sets of techniques, each joined by "+"; by default each alone and every two that can be combined.
    profile, ignore_memory
        As in `ladder_sim.predict`.
    every
        Whether two techniques are predicted with every wiring, also where one of them costs more than it gains; a map
        over other loads and links needs them.

    Returns
    -------
    Versus
        The options that apply, with their gains over standard without techniques.

    Raises
    ------
    UsageError
        A name is unknown, or a single rank has nothing to exchange.
    MemoryFitError
        The model does not fit its GPUs.

    Examples
    --------
    >>> from ladder_sim import Scenario, versus
    >>> result = versus(Scenario(model="70b", stack="vllm", concurrency=64))
    >>> print(result.best_own.name, f"{result.options['ladder'].gain.value:.2f}")
    fused-norm 1.17
    """
    scenario = scenario_asked(scenario, fields)
    if scenario.plan.ranks == 1:
        raise UsageError(f"{scenario.plan} has no communication to hide: must be two ranks or more", hint="e.g. --tp 8")
    model, own = scenario.model, own_variant(scenario.model)
    base = scenario.having(techniques=NO_TECHNIQUES)
    wirings, left_out = wirings_for(model) if variants is None else (canonical_names(variants), {})
    names = list(dict.fromkeys(["standard", own, *wirings]))
    predictions: dict[tuple[str, ...], Predictions] = {}
    for changes, changed in changes_to(base, techniques):
        splits = base.plan.sp or changed["techniques"].splitting
        allowed = [name for name in names if name not in left_out]
        fitting = [name for name in allowed if not splits or _wiring(name, model).is_shared]
        if techniques is None and any(change(name).limit for name in changes):
            # of limits only standard's has a row
            fitting = ["standard"]
        if techniques is None and len(changes) > 1 and not every:
            fitting = _worth_adding(changes, fitting, predictions)
        if not fitting:
            continue
        try:
            predictions[changes], refused = _predicted(
                # refuses what does not fit the plan
                base.having(**changed),
                fitting if changes else [*fitting, NO_COMMUNICATION],
                profile=profile,
                ignore_memory=ignore_memory,
            )
            left_out |= {" + ".join((name, *changes)): why for name, why in refused.items()}
        except UsageError as error:
            if not changes:
                raise
            left_out[" + ".join(changes)] = error.message
    plain = predictions[()]
    left_out |= {name: "ranks cannot split its residual (sp)" for name in names if name not in {*plain, *left_out}}
    options = [
        Option(prediction=each, plain=plain, retrained=each.variant not in (own, NO_COMMUNICATION), changes=changes)
        for changes, row in predictions.items()
        for each in row.values()
    ]
    there = plain.best_standard if techniques is None and own == "standard" else None
    if there:
        wired = ["standard", "ladder"] if there.scenario.plan.tp > 1 else ["standard"]
        on_plan = predict(there.scenario, wired, profile=profile, ignore_memory=ignore_memory)
        changes = (str(there.scenario.plan),)
        options += [
            Option(prediction=each, plain=plain, retrained=name != own, changes=changes)
            for name, each in on_plan.items()
        ]
    named = [name for name in names if variants is not None and name in wirings]
    named += [" + ".join(changes) for changes in predictions if techniques is not None and changes]
    of_wiring: dict[str, list[Option]] = {}
    for each in options:
        of_wiring.setdefault(each.prediction.variant, []).extend([] if each.is_limit else [each])
    shown = options
    if techniques is None:
        shown = [each for each in options if _adds(each, of_wiring[each.prediction.variant], own)]
    free = plain[NO_COMMUNICATION]
    return Versus(
        scenario=base,
        options={each.name: each for each in shown},
        predicted=options,
        left_out=left_out,
        plain=plain,
        profile=profile,
        bound=plain["standard"].request_s / (free.request_s - free.breakdown.busy_s.get("norm", 0.0)),
        named=tuple(named),
    )


def _predicted(scenario: Scenario, wirings: Sequence[str], **how: Any) -> tuple[Predictions, dict[str, str]]:
    """Predict wirings, and say why some cannot be, as where a profile of real passes has no time of a kernel.

    Raises UsageError if the first one cannot be predicted, or none of the others.
    """
    try:
        return predict(scenario, wirings, **how), {}
    except UsageError:
        first, *others = wirings
        predict(scenario, [first], **how)
        refused = {}
        for name in others:
            try:
                predict(scenario, [first, name], **how)
            except UsageError as error:
                refused[name] = error.message
                if len(refused) == len(others):
                    raise
        return predict(scenario, [name for name in wirings if name not in refused], **how), refused


def _wiring(variant: str, model: ModelSpec) -> Wiring:
    return lay_out(variant, model.layers, model.ladder_layers)


def _worth_adding(
    changes: Sequence[str], wirings: Sequence[str], predictions: Mapping[tuple[str, ...], Predictions]
) -> list[str]:
    """Return the wirings with which several changes may gain more than each: none of them costs more than it gains.

    Ladder is among them wherever standard is, to say what it gains on top. Where one of the changes was refused, all
    are, and the two together are refused with the reason.
    """
    plain, parts = predictions[()], [predictions[(name,)] for name in changes if (name,) in predictions]
    if len(parts) < len(changes):
        return list(wirings)

    def gains(wiring: str) -> bool:
        return all(wiring in each and each[wiring].request_s < SEEN * plain[wiring].request_s for each in parts)

    worth = {wiring for wiring in wirings if gains(wiring)}
    return [wiring for wiring in wirings if wiring in worth or (wiring == "ladder" and "standard" in worth)]


def _adds(option: Option, same: Sequence[Option], own: str) -> bool:
    """Whether an option is worth a row: limits alone, and what gains more than each part of it.

    Of a wiring that needs retraining, alone and with the techniques that add most to it. `same` are all options with
    its wiring, without limits.
    """
    name, chosen = option.prediction.variant, option.changes
    if option.is_limit:
        return name in ("standard", NO_COMMUNICATION)
    parts = [each for each in same if each is not option and set(each.changes) < set(chosen)]
    if (name == own and len(chosen) < 2) or not chosen:
        return True
    if any(option.gain_alone < SEEN * part.gain_alone for part in parts):
        return False
    return name == own or option is _ranked(_exact(same))[0]


def _exact(options: Sequence[Option]) -> list[Option]:
    """Return the options that keep the answers of their weights."""
    return [each for each in options if not each.lossy]


def _ranked(options: Sequence[Option]) -> list[Option]:
    """Return options, best first; of those within a percent of the best, the one with the fewest techniques."""
    most = max((each.gain_alone for each in options), default=1.0)

    def rank(option: Option) -> tuple[float, ...]:
        seen = SEEN * option.gain_alone > most
        # figures that are shown alike keep their order
        return not seen, len(option.changes) if seen else -round(option.gain_alone, 2)

    return sorted(options, key=rank)


def under_load(
    result: Versus,
    traffic: "Traffic",
    slo: "SLO",
    *,
    watch: Callable[[int, int], object] = lambda done, total: None,
    **how: Any,
) -> Versus:
    """Add the GPUs that the leading options need under load; the plan is that of one replica.

    `traffic`, `slo` and `how` are as in `smallest_fleets`; `watch` is given how much is simulated, and about how much
    there is.
    """
    from ladder_sim.serving.sizing.fleet import smallest_fleets

    fleets: dict[str, Fleet] = {}
    before = 0
    for left, option in zip(range(len(result.leading), 0, -1), result.leading, strict=True):
        done = 0

        def seen(points: int, total: int, before: int = before, left: int = left) -> None:
            nonlocal done
            done = points
            watch(before + points, before + left * total)

        variant = option.prediction.variant
        scenario = _served(option.scenario)
        fleets[option.name] = smallest_fleets(scenario, traffic, slo, variant, watch=seen, **how)[variant]
        before += done
    return replace(result, load=UnderLoad(fleets=fleets, traffic=traffic, slo=slo))


def _served(scenario: Scenario) -> Scenario:
    """Return the scenario with requests that come at any time."""
    return scenario.having(workload=replace(scenario.workload, batch=1, concurrency=scenario.plan.groups))
