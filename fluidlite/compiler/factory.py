"""Transformer factories, and the default that ``make_transformer`` calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluidlite.base.errors import FluidError, PlaceError
from fluidlite.compiler.transformer import Transformer
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.program.codegen_registry import generator_names
from fluidlite.program.pass_registry import passes

_KIND_ALIASES = {"gpu": "cuda"}
"""nGraph's names of kinds of places."""


class TransformerFactory:
    """A callable that makes transformers of one kind. A plugin registers one for its own Transformer.

    Parameters
    ----------
    name : str
        Its name in :func:`transformer_choices`. If it is also a kind of places, ``make`` receives ``place``.
    make : callable
        For example a subclass of :class:`Transformer`.
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
        """Make a transformer; ``options`` override those of the factory."""
        return self.make(**{**self.options, **options})

    def __repr__(self) -> str:
        return f"<TransformerFactory {self.name!r}>"


def transformer_choices() -> list[str]:
    """Return the sorted names that :func:`make_transformer_factory` accepts: kinds of places, and factories of plugins.

    ``"gpu"`` means cuda. Kinds whose driver or library is missing, and kinds that only have memory, are left out.
    """
    aliases = {kind: name for name, kind in _KIND_ALIASES.items()}
    kinds = devices.kinds()
    names = {aliases.get(kind, kind) for kind, reason in kinds.items() if not reason and devices.computes(kind)}
    return sorted(names.union(name for name in passes.factories() if not kinds.get(_KIND_ALIASES.get(name, name))))


def codegen_choices(place: PlaceLike | None = None) -> list[str]:
    """Return the code generators of a place that ``codegen=`` accepts, best first; default: the host's place.

    The list is empty for a device that only has memory.
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
    registered = passes.factories()
    try:
        requested = Place.parse(name)
        factory = registered.get(requested.kind) or registered.get(_KIND_ALIASES.get(requested.kind, requested.kind))
        kind = _KIND_ALIASES.get(requested.kind, requested.kind)
        if factory is not None and name == factory.name and kind not in devices.kinds():
            return TransformerFactory(name, factory.make, **{**factory.options, **options})
        place = Place(kind, requested.index)
        devices.unit(place)
    except FluidError as exc:
        choices = ", ".join(transformer_choices())
        raise PlaceError(f"there is no transformer {name!r} here; the choices are {choices}\n  Since: {exc}") from None
    if factory is None:
        return TransformerFactory(name, Transformer, place=place, **options)
    return TransformerFactory(name, factory.make, **{"place": place, **factory.options, **options})


_default = TransformerFactory("default")
_current: Callable[..., Transformer] = _default


def set_transformer_factory(factory: Callable[..., Transformer] | None) -> None:
    """Set the factory that :func:`make_transformer` calls; None: restore the default, a transformer on the host.

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
        One of :func:`transformer_choices`, such as ``"opencl:1"``. Default: the result of the factory that was set;
        without one, a transformer on the host's place.
    **options
        Arguments of :class:`Transformer`: ``seed``, ``codegen``; of a plugin's, its own.

    Raises
    ------
    ValueError
        If there is no such transformer, or its place has no such generator of code.
    """
    if place is None:
        transformer = _current(**options)
        if not isinstance(transformer, Transformer):
            raise PlaceError(f"the transformer factory {_current!r} made {transformer!r}; expected a Transformer")
        return transformer
    return make_transformer_factory(str(place), **options)()
