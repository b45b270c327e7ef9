"""docs/schemas say what files hold; files of other versions are read, or refused with a way out."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from ladder_sim.costs.collectives import fabrics
from ladder_sim.costs.moe_file import read_moe
from ladder_sim.costs.profile_file import load_profile, save_profile
from ladder_sim.errors import LadderSimError, ProfileError, UnknownNameError, UsageError
from ladder_sim.kernels import Gpu
from ladder_sim.serving.engine.measured_steps import MeasuredSteps
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario
from ladder_sim.system.files import Schema
from ladder_sim.traces import perfetto
from ladder_sim.traces.load import load
from ladder_sim_calibration.fit.samples import Sample, SampleStore
from ladder_sim_calibration.steps_fit import steps_toml
from tests.conftest import DATA, REPO
from tests.support.commands import run
from tests.support.schemas import FOLDER, check, made, text_of, validator

# written by ladder-sim 0.1: README.md of tests/data says how
OLD = DATA / "version-0.1"


def test_schemas_are_those_of_the_types() -> None:
    """`python -m tests.support.schemas` refreshes them."""
    for name, schema in made().items():
        assert (FOLDER / f"{name}.json").read_text("utf-8") == text_of(schema)


def test_every_schema_is_one_and_has_its_place_in_the_reference() -> None:
    page = (REPO / "docs" / "reference" / "files.md").read_text("utf-8")
    for file in FOLDER.iterdir():
        schema = json.loads(file.read_text("utf-8"))
        Draft202012Validator.check_schema(schema)
        listed = re.search(rf"\(\.\./schemas/{file.name}\)(?:, (\d+))?", page)
        assert listed
        assert int(listed[1] or 0) == max(_versions(schema), default=0)


def _versions(part: Any) -> Iterator[int]:
    """Those of documents that a schema is of."""
    if isinstance(part, dict):
        rule = part.get("schema_version", {})
        yield from (rule[key] for key in ("const", "maximum", "default") if isinstance(rule.get(key), int))
        yield from rule.get("enum", ())
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _versions(each)


def test_shipped_tables_are_as_their_schemas_say() -> None:
    for name in catalog.cluster_names():
        check("cluster", tomllib.loads(catalog.toml_text(name)))
    for name in catalog.stack_names():
        check("stack", tomllib.loads(catalog.toml_text(name)))
    folder = Path(fabrics.__file__).parents[1] / "data" / "fabrics"
    files = list(folder.glob("*.toml"))
    assert files
    for file in files:
        check("fabric", tomllib.loads(file.read_text("utf-8")))


def test_a_schema_of_a_table_knows_its_names_units_and_limits() -> None:
    table = tomllib.loads(catalog.toml_text("h100-sxm"))
    wrong: list[dict[str, Any]] = [
        {"surprise": 1},
        {"gpus_per_node": 0},
        {"intra": {**table["intra"], "allreduce_floor_s": 11.0}},
        {"intra": {"fabric": "x"}},
        {"gpu": {**table["gpu"], "hbm_bandwidth": 3.35e12}},
        {"schema_version": 2},
    ]
    for change in wrong:
        with pytest.raises(ValidationError):
            check("cluster", {**table, **change})


def test_measurements_are_as_their_schemas_say(tmp_path: Path) -> None:
    store = SampleStore(tmp_path / "samples.jsonl", {"cpu": "one"})
    store.append_states("before", [{"uuid": "GPU-a", "power_W": 90.0}])
    store.append(Sample(op="gemm", point={"m": 1, "n": 8, "k": 8}, seconds=1e-6, by_rank=(1e-6, 2e-6)))
    store.append_states("after", [])
    for line in store.path.read_text("utf-8").splitlines():
        check("samples", json.loads(line))
    save_profile(load_profile("h100-sxm"), tmp_path / "profile.json")
    check("profile", json.loads((tmp_path / "profile.json").read_text("utf-8")))
    save_profile(load_profile("h100-sxm-gpt-fast"), tmp_path / "derived.json")
    check("profile", json.loads((tmp_path / "derived.json").read_text("utf-8")))
    steps = MeasuredSteps(
        engine="vllm 0.32.0, TP 2", steps=100, error=0.05, step_s=5e-3, prompt_token_s=2e-5, decode_token_s=4e-5,
        context_token_s=1e-8, between_s=0.0, frontend_s=1e-3, step_tokens=8192, step_requests=256, kv_tokens=100_000,
        block_tokens=16, context=4096, prefix_cache=True, ahead=True,
    )  # fmt: skip
    (tmp_path / "steps.toml").write_text(steps_toml(steps), "utf-8")
    check("steps", tomllib.loads((tmp_path / "steps.toml").read_text("utf-8")))
    assert MeasuredSteps.read(tmp_path / "steps.toml") == steps


def test_only_versions_that_are_known_are_read() -> None:
    schema = Schema(version=3, oldest=2, stale="make it again")
    assert schema.marked(name="x") == {"schema_version": 3, "name": "x"}
    assert Schema().check({}, "x", error=UsageError) == 1
    assert schema.check(schema.marked(), "x", error=UsageError) == 3
    for version, says, way_out in (
        (4, "x has schema_version 4; this ladder-sim reads up to 3", "upgrade"),
        (1, "x has schema_version 1; this ladder-sim reads from 2 on", "make it again"),
        ("3", "x: schema_version is '3': must be a whole number from 1 on", "create it again"),
        (True, "schema_version is True", "create it again"),
        (0, "schema_version is 0", "create it again"),
    ):
        with pytest.raises(UsageError) as caught:
            schema.check({"schema_version": version}, "x", error=UsageError)
        assert says in caught.value.message
        assert way_out in caught.value.hint


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("profile.json", load_profile),
        ("moe.json", lambda path: read_moe(str(path), Gpu.of(catalog.cluster("h100-sxm").gpu), None)),
        ("cluster.toml", lambda path: catalog.cluster(str(path))),
        ("steps.toml", MeasuredSteps.read),
        ("samples.jsonl", SampleStore),
        ("trace.json", lambda path: load([path])),
    ],
)
def test_a_version_that_is_no_number_is_refused_in_the_same_words(
    name: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    """Regression: profiles had words of their own."""
    path = tmp_path / name
    document: dict[str, Any] = {"schema_version": "one"}
    if name == "samples.jsonl":
        document["environment"] = {}
    if name == "trace.json":
        document = {"ladder_sim": document, "traceEvents": []}
    path.write_text('schema_version = "one"\n' if path.suffix == ".toml" else json.dumps(document) + "\n", "utf-8")
    with pytest.raises(LadderSimError) as caught:
        read(path)
    assert name in caught.value.message
    assert caught.value.message.endswith(": schema_version is 'one': must be a whole number from 1 on")
    assert caught.value.hint == "create it again; it was edited or damaged"


# files of version 0.1


def test_a_profile_of_0_1_is_refused_with_a_way_out() -> None:
    with pytest.raises(ProfileError, match="schema_version 1; this ladder-sim reads from 3 on") as refused:
        load_profile(OLD / "profile.json")
    assert "measure and fit it again" in refused.value.hint


def test_tables_of_0_1_are_read() -> None:
    with pytest.warns(FutureWarning, match=r"\]: latency_s is called allreduce_floor now"):
        cluster = catalog.cluster(str(OLD / "cluster.toml"))
    fabric = str(OLD / "fabric.toml")
    scenario = Scenario(model="8b", cluster=cluster, nodes=2, overrides={"inter.fabric": fabric})
    assert scenario.cluster.inter.allreduce_floor_s == 40e-6
    assert scenario.cluster.gpus_per_node == 8


def test_a_stack_of_0_1_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown .* key 'fused_residual_add'") as caught:
        catalog.stack(str(OLD / "stack.toml"))
    assert "did you mean 'residual_add'?" in caught.value.hint


def test_an_exported_trace_of_0_1_is_read() -> None:
    graph = load([OLD / "trace.json"])
    check("trace", json.loads((OLD / "trace.json").read_text("utf-8")))
    assert graph.lanes
    assert graph.ops
    check("trace", json.loads(perfetto.to_json({"again": graph})))


def test_samples_of_0_1_are_refused_because_they_were_measured_otherwise() -> None:
    with pytest.raises(ProfileError, match="has schema_version 2; this ladder-sim reads from 3 on") as caught:
        SampleStore(OLD / "samples.jsonl")
    assert "measure again" in caught.value.hint


def test_a_sweep_that_0_1_began_is_not_continued(tmp_path: Path) -> None:
    for name in ("sweep.csv.part", "sweep.csv.part.journal"):
        (tmp_path / name).write_bytes((OLD / name).read_bytes())
    command = ("sweep", "--model", "8b", "--batch", "1:4", "--variant", "ladder", "--save", str(tmp_path / "sweep.csv"))
    ran = run(*command, "--resume")
    assert ran.code == 2
    assert "with the ladder-sim that began it, or leave out --resume" in ran.err
    assert run(*command).code == 0


def test_what_0_1_wrote_for_others_had_another_version() -> None:
    """Its answers are not read; who reads them can tell them apart."""
    with pytest.raises(ValidationError):
        validator("prediction").validate(json.loads((OLD / "prediction.json").read_text("utf-8")))
