"""From measurements to calibration profiles, and back: predictions compared with measurements.

`measure` takes samples of ops, `fit` makes profiles of samples, `stack_fit` fits a stack's figures to end-to-end runs,
`passes` makes a profile of real passes of this machine, `crosscheck` predicts such passes from it and compares,
`evidence` measures all that a borrowed machine is for. `measure`, `passes`, `crosscheck` and `evidence` need torch and
`runtime`. All of it may import `ladder_sim`, which imports none.
"""
