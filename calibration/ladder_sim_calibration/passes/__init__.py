"""A profile of one machine from real passes: their kernels, messages and waits, each in its place.

`observe` runs passes on a `testbed`, by `timers`, and returns `observations`; `fit` makes a profile of
them. `observe` and what it uses need torch.
"""
