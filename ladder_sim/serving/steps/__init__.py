"""How long a step of an engine takes, whatever it runs; of use alone, to other simulators and schedulers.

`mix` says what a step runs. `times` looks up how long that takes on `grids`, and keeps these on disk. `step_model`
simulates what is on the grids, `rest` refines the largest of them.
"""
