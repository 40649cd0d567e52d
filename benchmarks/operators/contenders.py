"""NumPy and PyTorch as contenders of a case."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.operators.case import Array, Case, arrays, listed, torch


class InNumPy:
    """What one would write with NumPy."""

    def __init__(self, case: Case, size: str) -> None:
        assert case.numpy is not None
        self.function = case.numpy
        self.arrays = arrays(case.inputs(size))
        self.results: list[Any] = []

    def run(self) -> None:
        """Call it."""
        self.results = listed(self.function(*self.arrays))

    def read(self) -> list[Array]:
        """The results."""
        return [np.asarray(result) for result in self.results]


class InTorch:
    """What one would write with PyTorch, eager; or its gradient."""

    def __init__(self, case: Case, size: str, gradient: bool = False) -> None:
        assert case.torch is not None
        inputs = case.inputs(size)
        self.function = case.torch
        self.gradient = gradient
        self.arguments: list[Any] = []
        self.leaves: list[Any] = []
        for slot, value in inputs.items():
            for array in value if isinstance(value, list) else [value]:
                tensor = torch.from_numpy(np.ascontiguousarray(array).copy())
                if gradient and slot in case.grads:
                    tensor.requires_grad_()
                    self.leaves.append(tensor)
                self.arguments.append(tensor)
        self.results: list[Any] = []
        if gradient:
            outputs = listed(self.function(*self.arguments))
            flow = case.flow(size, [np.asarray(output.detach().numpy()) for output in outputs])
            self.starts = [torch.from_numpy(np.asarray(array)) for array in flow]
            self.outputs = outputs[: len(flow)]

    def run(self) -> None:
        """Call it."""
        if self.gradient:
            self.results = list(
                torch.autograd.grad(self.outputs, self.leaves, self.starts, retain_graph=True, allow_unused=True)
            )
        else:
            self.results = listed(self.function(*self.arguments))

    def read(self) -> list[Array | None]:
        """The results; None for a gradient that is not there."""
        return [None if result is None else result.detach().numpy() for result in self.results]

    def views(self) -> bool:
        """Whether PyTorch copies nothing: each result lies in an input's memory, or repeats one by strides of 0."""
        given = [*self.arguments, *(self.starts if self.gradient else ())]
        owned = {tensor.untyped_storage().data_ptr() for tensor in given}
        return all(
            not self.updates(result) and (result.untyped_storage().data_ptr() in owned or 0 in result.stride())
            for result in self.results
            if result is not None
        )

    def updates(self, result: Any) -> bool:
        """Whether a result is an input itself: an update in place."""
        return not self.gradient and any(result is tensor for tensor in self.arguments)


def timed(contender: Any, calls: int, clock: str = "wall") -> float:
    """Return the seconds of a call, of several in a row: of the wall clock, or of all the process's threads."""
    read = time.process_time if clock == "cpu" else time.perf_counter
    start = read()
    for _ in range(calls):
        contender.run()
    return (read() - start) / calls
