"""Answers other than a prediction as JSON and CSV.

The answers' modules are imported for their types only: a command needs those of one answer.
"""
