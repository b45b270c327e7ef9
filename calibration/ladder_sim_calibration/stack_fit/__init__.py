"""Fits the figures of an inference stack that microbenchmarks cannot see to a few of its end-to-end runs.

Robust least squares on the logarithms of prefills and decode steps, or of the throughput where these were not measured
apart. The same figure of runs of one TP degree and batch shares an error, so that errors of the compute model do not
end up in the all-reduce. Each figure has a prior from physics, with the catalog's value as
its median. The objective has several minima: it is solved from many starting points, and the solution of lowest cost is
kept. A bootstrap shows how well each figure is determined; runs left out of the fit show how wide intervals must be.
"""
