"""The closed loop: measure one machine, predict from it, run the same there, compare.

`bed` runs and times passes, by `stopwatch` (kernels in place), `links` (collectives alone) and `beside` (both at once);
`measured` has them take turns and yields `observations`, from which `predicted` calibrates and predicts, `compared`
judges, and `stored` keeps the calibration for another time.
"""
