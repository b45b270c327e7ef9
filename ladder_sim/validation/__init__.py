"""Published measurements compared with predictions.

`dataset` reads them, `splits` says which rows a calibration may see, `compare` predicts each row.
"""
