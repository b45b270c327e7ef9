"""Reads traces of PyTorch's profiler into a `TraceGraph`.

`reader` parses a file, `processes` splits it into ranks, `marks` finds its steps. `cuda` (with `waits` and `threads`)
or `cpu` (with `execution` and `link`) turns its events into ops under construction (`draft`), of the kinds that `kinds`
knows by name, the `sizes` of their tensors and the `modules` around them. `ranks` joins the files of all ranks.
"""
