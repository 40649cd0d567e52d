"""Updaters: update weights by their gradients, with the optimisers of :mod:`fluidlite.optimizer`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from fluidlite.base.errors import NodeError, NonFiniteError
from fluidlite.base.lru_cache import LRUCache
from fluidlite.clip import BaseGradientClipAttr, GradientClipByGlobalNorm, GradientClipByNorm, GradientClipByValue
from fluidlite.nodes.leaves import Weight
from fluidlite.nodes.node import ValueStorage
from fluidlite.nodes.update_program import State, UpdateProgram
from fluidlite.optimizer import AdamOptimizer, Optimizer, SGDOptimizer
from fluidlite.platform.place import Place
from fluidlite.tensor.tensor_spec import Spec

if TYPE_CHECKING:
    from fluidlite.nodes.graph import Graph

MAX_UPDATE_PROGRAMS = 64  # entries of an updater's cache of programs
MAX_WHOLE_PROGRAMS = 8
"""Sets of weights for which an updater compiles one program; weights of further sets are updated in groups."""
Specs = tuple[Spec, ...]
Clip = float | BaseGradientClipAttr | None


class Updater:
    """Changes weights by an optimiser of :mod:`fluidlite.optimizer`; :class:`Sgd` and :class:`Adam` name two.

    Its state (moments, ...) is stored for each weight, on the weight's place, and moves with it.

    Parameters
    ----------
    optimizer : callable
        Such as ``fluid.optimizer.MomentumOptimizer``; called with ``learning_rate``, ``grad_clip`` and the options.
    learning_rate : float
        It may be changed between updates.
    clip : float or BaseGradientClipAttr, optional
        A number clips each element of a gradient to [-clip, clip]; ``fluid.clip`` has others, such as
        ``GradientClipByGlobalNorm(1.0)``.
    check_finite : bool
        Whether a gradient with an infinite element, or NaN, raises before any weight is changed.
    **options
        Of the optimiser: ``momentum=0.9``, ``regularization=...``, ...
    """

    def __init__(
        self,
        optimizer: Callable[..., Optimizer],
        learning_rate: float,
        clip: Clip = None,
        check_finite: bool = True,
        **options: Any,
    ) -> None:
        if clip is not None and not isinstance(clip, BaseGradientClipAttr):
            if isinstance(clip, bool) or not isinstance(clip, (int, float)) or not clip > 0:
                raise NodeError(
                    f"{type(self).__name__}: clip is {clip!r}; expected a number above 0, or one of fluid.clip"
                )
            clip = GradientClipByValue(float(clip))
        self._optimizer, self._options, self._clip = optimizer, options, clip
        self.learning_rate = learning_rate
        self.check_finite = check_finite
        self._make()  # raises here if the optimiser does not take an option
        self._programs: LRUCache[UpdateProgram] = LRUCache(MAX_UPDATE_PROGRAMS, "updates of weights", 16 << 20)
        self._wholes: set[tuple[Place, Specs]] = set()
        self._states: weakref.WeakKeyDictionary[ValueStorage, _WeightState] = weakref.WeakKeyDictionary()
        self._numbers = count()

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        if isinstance(value, bool) or not hasattr(value, "__float__") or not float(value) == value:
            raise NodeError(f"{type(self).__name__}: the learning rate is {value!r:.60}; expected a number")
        self._learning_rate = float(value)

    def _make(self) -> Optimizer:
        return self._optimizer(learning_rate=self._learning_rate, grad_clip=self._clip, **self._options)

    def update(self, target: Graph | Weight | Iterable[Weight]) -> None:
        """Update each weight once, even if it is used or tied several times.

        Parameters
        ----------
        target : Graph, Weight or sequence of Weight
            After ``graph.backward()``.

        Raises
        ------
        NodeError
            If no weight has a gradient, or a clip by the global norm has weights in different memory.
        NonFiniteError
            Names the weights whose gradients are infinite or NaN. No weight was changed.
        """
        weights = _distinct_weights(target)
        if not weights:
            return
        if all(weight._at._grad is None for weight in weights):
            raise NodeError(
                f"{type(self).__name__}.update: none of {len(weights)} weights has a gradient"
                "\n  Do: graph.reset_grad(), graph.backward(), then update(graph)"
            )
        groups: dict[Place, list[Weight]] = {}
        for weight in weights:
            groups.setdefault(weight.dev().known_place(), []).append(weight)
        if len(groups) > 1 and isinstance(self._clip, GradientClipByGlobalNorm):
            raise NodeError(
                f"{type(self).__name__}.update: {self._clip!r} takes the norm of all gradients, and the weights lie "
                f"on {', '.join(map(str, groups))}; expected one place"
                "\n  Do: clip by value or by norm, or move the weights"
            )
        parts = [part for place, group in groups.items() for part in self._parts(place, group)]
        if self.check_finite:
            self._check(parts)
        for program, group, states in parts:
            values = [weight.value() for weight in group]
            program.run(values, states, [weight.grad() for weight in group], self._learning_rate)

    def _parts(self, place: Place, weights: list[Weight]) -> list[_UpdateGroup]:
        """The programs that update weights of a place, each with its weights and their state.

        A set of weights that recurs has one program. If the set changes with each update, such as the words of each
        batch, weights of equal metadata are updated 1, 2, 4, ... at a time.
        """
        weight_states = {weight._at: self._state_of(weight) for weight in weights}
        specs = {weight._at: weight.value()._required_spec().with_(lod=()) for weight in weights}
        weights.sort(key=lambda weight: (str(specs[weight._at]), weight_states[weight._at].number))
        key = (place, tuple(specs[weight._at] for weight in weights))
        chunks = [weights]
        if key not in self._wholes and len(self._wholes) >= MAX_WHOLE_PROGRAMS and self._is_separable:
            chunks = list(_powers_of_two(weights, specs))
        else:
            self._wholes.add(key)
        groups = []
        for chunk in chunks:
            chunk_specs = tuple(specs[weight._at] for weight in chunk)
            program = self._programs.get((place, chunk_specs), lambda: UpdateProgram(place, chunk_specs, self._make()))  # noqa: B023
            groups.append(
                _UpdateGroup(program, chunk, self._states_of(program, [weight_states[weight._at] for weight in chunk]))
            )
        return groups

    @property
    def _is_separable(self) -> bool:
        """Whether a weight's update depends on its own gradient only."""
        return self._clip is None or isinstance(self._clip, (GradientClipByValue, GradientClipByNorm))

    def _state_of(self, weight: Weight) -> _WeightState:
        state = self._states.get(weight._at)
        if state is None:
            state = self._states[weight._at] = _WeightState(next(self._numbers))
        return state

    def _states_of(self, program: UpdateProgram, weight_states: Sequence[_WeightState]) -> list[State]:
        """The states of weights: initialised if new, and moved to the place of the weight."""
        fresh = program.first_states() if any(weight_state.state is None for weight_state in weight_states) else []
        states: list[State] = []
        for at, weight_state in enumerate(weight_states):
            if weight_state.state is None:
                weight_state.state = fresh[at]
            for tensor in weight_state.state.values():
                tensor.move_to(program.place)
            states.append(weight_state.state)
        return states

    def _check(self, parts: Sequence[_UpdateGroup]) -> None:
        failed = []
        for program, weights, _ in parts:
            flags = program.are_finite([weight.grad() for weight in weights])
            failed += [str(weight) for weight, is_finite in zip(weights, flags, strict=True) if not is_finite]
        if failed:
            raise NonFiniteError(
                f"{type(self).__name__}.update: the gradient of {', '.join(failed)} has elements that are infinite or "
                "NaN; no weight was changed\n  Do: lower the learning rate, clip, or leave the step out"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(learning_rate={self._learning_rate})"


class Sgd(Updater):
    """Gradient descent: a weight becomes weight - learning_rate * gradient. Parameters as of :class:`Updater`."""

    def __init__(self, learning_rate: float = 0.01, clip: Clip = None, check_finite: bool = True) -> None:
        super().__init__(SGDOptimizer, learning_rate, clip, check_finite)


class Adam(Updater):
    """Adam (Kingma and Ba, 2015), as Fluid computes it; each weight counts its own updates.

    Parameters
    ----------
    learning_rate : float
    clip, check_finite
        As of :class:`Updater`.
    beta1, beta2, epsilon : float
    """

    def __init__(
        self,
        learning_rate: float = 1e-3,
        clip: Clip = None,
        check_finite: bool = True,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
    ) -> None:
        options = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        super().__init__(AdamOptimizer, learning_rate, clip, check_finite, **options)


class _WeightState:
    """The number and the optimiser state of a weight."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.state: State | None = None


class _UpdateGroup(NamedTuple):
    """A program, the weights that it updates, and their state."""

    program: UpdateProgram
    weights: list[Weight]
    states: list[State]


def _powers_of_two(weights: Sequence[Weight], specs: Mapping[ValueStorage, Spec]) -> Iterator[list[Weight]]:
    """Weights of equal metadata in chunks of 1, 2, 4, ..., so that few programs serve any number of them."""
    for _, group in groupby(weights, key=lambda weight: specs[weight._at]):
        remaining = list(group)
        while remaining:
            size = 1 << (len(remaining).bit_length() - 1)
            yield remaining[:size]
            remaining = remaining[size:]


def _distinct_weights(target: Any) -> list[Weight]:
    """The weights of a graph or sequence in order, tied ones once."""
    if isinstance(target, Weight):
        candidates: Iterable[Any] = [target]
    elif hasattr(target, "weights"):
        candidates = target.weights()
    else:
        candidates = target
    distinct: dict[ValueStorage, Weight] = {}
    try:
        for weight in candidates:
            if not isinstance(weight, Weight):
                raise NodeError(
                    f"update takes weights; one is {weight!r:.80}\n  Do: update(graph), or update([weight, ...])"
                )
            distinct.setdefault(weight._at, weight)
    except TypeError:
        raise NodeError(f"update takes a graph or weights, got {target!r:.80}") from None
    return list(distinct.values())
