"""A link says what a page shows, and nothing that it must not."""

import json
import shlex
from dataclasses import replace
from importlib import resources
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim import predict
from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.answers import Queries
from ladder_sim.explorer.snippets import capacity_command, command_line, python_code
from ladder_sim.explorer.state import TABS, State, read_config
from ladder_sim.explorer.views import VIEWS
from ladder_sim.specs import catalog
from ladder_sim.specs.arguments import ARGUMENTS, DEFAULTS
from ladder_sim.specs.scenario import Scenario
from ladder_sim.sweeps.price import PRICE_HINT
from tests.conftest import DATA
from tests.support.commands import run

ALLOWLIST = Allowlist.of()
FIGURES = ("intra.bandwidth", "inter.allreduce_floor", "gpu.hbm_bandwidth", "stack.stream_wait")


def numbers(name: str) -> st.SearchStrategy[int | None]:
    values = st.integers(1, ARGUMENTS[name].maximum)
    return values if DEFAULTS[name] else st.none() | values


def _with_units(settings: dict[str, float]) -> dict[str, str]:
    return {name: f"{value!r}{'B/s' if 'bandwidth' in name else 's'}" for name, value in settings.items()}


states = st.builds(
    State,
    arguments=st.fixed_dictionaries(
        {
            "model": st.sampled_from(ALLOWLIST.models),
            "cluster": st.sampled_from(sorted(ALLOWLIST.clusters)),
            "stack": st.sampled_from(sorted(ALLOWLIST.stacks)),
            "dtype": st.sampled_from([None, "bf16", "fp8"]),
            "kv_dtype": st.sampled_from([None, "bf16", "fp8"]),
            "imbalance": st.sampled_from(["balanced", "power-law-1.01"]),
            "allreduce": st.sampled_from([None, "nccl", "auto"]),
            "technique": st.sampled_from(["none", "fused-norm"]),
            "p2p": st.booleans(),
            "sp": st.booleans(),
            **{name: numbers(name) for name, argument in ARGUMENTS.items() if argument.kind is int},
        }
    ),
    profile=st.sampled_from([None, *ALLOWLIST.profiles]),
    ignore_memory=st.booleans(),
    settings=st.dictionaries(st.sampled_from(FIGURES), st.floats(1e-6, 1e-3)).map(_with_units),
    variants=st.sampled_from([(), ("standard", "ladder"), ("hybrid-ladder:16", "desync:4")]),
    price=st.none() | st.floats(0.01, 1000.0),
    max_ttft=st.sampled_from(["", "50ms", "2 s"]),
    max_tpot=st.sampled_from(["", "1e3us"]),
    along=st.sampled_from(["", "batch", "inter.bandwidth_Bps"]),
    view=st.sampled_from(TABS),
    measured=st.sampled_from(["", "tpot=19ms,tok/s=900"]),
    pins=st.lists(st.sampled_from(["model=8b", "model=405b&nodes=2&inter.allreduce_floor=5us"]), max_size=2).map(tuple),
)


@given(states)
def test_a_link_holds_the_whole_state(state: State) -> None:
    assert State.parse("?" + state.query(), ALLOWLIST) == state


def test_a_link_holds_every_profile() -> None:
    """Regression: a name that ends in ".0" lost that, as a whole number does."""
    for name in ALLOWLIST.profiles:
        state = State(arguments=dict(DEFAULTS), profile=name)
        assert State.parse(state.query(), ALLOWLIST) == state


LISTED = catalog.model_config("qwen3-next-80b-a3b")


@pytest.mark.parametrize("ignored", [[], ["self_attn", "linear_attn"]])
def test_a_model_listed_as_data_travels_in_the_link(ignored: list[str], tmp_path: Path) -> None:
    """Regression: kinds of blocks were a TypeError of json, later refused."""
    path = tmp_path / "listed.json"
    quantised = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignored}
    path.write_text(json.dumps({**LISTED, "quantization_config": quantised}))
    name, text = read_config(path.name, path.read_text())
    state = State.parse(urlencode({"model": name, "shape": text}), ALLOWLIST)
    own = catalog.model(str(path))
    assert state.shape == replace(own, name=name, source="dropped on the page")
    assert State.parse(state.query(), ALLOWLIST) == state
    assert 'model="config.json"' in python_code(state, ALLOWLIST)


@pytest.mark.parametrize(
    ("old", "new"),
    [('"block_order":[0', '"block_order":[99'), ('"block_order":[0', '"block_order":["a"'), ('"kind":"', '"kind":"x')],
)
def test_blocks_of_a_damaged_link_are_refused(old: str, new: str) -> None:
    _, text = read_config("listed.json", json.dumps(LISTED))
    assert old in text
    with pytest.raises(LadderSimError):
        State.parse(urlencode({"shape": text.replace(old, new, 1)}), ALLOWLIST)


def test_a_dropped_model_travels_in_the_link() -> None:
    shape = replace(catalog.model("qwen2.5-7b"), name="my model", source="dropped on the page", ladder_layers=(3, 4))
    state = State(arguments={**DEFAULTS, "model": "my model"}, shape=shape)
    assert State.parse(state.query(), ALLOWLIST) == state


@pytest.mark.parametrize("file", sorted((DATA / "configs").iterdir()), ids=lambda file: file.stem)
def test_a_dropped_file_travels_in_the_link(file: Path) -> None:
    """With all that its predictions are warned about."""
    shape = replace(catalog.model(str(file)), source="dropped on the page")
    state = State(arguments={**DEFAULTS, "model": shape.name}, shape=shape)
    assert State.parse(state.query(), ALLOWLIST) == state


@pytest.mark.parametrize(
    "query",
    [
        "model=/etc/passwd",
        "model=config.json",
        "cluster=own.toml",
        "imbalance=/etc/passwd",
        "stack=../x.toml",
        "profile=own.json",
        "inter.fabric=/etc/passwd",
        "stack.profile=own.json",
        "cluster.name=x",
        "inter.bandwidth=1:9:x2GB/s",
        "inter.bandwidth=nan",
        "inter.bandwidth=400",
        "inter.allreduce_floor=5GB/s",
        "model=8b&model=70b",
        "inter.bandwidth=1GB/s&inter.bandwidth_Bps=1GB/s",
        "batch=0",
        "batch=-1",
        "batch=1e3",
        "batch=99999999999999999999",
        "nodes=\N{ARABIC-INDIC DIGIT TWO}",
        "nonsense=1",
        "no_p2p=yes",
        "variants=nonsense",
        "variants=" + ",".join(f"desync:{number}" for number in range(2, 20)),
        "along=model",
        "view=nothing",
        "measured=/etc/passwd",
        "measured=tpot=1ms,x=2",
        "measured=run.json",
        "settings=inter.fabric=/etc/passwd",
        "price=0",
        "price=-1",
        "price=1e9",
        "price=nan",
        "price=two",
        "max_ttft=5",
        "max_ttft=5GB",
        "max_tpot=0ms",
        "max_tpot=-1ms",
        "shape=[]",
        "shape={",
        'shape={"name":"<script>"}',
        'shape={"name":"x","layers":1e999}',
        'shape={"name":"x","layers":4,"ladder_layers":[[]]}',
        "pin=a&pin=b&pin=c",
        "&".join(f"k{number}=1" for number in range(80)),
        "model=" + "x" * 9000,
        None,
        17,
        {"model": "70b"},
    ],
)
def test_a_bad_link_is_refused(query: object) -> None:
    with pytest.raises(UsageError):
        State.parse(query, ALLOWLIST)


@pytest.mark.parametrize("text", ["2,5", "$3", "3k", "-1", "1e9", "inf"])
def test_a_bad_price_shows_a_price(text: str) -> None:
    with pytest.raises(UsageError, match="price") as caught:
        State.parse(urlencode({"price": text}), ALLOWLIST)
    assert caught.value.hint == PRICE_HINT


@given(st.text(max_size=200) | st.dictionaries(st.text(max_size=8), st.text(max_size=8)))
def test_any_text_is_a_state_or_a_usage_error(query: object) -> None:
    """Guards the server: nothing but the project's own errors, with a message, leaves the reader."""
    result = outcome(query)
    assert isinstance(result, Scenario) or result.message


def outcome(query: object) -> Scenario | LadderSimError:
    """The scenario of a link, or why it is refused."""
    try:
        return State.parse(query, ALLOWLIST).scenario(ALLOWLIST)
    except LadderSimError as error:
        return error


def test_python_code_gives_the_numbers_of_the_page() -> None:
    shape = replace(catalog.model("8b"), name="own", source="")
    for state in (
        State.parse("model=405b&nodes=2&inter.bandwidth=100Gb/s&variants=ladder,desync:4&profile=none", ALLOWLIST),
        State(arguments={**DEFAULTS, "model": "own", "tp": 4, "p2p": False}, shape=shape, ignore_memory=True),
    ):
        scenario = state.scenario(ALLOWLIST)
        expected = predict(scenario, state.names(scenario), **state.how(ALLOWLIST))
        names: dict[str, object] = {}
        exec(python_code(state, ALLOWLIST), names)
        assert {name: one.request_s for name, one in names["predictions"].items()} == {  # type: ignore[attr-defined]
            name: one.request_s for name, one in expected.items()
        }


def test_files_named_at_the_start_keep_their_path_in_commands(tmp_path: Path) -> None:
    """A browser names them by their stem; the command line needs the file."""
    text = (resources.files("ladder_sim.specs") / "data" / "clusters" / "h100-sxm.toml").read_text("utf-8")
    file = tmp_path / "mine.toml"
    file.write_text(text.replace('name = "h100-sxm"', 'name = "mine"'))
    allowlist = Allowlist.of(cluster=str(file))
    name = allowlist.name_of("cluster", str(file))
    assert name in allowlist.clusters
    assert f"--cluster {file}" in command_line(State.parse(f"cluster={name}", allowlist), allowlist)


def test_two_files_of_one_name_are_both_on_the_page(tmp_path: Path) -> None:
    """Regression: a cluster and a stack of one stem shared one entry, and the catalog's own name hid a file."""
    data = resources.files("ladder_sim.specs") / "data"
    files = {"clusters": tmp_path / "a" / "lab.toml", "stacks": tmp_path / "b" / "lab.toml"}
    for (kind, file), source in zip(files.items(), ("h100-pcie", "vllm"), strict=True):
        file.parent.mkdir()
        text = (data / kind / f"{source}.toml").read_text("utf-8")
        file.write_text(text.replace(f'name = "{source}"', 'name = "gpt-fast"' if kind == "stacks" else ""))
    cluster, stack = map(str, files.values())
    allowlist = Allowlist.of(cluster=cluster, stack=stack, profile="none")
    names = {"cluster": allowlist.name_of("cluster", cluster), "stack": allowlist.name_of("stack", stack)}
    assert names == {"cluster": "lab", "stack": "gpt-fast (file)"}
    state = State.parse(State(arguments={**DEFAULTS, **names}).query(), allowlist)
    scenario = state.scenario(allowlist)
    assert scenario.cluster == catalog.cluster(cluster)
    assert scenario.stack == catalog.stack(stack) != catalog.stack("gpt-fast")
    assert command_line(state, allowlist) == f"ladder-sim predict --cluster {cluster} --stack {stack}"
    assert f'cluster="{cluster}", stack="{stack}"' in python_code(state, allowlist)


def test_a_file_that_was_changed_is_not_answered_from_what_was_read(tmp_path: Path) -> None:
    """Answers of the page are kept by their query, which names files only."""
    data = resources.files("ladder_sim") / "specs" / "data" / "clusters"
    cluster, fabric = tmp_path / "mine.toml", tmp_path / "fabric.toml"
    cluster.write_text((data / "h100-sxm.toml").read_text("utf-8").replace('"ib-ndr400"', '"fabric.toml"'))
    shipped = resources.files("ladder_sim") / "costs" / "data" / "fabrics" / "ib-ndr400.toml"
    for changed in (cluster, fabric):
        fabric.write_text(shipped.read_text("utf-8"))
        queries = Queries(Allowlist.of(cluster=str(cluster)))
        query = "cluster=h100-sxm+(file)&nodes=2&model=405b"
        assert queries.answer(queries.state(query).query()).predictions
        changed.write_text(f"# edited\n{changed.read_text('utf-8')}")
        with pytest.raises(UsageError, match=f"{changed} was changed after it was read"):
            queries.state(query)


def test_names_of_the_catalog_in_any_case_are_no_files() -> None:
    allowlist = Allowlist.of(cluster=" H100-PCIe", stack="VLLM")
    assert not allowlist.files
    assert (allowlist.name_of("cluster", " H100-PCIe"), allowlist.name_of("stack", "VLLM")) == ("h100-pcie", "vllm")


def test_commands_of_a_page_are_given_no_setting_that_they_refuse() -> None:
    """Regression: lengths of requests under load are flags."""
    queries = Queries(Allowlist.of())
    query = "model=8b&tp=2&rate=4&stack.frontend=20ms&workload.prompt=64&gpu.hbm_bandwidth=3TB/s"
    state = queries.state(query)
    plans = VIEWS["plans"].panel(queries, queries.question(query)).command
    for command in (command_line(state, queries.allowlist), plans):
        assert settings_of(command) == ["stack.frontend=20ms", "workload.prompt=64", "gpu.hbm_bandwidth=3TB/s"]
    assert run(*shlex.split(command_line(state, queries.allowlist))[1:]).code == 0
    served = capacity_command(state, queries.allowlist)
    assert settings_of(served) == ["stack.frontend=20ms", "gpu.hbm_bandwidth=3TB/s"]
    assert "--prompt 64 " in served


def test_the_field_of_any_figure_is_read_as_links_are() -> None:
    typed = State.parse("settings=stack.stream_wait=1us, inter.bandwidth=50GB/s", ALLOWLIST)
    assert typed == State.parse("stack.stream_wait=1us&inter.bandwidth=50GB/s", ALLOWLIST)


def settings_of(command: str) -> list[str]:
    words = shlex.split(command)
    return [value for flag, value in pairwise(words) if flag == "--set"]


def test_requests_under_load_depend_on_no_other_view() -> None:
    allowlist = Allowlist.of()
    query = "model=8b&tp=2&dp=2&rate=4&ttft_p95=1s&price=2.5"
    others = "&batch=8&phase=prefill&along=batch&max_tpot=9ms&variant=parallel&ignore_memory=1&pin=model%3D8b"
    states = [State.parse(text, allowlist).under_load() for text in (query, query + others)]
    assert states[0].query() == states[1].query()
    assert State.parse(states[0].query(), allowlist) == states[0]
    # an engine that serves, with a request for each replica
    assert states[0].scenario(allowlist).stack.name == "vllm"
    assert str(states[0].slo) == "ttft_p95=1s,tpot_p95=30ms"


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf", "1e9", "much"])
def test_a_rate_is_a_number_above_0(rate: str) -> None:
    with pytest.raises(UsageError, match="requests per second"):
        State.parse(f"rate={rate}", Allowlist.of())


def test_a_promise_that_is_no_time_names_its_bound() -> None:
    with pytest.raises(UsageError, match="bound on TPOT p95: '-5ms'"):
        State.parse("tpot_p95=-5ms", Allowlist.of())
