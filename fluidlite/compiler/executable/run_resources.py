"""What a run holds: the queues of its contexts, and the arenas that its thread allocates from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from fluidlite.memory import memory_of
from fluidlite.memory.arena import Arena, arenas_in_use, current_arena
from fluidlite.memory.sharing import Use, turn
from fluidlite.platform.context import Context
from fluidlite.platform.device_context import ContextBase
from fluidlite.platform.place import Place


@contextmanager
def held(contexts: Sequence[Context], uses: Callable[[], Iterable[Use]] = lambda: ()) -> Iterator[None]:
    """Hold queues, as a run does, and have the turn of what is used."""
    with ExitStack() as stack:
        stack.enter_context(turn(contexts, uses))
        for context in contexts:
            if type(context.raw).activate is not ContextBase.activate:
                stack.enter_context(context.raw.activate())
        yield


def arenas_of(places: Iterable[Place]) -> tuple[Arena | None, ...]:
    """The arenas that this thread allocates from on some places; () if there are none."""
    return tuple([current_arena(memory_of(place)) for place in places]) if arenas_in_use() else ()
