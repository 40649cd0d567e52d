"""The conformance kit: it passes what is right, catches what is wrong, and knows known failures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fluidlite.base.errors import FluidError
from fluidlite.codegen import philox
from fluidlite.conformance.reference import Oracle
from fluidlite.conformance.samples import reference_of
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_memory import Span
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.program.kernel_registry import kernels, register_kernel
from fluidlite.program.registry import ops
from fluidlite.testing import (
    Case,
    ConformanceError,
    cases,
    check_gradient,
    check_sample,
    checks,
    compare,
    conformance,
    device_checks,
    random_checks,
    read_known_failures,
    tolerance,
)

CPU = Place("cpu")


@pytest.fixture
def wrong(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Kernels of a library that is wrong, registered for the test only."""
    made: list[Any] = []

    def register(op: str, function: Any) -> None:
        made.append(register_kernel(op, "cpu", library="wrong")(function))

    yield register
    for kernel in made:
        kernels.remove(kernel)


def case(op: str, label: str, dtype: str = "float32") -> Case:
    return next(c for c in cases([op]) if (c.label, c.dtype) == (label, dtype))


def test_a_wrong_value_is_caught(wrong: Any) -> None:
    check_sample(case("relu", "attrs0"), CPU)

    def relu(call: Any, context: Any) -> Any:
        def run(context: Any, io: Any) -> None:
            np.maximum(io.array("X"), 0, out=io.array("Out"))
            io.array("Out").flat[3] += 1e-3

        return run

    wrong("relu", relu)
    with pytest.raises(
        ConformanceError, match=r"relu\[attrs0:float32\] on cpu:0, interpreted: Out\[0\]: 1 of 35 .* at \[0, 3\]"
    ):
        check_sample(case("relu", "attrs0"), CPU)


def _relu(x: Any) -> Any:
    return np.maximum(x, 0)


def _keeps_its_first_input() -> Callable[[Any], Any]:
    first: list[Any] = []

    def relu(x: Any) -> Any:
        first.append(x.copy())
        return _relu(first[0])

    return relu


def _wrong_at_the_end(x: Any) -> Any:
    out = _relu(x)
    if x.size > 100 and x.size % 8:
        out.reshape(-1)[-1] += 1
    return out


@pytest.mark.parametrize(
    ("function", "label", "dtype"),
    [
        (_keeps_its_first_input(), "attrs0", "float32"),
        (lambda x: _relu(x.astype("float32")), "attrs0", "float64"),
        (lambda x: np.fmax(x, np.float32(0)), "nan_inf_zeros", "float32"),
        (_wrong_at_the_end, "tail127", "float32"),
        (_wrong_at_the_end, "tail4133", "float32"),
    ],
    ids=["keeps its first input", "float32", "NaN", "tail", "long tail"],
)
def test_faults_of_a_kernel_are_caught(wrong: Any, function: Any, label: str, dtype: str) -> None:
    check_sample(case("relu", label, dtype), CPU)

    def relu(call: Any, context: Any) -> Any:
        def run(context: Any, io: Any) -> None:
            io.array("Out")[...] = function(io.array("X"))

        return run

    wrong("relu", relu)
    with pytest.raises(ConformanceError, match=rf"relu\[{label}:{dtype}\]"):
        check_sample(case("relu", label, dtype), CPU)


@pytest.mark.parametrize(
    "divide", [lambda x, y: np.trunc(x / y).astype(x.dtype), np.floor_divide], ids=["f64", "floor"]
)
def test_integers_are_divided_exactly(wrong: Any, divide: Any) -> None:
    subject = case("elementwise_floordiv", "large_int64", "int64")
    check_sample(subject, CPU)

    def floordiv(call: Any, context: Any) -> Any:
        def run(context: Any, io: Any) -> None:
            io.array("Out")[...] = divide(io.array("X"), io.array("Y"))

        return run

    wrong("elementwise_floordiv", floordiv)
    with pytest.raises(ConformanceError):
        check_sample(subject, CPU)


def test_a_wrong_gradient_is_caught(wrong: Any) -> None:
    check_gradient(case("tanh", "attrs0"), CPU)

    def tanh_grad(call: Any, context: Any) -> Any:
        def run(context: Any, io: Any) -> None:
            np.multiply(io.array("Out@GRAD"), 1 - io.array("Out"), io.array("X@GRAD"))

        return run

    wrong("tanh_grad", tanh_grad)
    with pytest.raises(ConformanceError, match=r"tanh\[attrs0:float32\] on cpu:0, interpreted: gradient of X\[0\]"):
        check_gradient(case("tanh", "attrs0"), CPU)


def test_a_type_means_all_its_cases() -> None:
    check_sample("mean", "cpu")
    check_gradient("mean", CPU)


def test_differences_of_the_reference_are_exact_enough() -> None:
    oracle = Oracle(case("exp", "attrs0", "float64"))
    (found,) = oracle.gradients()["X"]
    (weight,) = oracle.weights["Out"]
    np.testing.assert_allclose(found, weight * np.exp(oracle.inputs["X"][0]), rtol=1e-9)


@pytest.mark.parametrize(
    ("actual", "expected", "right"),
    [
        ([1.0, np.nan, np.inf], [1.0, np.nan, np.inf], True),
        ([1.0, 2.0, np.inf], [1.0, np.nan, np.inf], False),
        ([1.0, np.nan, np.inf], [1.0, 2.0, np.inf], False),
        ([1.0, np.nan, -np.inf], [1.0, np.nan, np.inf], False),
        ([1.0, 2.0, np.inf], [1.0, 2.0, 1e39], True),
        ([1.0, 2.0, 3.4e38], [1.0, 2.0, 1e39], False),
        ([1.00001, 2.0, 3.0], [1.0, 2.0, 3.0], True),
        ([1.001, 2.0, 3.0], [1.0, 2.0, 3.0], False),
    ],
)
def test_comparison_knows_nan_and_infinity(actual: list[float], expected: list[float], right: bool) -> None:
    arguments = "it", np.asarray(actual, "float32"), np.asarray(expected), 1e-5, 0.0
    if right:
        compare(*arguments)
    else:
        with pytest.raises(ConformanceError, match="1 of 3"):
            compare(*arguments)


def test_integers_are_equal_or_wrong() -> None:
    compare("it", np.asarray([1, 2]), np.asarray([1, 2]), 1.0, 1.0)
    with pytest.raises(ConformanceError, match="1 of 2"):
        compare("it", np.asarray([1, 2]), np.asarray([1, 3]), 1.0, 1.0)


def test_a_device_may_loosen_the_tolerance() -> None:
    assert tolerance("cpu", "float32") == 1e-5
    assert tolerance("cpu", "float64") < tolerance("cpu", "float32") < tolerance("cpu", "bfloat16")


def test_every_case_has_an_id_of_its_own() -> None:
    found = [c.id for c in cases()]
    assert len(found) == len(set(found)) > 300
    assert {c.op.type for c in cases()} == {op.type for op in ops if reference_of(op.type) is not None}


def test_other_random_bits_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    for check in random_checks().values():
        check(CPU)
    true_block = philox.block
    monkeypatch.setattr(philox, "block", lambda counter, key: true_block(counter, (key[0] + 1, key[1])))
    for check in random_checks().values():
        with pytest.raises(ConformanceError):
            check(CPU)


def test_a_device_that_copies_wrongly_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = type(get_context("cpu").raw)
    true_copy = raw.copy_within

    def off_by_one(self: Any, dst: Span, src: Span) -> None:
        true_copy(self, dst, Span(src.handle, src.offset + 1, src.nbytes))

    monkeypatch.setattr(raw, "copy_within", off_by_one)
    with pytest.raises(ConformanceError, match="copy_within"):
        device_checks()["device[copy_within]"](CPU)


def test_a_copy_that_overtakes_queued_copies_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only copies in run at once; the queue runs when something is read."""
    raw, queued = type(get_context("cpu").raw), []
    true_copy, true_out = raw.copy_within, raw.copy_out

    def copy_out(self: Any, host: Any, src: Span) -> None:
        while queued:
            true_copy(self, *queued.pop(0))
        true_out(self, host, src)

    monkeypatch.setattr(raw, "copy_within", lambda self, dst, src: queued.append((dst, src)))
    monkeypatch.setattr(raw, "copy_out", copy_out)
    with pytest.raises(ConformanceError, match="twenty copies"):
        device_checks()["device[order]"](CPU)


def test_an_event_that_is_done_before_its_work_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    raw, queued = type(get_context("cpu").raw), []
    true_out = raw.copy_out

    def run(self: Any) -> None:
        while queued:
            true_out(self, *queued.pop(0))

    class Early:
        def __init__(self, context: Any) -> None:
            self.context = context

        def done(self) -> bool:
            return True

        def wait(self) -> None:
            run(self.context)

    monkeypatch.setattr(raw, "copy_out", lambda self, host, src: queued.append((host, src)))
    monkeypatch.setattr(raw, "wait", run)
    monkeypatch.setattr(raw, "record", lambda self: Early(self))
    with pytest.raises(ConformanceError, match="an event that is done"):
        device_checks()["device[events]"](CPU)


def _part(span: Span, offset: int, nbytes: int) -> Span:
    return Span(span.handle, span.offset + offset, nbytes)


def _large_copies_are_cut(patch: pytest.MonkeyPatch, raw: Any) -> None:
    copy = raw.copy_within
    patch.setattr(raw, "copy_within", lambda self, dst, src: copy(
        self, _part(dst, 0, min(dst.nbytes, 4 << 20)), _part(src, 0, min(src.nbytes, 4 << 20))))  # fmt: skip


def _asynchronous_copies_ignore_the_offset(patch: pytest.MonkeyPatch, raw: Any) -> None:
    patch.setattr(raw, "copy_in_async", lambda self, dst, src: self.copy_in(Span(dst.handle, 0, dst.nbytes), src))


def _peer_copies_do_nothing(patch: pytest.MonkeyPatch, raw: Any) -> None:
    patch.setattr(raw, "copy_peer", lambda self, dst, context, src: True)


def _events_of_others_are_ignored(patch: pytest.MonkeyPatch, raw: Any) -> None:
    patch.setattr(raw, "wait_for", lambda self, event: None)


def _strides_are_ignored(patch: pytest.MonkeyPatch, raw: Any) -> None:
    arrays = devices.unit(CPU).array
    wrap = arrays.wrap
    patch.setattr(arrays, "wrap", lambda span, dims, dtype, strides: wrap(
        _part(span, 0, math.prod(dims) * np.dtype(dtype).itemsize), dims, dtype, None))  # fmt: skip


def _views_are_adopted(patch: pytest.MonkeyPatch, raw: Any) -> None:
    arrays = devices.unit(CPU).array
    patch.setattr(arrays, "adopt", lambda a: a.reshape(-1).view(np.uint8) if a.flags.c_contiguous else None)


def _numbers_are_cut(patch: pytest.MonkeyPatch, raw: Any) -> None:
    launch = Context.launch

    def cut(self: Any, kernel: Any, items: int, arguments: Any, **options: Any) -> None:
        cut = [int(np.int32(x & 0x7FFFFFFF)) if isinstance(x, int) and x > 2**40 else x for x in arguments]
        launch(self, kernel, items, cut, **options)

    patch.setattr(Context, "launch", cut)


def _memory_is_not_aligned(patch: pytest.MonkeyPatch, raw: Any) -> None:
    unit = devices.unit(CPU)
    patch.setattr(unit, "info", dataclasses.replace(unit.info, alignment=1 << 20))


@pytest.mark.parametrize(
    ("fault", "check", "message"),
    [
        (_large_copies_are_cut, "large_copies", "a large copy within"),
        (_asynchronous_copies_ignore_the_offset, "asynchronous_copies", "copy_in_async of 1 bytes"),
        (_peer_copies_do_nothing, "peer_copies", "copy_peer of 1 bytes"),
        (_events_of_others_are_ignored, "events_of_other_devices", "did not wait for an event of another device"),
        (_strides_are_ignored, "array_views", r"strides \(1, 6\)"),
        (_views_are_adopted, "adopted_arrays", "adopted array"),
        (_numbers_are_cut, "arguments", "a int64 argument"),
        (_memory_is_not_aligned, "alignment", "no multiple of"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else None,
)
def test_faults_of_a_device_are_caught(
    fault: Callable[..., None], check: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device_checks()[f"device[{check}]"](CPU)
    fault(monkeypatch, type(get_context("cpu").raw))
    with pytest.raises(ConformanceError, match=message):
        device_checks()[f"device[{check}]"](CPU)


def test_known_failures_are_lines_with_reasons() -> None:
    text = "# all\nrelu[rank4:float64]: no doubles\n\ntop_k: slow  # later\nmean[one]: why: so\n"
    assert read_known_failures(text) == {"relu[rank4:float64]": "no doubles", "top_k": "slow", "mean[one]": "why: so"}
    for bad in ("relu[rank4:float64]", "relu:", "relu[one]: "):
        with pytest.raises(FluidError, match="has no reason"):
            read_known_failures(bad)


def test_conformance_marks_known_failures(tmp_path: Path) -> None:
    path = tmp_path / "known.txt"
    path.write_text("relu[rank4:float64]: one\nmean.grad: two\ntanh[attrs0]: three\n")
    test: Any = conformance("cpu", known_failures=path)
    (mark,) = test.pytestmark
    marked = {p.id: p.marks[0].kwargs for p in mark.args[1] if p.marks}
    assert marked["relu[rank4:float64]"] == {"reason": "one", "strict": True}
    assert marked["mean.grad[matrix:float32]"] == {"reason": "two", "strict": False}
    assert "mean[matrix:float32]" not in marked
    assert {name for name in marked if name.startswith("tanh[")} == {
        f"tanh[attrs0:{dtype}]" for dtype in ("float32", "float64", "float16", "bfloat16")
    }
    path.write_text("relu[gone]: it was renamed\n")
    with pytest.raises(FluidError, match=r"no check is called relu\[gone\]"):
        conformance("cpu", known_failures=path)


def test_conformance_skips_with_the_device_s_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = [kind for kind, reason in devices.kinds().items() if reason]
    if not reasons:
        pytest.skip("every kind of device can be used here")
    test: Any = conformance(f"{reasons[0]}:0", operators=["relu"])
    with pytest.raises(pytest.skip.Exception, match="cannot be used here"):
        test(checks(["relu"])[0])


test_mean_conforms = conformance("cpu", operators=["mean"])
