"""A bounded cache that several threads may use."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Bounded(Generic[Value]):
    """The ``most`` values used last, by key."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of a key; make it if it is not there."""
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
                return found
        made = make()
        with self._lock:
            self._values[key] = made
            while len(self._values) > self.most:
                self._values.popitem(last=False)
        return made

    def __len__(self) -> int:
        return len(self._values)
