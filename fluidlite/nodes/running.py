"""Running nodes: lock queues, order uses of memory, and raise deferred errors of devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fluidlite.compiler.run_errors import DeferredIndexError
from fluidlite.memory import sharing
from fluidlite.memory.sharing import Use
from fluidlite.nodes.node import Node
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.tensor.tensor import Tensor


@contextmanager
def locked_queues(contexts: Sequence[Context], tensors: Callable[[], Iterable[Tensor]]) -> Iterator[None]:
    """Lock the queues of contexts, ordered after other uses of the tensors that are read."""

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

    with sharing.lock_contexts(contexts, uses):
        try:
            yield
        except BaseException:
            for context in contexts:
                context.drop_deferred_errors()
            raise


def run_single(node: Node, run: Callable[[Context, int], None], tensors: Sequence[Tensor]) -> None:
    """Run one node outside a graph, and raise its deferred errors."""
    context = get_context(node._dev.known_place())
    with locked_queues([context], lambda: tensors):
        run(context, 0)
        raise_deferred([context], [node])


def raise_deferred(contexts: Iterable[Context], nodes: Sequence[Node]) -> None:
    """Raise the deferred error of an index out of range, if kernels recorded one, with its node."""
    for context in contexts:
        if not context.may_have_error or context.has_no_deferred_error():
            continue
        status: Any = context.begin_status()
        context.wait()
        error = context.end_status(status)
        if error is not None:
            index, value, bound = error
            node = nodes[index] if index < len(nodes) else "a node"
            raise DeferredIndexError(
                f"{node}: index {value} is out of range; expected 0 to {bound - 1}\n  Found on {context.place}"
            )
