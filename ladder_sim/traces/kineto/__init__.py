"""Traces of PyTorch's profiler, read into a `TraceGraph`.

`reader` parses a file, `cuda` (with `waits` and `threads`) or `cpu` (with `execution`) makes ops of its events, `ranks`
joins the ranks' files.
"""
