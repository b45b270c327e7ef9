"""Many scenarios at once: a grid over any of their fields, run in chunks, kept in memory or written to a file.

``axes`` turns what was typed into values, ``grid`` lays out the points and cuts them into chunks, ``evaluate`` predicts
one chunk, ``executors`` spread chunks over processes or a Dask cluster, ``table`` keeps results,
``files`` writes them, and ``run`` joins all of these.
"""
