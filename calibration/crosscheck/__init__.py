"""Predictions of one machine from real passes on it, compared with requests that took turns with those passes.

`run` observes and predicts with `calibration.passes`, `compare` judges the errors, and `store` reads earlier results.
`run` needs torch.
"""
