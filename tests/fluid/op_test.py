"""The harness that Fluid's operator tests are written against: a test says operator, inputs, attributes, outputs.

``from op_test import OpTest`` finds it, and then ``self.op_type``, ``self.inputs``, ``self.attrs``, ``self.outputs``,
``check_output`` and ``check_grad`` are what those tests expect. It runs on the cpu and, where there is one, on opencl.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

import fluidlite as fluid
from fluidlite.program.backward import append_backward

Array = np.ndarray[Any, Any]
PLACES = [str(place) for place in fluid.places() if place.kind in ("cpu", "opencl")]


def _named(slots: dict[str, Any]) -> dict[str, list[tuple[str, Any]]]:
    """Each slot's (name of the variable, value) pairs; a slot with one value lends it its own name."""
    return {slot: list(v) if isinstance(v, list) else [(slot, v)] for slot, v in slots.items()}


def _parts(value: Any) -> tuple[Array, Any]:
    """The array of a value, and its sequences' lengths (or None)."""
    array, lengths = value if isinstance(value, tuple) else (value, None)
    return np.asarray(array), lengths


class OpTest(unittest.TestCase):
    """Base of operator tests; ``setUp`` of a test sets the attributes below."""

    op_type: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    attrs: dict[str, Any]

    @classmethod
    def setUpClass(cls) -> None:
        """Make the test's random numbers the same each time."""
        np.random.seed(123)

    # Programs ----------------------------------------------------------------------------------------------------

    def _build(self, wide: bool = False) -> tuple[Any, dict[str, Any], dict[str, list[str]]]:
        """The program of the operator, what is fed to it, and the names of its outputs by slot.

        With ``wide`` float32 is float64 instead, which makes differences exact.
        """
        program = fluid.Program()
        block = program.global_block()
        feed: dict[str, Any] = {}
        inputs: dict[str, list[str]] = {}
        for slot, pairs in _named(self.inputs).items():
            inputs[slot] = []
            for name, value in pairs:
                array, lengths = _parts(value)
                if wide and array.dtype == np.float32:
                    array = array.astype(np.float64)
                block.create_var(
                    name=name, shape=array.shape, dtype=array.dtype, lod_level=len(lengths or ()),
                    stop_gradient=array.dtype.kind != "f", is_data=True,
                )  # fmt: skip
                inputs[slot].append(name)
                feed[name] = array
                if lengths is not None:
                    feed[name] = fluid.create_lod_tensor(array, lengths, fluid.CPUPlace())
        outputs = {slot: [name for name, _ in pairs] for slot, pairs in _named(self.outputs).items()}
        for names in outputs.values():
            for name in names:
                if not block.has_var(name):
                    block.create_var(name=name)
        for slot in fluid.op_proto(self.op_type).outputs:
            if slot.name not in outputs and (slot.intermediate or not (slot.dispensable or slot.duplicable)):
                outputs[slot.name] = [block.create_var(name=slot.name).name]
        block.append_op(type=self.op_type, inputs=inputs, outputs=outputs, attrs=getattr(self, "attrs", {}))
        return program, feed, outputs

    def _run(self, place: Any) -> dict[str, Any]:
        program, feed, outputs = self._build()
        names = [name for slot in self.outputs for name in outputs[slot]]
        executor = fluid.Executor(place)
        with fluid.scope_guard(fluid.Scope()):
            values = executor.run(program, feed=feed, fetch_list=names, return_numpy=False)
        return dict(zip(names, values, strict=True))

    # Outputs -----------------------------------------------------------------------------------------------------

    def check_output(
        self, atol: float = 1e-5, no_check_set: Iterable[str] | None = None, equal_nan: bool = False, **ignored: Any
    ) -> None:
        """Compare every output of ``self.outputs`` but those in ``no_check_set``, on each place."""
        for place in PLACES:
            self.check_output_with_place(place, atol, no_check_set, equal_nan)

    def check_output_with_place(
        self,
        place: Any,
        atol: float = 1e-5,
        no_check_set: Iterable[str] | None = None,
        equal_nan: bool = False,
        **ignored: Any,
    ) -> None:
        """Compare the outputs on one place, with ``atol`` as the absolute and the relative tolerance."""
        found = self._run(place)
        skipped = set(no_check_set or ())
        for slot, pairs in _named(self.outputs).items():
            for name, value in pairs:
                if slot in skipped or name in skipped:
                    continue
                expected, lengths = _parts(value)
                what = f"output {name} of {self.op_type} on {place}"
                actual = np.asarray(found[name].numpy())
                self.assertEqual(actual.shape, expected.shape, what)
                self.check_dtype(what, actual, expected)
                np.testing.assert_allclose(actual, expected, rtol=atol, atol=atol, equal_nan=equal_nan, err_msg=what)
                if lengths is not None:
                    self.assertEqual(found[name].recursive_sequence_lengths(), lengths, what)

    def check_dtype(self, what: str, actual: Array, expected: Array) -> None:
        """Compare dtypes; Fluid's tests do not, so this is for others to override."""

    def check_output_customized(self, checker: Callable[[list[Any]], Any]) -> None:
        """Hand the outputs, as arrays, to ``checker``, on each place."""
        for place in PLACES:
            checker([np.asarray(value.numpy()) for value in self._run(place).values()])

    # Gradients ---------------------------------------------------------------------------------------------------

    def check_grad(
        self,
        inputs_to_check: Sequence[str],
        output_names: str | Sequence[str],
        no_grad_set: Iterable[str] | None = None,
        numeric_grad_delta: float = 0.005,
        in_place: bool = False,
        max_relative_error: float = 0.005,
        user_defined_grads: Sequence[Array] | None = None,
        **ignored: Any,
    ) -> None:
        """Compare gradients of the mean of the outputs with central differences, or with given ones."""
        for place in PLACES:
            self.check_grad_with_place(
                place, inputs_to_check, output_names, no_grad_set, numeric_grad_delta, in_place, max_relative_error,
                user_defined_grads,
            )  # fmt: skip

    def check_grad_with_place(
        self,
        place: Any,
        inputs_to_check: Sequence[str],
        output_names: str | Sequence[str],
        no_grad_set: Iterable[str] | None = None,
        numeric_grad_delta: float = 0.005,
        in_place: bool = False,
        max_relative_error: float = 0.005,
        user_defined_grads: Sequence[Array] | None = None,
        **ignored: Any,
    ) -> None:
        """Compare gradients on one place."""
        wanted = [output_names] if isinstance(output_names, str) else list(output_names)
        expected = user_defined_grads or [
            self.differences(name, wanted, numeric_grad_delta) for name in inputs_to_check
        ]
        program, feed, _ = self._build()
        with fluid.program_guard(program, fluid.Program()):
            block = program.global_block()
            means = [fluid.layers.mean(block.var(name)) for name in wanted]
            loss = fluid.layers.scale(fluid.layers.sums(means), 1.0 / len(means))
            append_backward(loss, parameter_list=list(inputs_to_check), no_grad_set=set(no_grad_set or ()))
        names = [fluid.framework.grad_var_name(name) for name in inputs_to_check]
        found = fluid.Executor(place).run(program, feed, names, scope=fluid.Scope(), return_numpy=False)
        for name, tensor, value in zip(inputs_to_check, found, expected, strict=True):
            actual = np.asarray(tensor.numpy(), np.float64)
            # as Fluid does it: relative to the value, but absolute where that is small
            size = np.abs(value)
            size[size < 1e-3] = 1
            self.assertEqual(actual.shape, value.shape)
            off = float(np.max(np.abs(actual - value) / size)) if value.size else 0.0
            self.assertLessEqual(off, max_relative_error, f"gradient of {name} by {self.op_type} on {place}")

    def differences(self, name: str, wanted: list[str], delta: float = 0.005) -> Array:
        """Gradient of the mean of outputs by an input, by central differences, in float64 where the operator has it."""
        wide = self._runs_wide()
        program, feed, _ = self._build(wide)
        executor, scope = fluid.Executor("cpu"), fluid.Scope()
        whole = feed[name]
        array = np.array(whole if isinstance(whole, np.ndarray) else whole.numpy())
        lengths = None if isinstance(whole, np.ndarray) else whole.recursive_sequence_lengths()
        grad = np.zeros(array.shape, np.float64)

        def mean_at(index: tuple[int, ...], value: float) -> float:
            moved = array.copy()
            moved[index] = value
            given = moved if lengths is None else fluid.create_lod_tensor(moved, lengths, fluid.CPUPlace())
            outs = executor.run(program, {**feed, name: given}, wanted, scope=scope, return_numpy=False)
            return float(np.mean([np.mean(out.numpy(), dtype=np.float64) for out in outs]))

        step = delta / 50 if wide else delta
        for index in np.ndindex(array.shape):
            here = float(array[index])
            grad[index] = (mean_at(index, here + step) - mean_at(index, here - step)) / (2 * step)
        return grad

    def _runs_wide(self) -> bool:
        try:
            self._build(wide=True)
        except fluid.FluidError:
            return False
        return True
