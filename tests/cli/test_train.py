"""`ladder-sim train` and `adapt`: what they add to the runtime's commands."""

import json
from pathlib import Path

import pytest

from tests.support.commands import run

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_a_model_is_trained_and_its_losses_drawn(tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 16, "vocab_size": 256}))
    (tmp_path / "text.txt").write_text("A line that is repeated.\n" * 200)
    out, plot = tmp_path / "out", tmp_path / "loss.html"
    flags = ["--model", str(tmp_path / "config.json"), "--text", str(tmp_path / "text.txt"), "--context", "16"]
    ran = run("train", *flags, "--out", str(out), "--steps", "3", "--plot", str(plot), "--variant", "ladder")
    assert ran.code == 0, ran.err
    assert "held-out text" in plot.read_text()
    assert json.loads((out / "checkpoint" / "config.json").read_text())["model_type"] == "llamaLadder"


def test_help_has_the_options_of_both() -> None:
    text = run("adapt", "--help").out
    assert "--plot" in text
    assert "--objective" in text
    assert "out is missing" in run("adapt").err
