"""From measurements to calibration profiles, and back: predictions beside measurements.

`measure` takes samples and times passes (torch and `runtime`), `fit` makes profiles of samples, `crosscheck` closes the
loop. `fit`, `importers`, `transfer` and `show` import neither torch nor `runtime`, and of `ladder_sim` only `costs`,
`specs`, `units` and `errors`, `transfer` its predictions too.
"""
