"""Unique names of unnamed variables and layers, as in Fluid: ``fc_0.w_0``, ``fc_0.tmp_1``, ..."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fluidlite.base.arguments import check_instance, text
from fluidlite.base.context_value import ContextDefault


class Generator:
    """Generates unique names: calls return ``key_0``, ``key_1``, ... in turn."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.ids: dict[str, int] = {}

    def __call__(self, key: str) -> str:
        if not isinstance(key, str):
            text("the key of a unique name", key)
        number = self.ids.get(key, 0)
        self.ids[key] = number + 1
        return f"{self.prefix}{key}_{number}"


_generator = ContextDefault("unique_name", Generator())


def generate(key: str) -> str:
    """Return ``key_0``, ``key_1``, ... in turn."""
    return _generator.variable.get(_generator.process_value)(key)


def switch(new: Generator | None = None) -> Generator:
    """Restart the numbering (or use ``new``), inside a guard that of its thread; return the previous generator."""
    if new is not None:
        check_instance("the generator of unique_name.switch", new, Generator, "a Generator")
    return _generator.switch(new if new is not None else Generator())


@contextmanager
def guard(new_generator: str | Generator | None = None) -> Iterator[None]:
    """Restart this thread's numbering inside the ``with`` block, with a prefix if ``new_generator`` is a text."""
    if isinstance(new_generator, str):
        new_generator = Generator(new_generator)
    elif new_generator is not None:
        check_instance("new_generator of unique_name.guard", new_generator, Generator, "a text, or a Generator")
    with _generator.guard(new_generator if new_generator is not None else Generator()):
        yield
