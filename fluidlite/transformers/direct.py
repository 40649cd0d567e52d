"""The shortest way through a bound program: arguments that look as before are copied in, and results out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import get_ident
from typing import Any

import numpy as np

from fluidlite.base.dtypes import NUMPY
from fluidlite.framework.choose import generation
from fluidlite.framework.interpreter import raise_late
from fluidlite.framework.observe import observers
from fluidlite.framework.policy import policy
from fluidlite.framework.scope import Scope
from fluidlite.transformers.bound import Bound
from fluidlite.transformers.chain import Launches

Array = np.ndarray[Any, Any]


class Direct:
    """Calls a bound program on the host's memory, without looking at anything that did not change.

    Parameters
    ----------
    bound : Bound
        One for which :func:`direct` has no objection.
    scope : Scope
    arguments : sequence of str
        The feeds, in the order of a call's arguments.
    results : sequence of str
        What is fetched, in the order of the results.
    """

    def __init__(self, bound: Bound, scope: Scope, arguments: Sequence[str], results: Sequence[str]) -> None:
        self._bound, self._scope = bound, scope
        (self._context,) = bound.contexts
        specs = [bound.plan.feeds[name] for name in arguments]
        self._looks = [(spec.dims, np.dtype(NUMPY[spec.dtype])) for spec in specs]
        self._arguments = arguments
        keys = {name: key for name, key, _, _ in bound.plan.fetches}
        self._results = [keys[name] for name in results]
        self._thread = get_ident()
        self._stamp = generation(), policy()
        self._attached = -1
        self._into: list[Array] = []
        self._from: list[Array] = []
        self._bytes = 0
        self._quiet: AbstractContextManager[Any] | None = None

    def __call__(self, args: tuple[Any, ...]) -> list[Array] | None:
        """Run it; None, and nothing has happened, where it has to go the usual way."""
        if len(args) != len(self._looks):
            return None
        for value, (dims, dtype) in zip(args, self._looks, strict=True):
            if type(value) is not np.ndarray or value.shape != dims or value.dtype is not dtype:
                return None
        bound = self._bound
        if get_ident() != self._thread or self._stamp != (generation(), policy()) or observers() or bound.busy:
            return None
        if not bound.settled(self._scope):
            return None
        if self._attached != bound.attached:
            self._look_up()
        context = self._context
        with context.lock, self._quiet if self._quiet is not None else context.raw.activate():
            return self._call(args)

    def _look_up(self) -> None:
        """Find the arrays of arguments and results where they are now."""
        fixed = self._bound.fixed
        self._into = [fixed[name].array() for name in self._arguments]
        self._from = [fixed[key].array() for key in self._results]
        self._bytes = sum(array.nbytes for array in self._from)
        native = all(isinstance(action, Launches) for action in self._bound.actions)
        self._quiet = nullcontext() if native else None  # NumPy does nothing that could warn
        self._attached = self._bound.attached

    def _call(self, args: tuple[Any, ...]) -> list[Array]:
        bound, context = self._bound, self._context
        bound.begin(self._scope)
        try:
            for array, value in zip(self._into, args, strict=True):
                array[...] = value
            bound.act()
            found = [array.copy() for array in self._from]
            context.counts.copy_out += len(found)
            context.counts.bytes_out += self._bytes
            if context.suspect:
                raise_late(bound.frame, [context])
            return found
        except BaseException:
            context.forget_late()
            raise
        finally:
            bound.end([bound])


def direct(bound: Bound, scope: Scope, arguments: Sequence[str], results: Sequence[str]) -> Direct | None:
    """Return the shortest way through a bound program, or None where something of it is another at each call."""
    if bound.stage or bound.plan.pending is not None or len(bound.contexts) != 1 or bound.varies or bound.foreign:
        return None
    (context,) = bound.contexts
    if not context.unit.info.host or context.xp is None or not context.array.eager:
        return None
    keys = {name: key for name, key, _, spec in bound.plan.fetches if not spec.lod}
    if any(keys.get(name) not in bound.fixed for name in results) or any(n not in bound.fixed for n in arguments):
        return None
    if set(arguments) != set(bound.plan.feeds) or any(spec.lod for spec in bound.plan.feeds.values()):
        return None
    if not all(bound.fixed[keys[name]].contiguous for name in results):
        return None
    return Direct(bound, scope, arguments, results)
