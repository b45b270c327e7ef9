"""The wiring that is best for one model, plan and link, layer by layer.

space    a file: what each layer may choose, and what quality that is known to cost
search   dynamic programming over the borders between layers, then simulation of what it finds
"""
