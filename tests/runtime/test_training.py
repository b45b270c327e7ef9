"""Training: resumed, split and accumulated runs are the same run, and what rewiring costs comes back."""

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from benchmarks.stacked import Stack
from ladder_sim.errors import UsageError
from runtime.__main__ import main
from runtime.checkpoint.files import Checkpoint
from runtime.comm.base import Alone, Communicator
from runtime.comm.rendezvous import CommConfig
from runtime.config import ModelConfig
from runtime.model.wiring import lay_out
from runtime.training.batches import Batches
from runtime.training.config import TrainingConfig, prepare_training
from runtime.training.corpus import Corpus
from runtime.training.loop import Run, train
from runtime.training.state import States
from tests.conftest import REPO
from tests.support.checkpoints import VOCAB, save_checkpoint
from tests.support.ranks import on_ranks
from tests.support.schemas import check
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.torch

CONFIG = {
    "model_type": "llama",
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 256,
    "tie_word_embeddings": True,
    "max_position_embeddings": 128,
}
# a run of eight steps
SHORT: dict[str, Any] = {"steps": 8, "batch": 4, "context": 32, "warmup": 2, "eval_every": 4, "eval_windows": 4}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config.json and a text."""
    folder = tmp_path_factory.mktemp("training")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "text.txt").write_text("".join((REPO / name).read_text() for name in ("README.md", "docs/load.md")))
    return folder


def short(files: Path, out: Path, **changes: Any) -> TrainingConfig:
    fields: dict[str, Any] = SHORT | {"model": files / "config.json", "texts": (files / "text.txt",), "out": out}
    return TrainingConfig(**(fields | changes))


def options(config: TrainingConfig) -> list[str]:
    """The same on a command line."""
    flags = {"--model": config.model, "--text": config.texts[0], "--out": config.out, "--save-every": config.save_every}
    flags |= {f"--{name.replace('_', '-')}": getattr(config, name) for name in SHORT}
    return [str(word) for flag in flags.items() for word in flag]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: stored[(slice(None),)] for name, stored in Checkpoint.open(folder).tensors.items()}


def rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "loss.csv").read_text().splitlines()))


def losses(folder: Path, column: str = "loss") -> list[float]:
    return [float(row[column]) for row in rows(folder) if row[column]]


# ends the process as `kill -9` does while the second state is written: its file is there, `latest` names the first
KILLED = """
import os, signal, sys
from runtime.__main__ import main
from runtime.training import state
write, calls = state.write_file, []
def last(*arguments):
    calls.append(arguments)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    write(*arguments)
state.write_file = last
main(sys.argv[1:])
"""


def test_a_killed_run_goes_on_bit_for_bit(files: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes((files / "text.txt").read_bytes())
    whole, killed = (short(files, tmp_path / name, texts=(text,), save_every=3) for name in ("whole", "killed"))
    train(whole, CommConfig())
    done = subprocess.run(
        [sys.executable, "-c", KILLED, "train", *options(killed)], cwd=REPO, check=False, timeout=HANG_S
    )
    assert done.returncode == -9
    assert main(["train", *options(killed)]) == 2, "a new run would overwrite it"
    check("training", json.loads((killed.out / "run.json").read_text("utf-8")))
    result = train(replace(killed, resume=True), CommConfig())
    check("training", json.loads((killed.out / "run.json").read_text("utf-8")))
    assert result["steps_now"] == 5
    assert (whole.out / "loss.csv").read_bytes() == (killed.out / "loss.csv").read_bytes()
    before, after = weights(whole.out / "checkpoint"), weights(killed.out / "checkpoint")
    assert all(torch.equal(before[name], after[name]) for name in before)
    text.write_text(f"{text.read_text()}more")
    with pytest.raises(UsageError, match="learned from tokens"):
        train(replace(killed, resume=True), CommConfig())


def test_parts_of_a_batch_are_one_batch(files: Path, tmp_path: Path) -> None:
    for parts in (1, 4):
        train(short(files, tmp_path / f"{parts}", accumulate=parts), CommConfig())
    assert losses(tmp_path / "1") == pytest.approx(losses(tmp_path / "4"), rel=1e-5)


def _of_rank(comm: Communicator, files: Path, out: Path) -> None:
    for variant in ("ladder", "desync:2"):
        config = short(files, out / variant, variant=variant, tp=comm.size)
        if comm.rank == 0:
            prepare_training(config)
        comm.barrier()
        Run(prepare_training(config), config, comm).to_the_end()


def test_ranks_train_the_model_of_one(files: Path, tmp_path: Path) -> None:
    """As one rank, where the wiring says so; else as ranks that are a dimension of one process's tensors."""
    on_ranks(2, tmp_path, _of_rank, files, tmp_path / "two")
    train(short(files, tmp_path / "one", variant="ladder"), CommConfig())
    for column in ("loss", "gradient", "held_out"):
        one, two = (losses(folder, column) for folder in (tmp_path / "one", tmp_path / "two" / "ladder"))
        assert one == pytest.approx(two, rel=1e-4)
    saved = weights(tmp_path / "two" / "ladder" / "checkpoint")
    for name, weight in weights(tmp_path / "one" / "checkpoint").items():
        torch.testing.assert_close(saved[name], weight, rtol=1e-3, atol=1e-4)
    for variant, ranks in (("ladder", 1), ("desync:2", 2)):
        stacked = _stacked(short(files, tmp_path / "stack", variant=variant), ranks)
        assert stacked == pytest.approx(losses(tmp_path / "two" / variant), rel=1e-4)


def _stacked(config: TrainingConfig, ranks: int) -> list[float]:
    """Losses of seed 0, trained with another seed."""
    shape = ModelConfig.from_file(config.model)
    corpus = Corpus.open(config.texts, None, shape, config.context, config.out.parent)
    wiring = lay_out(config.variant, shape.layers)
    stack = Stack(shape, wiring, config, seeds=(0, 1), ranks=ranks, where=torch.device("cpu"))
    batches = [Batches(corpus, config.context, seed) for seed in (0, 1)]
    steps = []
    for step in range(config.steps):
        stack.step(step, torch.stack([each.training(step, config.batch) for each in batches]))
        steps.append(stack.loss_N[0].item())
    return steps


def test_rewiring_costs_most_at_the_bottom_and_distillation_brings_it_back(files: Path, tmp_path: Path) -> None:
    base = short(files, tmp_path / "base", steps=200, batch=8, lr=3e-3, warmup=20, eval_windows=64)
    train(base, CommConfig())
    model = base.out / "checkpoint"
    adapted = replace(base, model=model, pretrained=True, objective="distill", steps=30, lr=1e-3, warmup=5)
    cost = {"standard": losses(base.out, "held_out")[-1]}
    for place, layers in (("last", (3,)), ("first", (0,))):
        config = replace(adapted, out=tmp_path / place)
        task = prepare_training(config)
        wired = lay_out("hybrid-ladder:1", 4, layers)
        cost[place] = Run(replace(task, wiring=wired), config, Alone()).evaluate()["held_out"]
    assert cost["first"] - cost["standard"] > 5 * abs(cost["last"] - cost["standard"])
    result = train(replace(adapted, out=tmp_path / "ladder", variant="ladder"), CommConfig())
    lost, left = (float(str(result[name])) - cost["standard"] for name in ("first_held_out", "held_out"))
    assert left < 0.5 * lost
    assert 0 < result["divergence"] < 0.5 * result["first_divergence"]
    assert Checkpoint.open(tmp_path / "ladder" / "checkpoint").shape.variant == "ladder"


def test_only_rewired_layers_learn(tmp_path: Path, files: Path) -> None:
    folder = tmp_path / "model"
    save_checkpoint(folder, "llama")
    config = short(files, tmp_path / "out", model=folder, pretrained=True, variant="hybrid-ladder:2")
    train(replace(config, trained="rewired", objective="distill", dtype="bf16"), CommConfig())
    before, after = weights(folder), weights(config.out / "checkpoint")
    changed = {name for name in before if not torch.equal(before[name], after[name].to(before[name].dtype))}
    upper = {name for name in before if name.startswith(("model.layers.2.", "model.layers.3."))}
    assert changed == upper
    assert (config.out / "checkpoint" / "tokenizer.json").exists()


def test_a_data_set_is_read_as_its_text(files: Path, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"text": ["one row", "another ä"]})
    pyarrow.parquet.write_table(table, tmp_path / "b.parquet")
    with pyarrow.ipc.new_stream(tmp_path / "a.arrow", table.schema) as stream:
        stream.write_table(table)
    (tmp_path / "c.txt").write_text("one row\nanother ä\n")
    shape = ModelConfig.from_file(files / "config.json")
    (tmp_path / "out").mkdir()
    corpus = Corpus.open([tmp_path], None, replace(shape, vocab=256), 0, tmp_path / "out")
    tokens = torch.from_file(str(corpus.file), size=corpus.ends[-1], dtype=torch.int32).tolist()
    assert bytes(tokens) == b"one row\nanother \xc3\xa4\n" * 3
    assert corpus.ends == (57,)


def test_a_loss_that_is_no_number_ends_the_run(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = short(files, tmp_path / "out", save_every=2)
    plain, factors = Run._loss, iter([1.0, 1.0, 1.0, 1.0, float("nan")])
    monkeypatch.setattr(Run, "_loss", lambda run, tokens_BT: plain(run, tokens_BT) * next(factors))
    assert main(["train", *options(config)]) == 1
    error = capsys.readouterr().err
    assert "step 5: the loss is nan" in error
    assert "the state of step 4 is kept" in error
    monkeypatch.undo()
    assert train(replace(config, resume=True), CommConfig())["steps_now"] == 4


def test_a_full_disk_leaves_the_last_state(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = short(files, tmp_path / "out", save_every=2)
    saves: list[object] = []

    def full(content: object, file: Any) -> None:
        saves.append(content)
        if len(saves) == 2:
            raise OSError(28, "No space left on device")
        plain(content, file)

    plain = torch.save
    monkeypatch.setattr(torch, "save", full)
    assert main(["train", *options(config)]) == 2
    error = capsys.readouterr().err
    assert "No space left on device" in error
    assert "make room; --resume goes on from step 2" in error
    monkeypatch.undo()

    def no_room(tensors: object, file: Path, metadata: object) -> None:
        raise SafetensorError("No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", no_room)
    assert main(["train", *options(config), "--resume"]) == 2
    assert "model.safetensors' cannot be written" in capsys.readouterr().err
    monkeypatch.undo()
    assert train(replace(config, resume=True), CommConfig())["steps_now"] == 0
    assert Checkpoint.open(config.out / "checkpoint")


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    states = States(tmp_path, Alone())
    states.save(3, {})
    (tmp_path / "step-3.rank-0.pt").write_bytes(b"damaged")
    with pytest.raises(UsageError, match=r"step-3.rank-0.pt' cannot be read"):
        states.load(torch.device("cpu"))
    (tmp_path / "latest").write_text("")
    with pytest.raises(UsageError, match="must hold the number of a step, not ''"):
        print(states.step)


def test_bad_input_is_refused_before_a_step(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, other = tmp_path / "model", tmp_path / "other"
    save_checkpoint(model, "llama")
    (other / "config.json").parent.mkdir()
    (other / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": VOCAB - 1}))
    (tmp_path / "wrong.json").write_text(json.dumps({**CONFIG, "model_type": "gpt2"}))
    (tmp_path / "short.txt").write_text("short")
    text, out = ["--text", str(files / "text.txt")], ["--context", "32", "--out", str(tmp_path / "out")]
    scratch = ["train", "--model", str(files / "config.json")]
    adapt = ["adapt", "--model", str(model)]
    cases = {
        "neither model.safetensors nor": [*adapt[:2], str(other), "--variant", "ladder", *text, *out],
        "model_type": ["train", "--model", str(tmp_path / "wrong.json"), *text, *out],
        "needs a whole number from 1 to 4": [*adapt, "--variant", "hybrid-ladder:5", *text, *out],
        "tokens, but the model's vocabulary has": [*scratch, "--tokenizer", str(model), *text, *out],
        "No such file": [*scratch, "--text", str(tmp_path / "none.txt"), *out],
        "tokens in a row": [*scratch, "--text", str(tmp_path / "short.txt"), *out],
        "must divide the batch": [*scratch, *text, *out, "--accumulate", "3"],
        "3 ranks cannot share": [*scratch, *text, *out, "--tp", "3"],
        "exists already": [*scratch, *text, *out[:2], "--out", str(model)],
        "longest context": [*scratch, *text, *out, "--context", "129"],
        "'upper-bound' is no model": [*scratch, *text, *out, "--variant", "upper-bound"],
        "must be above 0 and finite": [*scratch, *text, *out, "--lr", "inf"],
    }
    for message, arguments in cases.items():
        assert main(arguments) in (2, 3), message
        assert message in capsys.readouterr().err
