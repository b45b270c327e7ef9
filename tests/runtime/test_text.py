"""Prompts of text and of tokens: what follows them, and what is refused before a rank starts."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from ladder_sim.errors import UsageError
from ladder_sim_runtime.__main__ import main
from ladder_sim_runtime.checkpoint.prompts import Text, _library, prepare_completion
from ladder_sim_runtime.config import CompletionConfig
from ladder_sim_runtime.model.kernels import sample
from tests.conftest import REPO
from tests.support.checkpoints import VOCAB, save_checkpoint, tokenizer
from tests.support.commands import process
from tests.support.strategies import damaged

pytestmark = pytest.mark.torch

PROMPT = "Every rank of"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("text")
    return folder, save_checkpoint(folder)


@pytest.fixture
def folder(saved: tuple[Path, Any], tmp_path: Path) -> Path:
    """A checkpoint of its own to be changed; the weights are shared."""
    for file in saved[0].iterdir():
        (tmp_path / file.name).symlink_to(file)
    return tmp_path


def replace(file: Path, content: object) -> None:
    file.unlink(missing_ok=True)
    file.write_text(json.dumps(content))


def greedy(model: Any, tokens: int) -> str:
    """Transformers' text."""
    ids = torch.tensor([tokenizer().encode(PROMPT).ids])
    result = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, pad_token_id=0
    )
    text: str = tokenizer().decode(result[0, ids.shape[1] :].tolist())
    return text


def test_the_command_line_prints_transformers_greedy_text_from_two_ranks(saved: tuple[Path, Any]) -> None:
    folder, reference = saved
    command = ["run", "--model", str(folder), "--tp", "2", "--prompt", PROMPT, "--gen", "12", "--backend", "gloo"]
    done = subprocess.run([sys.executable, "-m", "ladder_sim", *command], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == greedy(reference, 12) + "\n"


def test_experts_and_stages_from_the_command_line(tmp_path: Path) -> None:
    reference, degrees = save_checkpoint(tmp_path, "mixtral"), ("--tp", "2", "--pp", "2", "--ep", "2")
    command = ["run", "--model", str(tmp_path), *degrees, "--prompt", PROMPT, "--gen", "12"]
    done = subprocess.run([sys.executable, "-m", "ladder_sim", *command], cwd=REPO, capture_output=True)
    assert (done.returncode, done.stdout.decode()) == (0, greedy(reference, 12) + "\n"), done.stderr


def test_tokens_are_followed_by_tokens_up_to_one_that_ends(
    folder: Path, saved: tuple[Path, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a tokenizer."""
    (folder / "tokenizer.json").unlink()
    ids = tokenizer().encode(PROMPT).ids
    command = ["complete", "--model", str(folder), "--tokens", ",".join(map(str, ids)), "--gen", "8"]
    assert main(command) == 0
    answer = capsys.readouterr().out.strip().split(",")
    assert tokenizer().decode(list(map(int, answer))) == greedy(saved[1], 8)
    end = answer[4]
    replace(folder / "generation_config.json", {"eos_token_id": int(end)})
    assert main(command) == 0
    assert capsys.readouterr().out.strip().split(",") == answer[: answer.index(end)]


def test_a_batch_is_shown_text_by_text(saved: tuple[Path, Any], capsys: pytest.CaptureFixture[str]) -> None:
    folder, reference = saved
    command = ["complete", "--model", str(folder), "--prompt", PROMPT, "--prompt", "An all-reduce adds", "--gen", "6"]
    assert main(command) == 0
    first, _, second = capsys.readouterr().out.partition("\n\n")
    assert first == f"> {PROMPT}\n{greedy(reference, 6)}"
    assert second.startswith("> An all-reduce adds\n")


def test_sampling_keeps_the_most_likely_and_their_odds() -> None:
    likely_V = torch.tensor([0.4, 0.05, 0.3, 0.2, 0.05])
    chance_B = torch.rand(20000, generator=torch.Generator().manual_seed(0))
    logits_BTV = likely_V.log().expand(20000, 1, 5)

    def odds(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> torch.Tensor:
        return sample(logits_BTV, chance_B, temperature, top_k, top_p).bincount(minlength=5) / 20000

    close = {"atol": 0.015, "rtol": 0.0}
    torch.testing.assert_close(odds(), likely_V, **close)
    torch.testing.assert_close(odds(top_k=2), torch.tensor([4 / 7, 0, 3 / 7, 0, 0]), **close)
    # the two likeliest have 0.7, which is less than 0.75
    torch.testing.assert_close(odds(top_p=0.75), torch.tensor([4 / 9, 0, 3 / 9, 2 / 9, 0]), **close)
    torch.testing.assert_close(odds(top_p=0.5, top_k=2), torch.tensor([1.0, 0, 0, 0, 0]), **close)
    squared = likely_V**2 / (likely_V**2).sum()
    torch.testing.assert_close(odds(temperature=0.5), squared, **close)


def test_a_draw_never_leaves_what_is_kept() -> None:
    logits_BTV = torch.zeros(2, 1, 7)
    assert (sample(logits_BTV, torch.tensor([0.0, 1.0 - 2**-24]), 1.0, 3, 0.9) < 3).all()


@pytest.mark.parametrize(
    ("file", "content", "ends"),
    [
        ("generation_config.json", {"eos_token_id": [7, 8]}, {7, 8}),
        ("generation_config.json", {}, {1}),
        ("generation_config.json", {"eos_token_id": 0}, {0}),
    ],
)
def test_the_tokens_that_end_a_text(folder: Path, file: str, content: dict[str, Any], ends: set[int]) -> None:
    replace(folder / file, content)
    assert prepare_completion(CompletionConfig(model=folder, prompts=("x",))).ends == ends


def test_a_tokenizer_of_another_model(folder: Path) -> None:
    other = tokenizer()
    other.add_tokens(["one more"])
    (folder / "tokenizer.json").unlink()
    other.save(str(folder / "tokenizer.json"))
    with pytest.raises(UsageError, match=f"{VOCAB + 1} tokens, but the model's vocabulary has {VOCAB}"):
        prepare_completion(CompletionConfig(model=folder, prompts=("x",)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompts": ("word " * 600,)}, "the model's longest context is 512"),
        ({"gen": 511}, "give a smaller --gen"),
        ({"variant": "laddr"}, "unknown variant"),
        ({"gen": 0}, "gen is 0"),
        ({"dtype": "fp8"}, "unknown dtype"),
        ({"prompts": ()}, "no prompt"),
        ({"ids": ((VOCAB,),)}, f"must be tokens from 0 to {VOCAB - 1}"),
        ({"ids": ((),)}, "one or more"),
        ({"model": Path("nowhere")}, "nowhere/config.json: no such file"),
    ],
)
def test_what_is_refused_before_a_rank_starts(folder: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        prepare_completion(CompletionConfig(**({"model": folder, "prompts": (PROMPT,)} | changes)))


def test_a_context_beyond_a_sliding_window(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "mistral")
    assert prepare_completion(CompletionConfig(model=tmp_path, prompts=("x",), gen=256)).gen == 256


@pytest.mark.parametrize("content", ["{", '{"version": "1.0"}'])
def test_a_tokenizer_that_is_damaged(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        prepare_completion(CompletionConfig(model=folder, prompts=("x",)))


@pytest.mark.parametrize(
    ("special_tokens", "words"),
    [
        ({}, r"tokenizer\.json: "),
        ({"<s>": {"id": "<s>", "ids": [10**6], "tokens": ["<s>"]}}, f"must be tokens from 0 to {VOCAB - 1}"),
    ],
)
def test_a_post_processor_that_adds_what_is_no_token(folder: Path, special_tokens: dict[str, Any], words: str) -> None:
    """The library panics; a token without an embedding came as far as the model."""
    made = json.loads(tokenizer().to_str())
    made["post_processor"]["special_tokens"] = special_tokens
    replace(folder / "tokenizer.json", made)
    with pytest.raises(UsageError, match=words):
        prepare_completion(CompletionConfig(model=folder, prompts=("x",)))


def test_a_panic_of_the_library_is_no_bug() -> None:
    class PanicException(BaseException):
        """As the library raises it."""

    def panic() -> None:
        raise PanicException("no entry")

    with pytest.raises(UsageError, match=r"tokenizer\.json: no entry"):
        _library(Path("tokenizer.json"), panic)


def test_a_tokenizer_is_no_device(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to("/dev/zero")
    with pytest.raises(UsageError, match="is a device: must be a file"):
        prepare_completion(CompletionConfig(model=folder, prompts=("x",)))


@given(damaged(json.loads(tokenizer().to_str())))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_to_a_tokenizer_is_seen(folder: Path, content: bytes) -> None:
    """It is refused, or gives tokens that the model has."""
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_bytes(content)
    try:
        prepared = prepare_completion(CompletionConfig(model=folder, prompts=(PROMPT,)))
    except UsageError as error:
        assert str(error)  # noqa: PT017
        return
    assert all(0 <= token < VOCAB for token in prepared.prompts[0])
    assert isinstance(Text.open(folder, prepared.checkpoint.shape).decode(prepared.prompts[0]), str)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--prompt", "x", "--repeats", "2"), "--repeats is not an option of complete"),
        (("--bench", "--tokens", "2"), "--tokens is not an option of bench"),
        (("--bench", "--prompt", "x"), "'x' is not a number of tokens"),
        (("--prompt", "x", "--variant", "ladder", "--variant", "standard"), "one wiring"),
        (("--prompt", "x", "--save", "x.json"), "--save is for measurements"),
        (("--tokens", "1", "--json"), "--json is for measurements"),
        (("--tokens", "1,x"), "'x' is not a number of tokens"),
        (("--prompt", "x", "--stack", "vllm"), "--stack is for measurements"),
        ((), "give --bench, --prompt or --tokens"),
    ],
)
def test_options_that_do_not_go_together(arguments: tuple[str, ...], words: str) -> None:
    ran = process("run", "--model", "8b", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err
    assert "\n  hint: " in ran.err


@pytest.mark.parametrize("package", ["safetensors", "tokenizers"])
def test_a_package_that_is_absent(folder: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["complete", "--model", str(folder), "--prompt", "x"]) == 4
