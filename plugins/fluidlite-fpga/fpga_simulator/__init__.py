"""The simulated board: memory, kernels and a command queue, in a process of their own.

It knows nothing of fluidlite; ``wire`` is all that driver and board share.
"""
