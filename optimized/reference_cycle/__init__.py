"""A small, complete speculative-decode cycle in PyTorch, DFlash or DSpark behind a paged target: stock, to be read.

Start with `cycle.Cycle.step`.
"""
