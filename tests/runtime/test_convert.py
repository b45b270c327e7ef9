"""Conversion to a hybrid."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ladder_sim.specs.model import ModelSpec
from ladder_sim_runtime.__main__ import main
from ladder_sim_runtime.checkpoint.files import Checkpoint
from tests.support.checkpoints import save_checkpoint

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("eval") / "original"
    return folder, save_checkpoint(folder, "qwen2", shard="200KB")


@pytest.mark.parametrize("link", [False, True])
def test_a_hybrid_has_the_same_weights(saved: tuple[Path, Any], tmp_path: Path, link: bool) -> None:
    folder, out = saved[0], tmp_path / "hybrid"
    flags = ["--link"] if link else []
    assert main(["convert", str(folder), "--ladder-layers", "2", "--out", str(out), *flags]) == 0
    before, after = Checkpoint.open(folder), Checkpoint.open(out)
    # its type implies biases that no Llama has: it stays, and the wiring is named
    assert (before.shape.variant, after.shape.variant) == ("standard", "hybrid-ladder:2")
    assert (after.shape.qkv_bias, after.shape.out_bias, after.shape.sliding_window) == (True, False, 0)
    every = (slice(None),)
    assert all(torch.equal(after.tensors[name][every], before.tensors[name][every]) for name in before.tensors)
    assert any(path.is_symlink() for path in out.iterdir()) == link
    # the simulator reads it, too
    spec = ModelSpec.from_hf(json.loads((out / "config.json").read_text()), name="hybrid", source="config.json")
    assert spec.wiring == "hybrid-ladder:2"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("convert", "{folder}", "--ladder-layers", "5", "--out", "{new}"), "--ladder-layers 5: must be 0 to 4"),
        (("convert", "{folder}", "--ladder-layers", "2", "--out", "{folder}"), "exists already"),
        (("convert", "{new}", "--ladder-layers", "2", "--out", "{new}"), "no such file"),
    ],
)
def test_what_is_refused(
    saved: tuple[Path, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    assert main([argument.format(folder=saved[0], new=tmp_path / "new") for argument in arguments]) == 2
    assert words in capsys.readouterr().err
