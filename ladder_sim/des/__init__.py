"""Discrete-event simulation of tasks on streams. Knows tasks and resources, not transformers."""
