"""Fits the figures of an inference stack that microbenchmarks cannot see to a few of its end-to-end runs.

Robust least squares on the logarithm of the throughput. Runs of one TP degree and batch share an error, so that compute
misfit does not leak into the all-reduce; each figure has a prior from physics, with the catalog's value as its median.
The objective has several minima: it is solved from many points, and the solution of least cost is taken. A bootstrap
says how far each figure is known, and runs left out of the fit how far its intervals are to be trusted.
"""
