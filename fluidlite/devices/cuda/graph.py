"""Launches at static addresses as a CUDA graph: one call starts all of them."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from fluidlite.kernel_support import first_in_child, never_finalize

log = logging.getLogger("fluidlite.cuda")

MIN_GRAPH_LAUNCHES = 2
"""Number of launches from which a graph is faster than single launches."""


class GraphChain:
    """Runs launches in order, by a CUDA graph from the second run on.

    The first run launches one by one: CUDA loads a kernel's code at its first launch, which is not allowed during a
    capture. The second run captures the launches from the stream and starts the graph. If CUDA refuses the capture,
    launches stay single.

    ``refused``: the reason why CUDA made no graph.
    """

    def __init__(self, context: Any, launches: Sequence[Any], launch: Callable[..., None]) -> None:
        self._context = context
        self._launches = [(context, *launch_args) for launch_args in launches]
        self._launch = launch
        self._begun = False
        self._graph: Any = None
        self.refused: str | None = None
        _chains.add(self)

    @property
    def how(self) -> str:
        """A description of a run for reports."""
        if self._graph is not None:
            return "one CUDA graph"
        if self.refused is not None:
            return f"one by one, for CUDA made no graph: {self.refused}"
        return "a CUDA graph from the second run on" if len(self._launches) >= MIN_GRAPH_LAUNCHES else "by itself"

    def run(self) -> None:
        if self._graph is None and self._begun and self.refused is None and len(self._launches) >= MIN_GRAPH_LAUNCHES:
            self._graph = self._capture()
        if self._graph is not None:
            with self._device():
                self._graph.launch(self._context.stream)
            return
        self._launch_all()
        self._begun = True

    def _device(self) -> Any:
        return self._context.cupy.cuda.Device(self._context.place.index)

    def _launch_all(self) -> None:
        for launch_args in self._launches:
            self._launch(*launch_args)

    def _capture(self) -> Any:
        """Capture the launches without running them; return the graph, or None and set ``refused``."""
        stream = self._context.stream
        try:
            with self._device():
                stream.begin_capture()
                try:
                    self._launch_all()
                finally:
                    graph = stream.end_capture()  # also after an error: else the stream would stay in capture mode
        except Exception as exc:  # errors of CuPy and of the driver have no common class
            self.refused = f"{type(exc).__name__}: {exc}"
            log.info("%s: launches stay one by one: %s", self._context.place, self.refused)
            return None
        return graph


_chains: weakref.WeakSet[GraphChain] = weakref.WeakSet()


@first_in_child
def _leave_to_parent() -> None:
    """Keep graphs alive in a forked child: it has no driver, so freeing one would fail and CuPy would print that."""
    for chain in _chains:
        never_finalize(chain._graph)
