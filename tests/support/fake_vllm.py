"""A stand-in for vLLM's command: a server that says it is well, and a client whose results are those of one that works.

With FAKE_VLLM_FAILS in the environment a server whose command line has that text ends with the error FAKE_VLLM_ERROR.
"""

import http.server
import json
import os
import sys
from pathlib import Path

TTFT_S, TPOT_S = 0.1, 0.01


def main(words: list[str]) -> int:
    flags = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
    if words[0] == "bench":
        Path(flags["result-dir"], flags["result-filename"]).write_text(json.dumps(result(flags)), "utf-8")
        return 0
    fails = os.environ.get("FAKE_VLLM_FAILS")
    if fails and any(fails in word for word in words):
        print(f"{os.environ['FAKE_VLLM_ERROR']}\nit ends", flush=True)
        return 1
    http.server.HTTPServer(("127.0.0.1", int(flags["port"])), _Health).serve_forever()
    return 0


def result(flags: dict[str, str]) -> dict[str, object]:
    count, at_once, gen = (int(flags[name]) for name in ("num-prompts", "max-concurrency", "random-output-len"))
    e2e_s = TTFT_S + TPOT_S * (gen - 1)
    duration_s = count / at_once * e2e_s
    times = {"ttft": TTFT_S, "tpot": TPOT_S, "itl": TPOT_S, "e2el": e2e_s}
    return {
        "backend": flags["backend"],
        "model_id": "model",
        "num_prompts": count,
        "request_rate": "inf",
        "max_concurrency": at_once,
        "completed": count,
        "failed": 0,
        "duration": duration_s,
        "burstiness": 1.0,
        "total_input_tokens": count * int(flags["random-input-len"]),
        "total_output_tokens": count * gen,
        "request_throughput": count / duration_s,
        "output_throughput": count * gen / duration_s,
        **{f"{kind}_{name}_ms": each_s * 1e3 for name, each_s in times.items() for kind in ("mean", "median", "p99")},
    }


class _Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
