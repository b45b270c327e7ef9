"""vLLM as people run it, with random weights: standard and ladder by the plug-in, each under three loads.

A server is started with `--load-format dummy` and asked by `vllm bench serve`. What a load met is a file of its own; a
server that does not start, or a load that fails, is said with its last line and costs nothing else.
"""

import contextlib
import ctypes
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ladder_sim.errors import LadderSimError, MissingDependencyError
from ladder_sim.serving.requests.results import read_results
from ladder_sim.specs import catalog
from ladder_sim.system.files import write_file
from ladder_sim.system.processes import ending_children

# models with the degree of their servers, the most valuable first
SERVERS = (("70b", 8), ("8b", 4))
VARIANTS = ("standard", "ladder")
# requests in flight: one by one, half and twice what fills a decode step of 32 sequences
LOADS = (16, 64, 1)
PROMPT, GEN = 1024, 512
# waves of requests for each in flight; below ten requests a mean says little
WAVES, FEWEST = 3, 8
# name under which plugins/vllm-ladder serves a Llama
_ARCHITECTURE = "LadderLlamaForCausalLM"
# until a server of 70B answers: weights are drawn, kernels compiled, graphs captured
START_S, END_S = 900.0, 30.0


class Serving(NamedTuple):
    """One load on servers of one model; a file for each variant."""

    model: str
    tp: int
    concurrency: int
    variants: tuple[str, ...] = VARIANTS

    @property
    def name(self) -> str:
        """Name of the load's files, before the variant."""
        return f"serve-{self.model}-tp-{self.tp}-load-{self.concurrency}"

    @property
    def arguments(self) -> dict[str, Any]:
        """What `Scenario` takes, but for the model and the cluster."""
        sizes = {"tp": self.tp, "prompt": PROMPT, "gen": GEN, "dtype": "bf16"}
        return {"stack": "vllm", "concurrency": self.concurrency, **sizes}


def servings(ranks: int) -> Iterator[Serving]:
    """Yield every load on every server for which there are GPUs."""
    for model, tp in SERVERS:
        if tp <= ranks:
            yield from (Serving(model, tp, load) for load in LOADS)


def serve(each: tuple[Serving, ...], folder: Path, vllm: str, end_s: float) -> Iterator[str]:
    """Measure the loads of each server that have no file yet; yields what failed.

    Parameters
    ----------
    each
        Loads, in the order of their worth.
    folder
        Where results, logs and the models' configs go.
    vllm
        Command of vLLM.
    end_s
        Until when a server is begun, as `time.monotonic` counts.
    """
    for model, tp in dict.fromkeys((serving.model, serving.tp) for serving in each):
        for variant in VARIANTS:
            left = [
                serving
                for serving in each
                if (serving.model, serving.tp) == (model, tp) and not result_of(folder, serving, variant).exists()
            ]
            if not left:
                continue
            name = f"serve-{model}-tp-{tp}-{variant}"
            if time.monotonic() > end_s:
                yield f"not measured: {name}: no time was left"
                continue
            print(f"serving {model} at TP {tp} as {variant}", file=sys.stderr)
            try:
                with ending_children(), _server(folder, vllm, model, tp, variant, name) as port:
                    for serving in left:
                        _ask(folder, vllm, serving, variant, port)
            except (LadderSimError, OSError, subprocess.SubprocessError) as error:
                yield f"not measured: {name}: {getattr(error, 'message', error)}"


def result_of(folder: Path, serving: Serving, variant: str) -> Path:
    """Return the file with the result of a load."""
    return folder / f"{serving.name}-{variant}.json"


def server_command(vllm: str, place: Path, tp: int, variant: str, port: int) -> list[str]:
    """Start a server of random weights; ladder is served by the plug-in."""
    wired = {"architectures": [_ARCHITECTURE], "ladder_sim_wiring": variant}
    command = [vllm, "serve", str(place), "--load-format=dummy", f"--tensor-parallel-size={tp}", f"--port={port}"]
    command += ["--host=127.0.0.1", "--served-model-name=model", "--no-enable-prefix-caching", "--dtype=bfloat16"]
    command += [f"--max-model-len={2 * (PROMPT + GEN)}"]
    return command + ([] if variant == "standard" else [f"--hf-overrides={json.dumps(wired)}"])


def bench_command(vllm: str, place: Path, serving: Serving, port: int, result: Path) -> list[str]:
    """Ask a server for answers of one length, so many at a time."""
    flags = {
        "backend": "openai",
        "host": "127.0.0.1",
        "port": port,
        "model": "model",
        "tokenizer": place,
        "dataset-name": "random",
        "random-input-len": PROMPT,
        "random-output-len": GEN,
        "max-concurrency": serving.concurrency,
        "num-prompts": max(FEWEST, WAVES * serving.concurrency),
        "num-warmups": min(FEWEST, serving.concurrency),
        "result-dir": result.parent,
        "result-filename": result.name,
    }
    command = [vllm, "bench", "serve", "--ignore-eos", "--save-result", "--disable-tqdm"]
    return [*command, *(f"--{name}={value}" for name, value in flags.items())]


def write_model(place: Path, model: str) -> None:
    """Write what a server of random weights starts with: a config.json, and a tokenizer by which a word is a token."""
    place.mkdir(parents=True, exist_ok=True)
    vocab = {"<unk>": 0, **{f"w{number}": number for number in range(1, catalog.model(model).vocab)}}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    }
    files = {
        "config.json": _config(model),
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"},
    }
    for name, content in files.items():
        write_file(place / name, json.dumps(content))


def _config(model: str) -> dict[str, Any]:
    """Return the config.json of a model of the catalog, as vLLM reads it."""
    config = {name: value for name, value in catalog.model_config(model).items() if not name.startswith("_")}
    return {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", **config}


@contextlib.contextmanager
def _server(folder: Path, vllm: str, model: str, tp: int, variant: str, name: str) -> Iterator[int]:
    """Start a vLLM server, yield its port once it answers, and end it with its processes."""
    place, log = folder / f"serve-{model}", folder / f"{name}.log"
    if not (place / "tokenizer_config.json").exists():
        write_model(place, model)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    with log.open("wb") as output:
        command = server_command(vllm, place, tp, variant, port)
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, preexec_fn=_end_with_parent)
        try:
            _wait(process, port, log)
            yield port
        finally:
            # it ends its workers itself
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            process.kill()
            process.wait()


def _end_with_parent() -> None:
    """Let a server end, and give its GPUs back, however this process ends: PR_SET_PDEATHSIG of Linux's sys/prctl.h."""
    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))


def _wait(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    """Wait until a server answers."""
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5.0):
            return
        time.sleep(0.2)
    said = log.read_text("utf-8", "replace")
    if f"['{_ARCHITECTURE}'] are not supported" in said:
        raise MissingDependencyError("this vLLM has no plug-in: pip install . ./plugins/vllm-ladder in its environment")
    why = f"ended with {process.returncode}" if process.poll() is not None else f"does not answer after {START_S:g} s"
    raise LadderSimError(f"the server {why}: {_last(said)}")


def _ask(folder: Path, vllm: str, serving: Serving, variant: str, port: int) -> None:
    """Run one load; a result in which requests failed, or that contradicts itself, is put aside."""
    result = result_of(folder, serving, variant)
    part = result.with_name(f"part-{result.name}")
    command = bench_command(vllm, folder / f"serve-{serving.model}", serving, port, part)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LadderSimError(
            f"load {serving.concurrency}: the client ended with {done.returncode}: {_last(done.stderr)}"
        )
    (read,) = read_results(part)
    if read.failed or read.contradiction:
        raise LadderSimError(f"load {serving.concurrency}: {read.contradiction or f'{read.failed} requests failed'}")
    part.replace(result)


def _last(text: str) -> str:
    """Return the line that says why a run failed: the last line with an error in it, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "no word")
