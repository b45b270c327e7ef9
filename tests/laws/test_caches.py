"""What is kept from one answer to the next is taken only where it would be computed alike."""

import contextlib
import functools
import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ladder_sim import Scenario, predict
from ladder_sim.costs import kernels, profile_file
from ladder_sim.costs.collectives import fabrics
from ladder_sim.errors import UsageError
from ladder_sim.serving import StepTimes
from ladder_sim.serving.steps.grids import Grids
from ladder_sim.serving.steps.rest import Rest
from ladder_sim.simulate import passes
from ladder_sim.specs import catalog
from tests.support.laws import law
from tests.support.predict_one import predict_one

FILES = ("config.json", "cluster.toml", "stack.toml", "fabric.toml", "profile.json.gz", "moe/profile.json.gz")
# by file: its content, and the same with other figures
Contents = dict[str, tuple[bytes, bytes]]


@functools.cache
def contents() -> Contents:
    """Of every kind of file that a prediction reads."""
    data = Path(fabrics.__file__).parents[1]
    config = catalog.model_config("qwen3-235b")
    cluster = catalog.toml_text("h100-sxm").replace('"ib-ndr400"', '"fabric.toml"')
    cluster = cluster.replace('profile = "h100-sxm"', 'profile = "profile.json.gz"')
    stack = catalog.toml_text("vllm")
    fabric = (data / "data" / "fabrics" / "ib-ndr400.toml").read_text("utf-8")
    # a point at the message of one token
    fabric = fabric.replace("4096, 268435456", "8192, 268435456")
    profile, experts = (
        json.loads(gzip.decompress((data / folder / "h100-sxm.json.gz").read_bytes()))
        for folder in ("profiles", f"profiles/{profile_file.MOE_FOLDER}")
    )

    gemm = profile["gemm"]["bf16"]
    gemm = {**profile["gemm"], "bf16": {**gemm, "seconds": [each and 2.0 * each for each in gemm["seconds"]]}}
    slower = [{**each, "percent": [2 * (share or 50) for share in each["percent"]]} for each in experts["experts"]]
    pairs = {
        "config.json": (json.dumps(config), json.dumps({**config, "num_hidden_layers": 30})),
        "cluster.toml": (cluster, cluster.replace('"3.35 TB/s"', '"3.2 TB/s"')),
        "stack.toml": (stack, stack.replace('cuda_graphs = "decode" ', 'cuda_graphs = "off" ')),
        "fabric.toml": (
            fabric,
            fabric.replace("time_us = [39.6, 40.03, 39.95, 40.17,", "time_us = [49, 49, 50, 50,"),
        ),
        "profile.json.gz": (json.dumps(profile), json.dumps({**profile, "gemm": gemm})),
        "moe/profile.json.gz": (json.dumps(experts), json.dumps({**experts, "experts": slower})),
    }
    packed = {
        name: tuple(gzip.compress(text.encode(), 1) if name.endswith(".gz") else text.encode() for text in pair)
        for name, pair in pairs.items()
    }
    assert set(packed) == set(FILES)
    assert all(first != second for first, second in packed.values())
    return packed  # type: ignore[return-value]


class _Times(StepTimes):
    """Times of a scenario as they are kept: what `predict` says stands for all of them."""

    def __init__(self, grids: Grids, *_: object, **__: object) -> None:
        self.request_s = float(grids.head_s[0])


def _grids(scenario: Scenario, variant: str, *_: object) -> Grids:
    values: dict[str, Any] = dict.fromkeys(Grids._fields, np.array([float(predict_one(scenario, variant).request_s)]))
    rest = Rest(*[np.zeros(1)] * len(Rest._fields))
    return Grids(**{**values, "decode": rest, "mixed": rest})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of the folders with files, and of the times that are kept."""
    folder = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setattr(Grids, "of", _grids)
        yield folder


@law(examples=25)
@given(
    folders=st.tuples(*[st.sampled_from(["mine", "yours"])] * 2),
    others=st.fixed_dictionaries(dict.fromkeys(FILES, st.booleans())),
    changed=st.sampled_from(FILES),
    replaced=st.booleans(),
)
def test_kept_times_are_those_that_would_be_made(
    place: Path, folders: tuple[str, str], others: Mapping[str, bool], changed: str, replaced: bool
) -> None:
    """Step times that were kept are those that would be made now, whatever changed in a file that they depend on.

    The changed file is written in place, put in place of the other, or lies in another folder under the same name.
    """
    made_s = []
    for folder, second in zip(folders, (False, True), strict=True):
        here = place / folder
        (here / profile_file.MOE_FOLDER).mkdir(parents=True, exist_ok=True)
        for name, other in {**others, changed: second}.items():
            written = here / ("new" if replaced else name)
            written.write_bytes(contents()[name][other])
            written.replace(here / name)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(here)
            scenario = Scenario(
                model="config.json", cluster="cluster.toml", stack="stack.toml", nodes=2, tp=16, prompt=1, gen=2
            )
            made_s.append(_grids(scenario, "standard").head_s[0])
            assert _Times.of(scenario, "standard").request_s == made_s[-1]
    # the change counts
    assert made_s[0] != made_s[1]


PLACES = st.fixed_dictionaries(
    {"stack": st.sampled_from(["gpt-fast", "vllm", "sglang"]), "cluster": st.sampled_from(["h100-sxm", "h200-sxm"])},
    optional={
        "technique": st.sampled_from(["fused-norm", "quantized-allreduce", "token-split"]),
        "p2p": st.just(False),
        "dtype": st.just("fp8"),
        "overrides": st.sampled_from(
            [
                {"gpu.hbm_bandwidth": "3 TB/s"},
                {"intra.bandwidth": "200 GB/s"},
                {"stack.kernel_gap": "2 us"},
                {"stack.gemm_factor": "1.3"},
            ]
        ),
    },
)
LOADS = st.one_of(
    st.fixed_dictionaries({"batch": st.integers(1, 3)}),
    st.fixed_dictionaries({"concurrency": st.integers(1, 3), "gen": st.just(8)}),
)


@law(examples=40)
@given(places=st.lists(PLACES, min_size=2, max_size=2), loads=st.lists(LOADS, min_size=2, max_size=2))
def test_kept_estimates_are_those_that_would_be_made(places: list[dict[str, Any]], loads: list[dict[str, Any]]) -> None:
    """Estimates and simulations that were kept of another prediction change no answer, to the last bit."""
    scenarios = []
    for place, load in zip(places, loads, strict=True):
        with contextlib.suppress(UsageError):
            scenarios.append(Scenario(model="8b", tp=4, **place, **load))
    assume(len(scenarios) == 2)

    assert_kept_as_made(scenarios[0], scenarios[1])


def test_estimates_of_compiled_kernels_are_kept_apart() -> None:
    """Regression: with other figures alike a stack whose adds are not compiled had the floors of one whose are."""
    apart, compiled = (
        Scenario(model="8b", tp=4, overrides={"stack.residual_add": each}) for each in ("apart", "compiled")
    )
    assert_kept_as_made(apart, compiled)


def assert_kept_as_made(before: Scenario, asked: Scenario) -> None:
    """Assert that a prediction has the same answer after another as alone."""

    def answer(scenario: Scenario) -> list[tuple[float, float, float]]:
        predictions = predict(scenario, ["standard", "ladder"])
        return [(each.ttft_s, each.request_s, each.speedup.low) for each in predictions.values()]

    kernels._all_kept.cache_clear()
    passes._KEPT.clear()
    try:
        alone = answer(asked)
    except UsageError:
        assume(False)
    kernels._all_kept.cache_clear()
    passes._KEPT.clear()
    with contextlib.suppress(UsageError):
        answer(before)
    assert answer(asked) == alone
