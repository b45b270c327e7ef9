"""The closed loop: measure one machine, predict from it, run the same there, compare.

`testbed` runs and times passes with `timers`. `measure` lets calibration and predicted runs take turns and returns
`observations`. `predict` calibrates on them and predicts every run, `compare` judges the errors, `run` does it all, and
`store` keeps results on disk. `testbed`, `timers`, `measure` and `run` need torch.
"""
