"""Answers that take many predictions: break-even values, sensitivities, what to run, and which machine."""
