"""Conversion to a hybrid, and the perplexity that shows what it costs."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from ladder_sim.specs.model import ModelSpec
from runtime.__main__ import main
from runtime.checkpoint.files import Checkpoint
from tests.support.checkpoints import PAGE, save_checkpoint, tokenizer

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("eval") / "original"
    return folder, save_checkpoint(folder, "qwen2", shard="200KB")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "page.txt"
    file.write_text(PAGE)
    return file


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    assert main(["eval", *map(str, arguments), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_perplexity_is_that_of_transformers(
    saved: tuple[Path, Any], page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In windows that share a token, each token but the first counts once."""
    folder, reference = saved
    ids, window, nats = tokenizer().encode(PAGE).ids, 50, 0.0
    with torch.inference_mode():
        for first in range(0, len(ids) - 1, window - 1):
            part = torch.tensor([ids[first : first + window]])
            nats += float(reference(part, labels=part).loss) * (part.shape[1] - 1)
    (row,) = evaluated(capsys, folder, "--text", page, "--context", window)
    assert row["perplexity"] == pytest.approx(math.exp(nats / (len(ids) - 1)), rel=1e-4)
    assert (row["tokens"], row["variant"]) == (len(ids), "standard")


@pytest.mark.parametrize("link", [False, True])
def test_a_hybrid_has_the_same_weights(saved: tuple[Path, Any], tmp_path: Path, link: bool) -> None:
    folder, out = saved[0], tmp_path / "hybrid"
    flags = ["--link"] if link else []
    assert main(["convert", str(folder), "--ladder-layers", "2", "--out", str(out), *flags]) == 0
    before, after = Checkpoint.open(folder), Checkpoint.open(out)
    assert after.shape.ladder_layers == (2, 3)
    assert (before.shape.variant, after.shape.variant) == ("standard", "hybrid-ladder:2")
    # Qwen2's biases, which its model type implies, are spelled out
    assert (after.shape.qkv_bias, after.shape.out_bias, after.shape.sliding_window) == (True, False, 0)
    every = (slice(None),)
    assert all(torch.equal(after.tensors[name][every], before.tensors[name][every]) for name in before.tensors)
    assert any(path.is_symlink() for path in out.iterdir()) == link
    # the simulator reads it, too
    spec = ModelSpec.from_hf(json.loads((out / "config.json").read_text()), name="hybrid", source="config.json")
    assert spec.ladder_layers == (2, 3)


def test_one_command_shows_the_original_beside_the_hybrid(
    saved: tuple[Path, Any], page: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """And two ranks print what one prints."""
    folder, out = saved[0], tmp_path / "hybrid"
    assert main(["convert", str(folder), "--ladder-layers", "2", "--out", str(out)]) == 0
    assert main(["eval", str(folder), str(out), "--text", str(page), "--tp", "2", "--backend", "gloo"]) == 0
    header, *rows = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert header == ["model", "variant", "perplexity", "nats/token", "tokens"]
    assert [row[:2] for row in rows] == [[str(folder), "standard"], [str(out), "hybrid-ladder:2"]]
    assert main(["eval", str(folder), "--text", str(page), "--variant", "standard,hybrid-ladder:2"]) == 0
    _, *alone = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert [row[2:] for row in alone] == [row[2:] for row in rows]
    assert rows[0][2] != rows[1][2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("convert", "{folder}", "--ladder-layers", "5", "--out", "{new}"), "--ladder-layers 5: must be 0 to 4"),
        (("convert", "{folder}", "--ladder-layers", "2", "--out", "{folder}"), "exists already"),
        (("convert", "{new}", "--ladder-layers", "2", "--out", "{new}"), "no such file"),
        (("eval", "{folder}", "--text", "{new}"), "no such file"),
        (("eval", "{folder}", "--text", "{folder}/model.safetensors.index.json", "--context", "513"), "513 tokens"),
        (("eval", "{folder}", "--text", "{folder}/model-00001-of-00004.safetensors"), "not UTF-8"),
        (("eval", "{folder}", "--text", "{empty}"), "1 tokens: must be 2"),
        (("eval", "{folder}", "--text", "{empty}", "--context", "1"), "context is 1"),
    ],
)
def test_what_is_refused(
    saved: tuple[Path, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    assert main([argument.format(folder=saved[0], new=tmp_path / "new", empty=empty) for argument in arguments]) == 2
    assert words in capsys.readouterr().err
