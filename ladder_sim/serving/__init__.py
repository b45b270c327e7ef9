"""Requests kept in flight under continuous batching, in closed form.

`closed_loop` is arithmetic on the times of steps; `step` prices the steps and simulates them.
"""
