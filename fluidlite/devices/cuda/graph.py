"""Launches on memory that stays, as a CUDA graph: started by one call, whatever their number."""

from __future__ import annotations

import ctypes
import logging
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

log = logging.getLogger("fluidlite.cuda")

FEWEST = 2
"""Launches from which a graph starts sooner than they do."""


class GraphChain:
    """Does launches in order, by a graph from the second run on.

    The first run launches one by one: CUDA loads code when it is first launched, which a stream that is being captured
    may not do. The second captures the stream while the same launches are made, and starts what was captured; nothing
    but launches comes here, so nothing else is captured. Where CUDA refuses, they go on one by one.

    ``refused``: why CUDA gave no graph.
    """

    def __init__(self, context: Any, launches: Sequence[Any], launch: Callable[..., None]) -> None:
        self._context = context
        self._launches = [(context, *given) for given in launches]
        self._launch = launch
        self._begun = False
        self._graph: Any = None
        self.refused: str | None = None
        _chains.add(self)

    @property
    def how(self) -> str:
        """What a run does, in words."""
        if self._graph is not None:
            return "one CUDA graph"
        if self.refused is not None:
            return f"one by one, for CUDA made no graph: {self.refused}"
        return "a CUDA graph from the second run on" if len(self._launches) >= FEWEST else "by itself"

    def run(self) -> None:
        if self._graph is None and self._begun and self.refused is None and len(self._launches) >= FEWEST:
            self._graph = self._captured()
        if self._graph is not None:
            with self._device():
                self._graph.launch(self._context.stream)
            return
        self._each()
        self._begun = True

    def _device(self) -> Any:
        return self._context.cupy.cuda.Device(self._context.place.index)

    def _each(self) -> None:
        for given in self._launches:
            self._launch(*given)

    def _captured(self) -> Any:
        """Return the graph of the launches, none of which runs meanwhile; or None, with the reason noted."""
        stream = self._context.stream
        try:
            with self._device():
                stream.begin_capture()
                try:
                    self._each()
                finally:
                    graph = stream.end_capture()  # behind an error too: else the stream would stay as it is
        except Exception as exc:  # of CuPy or the driver, which have no common one
            self.refused = f"{type(exc).__name__}: {exc}"
            log.info("%s: launches stay one by one: %s", self._context.place, self.refused)
            return None
        return graph


_chains: weakref.WeakSet[GraphChain] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """Free no graph in a forked child: the driver, which is not there, would refuse, and CuPy would print that."""
    for chain in _chains:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(chain._graph))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
