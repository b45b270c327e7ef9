"""The closed loop: measure one machine, predict from it, run the same there, compare.

`observations` holds what was measured, `measured` measures it (torch), `predicted` and `compared` need no torch.
"""
