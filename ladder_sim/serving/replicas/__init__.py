"""Replicas that serve together, on simpy.

`simulation` sends requests to pools of replicas by a router; `outcome` says what became of them.
"""
