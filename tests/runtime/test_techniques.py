"""Techniques change how a pass runs, and not what it computes: on real gloo ranks, and where they are refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ladder_sim.errors import UsageError
from ladder_sim.wirings.layout import lay_out
from ladder_sim_runtime.__main__ import main
from ladder_sim_runtime.bench import bench
from ladder_sim_runtime.checkpoint.weights import fill, random_weights
from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.config import BenchConfig, CommConfig, EngineConfig
from ladder_sim_runtime.generate import Generator
from ladder_sim_runtime.model import kernels
from ladder_sim_runtime.model.decoder import Decoder
from tests.support.ranks import on_ranks
from tests.support.world import BEHIND, EXPERTS, GROUPED, LATENT

pytestmark = pytest.mark.torch

MODELS = {"grouped": GROUPED, "behind": BEHIND, "experts": EXPERTS, "latent": LATENT}
SPLIT, SHARED = ("token-split",), ("sequence-parallel",)
# of sequences that are spread over parts of a pass, and of a lone prompt that is cut; odd numbers of tokens
SHAPES = ((33, 17), (1, 521))
CASES = [
    *(("grouped", variant, SPLIT) for variant in ("ladder", "delayed:1", "partial:50")),
    *(("grouped", variant, SHARED) for variant in ("standard", "ladder:2", "upper-bound")),
    ("grouped", "ladder", ("token-split:3", *SHARED)),
    ("experts", "standard", SPLIT),
    ("experts", "farskip", SHARED),
    ("latent", "ladder", SPLIT),
    ("behind", "ladder", SPLIT),
    ("behind", "standard", SHARED),
]


def generated(comm: Communicator, model: str, variant: str, techniques: tuple[str, ...]) -> list[Tensor]:
    """Logits of each step of some batches: a prefill and two decode steps, behind padding where there are several."""
    config, logits = MODELS[model], []
    for batch, prompt in SHAPES:
        decoder = Decoder(config, EngineConfig(attention="math", techniques=techniques), comm, positions=prompt + 3)
        fill(decoder.requires_grad_(False), random_weights(seed=1))
        prompt_BT = torch.randint(config.vocab, (batch, prompt), generator=torch.Generator().manual_seed(3))

        def pick(logits_BTV: Tensor, *_: object) -> Tensor:
            logits.append(logits_BTV.clone())
            # the same tokens, whatever rounding does
            return torch.arange(len(logits_BTV))

        pad_B = torch.arange(batch) % 5 if batch > 1 else None
        generator, wiring = Generator(decoder, prompt_BT, 3, pad_B=pad_B, pick=pick), lay_out(variant, config.layers)
        generator.prefill(wiring)
        for step in (1, 2):
            generator.decode(wiring, step)
    return logits


def compute(comm: Communicator, cases: list[Any]) -> list[tuple[list[Tensor], list[Tensor]]]:
    torch.set_num_threads(1)
    return [(generated(comm, *case), generated(comm, *case[:2], ())) for case in cases]


@pytest.mark.parametrize(("ranks", "cases"), [(1, CASES[6:7]), (2, CASES)])
def test_logits_are_those_without(ranks: int, cases: list[Any], tmp_path: Path) -> None:
    for results in on_ranks(ranks, tmp_path, compute, cases):
        for case, (ours, theirs) in zip(cases, results, strict=True):
            for step, (with_it, without) in enumerate(zip(ours, theirs, strict=True)):
                torch.testing.assert_close(
                    with_it, without, rtol=1e-5, atol=1e-5, msg=lambda text, at=(case, step): f"{at}: {text}"
                )


@pytest.mark.parametrize(
    ("techniques", "batch", "parts"),
    [((), 600, [600]), (SPLIT, 511, [511]), (SPLIT, 600, [256, 344]), (("token-split:4",), 700, [128, 128, 256, 188])],
)
def test_a_prompt_is_cut_at_tiles(techniques: tuple[str, ...], batch: int, parts: list[int]) -> None:
    """Guards the test above, which a pass that is never split would pass."""
    tokens = []

    def watch(kind: str, kernel: Any, args: Any) -> Any:
        if kind == "attention":
            tokens.append(args[0].shape[2])
        return kernel(*args)

    model = Decoder(replace(GROUPED, layers=1), EngineConfig(techniques=techniques), Communicator(2), positions=batch)
    fill(model.requires_grad_(False), random_weights(seed=0))
    with kernels.observed(watch), torch.inference_mode():
        model(torch.zeros(1, batch, dtype=torch.long), lay_out("standard", 1), cache=model.cache(1))
    assert tokens == parts


@pytest.fixture
def small(tmp_path: Path) -> Path:
    file = tmp_path / "config.json"
    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size"), 64)
    file.write_text(
        json.dumps({**sizes, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64})
    )
    return file


def test_an_emulated_link_carries_shares_and_parts(small: Path, tmp_path: Path) -> None:
    (tmp_path / "link.csv").write_text("bytes,seconds\n1,1e-3\n1e9,1.000001e-3\n")
    links = CommConfig(backend="emulate", table=tmp_path / "link.csv")
    config = BenchConfig(model=small, variants=("standard",), tp=2, batch=64, prompt=8, gen=2, warmups=0, repeats=1)
    # of two passes of two layers: four all-reduces; two parts of each; a scatter and a gather for each, of half the
    # time, and the gather before the LM head
    for techniques, messages in (((), 4), (SPLIT, 8), (SHARED, 4.5)):
        result: Any = bench(config, EngineConfig(techniques=techniques), links)
        assert result["variants"]["standard"]["comm_s"] == pytest.approx(2 * messages * 1e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--technique fused-norm", "technique 'fused-norm' cannot run in real passes"),
        ("--technique token-split:5", "technique 'token-split:5' cannot run"),
        ("--technique token-split --technique token-split:3", "each at most once"),
        ("--technique sequence-parallel --variant desync:2", "variant 'desync:2' in sequence parallel"),
        ("--technique sequence-parallel --variant drop:1", "variant 'drop:1' in sequence parallel"),
        ("--technique token-split --pp 2", "stages already work on parts of the batch in turn"),
    ],
)
def test_what_cannot_be_combined(small: Path, capfd: pytest.CaptureFixture[str], options: str, words: str) -> None:
    """What `run --bench` gets to see."""
    assert main(["bench", "--model", str(small), "--variant", "ladder", "--tp", "2", *options.split()]) == 2
    assert words in capfd.readouterr().err


def test_stages_refuse_parts() -> None:
    with pytest.raises(UsageError, match="'token-split' with --attention-dp 2: groups wait for each other"):
        EngineConfig(techniques=SPLIT).check_degrees(attention_dp=2, pp=1)
