"""Real tensor-parallel forward passes of every residual wiring, in PyTorch.

Imports torch and the standard library only (safetensors, tokenizers, jinja2 and triton inside functions); never
`ladder_sim` or `calibration`. What comes in are files: a Hugging Face config.json or checkpoint, a table of all-reduce
latencies. What goes out are files too: JSON of a benchmark, JSON lines of a recording, a checkpoint.
"""
