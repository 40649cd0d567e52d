"""Compare gradients of a user's program, graph or function with central differences of itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from fluidlite import graph as ng, nodes
from fluidlite.base.arguments import check_int, check_list, check_mapping, number
from fluidlite.base.dtypes import NUMPY, is_float
from fluidlite.base.errors import FallbackWarning, GradientError
from fluidlite.compiler.ir.node import Node
from fluidlite.conformance.cases import Array
from fluidlite.conformance.reference import EPSILON, random_weights
from fluidlite.executor import Executor
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.program.backward import gradients
from fluidlite.program.program import Program, program_guard
from fluidlite.program.scope import Scope, global_scope
from fluidlite.program.variable import Parameter, Variable
from fluidlite.testing.gradient_report import ElementGradient, GradientReport, InputGradient
from fluidlite.testing.node_gradients import NodeJob
from fluidlite.transformers import make_transformer

_STEP = {"float64": 2.0**-11, "float32": 2.0**-6, "float16": 2.0**-3, "bfloat16": 2.0**-2}
"""Steps for elements of magnitude up to 1: the fifth root of the unit balances rounding and truncation errors."""
_RTOL = {"float64": 1e-6, "float32": 5e-3, "float16": 5e-2, "bfloat16": 1e-1}
_OFFSETS = (-2, -1, 1, 2)


@dataclass
class _Job:
    """A program whose target and gradients can be computed repeatedly, for any values of its inputs."""

    program: Program
    place: Place
    mode: str
    target: str
    start: str
    names: list[str]
    gradients: list[str | None]
    feed: dict[str, Array]
    state: dict[str, Array]

    def __post_init__(self) -> None:
        self.executor = Executor(self.place, mode=self.mode)

    def run(self, fetches: Sequence[str], start: Array | None = None) -> list[Array]:
        """Run in a new scope: with the initial state, and the same random numbers each time."""
        scope = Scope()
        for name, array in self.state.items():
            scope.var(name).get_tensor().set(array.copy(), self.place)
        feed = self.feed if start is None else {**self.feed, self.start: start}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            values: list[Array] = self.executor.run(self.program, feed=feed, fetch_list=list(fetches), scope=scope)
        return [np.asarray(array) for array in values]

    def value(self, name: str) -> Array:
        """The array of an input; the next run uses its current values."""
        return self.feed[name] if name in self.feed else self.state[name]


Job = Union[_Job, NodeJob]


def gradient_report(
    subject: Any,
    place: PlaceLike,
    inputs: Sequence[Any] | None,
    feed: Mapping[Any, Any] | None,
    wrt: Sequence[Any] | None,
    scope: Scope | None,
    rtol: float | None,
    elements: int | None,
    mode: str,
) -> GradientReport:
    where = Place.parse(place)
    if elements is not None and check_int("elements of check_gradient", elements, GradientError) < 1:
        raise GradientError(f"elements of check_gradient is {elements}; expected 1 or more, or None for all")
    if rtol is not None:
        rtol = number("rtol of check_gradient", rtol, GradientError)
    job: Job
    if callable(subject) and not isinstance(subject, Variable):
        with program_guard(Program(), Program()):
            arrays = [
                np.asarray(array)
                for array in check_list("inputs of check_gradient", inputs or (), "arrays", GradientError)
            ]
            values = [ng.placeholder(array.shape, array.dtype) for array in arrays]
            target = subject(*values)
            if not isinstance(target, Variable):
                raise GradientError(f"the function returned {target!r}; expected one value of the graph")
            job = _of_graph(target, where, dict(zip(values, arrays, strict=True)), wrt, mode)
    elif isinstance(subject, nodes.Node):
        job = NodeJob(subject, wrt)
        where = subject.dev().known_place()
    elif isinstance(subject, Node):
        job = _of_graph(subject, where, feed or {}, wrt, mode)
    elif isinstance(subject, Variable):
        job = _of_program(subject, where, feed or {}, wrt, scope or global_scope(), mode)
    else:
        raise GradientError(f"check_gradient takes a case, a variable or a function, or a node; got {subject!r}")
    name = subject.name if isinstance(subject, Variable) else getattr(subject, "__name__", "the function")
    target_name = str(subject) if isinstance(subject, nodes.Node) else name
    limits = {dtype: rtol if rtol is not None else own for dtype, own in _RTOL.items()}
    return GradientReport(target_name, str(where), limits, tuple(_compare(job, limits, elements)))


# Jobs --------------------------------------------------------------------------------------------------------------


def _named(feed: Mapping[Any, Any], block: Any) -> dict[str, Array]:
    """Copies of fed arrays by name, in the declared dtypes."""
    arrays = {}
    for key, value in check_mapping(
        "feed of check_gradient", feed, "a mapping of variables to arrays", GradientError
    ).items():
        variable = block.own(key, "feed of check_gradient")
        arrays[variable.name] = np.array(value, dtype=NUMPY[variable.dtype])
    return arrays


def _of_program(
    subject: Variable, place: Place, feed: Mapping[Any, Any], wrt: Sequence[Any] | None, scope: Scope, mode: str
) -> _Job:
    program = subject.block.program.clone()
    block = program.global_block()
    target, fed = block.own(subject, "target of check_gradient"), _named(feed, block)
    state = {}
    for name, variable in block.vars.items():
        holder = scope.find_var(name) if variable.persistable and name not in fed else None
        if holder is not None and holder.get_tensor().initialized:
            state[name] = np.array(holder.get_tensor().numpy())
    wrt_variables = _wrt_variables(block, fed, state, wrt)
    start = block.create_var(f"{target.name}.start", target.shape, target.dtype, is_data=True, stop_gradient=True)
    grads = gradients([target], wrt_variables, [start])
    names = [gradient.name if gradient is not None else None for gradient in grads]
    return _Job(program, place, mode, target.name, start.name, [v.name for v in wrt_variables], names, fed, state)


def _of_graph(subject: Variable, place: Place, feed: Mapping[Any, Any], wrt: Sequence[Any] | None, mode: str) -> _Job:
    program = subject.block.program.clone()
    block = program.global_block()
    with program_guard(program):
        target, fed = block.own(subject, "target of check_gradient"), _named(feed, block)
        start = ng.placeholder(target.shape, target.dtype, "start")
        wrt_variables = _wrt_variables(block, fed, {n: None for n, v in block.vars.items() if v.persistable}, wrt)
        grads = gradients([target], wrt_variables, [start])
        existing = [gradient for gradient in grads if gradient is not None]
        feeds = [block.var(name) for name in fed if not block.var(name).persistable]
        with make_transformer(str(place)) as transformer:
            computation = transformer.computation([target, *existing], *feeds, start)
            transformer.initialize()
            names = list(computation._lowered.names)
            holders = {variable.name: transformer.scope.find_var(variable.name) for variable in computation.state}
        tensors = {name: holder.get_tensor() for name, holder in holders.items() if holder is not None}
        state = {name: np.array(tensor.numpy()) for name, tensor in tensors.items() if tensor.initialized}
    state |= {name: fed.pop(name) for name in list(fed) if block.var(name).persistable}
    rest = iter(names[1:])
    return _Job(
        computation.program,
        place,
        mode,
        str(names[0]),
        start.name,
        [v.name for v in wrt_variables],
        [next(rest) if gradient is not None else None for gradient in grads],
        fed,
        state,
    )


def _wrt_variables(
    block: Any, fed: Mapping[str, Any], state: Mapping[str, Any], wrt: Sequence[Any] | None
) -> list[Variable]:
    """The variables to check: by default, all float ones that are fed or trained."""
    if wrt is not None:
        selected = [
            block.own(item, "wrt of check_gradient")
            for item in check_list("wrt of check_gradient", wrt, "variables or names", GradientError)
        ]
        for variable in selected:
            if variable.name not in fed and variable.name not in state:
                raise GradientError(
                    f"{variable.name!r} cannot be changed by itself: it is neither fed nor state that has a value"
                    "\n  Do: feed it, or check the part of the program behind it with a placeholder in its place"
                )
            if not is_float(variable.dtype):
                raise GradientError(f"{variable.name!r} is {variable.dtype}, which has no derivative")
        return selected
    trained = [
        variable
        for variable in block.vars.values()
        if variable.name in state and not variable.stop_gradient and (isinstance(variable, (Parameter, Node)))
    ]
    fed_variables = [block.var(name) for name in fed if not block.var(name).stop_gradient]
    return [v for v in dict.fromkeys([*fed_variables, *trained]) if v.spec is not None and is_float(v.dtype)]


# Differences -------------------------------------------------------------------------------------------------------


def _compare(job: Job, limits: Mapping[str, float], elements: int | None) -> Iterator[InputGradient]:
    (value,) = job.run([job.target])
    rng = np.random.default_rng(7)
    weights = np.ones(value.shape) if value.size == 1 else random_weights(rng, value.shape)
    grad_names = [name for name in job.gradients if name is not None]
    grads = dict(zip(grad_names, job.run(grad_names, weights.astype(value.dtype)), strict=True))
    noise = float(np.sum(np.abs(weights * value.astype(np.float64)))) * EPSILON[str(value.dtype)]
    for name, gradient in zip(job.names, job.gradients, strict=True):
        array = job.value(name)
        exact = grads[gradient].astype(np.float64) if gradient is not None else np.zeros(array.shape)
        places = list(np.ndindex(array.shape))
        if elements is not None and len(places) > elements:
            places = [places[i] for i in sorted(rng.choice(len(places), elements, replace=False))]
        yield _input(job, name, exact, places, weights, noise, limits)


def _input(
    job: Job,
    name: str,
    gradient: Array,
    places: Sequence[tuple[int, ...]],
    weights: Array,
    noise: float,
    limits: Mapping[str, float],
) -> InputGradient:
    array = job.value(name)
    dtype, dims = str(array.dtype), array.shape
    if not places:
        return InputGradient(name, dtype, dims, 0, (), 0.0, 0.0, 0.0, 0, 0.0)
    differences, spans = zip(*(_difference(job, array, place, weights) for place in places), strict=True)
    numeric, span = np.asarray(differences), np.asarray(spans)
    exact = np.asarray([gradient[place] for place in places])
    scale = np.maximum(np.abs(exact), np.abs(numeric)) + np.mean(np.abs(numeric))
    allowed = limits[dtype] * scale + noise * span
    distance = np.where(exact == numeric, 0.0, np.nan_to_num(np.abs(exact - numeric), nan=np.inf))
    with np.errstate(divide="ignore", invalid="ignore"):
        worst = int(np.argmax(np.where(distance > 0, distance / allowed, 0.0)))
        error = np.where(distance > 0, distance / scale, 0.0)
    return InputGradient(
        name,
        dtype,
        dims,
        len(places),
        tuple(int(i) for i in places[worst]),
        float(exact[worst]),
        float(numeric[worst]),
        float(error[worst]),
        int((distance > allowed).sum()),
        float(noise * span[worst]),
        tuple(map(ElementGradient, places, exact.tolist(), numeric.tolist(), (distance > allowed).tolist())),
    )


def _difference(job: Job, array: Array, place: tuple[int, ...], weights: Array) -> tuple[float, float]:
    """The derivative of the weighted target from four values around an element, and the sum of their factors."""
    middle = array[place]
    step = _STEP[str(array.dtype)] * max(1.0, abs(float(middle)))
    offsets, values = [], []
    try:
        for count in _OFFSETS:
            array[place] = float(middle) + count * step
            offsets.append(float(array[place]) - float(middle))  # as rounded to the dtype
            (value,) = job.run([job.target])
            values.append(float(np.sum(weights * value.astype(np.float64))))
    finally:
        array[place] = middle
    scaled = np.asarray(offsets) / step
    factors = np.linalg.solve(np.vander(scaled, increasing=True).T, [0.0, 1.0, 0.0, 0.0]) / step
    return float(factors @ values), float(np.sum(np.abs(factors)))
