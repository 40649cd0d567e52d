"""Which transformer ``make_transformer`` makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluidlite.base.errors import FluidError, PlaceError
from fluidlite.compiler.transformer import Transformer
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.program.codegen_registry import generator_names
from fluidlite.program.pass_registry import passes

_NAMES = {"gpu": "cuda"}
"""What some kinds of places are called here too."""


class TransformerFactory:
    """Makes transformers of one kind; call it. A plugin registers one for a Transformer of its own.

    Parameters
    ----------
    name : str
        What :func:`transformer_choices` lists. Where it is a kind of places too, ``make`` is given the ``place``.
    make : callable
        Such as a subclass of :class:`Transformer`.
    **options
        Its arguments.
    """

    def __init__(self, name: str, make: Callable[..., Transformer] = Transformer, **options: Any) -> None:
        if not callable(make):
            raise PlaceError(f"the transformer factory {name!r} makes with {make!r}; expected a class or a callable")
        self.name = name
        self.make = make
        self.options = options

    def __call__(self, **options: Any) -> Transformer:
        """Make a transformer; ``options`` go before the factory's own."""
        return self.make(**{**self.options, **options})

    def __repr__(self) -> str:
        return f"<TransformerFactory {self.name!r}>"


def transformer_choices() -> list[str]:
    """Names that :func:`make_transformer_factory` takes, sorted: kinds of places, and what plugins bring.

    ``"gpu"`` means cuda. A kind whose driver or library is missing is left out, and one that computes nothing.
    """
    called = {kind: name for name, kind in _NAMES.items()}
    kinds = devices.kinds()
    found = {called.get(kind, kind) for kind, reason in kinds.items() if not reason and devices.computes(kind)}
    return sorted(found.union(name for name in passes.factories() if not kinds.get(_NAMES.get(name, name))))


def codegen_choices(place: PlaceLike | None = None) -> list[str]:
    """Names of the code generators of a place, which ``codegen=`` takes, best first; default: of the host's place.

    The list of a place whose device has memory alone is empty.
    """
    return list(generator_names(devices.unit(place if place is not None else devices.host())))


def make_transformer_factory(name: str, **options: Any) -> TransformerFactory:
    """Return a factory of transformers of a kind.

    Parameters
    ----------
    name : str
        One of :func:`transformer_choices`; ``"gpu:1"`` means the second device of the kind.
    **options
        Arguments of :class:`Transformer`: ``seed``, ``codegen``; of a plugin's, its own.

    Raises
    ------
    ValueError
        If there is no such transformer; the message lists the choices.
    """
    brought = passes.factories()
    try:
        asked = Place.parse(name)
        found = brought.get(asked.kind) or brought.get(_NAMES.get(asked.kind, asked.kind))
        kind = _NAMES.get(asked.kind, asked.kind)
        if found is not None and name == found.name and kind not in devices.kinds():
            return TransformerFactory(name, found.make, **{**found.options, **options})
        place = Place(kind, asked.index)
        devices.unit(place)
    except FluidError as exc:
        choices = ", ".join(transformer_choices())
        raise PlaceError(f"there is no transformer {name!r} here; the choices are {choices}\n  Since: {exc}") from None
    if found is None:
        return TransformerFactory(name, Transformer, place=place, **options)
    return TransformerFactory(name, found.make, **{"place": place, **found.options, **options})


_default = TransformerFactory("default")
_current: Callable[..., Transformer] = _default


def set_transformer_factory(factory: Callable[..., Transformer] | None) -> None:
    """Say what :func:`make_transformer` calls; None: the host's transformer again.

    Raises
    ------
    ValueError
        If it cannot be called.
    """
    global _current
    if factory is not None and not callable(factory):
        raise PlaceError(
            f"a transformer factory is {factory!r}; expected a callable\n  Do: make_transformer_factory(name)"
        )
    _current = factory if factory is not None else _default


def make_transformer(place: PlaceLike | None = None, **options: Any) -> Transformer:
    """Make a transformer.

    Parameters
    ----------
    place : Place or str, optional
        One of :func:`transformer_choices`, such as ``"opencl:1"``. Default: what the factory that was set makes; if
        none was, one on the host's place.
    **options
        Arguments of :class:`Transformer`: ``seed``, ``codegen``; of a plugin's, its own.

    Raises
    ------
    ValueError
        If there is no such transformer, or its place has no such generator of code.
    """
    if place is None:
        made = _current(**options)
        if not isinstance(made, Transformer):
            raise PlaceError(f"the transformer factory {_current!r} made {made!r}; expected a Transformer")
        return made
    return make_transformer_factory(str(place), **options)()
