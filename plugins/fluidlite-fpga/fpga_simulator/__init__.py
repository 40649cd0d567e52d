"""The simulated board: memory, kernels and command queues, in a separate process.

It does not depend on fluidlite; driver and board share only ``wire``.
"""
