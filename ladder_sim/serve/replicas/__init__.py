"""Replicas that serve together, on simpy.

`simulation` sends requests to `pools` of replicas by one of the `routers`; `outcome` says what became of them.
"""
