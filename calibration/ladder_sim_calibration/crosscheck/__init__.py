"""Predictions of one machine from real passes on it, compared with requests that took turns with those passes.

`run` observes, predicts with `ladder_sim_calibration.passes` and judges the errors; it needs torch.
"""
