"""A small, complete speculative-decode cycle in PyTorch: DFlash, DSpark or EAGLE behind a paged target, stock.

Start with `cycle.Cycle.step`.
"""
