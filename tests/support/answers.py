"""The JSON Schemas of answers: rows by their columns, parts by their dataclasses, heads of documents declared here."""

from collections.abc import Mapping
from typing import get_args

from ladder_sim.analysis.advice import Objective
from ladder_sim.analysis.sensitivity import Response
from ladder_sim.cli.catalog import LISTS
from ladder_sim.closed_loop.loop import Load
from ladder_sim.confidence.errors import UNCHECKED
from ladder_sim.display.document import SCHEMA
from ladder_sim.hf.quantization import DType
from ladder_sim.quality.published import Measured
from ladder_sim.report import (
    advise,
    archive,
    capacity,
    errors,
    loads,
    prediction,
    ranking,
    search,
    servings,
    validation,
    versus,
)
from ladder_sim.report.settings import value_schema
from ladder_sim.serving.engine.speculation import Speculation
from ladder_sim.serving.intervals import SHARES
from ladder_sim.serving.requests.slo import METRICS, PERCENTILES
from ladder_sim.serving.requests.traffic import Traffic
from ladder_sim.simulate.breakdown import Collective
from ladder_sim.simulate.ranks import Unevenness
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.settings import described
from ladder_sim.specs.techniques import TECHNIQUES
from ladder_sim.specs.workload import Batching
from ladder_sim.sweeps.evaluate import ENDS, PRICE
from ladder_sim.sweeps.evaluate import METRICS as SWEPT
from ladder_sim.system.files import KEY
from ladder_sim.traces.blocks import Cover
from ladder_sim.traces.replay import StepError
from ladder_sim.traces.summary import IdleTime, ModuleTotal, OpTotal, RankSummary
from ladder_sim.validation import compare
from ladder_sim.validation.archive import Archive
from ladder_sim.validation.compare import Level
from ladder_sim.validation.load import DEPLOYMENT
from ladder_sim.validation.runs import QUANTITIES, Compared
from ladder_sim.validation.serving_table import Setup
from ladder_sim.wirings.names import FAMILIES
from tests.support.json_types import (
    COUNT,
    FLAG,
    TEXT,
    TEXTS,
    VARIANT,
    WIRING,
    Schema,
    about,
    columns_of,
    each_together,
    ends_of,
    keys_of,
    listed,
    mapped,
    named,
    nullable,
    number,
    record,
    strict,
    together,
    value,
)

# or another all-reduce, or another plan
_PLAN_NAME = r"TP [0-9]+(( x|,) [A-Za-z ]+ [0-9]+|, SP)*"
_TECHNIQUE = rf"(({'|'.join(TECHNIQUES)})(:[a-z0-9]+)?|all-reduce [a-z0-9-]+|{_PLAN_NAME})"
# a wiring, a technique, or several together
OPTION = rf"^({WIRING}|{_TECHNIQUE})( \+ {_TECHNIQUE})*$"
# labels: techniques with an all-reduce; a plan with its load; a field's value
_CHANGED = rf"^(none|{_TECHNIQUE})( \+ {_TECHNIQUE})*$"
_PLACE = r"^TP [0-9]+(( x|,) [A-Za-z ]+ [0-9]+|, SP|, [0-9]+ in flight)*$"
_POINT = r"^[a-z0-9_.]+ [0-9.e+-]+( [A-Za-z/%]+)?$"

_ARGUMENTS = {name: nullable(named(name)) if name == "concurrency" else named(name) for name in ARGUMENTS}
BATCHING = value("batching", Batching)
# of `scenario_fields`
SCENARIO = {name: each for name, each in _ARGUMENTS.items() if name != "allreduce"} | {"batching": BATCHING}
_PLAN = {name: named(name) for name in keys_of(Plan)}
PARTS = strict(dict.fromkeys(UNCHECKED, FLAG))


def notes(labels: str = "") -> dict[str, Schema]:
    """What predictions are based on, of each part of an answer with a label of a pattern, if it has several."""
    said = "By part of the scenario, whether predictions of it were compared with end-to-end runs."
    return {
        "validated": about(said, {"anyOf": [PARTS, mapped(PARTS, labels)]}),
        "warnings": TEXTS,
    }


_VARIANT = columns_of(prediction.VALUES)
# with requests in flight, with jitter, or plain
PREDICTED = [{**_VARIANT, **keys_of(Load)}, {**_VARIANT, **keys_of(Unevenness)}, _VARIANT]
BEST_STANDARD = nullable(
    strict(
        {
            "plan": TEXT,
            **_PLAN,
            **ends_of("tokens_per_s"),
            "surely_faster": about("Whether standard is faster there, beyond the interval of the ratio.", FLAG),
            "gains": about("How many times as fast as standard on this plan.", mapped(strict(ends_of("gain")), OPTION)),
        }
    )
)
# figures that a sweep or a break-even search varies, which stand next to the arguments
_SETTINGS = {each.name: value_schema(each.kind, each.limits) for each in described().values()}
_VARYING = {**_SETTINGS, **{name: each for name, each in _ARGUMENTS.items() if ARGUMENTS[name].kind is int}}
# of a load: percentiles, means and rates
_TIMES = [f"{metric}_{name}_s" for metric in METRICS for name in ("mean", *(f"p{each}" for each in PERCENTILES))]
_RATES = ("requests_per_s", "tokens_per_s")
_FIGURES = ("duration_s", *_TIMES, *_RATES, "tokens_per_s_per_gpu", *SHARES, "preemptions")
_FIGURE = f"^({'|'.join((*_TIMES, *_FIGURES, *_RATES))})$"
_SPECULATION = {"speculation": record(Speculation)}
_SERVER = {**_SPECULATION, "engine": TEXT, "prefill": strict({"replicas": COUNT, "tp": named("tp")})}
_PLANS = listed(strict({"variant": named("variant"), "plan": TEXT, "gpus": nullable(COUNT), "reason": TEXT}))
# what errors of servings are grouped by, with the pattern of the groups' names; any text by default
_GROUPS = dict.fromkeys(("engine", "stack", "cluster", "dtype", "setup", "model", "plan", "tp", "concurrency"), "")
_KIND = "(attention DP|TP|EP|PP|DP)"
_GROUPS |= {
    "plan": rf"^{_KIND}( \+ {_KIND})*$",
    "tp": "^[0-9]+$",
    "concurrency": "^[0-9]+$",
    "dtype": f"^({'|'.join(get_args(DType))})$",
}
_ERRORS = nullable(strict(columns_of(errors.ERRORS)))


def answers() -> dict[str, Schema]:
    """The schemas of commands' answers, by the names of their files."""
    catalog = [_answer("list", **dict.fromkeys(LISTS, TEXTS)), *map(_catalog, LISTS)]
    return {
        "prediction": _answer("predict", **_prediction(), **notes()),
        "versus": _answer("versus", optional=_under_load(), **_versus(), **notes(_CHANGED)),
        "search": _answer("versus", **_search(), **notes()),
        "advise": _answer("advise", **_advise(), **notes(_PLACE)),
        "compare": _answer(
            "compare",
            optional={"left_out": TEXTS},
            batching=BATCHING,
            compared=TEXTS,
            rows=listed(_compared()),
            **notes(),
        ),
        "breakeven": _answer("breakeven", **_breakeven(), **notes(_POINT)),
        "sensitivity": _answer("sensitivity", **_sensitivity(), **notes()),
        "sweep-row": {
            "title": "A line of `ladder-sim sweep`; .csv and .parquet have the same columns but `validated`",
            **_sweep_row(validated=nullable(PARTS)),
        },
        "sweep": {
            **_answer("", optional=notes(), varied=TEXTS, variants=listed(named("variant")), rows=listed(_sweep_row())),
            **together(*notes()),
            "title": "The answer of `ladder_sim.sweep` from Python, `to_dict()`",
        },
        "serve": _answer("serve", optional=_SERVER, **_served(_serve_row()), **notes(VARIANT)),
        "capacity": _answer(
            "capacity", optional=_SPECULATION, plans=_PLANS, **_served(_capacity_row()), **notes(VARIANT)
        ),
        "validation": _answer("validate", **_validation()),
        "validation-servings": _answer("validate", "of servings", **_servings()),
        "validation-ranking": _answer("validate --ranking", "of servings", **_ranking()),
        "validation-loads": _answer("validate", "of a load generator's results", optional=notes(), **_loads())
        | together(*notes()),
        "validation-archive": _answer("validate", "of an archive of measured runs", **_archive()),
        "validation-runs": {
            **_answer("", **_runs()),
            "title": "The answer of `ladder_sim.validate` for one's own runs",
        },
        "trace-info": _answer("trace info", **_trace()),
        "trace-replay": _answer("trace replay", **_replay()),
        "trace-predict": _answer("trace predict", optional={"weights": mapped(number("weight"))}, **_rewired()),
        "list": {"title": "The answer of `ladder-sim list --json`, of everything or of one catalog", "anyOf": catalog},
        "list-settings": _answer("list settings", **_settings()),
        "list-quality": _answer("list quality", **_quality()),
    }


def _answer(command: str, what: str = "", /, *, optional: Mapping[str, Schema] | None = None, **keys: Schema) -> Schema:
    """The answer of a command."""
    title = f"The answer of `ladder-sim {command} --json`{f', {what}' if what else ''}"
    return {"title": title, **strict({KEY: {"const": SCHEMA.version}, **keys}, optional)}


def _prediction() -> dict[str, Schema]:
    return {
        "batching": BATCHING,
        "scenario": about("Arguments of `Scenario`, as they were resolved.", strict(SCENARIO)),
        "variants": about(
            "By wiring; more figures with requests in flight or jitter.",
            mapped({"anyOf": [strict(each) for each in PREDICTED]}, VARIANT),
        ),
        "best_standard": about("Fastest standard plan on the same GPUs; null: the plan asked about.", BEST_STANDARD),
        "collectives": about("Of a decode step, by wiring.", mapped(listed(record(Collective)), VARIANT)),
        "provenance": strict(
            {
                "profile": about("Measured profile; null: the datasheet.", nullable(TEXT)),
                "measured_fraction": about(
                    "Share of the first variant's time that is measured.", number("measured_fraction")
                ),
            }
        ),
    }


def _versus() -> dict[str, Schema]:
    technique = strict({"answers": TEXT, "needs": TEXT, "engines": TEXT})
    wiring = strict({"any_tp": FLAG, "engines": TEXT, "quality": nullable(TEXT)})
    return {
        "scenario": about("Arguments of `Scenario`, as they were resolved.", strict(SCENARIO)),
        "verdict": TEXT,
        "bound": number("speedup"),
        "best_standard": about("Fastest standard plan on the same GPUs; null: the plan asked about.", BEST_STANDARD),
        "left_out": mapped(TEXT, OPTION),
        "techniques": mapped(technique, f"^{_TECHNIQUE}$"),
        "wirings": mapped(wiring, VARIANT),
        "rows": listed(strict(columns_of(versus.VALUES))),
    }


def _search() -> dict[str, Schema]:
    columns = search.SearchReport(None).columns  # type: ignore[arg-type]
    head = {"best": nullable(TEXT), "toml": nullable(TEXT), "best_named": named("variant"), "simulated": COUNT}
    return {"scenario": strict(SCENARIO), **head, "rows": listed(strict(columns_of(columns)))}


def _under_load() -> dict[str, Schema]:
    spans = _maybe("gpu_hours", "break_even_tokens", "gain")
    tokens = {"tokens": number("tokens"), "tokens_published_of": nullable(TEXT)}
    cost = strict({"variant": named("variant"), **tokens, **spans})
    return {"cost": cost, "under_load": mapped(strict(columns_of(capacity.FLEET)), OPTION)}


def _advise() -> dict[str, Schema]:
    counts = dict.fromkeys(("max_gpus", "plans", "unfit", "beyond"), COUNT)
    rows = listed(strict(columns_of(advise.VALUES)))
    return {"batching": BATCHING, "objective": value("objective", Objective), **counts, "rows": rows}


def _compared() -> Schema:
    head, price = {"name": TEXT, **SCENARIO, "variant": named("variant")}, {PRICE: nullable(number(PRICE))}
    return {"anyOf": [strict({**head, **each, **price}) for each in PREDICTED]}


def _breakeven() -> dict[str, Schema]:
    speedups = ends_of("speedup")
    crossing = strict(
        {"value": number("value"), "rising": FLAG, "direction": {"enum": ["rising", "falling"]}, **speedups}
    )
    # the field that varies has its own name
    row = strict(_maybe("speedup"), _VARYING)
    count = len(speedups) + 1
    return {
        "field": {"enum": list(_VARYING)},
        "variant": named("variant"),
        "over": named("variant"),
        "target": number("speedup"),
        "crossings": listed(crossing),
        "sure": listed(strict({"start": number("start"), "stop": number("stop")})),
        "rows": listed({**row, "minProperties": count, "maxProperties": count}),
    }


def _sweep_row(**more: Schema) -> Schema:
    """A point of a sweep, with further keys."""
    metrics = [name for metric in SWEPT for name in (metric, *ENDS.get(metric, ()))]
    figures = {rf"^{WIRING}\.{name}$": nullable(number(name)) for name in (*metrics, PRICE)}
    named = {name: nullable(each) for name, each in _ARGUMENTS.items()}
    head = {**named, "batching": BATCHING, "memory_bytes_per_gpu": nullable(number("memory_bytes_per_gpu"))}
    # of a point that cannot run, only what varies is known
    runs = {"if": {"properties": {"infeasible": {"const": ""}}}, "then": {"properties": _ARGUMENTS}}
    # what a wiring without a number has, it has whole
    whole = [[f"{family}.{name}" for name in SWEPT] for family in FAMILIES]
    whole += [[f"{family}.{name}" for name in pair] for family in FAMILIES for pair in ENDS.values()]
    row = strict({**head, "infeasible": TEXT, **more}, _SETTINGS)
    return {**row, **runs, "patternProperties": figures, **each_together(whole)}


def _validation() -> dict[str, Schema]:
    errors_of = ("mean_error", "max_error", "inside", "half_width")
    spreads = {
        f"{quantity}_{name}": COUNT if name == "rows" else nullable(number(name))
        for quantity in compare.QUANTITIES
        for name in ("rows", *errors_of)
    }
    summary = strict({"variant": named("variant"), "p2p": FLAG, "tp": TEXT, "rows": COUNT, "unseen": COUNT, **spreads})
    level = {"evidence": TEXT, "rows": listed(strict(columns_of(validation.VALUES))), "summary": listed(summary)}
    protocol = strict(
        {"fit_models": listed(TEXT), "fit_variants": listed(named("variant")), "fit_tp": listed(named("tp"))}
    )
    names = f"^({'|'.join(get_args(Level))})$"
    return {
        "batching": BATCHING,
        "dataset": TEXT,
        "protocols": mapped(protocol, "^[A-Z]$"),
        "levels": mapped(strict(level), names),
    }


def _servings() -> dict[str, Schema]:
    pair = strict({"tpot": _ERRORS, "ttft": _ERRORS})
    setup = {
        **keys_of(Setup, ("plan", "server")),
        "server": listed(
            {
                "type": "array",
                "prefixItems": [TEXT, {"type": ["number", "string", "boolean"]}],
                "minItems": 2,
                "maxItems": 2,
            }
        ),
    }
    row = {"line": COUNT, "source": TEXT, **setup, **_PLAN, **columns_of(servings.VALUES)}
    return {
        "batching": BATCHING,
        "dataset": TEXT,
        "summary": pair,
        "by": strict({name: mapped(pair, pattern) for name, pattern in _GROUPS.items()}),
        "not_predicted": mapped(COUNT),
        "rows": listed(strict(row)),
    }


def _ranking() -> dict[str, Schema]:
    losses = listed(strict(columns_of(ranking.LOSSES)))
    return {"dataset": TEXT, "groups": COUNT, "losses": losses, "rows": listed(strict(columns_of(ranking.VALUES)))}


def _loads() -> dict[str, Schema]:
    server = {name: nullable(named(name)) for name in DEPLOYMENT}
    load = {"load": COUNT, "tool": TEXT, "source": TEXT, **server, "concurrency": nullable(COUNT), "figure": TEXT}
    figures = {**columns_of(loads.VALUES), "measured": number("measured")}
    rows = listed(strict({**load, **figures, "note": TEXT}))
    return {"batching": BATCHING, "dataset": TEXT, "summary": mapped(_ERRORS, _FIGURE), "rows": rows}


def _archive() -> dict[str, Schema]:
    head = keys_of(Archive, ("shown_by", "rows", "failures"))
    return {**head, "sentence": TEXT, "failures": TEXTS, "rows": listed(strict(columns_of(archive.VALUES)))}


def _trace() -> dict[str, Schema]:
    return {
        "seconds": number("seconds"),
        "steps": TEXTS,
        "ops": listed(record(OpTotal)),
        "ranks": listed(record(RankSummary, hidden_s=number("hidden_s"))),
        "idle": listed(record(IdleTime, idle_s=number("idle_s"))),
        "modules": listed(record(ModuleTotal)),
        "critical_path_s": mapped(number("critical_path_s")),
        "notes": TEXTS,
    }


def _replay() -> dict[str, Schema]:
    changed = {"changed_s": number("changed_s"), "change": number("change")}
    step = strict({**keys_of(StepError), "error": number("error")}, changed)
    wait = strict({"op": TEXT, "seconds": number("seconds")})
    return {"steps": listed(step | together(*changed)), "unexplained": listed(wait), "notes": TEXTS}


def _rewired() -> dict[str, Schema]:
    times = {"seconds": number("seconds"), "speedup": number("speedup")}
    times |= {"speedup_waits_stay": nullable(number("speedup")), **keys_of(RankSummary), "hidden_s": number("hidden_s")}
    return {
        **keys_of(Cover),
        "step": record(StepError, error=number("error")),
        "check": strict({"max_error": number("max_error"), "passed": FLAG}),
        "launch_share": number("launch_share"),
        "variants": mapped(strict(times, {"unrecorded": TEXTS}), VARIANT),
        "notes": TEXTS,
    }


def _settings() -> dict[str, Schema]:
    told: Schema = {"unit": TEXT, "default": {}, "description": TEXT}
    bound = {"type": "number", "minimum": 0}
    sized = {"type": {"enum": ["number", "integer"]}, "maximum": bound, **told, "default": nullable(bound)}
    named = {"type": {"const": "string"}, **told, "default": nullable(TEXT)}
    kinds = [
        strict({**sized, "minimum": bound}),
        strict({**sized, "exclusiveMinimum": bound}),
        strict({"type": {"const": "boolean"}, **told, "default": FLAG}),
        strict(named, {"enum": TEXTS}),
    ]
    settings = {**mapped({"anyOf": kinds}), "propertyNames": {"enum": sorted(described())}}
    return {**dict.fromkeys(("model", "cluster", "stack"), TEXT), "settings": settings}


def _catalog(name: str) -> Schema:
    """A list of the catalog: its table as text."""
    columns, _ = LISTS[name]()
    return _answer(f"list {name}", **{name: listed(strict(dict.fromkeys(columns, TEXT)))})


def _sensitivity() -> dict[str, Schema]:
    row = {"figure": TEXT, "value": number("value"), "variant": named("variant"), **keys_of(Response)}
    return {"step": number("step"), "rows": listed(strict(row))}


def _quality() -> dict[str, Schema]:
    return {"unknown": TEXTS, "rows": listed(record(Measured, difference=nullable(number("difference"))))}


def _runs() -> dict[str, Schema]:
    row = record(Compared, variant=TEXT, quantity={"enum": list(QUANTITIES)}, error=number("error"))
    return {"title": TEXT, "timed": TEXTS, "missing": TEXTS, "pace": nullable(number("pace")), "rows": listed(row)}


def _served(row: Schema) -> dict[str, Schema]:
    """What `serve` and `capacity` share."""
    scenario = {
        name: each for name, each in _ARGUMENTS.items() if name not in ("batch", "prompt", "gen", "concurrency")
    }
    lengths = dict.fromkeys(("prompt", "gen"), TEXT)
    recorded = {"path": TEXT, "requests": nullable(COUNT), "speed": number("speed"), "units": TEXT}
    loads = [strict({**lengths, **keys_of(Traffic, lengths)}), strict(recorded), strict({"requests": COUNT})]
    return {
        "scenario": strict(scenario),
        "load": {"anyOf": loads},
        "seeds": COUNT,
        "promise": nullable(TEXT),
        "rows": listed(row),
    }


def _maybe(*names: str) -> dict[str, Schema]:
    """Figures with the ends of their intervals; null: infinite, or not a number."""
    return {name: nullable(each) for name, each in ends_of(*names).items()}


def _serve_row() -> Schema:
    kept = {"stable": FLAG, "promise_kept": nullable(FLAG), "broken": TEXT, "unsure": TEXT}
    row = {"variant": named("variant"), "requests": COUNT, "gpus": COUNT, **_maybe(*_FIGURES), **kept}
    gains = _maybe(*(f"gain_{name}" for name in (*_TIMES, *_RATES)))
    some, more = ("goodput", PRICE), ("goodput", PRICE, "gain_goodput")
    return {
        "anyOf": [
            {**strict(row, _maybe(*some)), **each_together(list(ends_of(each)) for each in some)},
            {**strict({**row, **gains}, _maybe(*more)), **each_together(list(ends_of(each)) for each in more)},
        ]
    }


def _capacity_row() -> Schema:
    row = {"variant": named("variant"), **columns_of(capacity.FLEET), **columns_of(capacity.VALUES)}
    price = {name: row.pop(name) for name in ends_of(PRICE)}
    return {**strict(row, price), **together(*price)}
