"""How long each op takes, and how sure that is.

`profile_file` and `collectives.fabrics` read files and look up the catalog; pricing an op does neither.
"""
