"""Reads traces of PyTorch's profiler into a `TraceGraph`.

`reader` parses a file. `cuda` (with `waits` and `threads`) or `cpu` (with `execution` and `link`) turns its events into
ops under construction (`draft`). `ranks` joins the files of all ranks.
"""
