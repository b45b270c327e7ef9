"""The figures of every answer, one function each, all in the style of `ladder_sim.report.figures.style`."""
