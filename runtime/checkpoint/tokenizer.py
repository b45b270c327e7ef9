"""Text to tokens and back: a checkpoint's tokenizer.json, its chat template, and the tokens that end a text.

Imports no torch: the launcher refuses a prompt that cannot be encoded before any rank is started.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ladder_sim.errors import MissingPackageError, UsageError
from runtime.checkpoint.files import CONFIG
from runtime.checkpoint.template import chat_prompt
from runtime.config import ModelConfig, read_object

if TYPE_CHECKING:
    import tokenizers


class Text:
    """The tokenizer of a checkpoint."""

    def __init__(self, folder: Path, tokenizer: "tokenizers.Tokenizer") -> None:
        self._folder, self._tokenizer = folder, tokenizer
        # tokens that end a text
        self.ends = _end_tokens(folder)

    @classmethod
    def open(cls, folder: Path, shape: ModelConfig) -> Self:
        """Read tokenizer.json.

        Raises
        ------
        UsageError
            It is missing or damaged, or has tokens without an embedding in the model.
        """
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingPackageError("prompts need tokenizers") from None
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise UsageError(f"{file}: no such file", hint="text needs the checkpoint's tokenizer.json")
        try:
            tokenizer = Tokenizer.from_file(str(file))
        # the library raises nothing narrower
        except Exception as error:
            raise UsageError(f"{file}: {error}", hint="download it again") from None
        needed = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        # models may have more rows, for alignment
        if needed > shape.vocab:
            raise UsageError(
                f"{file}: {needed} tokens, but the model's vocabulary has {shape.vocab}",
                hint="use the tokenizer of these weights",
            )
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return cls(folder, tokenizer)

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, including those that the tokenizer adds, usually one at the beginning."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def encode_prompt(self, prompt: str, *, raw: bool) -> list[int]:
        """Tokens of a prompt, in the chat template if there is one, unless `raw`."""
        chat = None if raw else chat_prompt(self._folder, prompt)
        # templates contain the special tokens
        ids = self.encode(prompt) if chat is None else self._tokenizer.encode(chat, add_special_tokens=False).ids
        if not ids:
            raise UsageError(f"prompt {prompt!r}: no tokens", hint="give a prompt that is not empty")
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, without special ones."""
        text: str = self._tokenizer.decode(list(tokens))
        return text


def _end_tokens(folder: Path) -> frozenset[int]:
    """`eos_token_id` in generation_config.json, else in config.json: one token, several or none."""
    for name in ("generation_config.json", CONFIG):
        if (folder / name).exists():
            value = read_object(folder / name, what=f"the checkpoint's {name}").get("eos_token_id")
            if value is not None:
                tokens = value if isinstance(value, list) else [value]
                if not all(isinstance(token, int) for token in tokens):
                    raise UsageError(f"{folder / name}: eos_token_id is {value!r}: must be a token or a list of them")
                return frozenset(tokens)
    return frozenset()
