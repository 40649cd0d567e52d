"""What is new is said in one place: a reduction in ten lines, samples too, a primitive in one file and one table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import plugin_loader
from fluidlite.conformance import load_plugin_modules
from fluidlite.expr import derivative_rules, lowering
from fluidlite.expr.primitives import TENSOR_PRIMITIVES
from fluidlite.program.registry import ops
from fluidlite.render.array_calls import ARRAY_CALLS
from fluidlite.testing import ConformanceError, check_gradient, check_sample

PLACES = [str(place) for place in fluid.places()]

REDUCTION = """
def _log_sum_exp(x, axes, keep):
    largest = e.stop_gradient(e.reduce_max(x, axes, keep=True))
    return largest + e.log(e.reduce_sum(e.exp(x - largest), axes, keep=True))

_reduction("{name}", _log_sum_exp, _VALUES, "Out = log of the sum of exp(X) over the dims", dtypes=ALL_FLOATS)
"""
SAMPLES = """
register_samples(
    "{name}", reference=_reference(lambda x, axis, keepdims: np.logaddexp.reduce(x, axis, keepdims=keepdims)
                                   if isinstance(axis, int) else np.log(np.exp(x).sum(axis, keepdims=keepdims))),
    samples=_samples(rand, ("float32", "float64"), empty=False, integers=False),
)
"""
PRIMITIVE = """
from fluidlite import expr as e
from fluidlite.expr import derivative_rules, lowering
from fluidlite.expr.primitives import TENSOR_PRIMITIVES, TensorPrimitive
from fluidlite.expr.tensor import tensor

TENSOR_PRIMITIVES["mirror"] = TensorPrimitive("views", "x", "axis", "those of x", "x's", moves=True)
derivative_rules.RULES["mirror"] = lambda x, d: (mirror(d, x.params[0]),)
lowering.RULES["mirror"] = lambda x: e.flip(x.args[0], x.params[0])

def mirror(x, axis):
    return tensor("mirror", (x,), (axis,), x.dims, x.dtype)
"""
RENDERED = """
from fluidlite.render.array_calls import ARRAY_CALLS

ARRAY_CALLS["mirror"] = lambda writer, x: f"xp.flip({writer.value(x.args[0])}, axis={x.params[0]})"
"""
OPERATOR = """
from fluidlite.plugin import Differentiation, Sample, operator, register_samples

@operator("{name}", Differentiation(reads=("X",)), dtypes={{"X": ("float32", "float64")}},
          doc="exp(X) times X turned around, plus 1")
def mirrored(x):
    return e.exp(x) * mirror(x + 1, 1)

register_samples(
    "{name}", reference=lambda inputs, attrs: {{"Out": np.exp(inputs["X"]) * (inputs["X"][:, ::-1] + 1)}},
    samples=[Sample({{"X": np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4)}}, grads=("X",))],
)
"""


def written(path: Path, text: str) -> ModuleType:
    """The module of a plugin that consists of one file."""
    hook = """
import sys
from fluidlite.plugin import hookimpl

@hookimpl
def register_operators(register):
    register(sys.modules[__name__])
"""
    path.write_text(f"import numpy as np\n{text}\n{hook}")
    return load_plugin_modules([str(path)])[0]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        plugin_loader.unload(path.stem)


def test_a_reduction_is_ten_lines(folder: Path) -> None:
    assert sum(map(bool, (REDUCTION + SAMPLES).splitlines())) <= 10
    beside = (
        "from fluidlite.operators.reduce import *\nfrom fluidlite.operators.reduce import _VALUES, _reduction\n"
        "from fluidlite.conformance.operators.reduce import *\n"
        "from fluidlite.conformance.operators.reduce import _reference, _samples\n"
    )
    written(folder / "growing_reduction.py", beside + (REDUCTION + SAMPLES).format(name="growing.logsumexp"))
    assert [slot.name for slot in ops.get("growing.logsumexp_grad").inputs] == ["X", "Out", "Out@GRAD"]
    for place in PLACES:
        check_sample("growing.logsumexp", place)
        check_gradient("growing.logsumexp", place)


def test_a_sample_of_gradients_that_there_are_not_is_told(folder: Path) -> None:
    text = (
        OPERATOR.format(name="growing.mirrored")
        .replace('Differentiation(reads=("X",)), ', "")
        .replace("mirror(x + 1, 1)", "(x + 1)")
    )
    written(folder / "growing_less.py", "from fluidlite import expr as e\n" + text)
    with pytest.raises(ConformanceError, match="names gradients of X; it has no gradient"):
        check_gradient("growing.mirrored", "cpu")


def test_a_primitive_is_one_file_and_an_entry_of_the_renderer_s_table(folder: Path) -> None:
    try:
        written(folder / "growing_mirror.py", PRIMITIVE + RENDERED + OPERATOR.format(name="growing.mirrored"))
        for place in PLACES:
            check_sample("growing.mirrored", place)
            check_gradient("growing.mirrored", place)
        twice(np.linspace(-1, 1, 6).reshape(2, 3))
    finally:
        for table in (TENSOR_PRIMITIVES, derivative_rules.RULES, lowering.RULES, ARRAY_CALLS):
            table.pop("mirror", None)


def twice(x: np.ndarray) -> None:
    """The second derivative of the sum, which is that of exp(a) (b + 1) + exp(b) (a + 1) for each pair a, b."""
    program = fluid.Program()
    with fluid.program_guard(program):
        given = fluid.data("x", x.shape, "float64")
        given.stop_gradient = False
        made = program.global_block().create_var("made")
        program.global_block().append_op("growing.mirrored", {"X": given}, {"Out": made})
        (first,) = fluid.gradients([made], [given])
        (second,) = fluid.gradients([first], [given])
    (found,) = fluid.Executor("cpu").run(program, {"x": x}, [second])
    other = x[:, ::-1]
    wanted = np.exp(x) * (other + 1) + np.exp(x) + np.exp(other)
    np.testing.assert_allclose(found[:, [0, 2]], wanted[:, [0, 2]], rtol=1e-12)
    middle = x[:, 1]
    np.testing.assert_allclose(found[:, 1], np.exp(middle) * (middle + 1 + 2), rtol=1e-12)
