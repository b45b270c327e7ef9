"""Pipeline stages over real gloo ranks: what the last one computes is what one stage does."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ladder_sim.errors import InfeasibleError, UsageError
from ladder_sim.wirings.layout import lay_out
from ladder_sim_runtime.__main__ import main
from ladder_sim_runtime.bench import bench
from ladder_sim_runtime.checkpoint.weights import fill, random_weights
from ladder_sim_runtime.comm.base import DONE, Communicator, Handle
from ladder_sim_runtime.config import BenchConfig, CommConfig, EngineConfig
from ladder_sim_runtime.generate import Generator
from ladder_sim_runtime.model import kernels
from ladder_sim_runtime.model.decoder import Decoder
from tests.support.ranks import on_ranks
from tests.support.world import GROUPED, HYBRIDS, MODELS, OTHERS, VARIANTS, WHOLE, Case, World, compute, decoder

pytestmark = pytest.mark.torch

# of "grouped" the first of two stages has two layers, the second has one
CASES = [Case(*how, variant) for variant in VARIANTS for how in (("grouped", "flash"), ("latent", "distributed"))]
CASES += [Case("behind", "flash", variant) for variant in WHOLE]
CASES += [Case("grouped", "flash", variant) for variant in (*OTHERS, *HYBRIDS)]
CASES += [Case("grouped", "math", "ladder"), Case("grouped", "sharded", "ladder"), Case("plain", "flash", "standard")]
# tensor-parallel degree and stages
PLANS = [(1, 2), (2, 2), (1, 3)]


@pytest.fixture(scope="module")
def one_stage(tmp_path_factory: pytest.TempPathFactory) -> dict[int, World]:
    return {tp: on_ranks(tp, tmp_path_factory.mktemp(f"tp{tp}"), compute, CASES) for tp in (1, 2)}


@pytest.mark.parametrize(("tp", "pp"), PLANS)
def test_stages_compute_what_one_stage_does(one_stage: Any, tp: int, pp: int, tmp_path: Path) -> None:
    """Of every wiring, with and without a cache, on every rank of the last stage."""
    cases = [case for case in CASES if MODELS[case.model].layers >= pp]
    ranks = on_ranks(tp * pp, tmp_path, compute, cases, stages=pp)
    for case in cases:
        for expected, computed in zip(one_stage[tp], ranks[-tp:], strict=True):
            for how, logits_BTV in computed[case].items():
                torch.testing.assert_close(logits_BTV, expected[case][how], rtol=1e-6, atol=1e-6)
        assert all(not rank[case]["uncached"].numel() for rank in ranks[:-tp])


class Second:
    """The second of two stages, as a pipeline that notes when its rank waits."""

    stage, stages = 1, 2

    def __init__(self, order: list[str]) -> None:
        self._order = order
        self._received = 0

    def send(self, *tensors: Tensor) -> None:
        """Never called: this is the last stage."""

    def receive(self, x: Tensor) -> Handle:
        self._received += 1
        return Arrival(self._order, self._received)

    def share(self, x: Tensor) -> Handle:
        return DONE

    def finish(self) -> None:
        """Not used."""


class Arrival:
    def __init__(self, order: list[str], number: int) -> None:
        self._order, self._number = order, number

    def wait(self) -> None:
        self._order.append(f"wait {self._number}")
        DONE.wait()

    def observe(self, sink: Any) -> None:
        """Not used."""


@pytest.mark.parametrize("variant", ["standard", "ladder"])
def test_a_ladder_stage_computes_while_the_last_output_is_sent(variant: str) -> None:
    """Its first block does not need it; standard waits for everything first."""
    order: list[str] = []

    def watch(kind: str, run: Any, args: Any) -> Any:
        order.append(kind)
        return run(*args)

    model = Decoder(replace(GROUPED, layers=2), EngineConfig(), Communicator(1, Second(order)), positions=4)
    fill(model, random_weights(seed=0))
    with kernels.observed(watch), torch.inference_mode():
        model(torch.zeros(1, 4, dtype=torch.long), lay_out(variant, 2))
    # tables for the positions need nothing of the stage before
    assert order[:2] == ["positions", "wait 1"]
    newest = "wait 2" if variant == "standard" else "wait 3"
    assert ("attention" in order[: order.index(newest)]) == (variant == "ladder")


def generated(comm: Communicator, variant: str) -> Tensor:
    """Tokens of three prompts, one of them behind padding: with two stages, in micro-batches of two and of one."""
    torch.set_num_threads(1)
    model = decoder(GROUPED, EngineConfig(), comm)
    prompt_BT = torch.randint(GROUPED.vocab, (3, 7), generator=torch.Generator().manual_seed(3))
    generator, wiring = Generator(model, prompt_BT, 5, pad_B=torch.tensor([0, 2, 0])), lay_out(variant, GROUPED.layers)
    generator.prefill(wiring)
    for step in range(1, generator.gen):
        generator.decode(wiring, step)
    return generator.tokens()


@pytest.mark.parametrize("variant", ["standard", "ladder"])
@pytest.mark.parametrize("stages", [2, 3])
def test_micro_batches_generate_what_one_batch_does(variant: str, stages: int, tmp_path: Path) -> None:
    """On every rank."""
    expected = generated(Communicator(), variant)
    assert all(torch.equal(x, expected) for x in on_ranks(stages, tmp_path, generated, variant, stages=stages))


class First(Second):
    """The first of two stages, which notes what it sends and when it waits for tokens."""

    stage = 0

    def send(self, *tensors: Tensor) -> None:
        self._order.append("send")

    def share(self, x: Tensor) -> Handle:
        x.zero_()
        self._received += 1
        return Arrival(self._order, self._received)


def test_a_stage_computes_the_next_micro_batch_while_another_stage_has_the_last() -> None:
    order: list[str] = []

    def watch(kind: str, run: Any, args: Any) -> Any:
        if kind == "attention":
            order.append(kind)
        return run(*args)

    model = Decoder(replace(GROUPED, layers=2), EngineConfig(), Communicator(1, First(order)), positions=6)
    fill(model, random_weights(seed=0))
    generator, wiring = Generator(model, torch.zeros(2, 4, dtype=torch.long), 3), lay_out("ladder", 2)
    both = ["attention", "send"] * 2
    with kernels.observed(watch):
        generator.prefill(wiring)
        assert order == [*both, "wait 1", "wait 2"]
        order.clear()
        for step in (1, 2):
            generator.decode(wiring, step)
        # a step's token is waited for when the micro-batch needs it
        assert order == [*both, "wait 3", "attention", "send", "wait 4", "attention", "send"]
        generator.finish()
        assert order[-2:] == ["wait 5", "wait 6"]


def test_weights_of_each_stage_are_its_own() -> None:
    whole = Decoder(GROUPED, EngineConfig(), Communicator(), positions=1)
    stages = [Decoder(GROUPED, EngineConfig(), Communicator(1, Place(stage)), positions=1) for stage in range(2)]
    assert [len(stage.layers) for stage in stages] == [2, 1]
    assert [len(stage.embedding_VD) for stage in stages] == [GROUPED.vocab, 0]
    assert [len(stage.lm_head_VD) for stage in stages] == [0, GROUPED.vocab]
    # each stage has the last norm
    counts = [sum(weight.numel() for weight in model.parameters()) for model in (whole, *stages)]
    assert sum(counts[1:]) == counts[0] + GROUPED.hidden


class Place(Second):
    """One of two stages, alone."""

    def __init__(self, stage: int) -> None:
        super().__init__([])
        self.stage = stage  # type: ignore[misc]


def test_more_stages_than_layers() -> None:
    with pytest.raises(InfeasibleError, match="4 stages cannot share 3 layers"):
        GROUPED.layers_of(0, 4)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    file = tmp_path / "config.json"
    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size"), 64)
    file.write_text(json.dumps({**sizes, "num_hidden_layers": 3, "num_attention_heads": 4}))
    return file


@pytest.mark.parametrize("backend", ["none", "emulate"])
def test_stages_need_ranks(small: Path, backend: str) -> None:
    config = BenchConfig(model=small, variants=("standard",), pp=2)
    with pytest.raises(UsageError, match=f"--backend {backend} runs one stage, and --pp is 2"):
        bench(config, EngineConfig(), CommConfig(backend=backend))


def test_stages_are_measured(small: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = "--variant standard,ladder --pp 2 --backend gloo --prompt 4 --gen 3 --warmups 1 --repeats 2"
    assert main(["bench", "--model", str(small), *options.split()]) == 0
    result = json.loads(capfd.readouterr().out)
    assert (result["run"]["tp"], result["run"]["pp"]) == (1, 2)
    assert all(len(result["variants"][name]["repeats"]) == 2 for name in ("standard", "ladder"))
