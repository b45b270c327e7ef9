"""Published measurements compared with predictions.

`dataset` reads them and says which rows a calibration may see, `compare` predicts each row.
"""
