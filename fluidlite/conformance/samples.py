"""Registry of samples and float64 references of operators, by type; all kernels are tested with them.

They are separate from the operators' declarations. Fluidlite's own are the modules of
:mod:`fluidlite.conformance.operators`, a plugin registers its own. They are imported when samples are first requested,
so that an ordinary program imports none.
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

import numpy as np

from fluidlite import plugin_loader
from fluidlite.base.dtypes import ALL_FLOATS, NUMPY, dtype_name
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
        The sample also runs with its floating inputs cast to each of these. If some are floating, an integer type
        gets eight times the numbers, and bool whether they are positive: then without gradients.
    outputs : tuple of str
        Output slots to request; empty: all of the definition.
    """

    inputs: Mapping[str, Any]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    grads: tuple[str, ...] = ()
    lod: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    dtypes: tuple[str, ...] = ("float32",)
    outputs: tuple[str, ...] = ()


def becomes_exact(sample: Sample, dtype: str) -> bool:
    """Whether floating inputs are cast to an integer type or bool."""
    return dtype in NUMPY and dtype not in ALL_FLOATS and not set(ALL_FLOATS).isdisjoint(sample.dtypes)


def inputs_in(sample: Sample, dtype: str) -> dict[str, list[np.ndarray[Any, Any]]]:
    """The arrays by slot, floating ones cast to one of the sample's dtypes."""

    def cast(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if dtype_name(array.dtype) not in ALL_FLOATS:
            return array
        if becomes_exact(sample, dtype):
            return np.asarray(array > 0 if dtype == "bool" else np.rint(array * 8).astype(dtype))
        if dtype == "float64" and array.dtype == np.float32:
            return np.asarray(array.astype(np.float64) * (1 - 2.0**-27))  # no float32, in which a kernel might compute
        return array.astype(NUMPY[dtype]) if dtype in ALL_FLOATS else array

    items = {slot: v if isinstance(v, (list, tuple)) else [v] for slot, v in sample.inputs.items()}
    return {slot: [cast(np.asarray(item)) for item in arrays] for slot, arrays in items.items()}


Reference = Callable[..., Mapping[str, Any]]
OwnReference = TypeVar("OwnReference", bound=Reference)
Samples = Union[Callable[[], Iterable[Sample]], Sequence[Sample]]


@dataclass(eq=False)
class SampleRegistration:
    """The samples and the reference of one type, as registered by :func:`register_samples`."""

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
        The operator's type; several types of the same meaning may share samples.
    reference : callable, optional
        ``reference(inputs, attrs) -> {output slot: array, or list of arrays}`` in float64 NumPy, written without
        fluidlite's kernels; ``reference(inputs, attrs, lod)`` also gets the sample's LoD. An input of a duplicable slot
        is a list of arrays. Without a reference (as for random numbers) samples are examples, and are not checked.
    samples : list of Sample, or a function that returns it
        The function is called when they are requested.
    override : bool
        Replace samples that are registered, as ``override`` of ``register_op`` replaces the operator.

    Raises
    ------
    RegistryError
        If no operator has the type, or the type has samples already; a plugin's samples are then dropped with a
        PluginWarning.
    """
    frame = sys._getframe(1)
    if not types or not all(isinstance(type, str) for type in types):
        raise RegistryError(f"register_samples got {types!r}; expected the types of operators")
    registrations = [SampleRegistration(type, reference, samples, declared_at(frame), override) for type in types]
    for registration in registrations:
        registry.add(registration, frame)

    def refer(reference: OwnReference) -> OwnReference:
        for registration in registrations:
            registration.reference = reference
        return reference

    return refer


def samples_of(type: str) -> list[Sample]:
    """The samples of an operator, newly created; empty if none are registered."""
    registration = registry.find(type)
    if registration is None:
        return []
    return list(registration.samples() if callable(registration.samples) else registration.samples)


def reference_of(type: str) -> Reference | None:
    """The float64 reference of an operator, or None."""
    registration = registry.find(type)
    return None if registration is None else registration.reference


class SampleRegistry:
    """Registrations by type: fluidlite's own and those of programs; those of loaded plugins take precedence."""

    def __init__(self) -> None:
        self._own: dict[str, SampleRegistration] = {}
        self._of_plugins: dict[str, SampleRegistration] = {}
        self._plugin_version = -1
        self._loaded = False
        self._lock = new_rlock()

    def add(self, registration: SampleRegistration, frame: FrameType) -> None:
        """Register immediately; registrations of a plugin's module are valid while the plugin is loaded."""
        if plugin_modules.declare(registration, frame) is not None:
            return
        if frame.f_globals.get("__name__", "").startswith(f"{OPERATORS}."):
            _insert(self._own, registration, {})  # no lock: its owner may be waiting for this import
            return
        with self._lock:
            self._refresh()  # so that duplicates are detected
            _need_operator(registration)
            _insert(self._own, registration, self._of_plugins)

    def find(self, type: str) -> SampleRegistration | None:
        """The registration of a type, or None."""
        with self._lock:
            self._refresh()
            return self._of_plugins.get(type) or self._own.get(type)

    def _refresh(self) -> None:
        if not self._loaded:
            self._load()
        if self._plugin_version != plugin_modules.version:
            self._take_plugins()

    def _load(self) -> None:
        self._loaded = True  # set first: the modules register while they are imported
        try:
            for module in pkgutil.iter_modules(importlib.import_module(OPERATORS).__path__):
                importlib.import_module(f"{OPERATORS}.{module.name}")
            for registration in self._own.values():
                _need_operator(registration)
        except BaseException:
            self._loaded = False
            raise

    def _take_plugins(self) -> None:
        """Collect the registrations of loaded plugins: all of a plugin or, on an error, none."""
        self._of_plugins = {}
        for record in plugin_loader.plugins():
            if record.state == "loaded":
                try:
                    self._of_plugins |= self._registrations_of(record)
                except (Exception, SystemExit) as exc:  # SystemExit: a module may call sys.exit
                    _leave_out(record, exc)
        self._plugin_version = plugin_modules.version

    def _registrations_of(self, record: plugin_loader.PluginRecord) -> dict[str, SampleRegistration]:
        for module in record.brought["samples"]:
            importlib.import_module(module)
        registrations: dict[str, SampleRegistration] = {}
        declared = [entry for entry in plugin_modules.declared(record.name) if isinstance(entry, SampleRegistration)]
        for entry in declared:  # imported before the plugin was loaded: now the plugin's
            if self._own.get(entry.type) is entry:
                del self._own[entry.type]
        for entry in declared:
            _insert(registrations, entry, {**self._own, **self._of_plugins})
            _need_operator(entry)
        return registrations


def _leave_out(record: plugin_loader.PluginRecord, why: BaseException) -> None:
    note = f"its samples were left out: {type(why).__name__}: {why}"
    if note not in record.problems:
        record.problems.append(note)
        warnings.warn(f"plugin {record.name!r}: {note}", PluginWarning, stacklevel=6)


def _need_operator(registration: SampleRegistration) -> None:
    """Raise RegistryError if no operator has the type: its samples would check nothing."""
    try:
        ops.get(registration.type)
    except OperatorNotFoundError as exc:
        raise RegistryError(f"samples are registered at {registration.origin}, but {exc}") from None


def _insert(
    target: dict[str, SampleRegistration], entry: SampleRegistration, existing: Mapping[str, SampleRegistration]
) -> None:
    """Insert a registration; a second one of a type, in ``target`` or ``existing``, is an error unless it overrides."""
    other = target.get(entry.type) or existing.get(entry.type)
    if other is not None and not entry.override:
        raise RegistryError(
            f"the samples of operator {entry.type!r} are registered twice: at {other.origin} and at {entry.origin}.\n"
            "  Do: say them once, or say override=True"
        )
    target[entry.type] = entry


registry = SampleRegistry()
