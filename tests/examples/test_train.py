"""`examples/train/train.py`: kills, full disks, NaNs, changed input; training brings back what rewiring costs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from examples.train import train as script
from ladder_sim_runtime.checkpoint.files import Checkpoint
from tests.conftest import REPO
from tests.support.checkpoints import VOCAB, tokenizer
from tests.support.commands import PACKAGES
from tests.support.waiting import HANG_S

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    # a text without its end-of-text token is longer than the tokenizer's model_max_length, which is none of the model's
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SHAPE = {
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
}
# six steps, with a checkpoint every two
SHORT = {"context": 32, "held_out": 8, "max_steps": 6, "save_steps": 2, "warmup_steps": 1, "learning_rate": 1e-3}
QUIET = ("--use_cpu", "--disable_tqdm", "true")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints with a tokenizer, and a text."""
    folder = tmp_path_factory.mktemp("train")
    for seed, name in enumerate(("model", "other")):
        torch.manual_seed(seed)
        LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(folder / name)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer()).save_pretrained(folder / name)
    (folder / "text.txt").write_text("".join((REPO / name).read_text() for name in 4 * ("LICENSE",)))
    return folder


def words(files: Path, out: Path, **changes: Any) -> list[str]:
    """A command line; an option that is True stands alone, one that is None is left out."""
    given: dict[str, Any] = {"model": files / "model", "data": files / "text.txt", "variant": "hybrid-ladder:2"}
    given |= {**SHORT, "output_dir": out, **changes}
    pairs = ((f"--{name}", value) for name, value in given.items() if value is not None)
    return [*QUIET, *(str(word) for name, value in pairs for word in ((name,) if value is True else (name, value)))]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def losses(out: Path) -> list[float]:
    """Of held-out text: before any step, and with each checkpoint."""
    log = json.loads((script.newest(out) / "trainer_state.json").read_text())["log_history"]  # type: ignore[operator]
    return [row["eval_loss"] for row in log if "eval_loss" in row]


# ends the process as `kill -9` does, while the second checkpoint is written
KILLED = """
import os, signal, sys
from examples.train import train
plain = train.OnlyGoodCheckpoints.on_save
def last(self, args, state, control, **more):
    if state.global_step == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    plain(self, args, state, control, **more)
train.OnlyGoodCheckpoints.on_save = last
train.main()
"""


def killed(arguments: list[str], folder: Path, *launcher: str) -> int:
    """Run until the second checkpoint; returns the exit code."""
    file = folder / "killed.py"
    file.write_text(KILLED)
    command = [sys.executable, *launcher, str(file), *arguments]
    return subprocess.run(command, cwd=REPO, env=ENVIRONMENT, check=False, timeout=HANG_S).returncode


ENVIRONMENT = {**os.environ, "PYTHONPATH": PACKAGES, "OMP_NUM_THREADS": "1"}


def test_a_killed_run_goes_on_bit_for_bit_and_refuses_another(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes((files / "text.txt").read_bytes())
    base: dict[str, Any] = {"data": text, "teacher": files / "model"}
    script.main(words(files, tmp_path / "whole", **base))
    out = tmp_path / "killed"
    assert killed(words(files, out, **base), tmp_path) == -signal.SIGKILL
    # its files are there, but nothing says that all of them are
    assert (out / "checkpoint-4" / "trainer_state.json").exists()
    assert script.newest(out) == out / "checkpoint-2"
    for changes, what in (
        ({"teacher": files / "other"}, "teacher"),
        ({"teacher": None}, "teacher"),
        ({"model": files / "other"}, "first weights"),
        ({"learning_rate": 2e-3}, "learning_rate"),
        ({"variant": "ladder"}, "first weights"),
        ({"per_device_train_batch_size": 4}, "batch"),
    ):
        with pytest.raises(SystemExit, match=f"holds a run whose {what} was"):
            script.main(words(files, out, **(base | changes)))
    # of the same length
    text.write_bytes(text.read_bytes().swapcase())
    with pytest.raises(SystemExit, match="holds a run whose data and tokenizer was"):
        script.main(words(files, out, **base))
    text.write_bytes((files / "text.txt").read_bytes())
    script.main(words(files, out, **base))
    before, after = weights(tmp_path / "whole" / "model"), weights(out / "model")
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert losses(tmp_path / "whole")[1:] == pytest.approx(losses(out)[-3:], rel=0)
    capsys.readouterr()
    script.main(words(files, out, **base))
    assert "this run is complete" in capsys.readouterr().out


def test_a_result_says_which_model_it_is(files: Path, tmp_path: Path) -> None:
    scratch: dict[str, Any] = {"scratch": True, "model": files / "model" / "config.json", "tokenizer": files / "model"}
    for variant, wired, architecture in (
        ("standard", "standard", "LlamaForCausalLM"),
        ("ladder", "ladder", "LlamaLadderForCausalLM"),
        ("hybrid-ladder:1", "hybrid-ladder:1", "LlamaLadderForCausalLM"),
    ):
        out = tmp_path / wired
        script.main(words(files, out, **scratch, variant=variant, max_steps=1))
        for folder in (out / "model", out / "checkpoint-1"):
            config = json.loads((folder / "config.json").read_text())
            assert config["architectures"] == [architecture]
            assert Checkpoint.open(folder).shape.variant == wired
            assert (folder / "tokenizer.json").exists()
        trusts = {"trust_remote_code": True} if wired != "standard" else {}
        loaded = transformers.AutoModelForCausalLM.from_pretrained(out / "model", **trusts)
        assert type(loaded).__name__ == architecture


def test_a_wiring_file_is_trained(files: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("wiring = 1\n[[layers]]\nattention.delay = 1\n")
    out = tmp_path / "out"
    script.main(words(files, out, variant=file, max_steps=8, save_steps=8))
    config = json.loads((out / "model" / "config.json").read_text())
    assert config["ladder_sim_wiring"] == {
        "wiring": 1,
        "name": "mine",
        "summary": "mine",
        "layers": [{"at": [0, 1, 2, 3], "attention": {"delay": 1}}],
    }
    before, after = losses(out)
    assert after < before
    loaded = transformers.AutoModelForCausalLM.from_pretrained(out / "model", trust_remote_code=True)
    assert type(loaded).__name__ == "LlamaLadderForCausalLM"
    assert Checkpoint.open(out / "model").shape.variant == json.dumps(config["ladder_sim_wiring"])


def test_distillation_brings_back_what_rewiring_costs(files: Path, tmp_path: Path) -> None:
    learns: dict[str, Any] = {"max_steps": 150, "save_steps": 150, "learning_rate": 5e-3, "held_out": 64}
    script.main(words(files, tmp_path / "base", variant="standard", **learns))
    model = tmp_path / "base" / "model"
    standard = losses(tmp_path / "base")[-1]
    learns |= {"max_steps": 40, "save_steps": 40, "learning_rate": 2e-3}
    script.main(words(files, tmp_path / "out", model=model, teacher=model, variant="ladder", **learns))
    rewired, adapted = losses(tmp_path / "out")
    assert rewired - standard > 0.03
    assert adapted - standard < 0.5 * (rewired - standard)


@pytest.mark.parametrize("where", ["loss", "weights"])
def test_what_is_not_finite_is_never_kept(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A step may leave weights that are not finite after a loss that was."""
    plain_loss, plain_end = script.Distilling.compute_loss, script.OnlyGoodCheckpoints.on_step_end
    calls: list[int] = []

    def loss(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain_loss(self, model, *args, **kwargs)
        calls.append(model.training)
        return result * float("nan") if model.training and sum(calls) == 4 else result

    def end(self: Any, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == 4:
            more["model"].model.layers[2].mlp.down_proj.weight.data[0, 0] = float("nan")
        plain_end(self, args, state, control, **more)

    if where == "loss":
        monkeypatch.setattr(script.Distilling, "compute_loss", loss)
    else:
        monkeypatch.setattr(script.OnlyGoodCheckpoints, "on_step_end", end)
    with pytest.raises(SystemExit, match=r"step 4: .*loss is nan: .*checkpoint-2 is whole"):
        script.main(words(files, tmp_path / "out"))
    assert not (tmp_path / "out" / "checkpoint-4").exists()
    assert not (tmp_path / "out" / "model").exists()


def test_weights_that_are_not_finite_at_the_end_are_no_model(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no checkpoint would see them."""
    plain_end = script.OnlyGoodCheckpoints.on_step_end

    def end(self: Any, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == state.max_steps:
            more["model"].model.layers[2].mlp.down_proj.weight.data[0, 0] = float("nan")
        plain_end(self, args, state, control, **more)

    monkeypatch.setattr(script.OnlyGoodCheckpoints, "on_step_end", end)
    with pytest.raises(SystemExit, match="loss is nan"):
        script.main([*words(files, tmp_path / "out"), "--save_strategy", "no"])
    assert not (tmp_path / "out" / "model").exists()


def test_a_full_disk_leaves_the_last_checkpoint(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, plain = tmp_path / "out", torch.save

    def full(content: object, file: Any, **more: Any) -> None:
        if "checkpoint-4" in str(file):
            raise OSError(28, "No space left on device")
        plain(content, file, **more)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left") as raised:
        script.main(words(files, out))
    assert "checkpoint-2 is whole; once the cause is gone" in raised.value.__notes__[0]
    monkeypatch.undo()
    with monkeypatch.context() as patched:
        patched.setattr(script.Trainer, "save_model", _fails_at_the_end(script.Trainer.save_model))
        with pytest.raises(OSError, match="No space left"):
            script.main(words(files, out))
    assert not (out / "model").exists()
    script.main(words(files, out))
    assert Checkpoint.open(out / "model").shape.variant == "hybrid-ladder:2"


def _fails_at_the_end(plain: Callable[..., None]) -> Callable[..., None]:
    def save(self: Any, folder: str, **more: Any) -> None:
        plain(self, folder, **more)
        if folder.endswith("model.part"):
            raise OSError(28, "No space left on device")

    return save


def test_a_folder_has_one_run_at_a_time(files: Path, tmp_path: Path) -> None:
    """The second one is refused before it changes anything."""
    with script.hold(tmp_path / "out"), pytest.raises(SystemExit, match="another process trains there"):
        script.main(words(files, tmp_path / "out"))
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["lock"]


def test_ranks_with_shards_train_the_model_of_one_and_go_on(files: Path, tmp_path: Path) -> None:
    base: dict[str, Any] = {"teacher": files / "other"}
    script.main(words(files, tmp_path / "one", **base))
    out, launcher = tmp_path / "two", ("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")
    arguments = [*words(files, out, **base, per_device_train_batch_size=4), "--fsdp"]
    assert killed(arguments, tmp_path, *launcher) != 0
    assert script.newest(out) == out / "checkpoint-2"
    command = [sys.executable, *launcher, str(REPO / "examples" / "train" / "train.py"), *arguments]
    subprocess.run(command, cwd=REPO, env=ENVIRONMENT, check=True, timeout=HANG_S)
    one, two = weights(tmp_path / "one" / "model"), weights(out / "model")
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=1e-3, atol=1e-4)


def test_rows_are_texts_or_messages(files: Path, tmp_path: Path) -> None:
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), eos_token="</s>")
    made.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    rows = {"text": "every rank", "messages": [{"role": "user", "content": "every "}, {"role": "a", "content": "rank"}]}
    document = [*made("every rank", add_special_tokens=False)["input_ids"], made.eos_token_id]
    for column, row in rows.items():
        data = tmp_path / f"{column}.jsonl"
        data.write_text(json.dumps({column: row}) + "\n" + json.dumps({column: row}) + "\n")
        own = script.Experiment(model="", data=[str(data)], context=len(document), held_out=1)
        tokens, _ = script.tokens_of(own, made, tmp_path / column)
        assert list(tokens["input_ids"]) == [document, document]


def test_bad_input_is_refused_before_a_step(files: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("A short text.\n")
    other, gpt = tmp_path / "vocab", tmp_path / "gpt2"
    LlamaForCausalLM(LlamaConfig(**{**SHAPE, "vocab_size": VOCAB - 1})).save_pretrained(other)
    transformers.GPT2Config().save_pretrained(gpt)
    torn = tmp_path / "torn"
    torn.mkdir()
    for file in (files / "model").iterdir():
        (torn / file.name).write_bytes(file.read_bytes())
    kept = {name: weight for name, weight in weights(torn).items() if "layers.3.mlp.up_proj" not in name}
    save_file(kept, torn / "model.safetensors", metadata={"format": "pt"})
    cases: list[tuple[str, dict[str, Any]]] = [
        ("the model has 4 layers, so at most 4 can be ladder", {"variant": "hybrid-ladder:5"}),
        ("its ranks read their own parts", {"variant": "desync:2"}),
        ("no such file", {"data": tmp_path / "none.txt"}),
        ("0 tokens: must be --context 32 or more", {"data": tmp_path / "empty.txt"}),
        ("tokens: must be --context 32 or more", {"data": tmp_path / "short.txt"}),
        ("must be more than --held_out 5000", {"held_out": 5000}),
        ("must be files of one kind", {"data": tmp_path}),
        ("must be at least --context 256", {"context": 256, "held_out": 1}),
        ("and the tokenizer's", {"model": other, "tokenizer": files / "model"}),
        ("its vocabulary has", {"teacher": other}),
        ("model_type is gpt2", {"model": gpt, "tokenizer": files / "model"}),
        ("missing_keys", {"model": torn}),
        ("must be 2 or more", {"save_total_limit": 1}),
        ("must be above 0 and below 1", {"learning_rate": 1e38}),
        ("--context 1", {"context": 1}),
    ]
    for number, (message, changes) in enumerate(cases):
        with pytest.raises(SystemExit, match=message):
            script.main(words(files, tmp_path / f"out{number}", **changes))
    # a tokenizer of its own is not invented
    with pytest.raises((OSError, ValueError), match="tokenizer"):
        script.main(words(files, tmp_path / "none", model=other))
