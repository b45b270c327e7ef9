"""One replica: what an engine runs in each step, and what becomes of a request in it (`answer`).

`scheduler` decides on steps, with the `kv_blocks` of the KV cache and drafted tokens
(`speculation`); `replica` runs them. Its figures are the stack's (`defaults`), or those of a log (`measured_steps`).
`real` lets an engine decide by itself.
"""
