"""Samples and float64 references of operators, by type: the text against which every kernel is held.

They stand beside the operators, not in them. Those of fluidlite's own are the modules of
:mod:`fluidlite.conformance.operators`, those of a plugin what it registers itself; all are imported when samples are
first asked for, so that a program that runs imports none.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar, Union

from fluidlite import plugin_loader
from fluidlite.base.errors import OperatorNotFoundError, PluginWarning, RegistryError
from fluidlite.base.fork import new_rlock
from fluidlite.base.plugin_modules import plugin_modules
from fluidlite.program.registry import declared_at, ops

OPERATORS = "fluidlite.conformance.operators"
"""The package of fluidlite's own samples."""


@dataclass(frozen=True)
class Sample:
    """One tested use of an operator: inputs, attributes, and what is checked.

    Attributes
    ----------
    inputs : mapping of slot to array, or list of arrays for a duplicable slot
        NumPy arrays of the exact dtypes fed.
    attrs : mapping
    grads : tuple of str
        Input slots whose gradients are checked against central differences.
    lod : mapping of slot to LoD offsets
    name : str
        Shown in test ids.
    dtypes : tuple of str
        The sample also runs with its floating inputs cast to each of these.
    outputs : tuple of str
        Output slots to ask for; empty: all of the definition.
    """

    inputs: Mapping[str, Any]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    grads: tuple[str, ...] = ()
    lod: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    dtypes: tuple[str, ...] = ("float32",)
    outputs: tuple[str, ...] = ()


Reference = Callable[..., Mapping[str, Any]]
OwnReference = TypeVar("OwnReference", bound=Reference)
Samples = Union[Callable[[], Iterable[Sample]], Sequence[Sample]]


@dataclass(eq=False)
class Registration:
    """What one call of :func:`register_samples` says of one type."""

    type: str
    reference: Reference | None
    samples: Samples
    origin: str
    override: bool


def register_samples(
    *types: str, reference: Reference | None = None, samples: Samples = (), override: bool = False
) -> Callable[[OwnReference], OwnReference]:
    """Register the samples and the reference of an operator.

    As a decorator, ``@register_samples("relu", samples=...)``, it takes the function below for the reference.

    Parameters
    ----------
    *types : str
        The operator's type; several types that have one meaning are registered alike.
    reference : callable, optional
        ``reference(inputs, attrs) -> {output slot: array, or list of arrays}`` in float64 NumPy, written without
        fluidlite's kernels; ``reference(inputs, attrs, lod)`` also gets the sample's LoD. An input of a duplicable slot
        is a list of arrays. Without one (random numbers have none), the samples show uses, and are not checked.
    samples : list of Sample, or a function that makes it
        The function is called when they are asked for.
    override : bool
        They replace those that are registered, as ``override`` of ``register_op`` replaces the operator.

    Raises
    ------
    RegistryError
        If no operator is called so, or a type has samples already; a plugin's samples are left out then, with a
        PluginWarning.
    """
    frame = sys._getframe(1)
    if not types or not all(isinstance(type, str) for type in types):
        raise RegistryError(f"register_samples got {types!r}; expected the types of operators")
    made = [Registration(type, reference, samples, declared_at(frame), override) for type in types]
    for each in made:
        registry.add(each, frame)

    def refer(reference: OwnReference) -> OwnReference:
        for each in made:
            each.reference = reference
        return reference

    return refer


def samples_of(type: str) -> list[Sample]:
    """The samples of an operator, made anew; none if nobody registered any."""
    found = registry.find(type)
    if found is None:
        return []
    return list(found.samples() if callable(found.samples) else found.samples)


def reference_of(type: str) -> Reference | None:
    """The float64 reference of an operator, or None."""
    found = registry.find(type)
    return None if found is None else found.reference


class SampleRegistry:
    """Registrations by type: fluidlite's own and those of programs, and over them those of the loaded plugins."""

    def __init__(self) -> None:
        self._own: dict[str, Registration] = {}
        self._of_plugins: dict[str, Registration] = {}
        self._seen = -1
        self._loaded = False
        self._lock = new_rlock()

    def add(self, registration: Registration, frame: FrameType) -> None:
        """Register at once; but what a plugin's module says counts while the plugin is loaded."""
        if plugin_modules.declare(registration, frame) is not None:
            return
        if frame.f_globals.get("__name__", "").startswith(f"{OPERATORS}."):
            _put(self._own, registration, {})  # no lock: who holds it may wait for this very import
            return
        with self._lock:
            self._refresh()  # what is registered already is known then
            _need_operator(registration)
            _put(self._own, registration, self._of_plugins)

    def find(self, type: str) -> Registration | None:
        """The registration of a type, or None."""
        with self._lock:
            self._refresh()
            return self._of_plugins.get(type) or self._own.get(type)

    def _refresh(self) -> None:
        if not self._loaded:
            self._load()
        if self._seen != plugin_modules.version:
            self._take_plugins()

    def _load(self) -> None:
        self._loaded = True  # while they are imported the modules register
        try:
            for module in pkgutil.iter_modules(importlib.import_module(OPERATORS).__path__):
                importlib.import_module(f"{OPERATORS}.{module.name}")
            for registration in self._own.values():
                _need_operator(registration)
        except BaseException:
            self._loaded = False
            raise

    def _take_plugins(self) -> None:
        """Take what the loaded plugins registered: of each all or, if something is wrong with it, nothing."""
        self._of_plugins = {}
        for record in plugin_loader.plugins():
            if record.state == "loaded":
                try:
                    self._of_plugins |= self._taken(record)
                except (Exception, SystemExit) as exc:  # a module that exits takes nobody with it
                    _leave_out(record, exc)
        self._seen = plugin_modules.version

    def _taken(self, record: plugin_loader.PluginRecord) -> dict[str, Registration]:
        for module in record.brought["samples"]:
            importlib.import_module(module)
        found: dict[str, Registration] = {}
        things = [thing for thing in plugin_modules.declared(record.name) if isinstance(thing, Registration)]
        for thing in things:  # one that was imported before it was a plugin's is its own now
            if self._own.get(thing.type) is thing:
                del self._own[thing.type]
        for thing in things:
            _put(found, thing, {**self._own, **self._of_plugins})
            _need_operator(thing)
        return found


def _leave_out(record: plugin_loader.PluginRecord, why: BaseException) -> None:
    note = f"its samples were left out: {type(why).__name__}: {why}"
    if note not in record.odd:
        record.odd.append(note)
        warnings.warn(f"plugin {record.name!r}: {note}", PluginWarning, stacklevel=6)


def _need_operator(registration: Registration) -> None:
    """Raise RegistryError if no operator has the type: its samples would check nothing."""
    try:
        ops.get(registration.type)
    except OperatorNotFoundError as exc:
        raise RegistryError(f"samples are registered at {registration.origin}, but {exc}") from None


def _put(into: dict[str, Registration], new: Registration, under: Mapping[str, Registration]) -> None:
    """Enter a registration; a second one of a type, there or in ``under``, is an error unless it overrides."""
    other = into.get(new.type) or under.get(new.type)
    if other is not None and not new.override:
        raise RegistryError(
            f"the samples of operator {new.type!r} are registered twice: at {other.origin} and at {new.origin}.\n"
            "  Do: say them once, or say override=True"
        )
    into[new.type] = new


registry = SampleRegistry()
