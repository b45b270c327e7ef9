"""Many scenarios at once: a grid over any of their fields, run in chunks, kept in memory or written to a file.

``ranges`` reads what was typed, ``axes`` says what it means, ``grid`` lays out the points and cuts them into chunks,
``evaluate`` answers one chunk, ``executors`` spread chunks over processes or a Dask cluster, ``table`` keeps answers,
``formats`` and ``files`` write them, and ``run`` is the whole.
"""
