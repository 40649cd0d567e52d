"""Running nodes: which queues are held, whose memory is used, and what errors devices have recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fluidlite.compiler.run_errors import LateError
from fluidlite.memory import sharing
from fluidlite.memory.sharing import Use
from fluidlite.nodes.node import Node
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.tensor.tensor import Tensor


@contextmanager
def held(contexts: Sequence[Context], tensors: Callable[[], Iterable[Tensor]]) -> Iterator[None]:
    """Hold the queues of contexts, with the turn of what is read."""

    def uses() -> Iterator[Use]:
        for tensor in tensors():
            allocation = tensor.allocation
            if allocation is None:
                continue
            for context in contexts:
                if context.place == tensor.place and (
                    allocation.sharing is not None or allocation.context is not context
                ):
                    yield Use(allocation, context, False)

    with sharing.held(contexts, uses):
        try:
            yield
        except BaseException:
            for context in contexts:
                context.forget_late()
            raise


def alone(node: Node, run: Callable[[Context, int], None], tensors: Sequence[Tensor]) -> None:
    context = get_context(node._dev.known_place())
    with held([context], lambda: tensors):
        run(context, 0)
        raise_late([context], [node])


def raise_late(contexts: Iterable[Context], nodes: Sequence[Node]) -> None:
    """Raise what kernels have recorded of indices that are out of range, with the node."""
    for context in contexts:
        if not context.suspect or context.nothing_late():
            continue
        word: Any = context.begin_status()
        context.wait()
        late = context.end_status(word)
        if late is not None:
            index, value, bound = late
            node = nodes[index] if index < len(nodes) else "a node"
            raise LateError(
                f"{node}: index {value} is out of range; expected 0 to {bound - 1}\n  Found on {context.place}"
            )
