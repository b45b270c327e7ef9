"""Groups of ranks with attention for their own requests, and experts over all of them, on real gloo ranks."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ladder_sim.errors import InfeasibleError, UsageError
from ladder_sim_runtime.__main__ import main
from ladder_sim_runtime.bench import bench
from ladder_sim_runtime.config import BenchConfig, CommConfig, EngineConfig, ModelConfig
from tests.support.ranks import on_ranks
from tests.support.reference import full_weights, reference_logits
from tests.support.world import EXPERTS, MODELS, OTHERS, VARIANTS, Case, World, compute, engine_of, tokens_of

pytestmark = pytest.mark.torch

GROUPS = 2
# of a part of each expert's width, whole experts, and these by all-to-all; with shared experts next to them or without
CASES = [Case("experts", engine, variant) for variant in VARIANTS for engine in ("flash", "distributed", "exchanged")]
CASES += [Case("experts", engine, variant) for variant in OTHERS for engine in ("distributed", "exchanged")]
CASES += [Case("latent", engine, variant) for variant in ("standard", "ladder") for engine in ("math", "exchanged")]
# shared experts and own parts of what is exchanged may come from another stage
STAGED = ("ladder", "delayed:1", "delayed:2", "farskip")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[int, World]:
    """Of one and of two ranks in each group."""
    return {
        tp: on_ranks(GROUPS * tp, tmp_path_factory.mktemp(f"tp{tp}"), compute, CASES, groups=GROUPS) for tp in (1, 2)
    }


def test_groups_in_stages_compute_the_equations(tmp_path: Path) -> None:
    """Two groups of one rank in each of two stages."""
    cases = [case for case in CASES if case.variant in STAGED]
    computed = on_ranks(2 * GROUPS, tmp_path, compute, cases, groups=GROUPS, stages=2)
    for group, case in itertools.product(range(GROUPS), cases):
        config, ep = MODELS[case.model], engine_of(case, GROUPS).ep
        tokens_BT = tokens_of(config, group)
        (alone_BTV,) = reference_logits(config, full_weights(config), tokens_BT, case.variant, 1, ep, group, GROUPS)
        assert not computed[group][case]["cached"].numel()
        for logits_BTV in computed[GROUPS + group][case].values():
            torch.testing.assert_close(logits_BTV, alone_BTV.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_groups_compute_the_equations_of_their_requests(ranks: Any, case: Case, tp: int) -> None:
    """Of every wiring, with and without a cache; experts of a block that is not reduced are the rank's own alone."""
    config = MODELS[case.model]
    weights, ep = full_weights(config), engine_of(case, GROUPS * tp).ep
    for group in range(GROUPS):
        tokens_BT = tokens_of(config, group)
        expected = reference_logits(config, weights, tokens_BT, case.variant, tp, ep, group, GROUPS)
        for computed, reference_BTV in zip(ranks[tp][group * tp :], expected, strict=False):
            for logits_BTV in computed[case].values():
                torch.testing.assert_close(logits_BTV, reference_BTV.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", [case for case in CASES if case.variant in ("standard", "parallel", "ladder")])
def test_groups_compute_what_one_rank_does(ranks: Any, case: Case) -> None:
    config = MODELS[case.model]
    for group in range(GROUPS):
        (alone_BTV,) = reference_logits(config, full_weights(config), tokens_of(config, group), case.variant, ranks=1)
        for tp in (1, 2):
            for computed in ranks[tp][group * tp :][:tp]:
                torch.testing.assert_close(computed[case]["cached"], alone_BTV.float(), rtol=1e-5, atol=1e-5)


SMALL = {
    "model_type": "mixtral",
    "hidden_size": 64,
    "intermediate_size": 64,
    "vocab_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(SMALL))
    return file


def test_groups_are_measured(small: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = (
        "--attention-dp 2 --ep 2 --variant standard,ladder --backend gloo --batch 2 --prompt 4 --gen 3 --warmups 1"
    )
    command = ["bench", "--model", str(small), *options.split(), "--repeats", "2", "--dispatch", "all-to-all"]
    assert main(command) == 0
    result = json.loads(capfd.readouterr().out)
    assert (result["run"]["attention_dp"], result["engine"]["dispatch"]) == (2, "all-to-all")
    request = result["variants"]["ladder"]["repeats"][0]
    # of the whole batch
    assert request["tokens_per_s"] == pytest.approx(2 * 3 / (request["ttft_s"] + request["decode_s"]))


def test_an_emulated_link_carries_dispatch_and_combine(small: Path, tmp_path: Path) -> None:
    table = tmp_path / "link.csv"
    table.write_text("bytes,seconds\n1,1e-3\n1000000,1e-3\n")
    config = BenchConfig(
        model=small, variants=("standard",), attention_dp=2, batch=2, prompt=4, gen=2, warmups=0, repeats=1
    )
    result: Any = bench(config, EngineConfig(ep=2), CommConfig(backend="emulate", table=table))
    # in each of two passes and two layers a gather and a scatter, each half an all-reduce
    assert result["variants"]["standard"]["comm_s"] == pytest.approx(2 * 2 * 2 * 0.5e-3)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("--attention-dp 2", 2, "--attention-dp 2: must divide the batch, 1,"),
        ("--attention-dp 2 --batch 3", 2, "give --batch 4"),
        ("--attention-dp 0", 2, "attention_dp is 0: must be a whole number from 1"),
        ("--attention-dp 2 --batch 2 --ep 3", 3, "--ep 3: must divide 2 ranks and 4 experts"),
        ("--attention-dp 8 --tp 8 --batch 8 --ep 1", 3, "heads is 4: not divisible by tp 8"),
    ],
)
def test_what_groups_cannot_share(
    small: Path, capsys: pytest.CaptureFixture[str], options: str, code: int, words: str
) -> None:
    assert (
        main(["bench", "--model", str(small), "--variant", "standard", "--backend", "gloo", *options.split()]) == code
    )
    assert words in capsys.readouterr().err


def test_groups_share_experts_or_nothing() -> None:
    dense = ModelConfig.from_hf(
        {key: value for key, value in SMALL.items() if "expert" not in key} | {"model_type": "llama"}
    )
    with pytest.raises(UsageError, match="--attention-dp 2: the model has no experts"):
        dense.check_ranks(1, 1, 2)
    with pytest.raises(InfeasibleError, match="expert_intermediate is 24: not divisible by"):
        EXPERTS.check_ranks(1, 1, 5)


@pytest.mark.parametrize("backend", ["none", "emulate"])
def test_one_rank_does_not_know_what_others_send_it(small: Path, tmp_path: Path, backend: str) -> None:
    (tmp_path / "link.csv").write_text("bytes,seconds\n1,1e-3\n")
    config = BenchConfig(model=small, variants=("standard",), attention_dp=2, batch=2)
    with pytest.raises(UsageError, match=f"--backend {backend} is one rank"):
        bench(config, EngineConfig(dispatch="all-to-all"), CommConfig(backend=backend, table=tmp_path / "link.csv"))
