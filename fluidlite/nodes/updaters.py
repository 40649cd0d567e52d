"""Updaters: they change weights by their gradients, through the optimisers of programs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from fluidlite.base.errors import NodeError, NonFiniteError
from fluidlite.base.lru_cache import LRUCache
from fluidlite.clip import BaseGradientClipAttr, GradientClipByGlobalNorm, GradientClipByNorm, GradientClipByValue
from fluidlite.nodes.leaves import Weight
from fluidlite.nodes.node import Held
from fluidlite.nodes.update_program import State, UpdateProgram
from fluidlite.optimizer import AdamOptimizer, Optimizer, SGDOptimizer
from fluidlite.platform.place import Place
from fluidlite.tensor.tensor_spec import Spec

if TYPE_CHECKING:
    from fluidlite.nodes.graph import Graph

MAX_UPDATE_PROGRAMS = 64
MAX_WHOLE_PROGRAMS = 8
"""How many sets of weights have a program of their own, an updater."""
Specs = tuple[Spec, ...]
Clip = float | BaseGradientClipAttr | None


class Updater:
    """Changes weights by an optimiser of :mod:`fluidlite.optimizer`; :class:`Sgd` and :class:`Adam` name two.

    Its state (moments, ...) is kept a weight at a time, lies on the weight's place, and moves with it.

    Parameters
    ----------
    optimizer : callable
        Such as ``fluid.optimizer.MomentumOptimizer``: is called with ``learning_rate``, ``grad_clip`` and the options.
    learning_rate : float
        It may be set anew between updates.
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
        self._make()  # refuses options that the optimiser does not take, now
        self._programs: LRUCache[UpdateProgram] = LRUCache(MAX_UPDATE_PROGRAMS, "updates of weights", 16 << 20)
        self._wholes: set[tuple[Place, Specs]] = set()
        self._states: weakref.WeakKeyDictionary[Held, _Known] = weakref.WeakKeyDictionary()
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
        """Change each weight once, however often it is used or tied.

        Parameters
        ----------
        target : Graph, Weight or sequence of Weight
            After ``graph.backward()``.

        Raises
        ------
        NodeError
            If no weight has a gradient, or a clip by the norm of all meets weights in different memory.
        NonFiniteError
            Names the weights whose gradients are infinite or NaN. No weight was changed.
        """
        weights = _each_once(target)
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
        parts = [part for place, found in groups.items() for part in self._parts(place, found)]
        if self.check_finite:
            self._check(parts)
        for program, found, states in parts:
            values = [weight.value() for weight in found]
            program.run(values, states, [weight.grad() for weight in found], self._learning_rate)

    def _parts(self, place: Place, weights: list[Weight]) -> list[_Part]:
        """The programs that update weights of a place, each with its weights and their state.

        Weights that come together again and again have one program. Where the set changes from update to update, as
        where each batch uses other words, weights of equal metadata are updated 1, 2, 4, ... at a time.
        """
        held = {weight._at: self._held(weight) for weight in weights}
        specs = {weight._at: weight.value()._known().with_(lod=()) for weight in weights}
        weights.sort(key=lambda weight: (str(specs[weight._at]), held[weight._at].number))
        key = (place, tuple(specs[weight._at] for weight in weights))
        chunks = [weights]
        if key not in self._wholes and len(self._wholes) >= MAX_WHOLE_PROGRAMS and self._separable:
            chunks = list(_powers_of_two(weights, specs))
        else:
            self._wholes.add(key)
        found = []
        for chunk in chunks:
            wanted = tuple(specs[weight._at] for weight in chunk)
            program = self._programs.get((place, wanted), lambda: UpdateProgram(place, wanted, self._make()))  # noqa: B023
            found.append(_Part(program, chunk, self._states_of(program, [held[weight._at] for weight in chunk])))
        return found

    @property
    def _separable(self) -> bool:
        """Whether a weight's update depends on its own gradient alone."""
        return self._clip is None or isinstance(self._clip, (GradientClipByValue, GradientClipByNorm))

    def _held(self, weight: Weight) -> _Known:
        found = self._states.get(weight._at)
        if found is None:
            found = self._states[weight._at] = _Known(next(self._numbers))
        return found

    def _states_of(self, program: UpdateProgram, held: Sequence[_Known]) -> list[State]:
        """What is kept for weights: begun where it is new, moved where the weight was moved."""
        fresh = program.first_states() if any(each.state is None for each in held) else []
        found: list[State] = []
        for at, each in enumerate(held):
            if each.state is None:
                each.state = fresh[at]
            for tensor in each.state.values():
                tensor.move_to(program.place)
            found.append(each.state)
        return found

    def _check(self, parts: Sequence[_Part]) -> None:
        wrong = []
        for program, weights, _ in parts:
            flags = program.finite([weight.grad() for weight in weights])
            wrong += [str(weight) for weight, good in zip(weights, flags, strict=True) if not good]
        if wrong:
            raise NonFiniteError(
                f"{type(self).__name__}.update: the gradient of {', '.join(wrong)} has elements that are infinite or "
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


class _Known:
    """What an updater knows of a weight."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.state: State | None = None


class _Part(NamedTuple):
    """A program, the weights that it updates, and their state."""

    program: UpdateProgram
    weights: list[Weight]
    states: list[State]


def _powers_of_two(weights: Sequence[Weight], specs: Mapping[Held, Spec]) -> Iterator[list[Weight]]:
    """Weights of equal metadata, 1, 2, 4, ... together, so that few programs serve all numbers of them."""
    for _, group in groupby(weights, key=lambda weight: specs[weight._at]):
        left = list(group)
        while left:
            size = 1 << (len(left).bit_length() - 1)
            yield left[:size]
            left = left[size:]


def _each_once(target: Any) -> list[Weight]:
    """The weights of a graph or sequence, those that are tied once, in order."""
    if isinstance(target, Weight):
        found: Iterable[Any] = [target]
    elif hasattr(target, "weights"):
        found = target.weights()
    else:
        found = target
    each: dict[Held, Weight] = {}
    try:
        for weight in found:
            if not isinstance(weight, Weight):
                raise NodeError(
                    f"update takes weights; one is {weight!r:.80}\n  Do: update(graph), or update([weight, ...])"
                )
            each.setdefault(weight._at, weight)
    except TypeError:
        raise NodeError(f"update takes a graph or weights, got {target!r:.80}") from None
    return list(each.values())
