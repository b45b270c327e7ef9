"""Reads traces of PyTorch's profiler into a `TraceGraph`.

`reader` parses a file, `annotations` say its steps and the modules around an op. `cuda` (with `waits`) or `cpu` turns
its events into ops under construction (`draft`), of the kinds that `kinds` knows by name. `ranks` joins the files of
all ranks.
"""
