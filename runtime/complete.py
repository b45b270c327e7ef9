"""Complete prompts with a checkpoint: one batch, until every text has ended.

Shapes: B batch, T prompt tokens.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from typing import Literal

import torch

from ladder_sim.system.schema import Schema
from runtime.assemble import TORCH_DTYPES, device_of, load
from runtime.comm.process_group import Degrees
from runtime.comm.rendezvous import CommConfig, connect
from runtime.config import EngineConfig
from runtime.generate import Generator
from runtime.memory import Workload, enough_memory
from runtime.prepare import CompletionConfig, CompletionInput, SamplingConfig, prepare_completion
from runtime.sampling import Sampler

SCHEMA = Schema()
# what the bytes of an incomplete character decode to
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"

# called with the number of a prompt and what was added to its text
Show = Callable[[int, str], None]


class Completion:
    """A text that grows token by token until it ends.

    Parameters
    ----------
    decode
        From tokens to text.
    ends
        Tokens that end it and are not part of it.
    stops
        Strings that end it and are not part of it.
    maximum
        Number of tokens after which it ends.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], *, ends: Collection[int], stops: Sequence[str], maximum: int
    ) -> None:
        self._decode, self._ends, self._stops, self._maximum = decode, ends, stops, maximum

        # so far, including the one that ends it
        self.tokens: list[int] = []

        # the part that will not change any more
        self.text = ""

        # why it ended; None: it grows
        self.reason: Literal["end", "stop", "length"] | None = None

    def push(self, token: int) -> str:
        """Append a token; returns the text that is now certain."""
        self.tokens.append(token)
        ended = token in self._ends
        text = self._decode(self.tokens[:-1] if ended else self.tokens)
        stops_at = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if stops_at:
            self.reason, text = "stop", text[: min(stops_at)]
        elif ended:
            self.reason = "end"
        elif len(self.tokens) == self._maximum:
            self.reason = "length"
        else:
            text = self._certain_part(text)
        new = text[len(self.text) :]
        self.text += new
        return new

    def _certain_part(self, text: str) -> str:
        """All but an incomplete character, and all but what may be the beginning of a stop string."""
        text = text.rstrip(_INCOMPLETE)
        begun = [length for stop in self._stops for length in range(1, len(stop)) if text.endswith(stop[:length])]
        return text[: len(text) - max(begun, default=0)]


def complete(config: CompletionConfig, sampling: SamplingConfig, links: CommConfig, show: Show) -> dict[str, object]:
    """Texts and their speed, the same on every rank; `show` is called as the texts grow."""
    task = prepare_completion(config)
    torch.set_num_threads(config.threads)
    comm = connect(links, Degrees(config.tp, pp=config.pp))
    device, checkpoint = device_of(comm), task.checkpoint
    dtype = checkpoint.dtype if config.dtype == "auto" else config.dtype
    rows, pads = left_padded(task.prompts)
    work = Workload(
        batch=len(rows), prompt=len(rows[0]), gen=task.gen, dtype=TORCH_DTYPES[dtype], wirings=[task.wiring]
    )
    model = load(checkpoint.shape, EngineConfig(ep=config.ep), comm, checkpoint.source, work, device)
    generator = Generator(
        model,
        torch.tensor(rows, device=device),
        task.gen,
        pad_B=torch.tensor(pads, device=device) if any(pads) else None,
        pick=Sampler(sampling, comm),
    )
    texts = [Completion(task.text.decode, ends=task.text.ends, stops=config.stops, maximum=task.gen) for _ in rows]
    with enough_memory(task.wiring.name, comm.rank):
        times_s = _grow(texts, generator, task, show)
    how: dict[str, object] = {**asdict(config), **asdict(sampling), "model": str(config.model)}
    how |= {"variant": task.wiring.name, "gen": task.gen, "dtype": dtype, "backend": comm.name, **comm.settings()}
    return SCHEMA.marked(
        run=how,
        completions=[
            {"prompt": prompt, "prompt_tokens": len(ids), "text": text.text, "tokens": text.tokens, "end": text.reason}
            for prompt, ids, text in zip(config.prompts, task.prompts, texts, strict=True)
        ],
        ttft_s=times_s[0],
        tokens_per_s=sum(len(text.tokens) for text in texts) / times_s[-1],
    )


def _grow(texts: Sequence[Completion], generator: Generator, task: CompletionInput, show: Show) -> list[float]:
    """Run steps until every text has ended; returns when each step ended, in seconds from the start."""
    times_s: list[float] = []
    start_s = time.perf_counter()
    while not all(text.reason for text in texts):
        step = len(times_s)
        if step == 0:
            generator.prefill(task.wiring)
        else:
            generator.decode(task.wiring, step)
        # to the CPU: what follows waits for the GPU
        for number, token in enumerate(generator.tokens()[:, step].tolist()):
            if texts[number].reason is None:
                show(number, texts[number].push(token))
        times_s.append(time.perf_counter() - start_s)
    return times_s


def left_padded(prompts: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[int]]:
    """Prompts of equal length, and how much padding each begins with; padding is token 0, which nothing attends to."""
    longest = max(map(len, prompts))
    pads = [longest - len(prompt) for prompt in prompts]
    return [[0] * pad + list(prompt) for pad, prompt in zip(pads, prompts, strict=True)], pads
