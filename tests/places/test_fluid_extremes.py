"""Where Fluid's formulas stay finite in float32, so do ours, on every place, compiled and interpreted.

At 0 and 1, at the least and the largest numbers, and where a row, a variance or a state is all 0; forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.conformance.samples import reference_of
from fluidlite.program.registry import ops

L = fluid.layers
PLACES = [*map(str, fluid.places()), "strict"]
Inputs = Mapping[str, Any]


@pytest.fixture(scope="module", autouse=True)
def strict(load_plugin: Callable[[str, str], None]) -> None:
    pytest.importorskip("array_api_strict")
    load_plugin("strict", "strict_device")


each_place = pytest.mark.parametrize("place", PLACES)
each_mode = pytest.mark.parametrize("mode", ["compiled", "interpreted"])

MAGNITUDES = (0, 1e-45, 1e-38, 1e-30, 1e-20, 1e-8, 1e-4, 0.5, 1, 2, 6, 15, 24, 40, 41, 64, 88, 89, 104, 700, 1e10, 1e18)
HUGE = (1e20, 1e30, 3e38)


def array(*rows: Any) -> Any:
    return np.asarray(rows, "float32")


MODERATE = array(*(s * m for m in MAGNITUDES for s in (1, -1)))
"""Their squares are finite."""
EVERY = np.concatenate([MODERATE, array(*HUGE), -array(*HUGE)])
UNIT = array(0, 1e-45, 1e-30, 1e-8, 1e-4, 0.5, 1 - 2.0**-23, 1)

ANYWHERE = """relu sigmoid logsigmoid tanh tanh_shrink abs softplus softsign sin cos atan leaky_relu elu relu6 brelu
soft_relu stanh hard_sigmoid hard_shrink thresholded_relu softshrink hard_swish mish selu swish gelu erf floor ceil
round sign"""
WITHIN: dict[str, Callable[[Any], Any]] = {
    "exp": lambda x: x <= 88, "sinh": lambda x: abs(x) <= 88, "cosh": lambda x: abs(x) <= 88,
    "log": lambda x: x >= 1e-37, "sqrt": lambda x: x >= 1e-37, "rsqrt": lambda x: x >= 1e-20,
    "log1p": lambda x: x > -1, "reciprocal": lambda x: abs(x) >= 1e-8, "square": lambda x: abs(x) <= 1e18,
    "asin": lambda x: abs(x) < 1, "acos": lambda x: abs(x) < 1,
}  # fmt: skip
"""Elsewhere Fluid's are not finite either: beyond the largest float32, at a pole, or outside the domain."""


class Case:
    """An operator on extreme inputs; ``wrt`` are the slots whose gradients are asked for."""

    def __init__(self, type: str, inputs: Inputs, wrt: str = "", out: str = "Out", /, *more: str, **attrs: Any) -> None:
        self.type, self.inputs, self.attrs = type, dict(inputs), attrs
        self.wrt, self.out, self.more = wrt.split(), out, more

    def append(self, tag: str) -> dict[str, Any]:
        """Append it to the program that is being built, and return its output and gradients."""
        block = fluid.default_main_program().global_block()
        given = {
            slot: L.data(f"{tag}.{slot}", list(x.shape), dtype=x.dtype.name, append_batch_size=False)
            for slot, x in self.inputs.items()
        }
        for slot, variable in given.items():
            variable.stop_gradient = slot not in self.wrt
        made = {slot: block.create_var(f"{tag}.{slot}.made") for slot in (self.out, *self.more)}
        block.append_op(self.type, inputs=given, outputs=made, attrs=self.attrs)
        found = {self.out: made[self.out]}
        if self.wrt:
            grads = fluid.gradients([made[self.out]], [given[slot] for slot in self.wrt])
            found |= {f"{slot}@GRAD": grad for slot, grad in zip(self.wrt, grads, strict=True)}
        return found

    def exact(self) -> Any:
        op = ops.get(self.type)
        wide = {s: x.astype("float64") if x.dtype == np.float32 else x for s, x in self.inputs.items()}
        attrs = {attr.name: attr.default for attr in op.attrs} | self.attrs
        assert reference_of(op.type) is not None
        with np.errstate(all="ignore"):
            return reference_of(op.type)(wide, attrs)[self.out]


def run(place: str, mode: str, cases: list[Case]) -> list[dict[str, Any]]:
    """Run all in one program, twice: the second run takes the shorter way."""
    main, feed, wanted = fluid.Program(), {}, []
    with fluid.scope_guard(fluid.Scope()), fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        for i, case in enumerate(cases):
            feed |= {f"c{i}.{slot}": x for slot, x in case.inputs.items()}
            wanted.append(case.append(f"c{i}"))
        exe, flat = fluid.Executor(place, mode=mode), [variable for found in wanted for variable in found.values()]
        exe.run(main, feed, flat)
        values = iter(exe.run(main, feed, flat))
        return [{slot: np.asarray(next(values)) for slot in found} for found in wanted]


def check(place: str, mode: str, cases: list[Case], rtol: float = 1e-4) -> None:
    for case, found in zip(cases, run(place, mode, cases), strict=True):
        for slot, value in found.items():
            where = [{s: x.reshape(-1)[:60] for s, x in case.inputs.items()}, value]
            assert np.isfinite(value).all(), (case.type, case.attrs, slot, where)
        exact = np.asarray(case.exact(), "float64").reshape(found[case.out].shape)
        np.testing.assert_allclose(found[case.out], exact, rtol=rtol, atol=1e-6, err_msg=f"{case.type} {case.attrs}")


@each_place
@each_mode
def test_activations(place: str, mode: str) -> None:
    cases = [Case(type, {"X": EVERY}, "X") for type in ANYWHERE.split()]
    cases += [Case(type, {"X": EVERY[inside(EVERY)]}, "X") for type, inside in WITHIN.items()]
    cases += [Case("pow", {"X": MODERATE}, "X", factor=2.0), Case("clip", {"X": EVERY}, "X", min=-1.0, max=1.0)]
    cases += [Case("soft_relu", {"X": EVERY}, "X", threshold=t) for t in (1.0, 40.0)]
    check(place, mode, cases)


def pairs(x: Any, y: Any) -> tuple[Any, Any]:
    """Every number beside every other, as columns."""
    return tuple(each.reshape(-1, 1).astype("float32") for each in np.meshgrid(x, y))  # type: ignore[return-value]


@each_place
@each_mode
def test_losses(place: str, mode: str) -> None:
    p, truth = pairs(UNIT, [0, 1, 0.25])
    x, label = pairs(MODERATE, [0, 1])
    a, b = pairs(MODERATE, [0, 1, -1e18])
    click, graded = pairs(MODERATE, [-2, -1, 0, 0.5, 1, 1.5])
    same, order = pairs(MODERATE, [-1, 1])
    width = MODERATE.size
    cases = [
        *(Case("log_loss", {"Predicted": p, "Labels": truth}, "Predicted", "Loss", epsilon=e) for e in (1e-4, 1e-7)),
        Case("sigmoid_cross_entropy_with_logits", {"X": x, "Label": label}, "X"),
        Case("sigmoid_cross_entropy_with_logits", {"X": x, "Label": 0 * label - 100}, "X", normalize=True),
        Case("hinge_loss", {"Logits": x, "Labels": label}, "Logits", "Loss"),
        Case("modified_huber_loss", {"X": x, "Y": label}, "X", "Out", "IntermediateVal"),
        Case("huber_loss", {"X": a, "Y": b}, "X Y", "Out", "Residual", delta=1.0),
        Case("smooth_l1_loss", {"X": a, "Y": b}, "X Y", "Out", "Diff", sigma=1.0),
        Case("teacher_student_sigmoid_loss", {"X": click, "Label": graded}, "X", "Y"),
        Case("rank_loss", {"Left": a, "Right": b, "Label": 0 * a + 1}, "Left Right"),
        Case("margin_rank_loss", {"X1": same, "X2": 0 * same, "Label": order}, "X1 X2", "Out", "Activated"),
        Case("kldiv_loss", {"X": a, "Target": np.abs(b) / np.float32(1e18)}, "X", "Loss", reduction="none"),
        *(Case("bpr_loss", {"X": MODERATE.reshape(1, -1), "Label": np.asarray([[c]])}, "X", "Y")
          for c in (0, width - 2, width - 1)),
    ]  # fmt: skip
    check(place, mode, cases)


@each_place
@each_mode
def test_losses_of_classes(place: str, mode: str) -> None:
    certain, hard = array([0, 1], [1, 0], [1e-30, 1]), np.asarray([[0], [1], [0]])
    soft = array([1, 0], [0, 1], [0.5, 0.5])
    logits = array([0, 1e30], [-3e38, 0], [1e10, 1e10])
    cases = [
        Case("cross_entropy", {"X": certain, "Label": hard}, "", "Y"),
        Case("cross_entropy", {"X": certain, "Label": soft}, "Label", "Y", soft_label=True),
        Case("cross_entropy2", {"X": certain, "Label": hard}, "", "Y", "MatchX", "XShape"),
        Case("softmax", {"X": logits}, "X"),
        Case("softmax_with_cross_entropy", {"Logits": logits, "Label": hard}, "Logits", "Loss", "Softmax"),
        Case("softmax_with_cross_entropy", {"Logits": logits, "Label": soft}, "Logits", "Loss", "Softmax",
             soft_label=True),
    ]  # fmt: skip
    check(place, mode, cases)


@each_place
@each_mode
def test_norms(place: str, mode: str) -> None:
    """Rows of zeros, of one number, and of numbers whose squares are less than any float32."""
    x = array(
        [0, 0, 0, 0], [7, 7, 7, 7], [1e4, 1e4, 1e4, 1e4], [1e-30, 0, 0, -1e-30], [1e18, 0, 1e18, 0], [1, -1, 2, 0]
    )
    one = array([0, 0, 0, 0])
    images = np.tile(x[:4].reshape(1, 4, 2, 2), (2, 1, 1, 1))
    line, plain = array(1, 1, 1, 1), array(0, 0, 0, 0)
    affine = {"Scale": line, "Bias": plain}
    moving = {**affine, "Mean": plain, "Variance": line}
    saved = ("MeanOut", "VarianceOut", "SavedMean", "SavedVariance")
    cases = [
        Case("cos_sim", {"X": x, "Y": x[::-1].copy()}, "X Y", "Out", "XNorm", "YNorm"),
        Case("cos_sim", {"X": x, "Y": one}, "X Y", "Out", "XNorm", "YNorm"),
        *(Case("norm", {"X": x}, "X", "Out", "Norm", axis=1, epsilon=e) for e in (1e-10, 1e-12)),
        *(Case("clip_by_norm", {"X": x * s}, max_norm=1.0) for s in (array(0), array(1e-30), array(1))),
        Case("lrn", {"X": images}, "X", "Out", "MidOut"),
        Case("batch_norm", {"X": images, **moving}, "X", "Y", *saved),
        Case("instance_norm", {"X": images, **affine}, "X", "Y", "SavedMean", "SavedVariance"),
        Case("group_norm", {"X": images, **affine}, "X", "Y", "Mean", "Variance", groups=4),
        Case("layer_norm", {"X": x[:4]}, "X", "Y", "Mean", "Variance"),
        *(Case("norm", {"X": x * array(s)}, "X", "Out", "Norm", axis=axis, epsilon=1e-12)
          for s in (0, 1e-30, 1) for axis in (0, 1)),
        *(Case("data_norm", {"X": x, "BatchSize": n * line, "BatchSum": n * m * line, "BatchSquareSum": n * v * line},
               "X", "Y", "Means", "Scales")
          for n in (array(1), array(2.0**14), array(2.0**60)) for m in (array(0), array(7), array(2.0**33))
          for v in (array(1e-10), array(1), array(1e10))),
        Case("spectral_norm", {"Weight": x[5:] + 0, "U": array(1), "V": line}, "", power_iters=1),
        Case("dist", {"X": x[:4], "Y": x[:4]}, "X Y", p=2.0),
    ]  # fmt: skip
    check(place, mode, cases)


@each_place
@each_mode
def test_dpsgd_without_noise(place: str, mode: str) -> None:
    """A gradient of 0, one below the clip, one far above it, and one whose squares are infinite."""
    grads = [
        array(0, 0, 0),
        array(1e-30, 0, -1e-30),
        array(1, -2, 2),
        array(0, 3e4, -4e4),
        array(1e18, 0, 1),
        array(*HUGE),
    ]
    cases = [
        Case("dpsgd", {"Param": array(1, -1, 0), "Grad": grad, "LearningRate": array(0.1)}, "", "ParamOut",
             clip=clip, sigma=0.0)
        for grad in grads for clip in (1e-3, 10.0)
    ]  # fmt: skip
    for case, found in zip(cases, run(place, mode, cases), strict=True):
        param, grad = (case.inputs[slot].astype("float64") for slot in ("Param", "Grad"))
        norm = np.sqrt((grad * grad).sum())
        exact = param - 0.1 * grad / max(norm / case.attrs["clip"], 1)
        if norm > 1e19:  # Fluid's norm is infinite: what it divides becomes 0
            exact = param
        np.testing.assert_allclose(found["ParamOut"].reshape(-1), exact.reshape(-1), rtol=1e-5, err_msg=str(grad))


GRADS = array(*(s * m for m in (0, 1e-45, 1e-38, 1e-30, 1e-20, 1e-8, 1e-3, 1, 1e4, 1e10, 1e18) for s in (1, -1)))
STATES = {
    "adam": "Moment1 Moment2", "adamax": "Moment InfNorm", "adagrad": "Moment", "decayed_adagrad": "Moment",
    "adadelta": "AvgSquaredGrad AvgSquaredUpdate", "rmsprop": "MeanSquare Moment",
    "ftrl": "SquaredAccumulator LinearAccumulator", "lamb": "Moment1 Moment2", "lars_momentum": "Velocity",
    "momentum": "Velocity", "sgd": "",
}  # fmt: skip


@each_place
@each_mode
@pytest.mark.parametrize("grads", ["every", "zero"])
def test_optimizers(place: str, mode: str, grads: str) -> None:
    """The first step, from state that is 0, of parameters that are 0 and that are not."""
    grad = GRADS if grads == "every" else GRADS * 0
    cases = []
    for type, state in STATES.items():
        op, zero = ops.get(type), np.zeros_like(grad)
        needs = {slot.name for slot in op.inputs}
        for param in (zero, zero + np.float32(0.5)):
            inputs = {"Param": param, "Grad": grad, **dict.fromkeys(state.split(), zero)}
            inputs |= {s: array(v) for s, v in (("LearningRate", 0.1), ("Beta1Pow", 0.9), ("Beta2Pow", 0.999))
                       if s in needs}  # fmt: skip
            attrs = {"lamb": {"weight_decay": 0.01}, "momentum": {"mu": 0.9}, "lars_momentum": {"mu": 0.9}}.get(
                type, {}
            )
            others = [s.name for s in op.outputs if s.name != "ParamOut" and not s.dispensable]
            cases.append(Case(type, inputs, "", "ParamOut", *others, **attrs))
    check(place, mode, cases)
