"""Published measurements beside predictions.

`dataset` reads them, `splits` says which rows a calibration may see, `compare` predicts each row. May import
everything below `ladder_sim.sweep`.
"""
