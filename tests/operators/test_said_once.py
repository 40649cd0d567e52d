"""What is new is said in one place: a reduction in ten lines, a primitive in one file; all else follows from that.

Each is a plugin's package of its own, installed for a fresh process, which imports ``fluidlite.plugin`` and
``fluidlite.expr`` (a primitive: the tables of ``fluidlite.expr`` and ``fluidlite.render``) and nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fluidlite

ROOT = Path(fluidlite.__file__).parents[1]
PATHS = [
    str(ROOT),
    *(os.path.abspath(path) for path in sys.path if path),
    str(Path(__file__).parent),
    str(ROOT / "tests" / "plugins"),
]

OPERATOR_IMPORTS = """
from fluidlite import expr as e
from fluidlite.plugin import Attr, Differentiation, gradient, hookimpl, operator
"""
SAMPLE_IMPORTS = """
import numpy as np
from fluidlite.plugin import Sample, register_samples
"""
HOOK = """
@hookimpl
def register_operators(register):
    register("fluidlite_once.samples")
"""

REDUCTION = """
@operator("reduce_logmeanexp", Differentiation(reads=("X",)), doc="Out = ln(the mean over dims of exp(X))",
          attrs=[Attr("dim", "ints", (0,)), Attr("keep_dim", "bool", False)], dtypes={"X": ("float32", "float64")})
def reduce_logmeanexp(x, *, dim, keep_dim):
    axes = e.axes("dim", dim, x)
    top = e.stop_gradient(e.reduce_max(x, axes, keep=True))
    out = e.log(e.reduce_mean(e.exp(x - top), axes, keep=True)) + top
    return out if keep_dim else e.squeeze(out, axes)
"""
REDUCTION_SAMPLES = """
register_samples("reduce_logmeanexp", reference=lambda i, a: {"Out": np.log(np.exp(i["X"]).mean(tuple(a["dim"]), keepdims=a["keep_dim"]))},
    samples=[Sample({"X": np.linspace(-2, 3, 24, dtype="float32").reshape(2, 3, 4) ** 2}, {"dim": dim, "keep_dim": keep}, grads=("X",))
     for dim, keep in (([0], False), ([-1, 1], True))])
"""  # noqa: E501

PRIMITIVE = '''
from fluidlite.expr.derivative_rules import RULES as DERIVATIVES
from fluidlite.expr.lowering import RULES as SIMPLER
from fluidlite.expr.primitives import TENSOR_PRIMITIVES, TensorPrimitive
from fluidlite.expr.tensor import tensor
from fluidlite.expr.views import concat, normal_axis, slice_axis
from fluidlite.render.array_calls import ARRAY_CALLS


def roll(x, by, axis):
    """Element i at i + by, around."""
    return tensor("roll", (x,), (by, normal_axis(axis, x.rank)), x.dims, x.dtype)


def parts(x):
    (arg,), (by, axis) = x.args, x.params
    size = arg.dims[axis]
    first = size - by % int(size) if int(size) else size
    return concat([slice_axis(arg, axis, first, size - first), slice_axis(arg, axis, 0, first)], axis)


TENSOR_PRIMITIVES["roll"] = TensorPrimitive("views", "x", "by, axis", "those of x", "x's")
DERIVATIVES["roll"] = lambda x, d: (roll(d, -x.params[0], x.params[1]),)
SIMPLER["roll"] = parts
ARRAY_CALLS["roll"] = lambda writer, x: f"xp.roll({writer.value(x.args[0])}, {x.params[0]}, axis={x.params[1]})"
'''
PRIMITIVE_OPERATOR = """
from fluidlite_once.rolling import roll


@operator("rolled", Differentiation(reads=("X",)), attrs=[Attr("by", "int", 1), Attr("axis", "int", -1)], dtypes={"X": ("float32", "float64")})
def rolled(x, *, by, axis):
    return x * x * roll(x, by, e.axis("axis", axis, x))
"""  # noqa: E501
PRIMITIVE_SAMPLES = """
register_samples("rolled", reference=lambda i, a: {"Out": i["X"] ** 2 * np.roll(i["X"], a["by"], a["axis"])},
    samples=[Sample({"X": np.linspace(-2, 3, 24, dtype="float32").reshape(2, 3, 4)},
                    {"by": by, "axis": at}, grads=("X",))
             for by, at in ((1, -1), (-5, 1))])
"""

SCALAR = """
import numpy as np
from fluidlite.codegen.primitives import PRIMITIVES, Primitive
from fluidlite.expr.derivative_rules import SCALAR_RULES
from fluidlite.expr.tensor import function


def square(x):
    return function("square", x)


PRIMITIVES["square"] = Primitive("square", 1, "float", "overflows to infinity", "square", "{a} * {a}", np.square)
SCALAR_RULES["square"] = lambda a, out, d: (2 * a * d,)
"""
SCALAR_OPERATOR = """
from fluidlite_once.squaring import square


@operator("squares", Differentiation(reads=("X",)), dtypes={"X": ("float32", "float64")})
def squares(x):
    return e.reduce_sum(square(x) * x, -1)
"""
SCALAR_SAMPLES = """
register_samples("squares", reference=lambda i, a: {"Out": (i["X"] ** 3).sum(-1)},
    samples=[Sample({"X": np.linspace(-2, 3, 24, dtype="float32").reshape(2, 3, 4)}, grads=("X",))])
"""

CHECK = """
import contextlib, io, json, sys
import fluidlite as fluid
from fluidlite.cli.main import main
from fluidlite.conformance import load_plugin_modules
load_plugin_modules(["strict_device"])
from test_second_derivatives import Second, compared
from fluidlite.platform.device_registry import devices
from fluidlite.testing import Case, cases, check_gradient, check_sample

type, attrs = sys.argv[1], json.loads(sys.argv[2])
fluid.set_fallback("allow")
record = next(record for record in fluid.plugins() if record.name == "once")
assert record.state == "loaded", record.traceback
x = fluid.layers.data("x", [3, 4])
block = fluid.default_main_program().global_block()
out = block.create_var("out")
block.append_op(type, {"X": x}, {"Out": out}, attrs)
places = {str(place): bool(set(devices.unit(place).capabilities()) - {"memory"}) for place in fluid.places()}
for place in places:
    check_sample(type, place)
    check_gradient(type, place)
wide = [Case(each.op, each.sample, each.label, "float64") for each in cases([type])]
smooth = [compared(Second(case, 0), k) for k, case in enumerate(wide)]
printed = io.StringIO()
with contextlib.redirect_stdout(printed):
    assert main(["ops", f"{type}*", "--json"]) == 0
print(json.dumps({"out": list(out.shape), "places": places, "smooth": smooth, "shown": printed.getvalue()}))
"""


@pytest.fixture
def checked(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """``checked(type, attrs, modules)``: install a package of these modules; check the operator in a fresh process."""

    def check(type: str, attrs: dict[str, Any], modules: dict[str, str]) -> dict[str, Any]:
        package, info = tmp_path / "fluidlite_once", tmp_path / "fluidlite_once-1.0.dist-info"
        package.mkdir()
        info.mkdir()
        for name, text in modules.items():
            (package / f"{name}.py").write_text(text)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fluidlite-once\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[fluidlite.v1]\nonce = fluidlite_once\n")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *PATHS])}

        def run(*command: str) -> str:
            done = subprocess.run(
                [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=600, cwd=tmp_path
            )
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
            return done.stdout

        found: dict[str, Any] = json.loads(run("-c", CHECK, type, json.dumps(attrs)).splitlines()[-1])
        found["shown"] = {row["op"]: row["places"] for row in json.loads(found["shown"])}
        return found

    return check


def lines(*texts: str) -> int:
    """Lines that say something."""
    return sum(bool(line.strip()) for text in texts for line in text.splitlines())


def holds(found: dict[str, Any], type: str) -> None:
    """The operator and its gradient are listed, each place computes them, and both derivatives were compared."""
    assert set(found["shown"]) == {type, f"{type}_grad"}
    assert {"cpu:0", "strict:0"} <= set(found["places"])
    for places in found["shown"].values():
        assert set(found["places"]) == {*places, "strict:0"}
        for place, cell in places.items():
            assert cell["hows"]
            assert "fallback" not in cell["hows"] or not found["places"][place]
    assert found["smooth"]
    assert all(found["smooth"])


def test_a_reduction_is_ten_lines_in_one_file_and_one_list_of_samples(checked: Callable[..., dict[str, Any]]) -> None:
    """Shapes, computation, gradient and its gradient, in both modes on every place."""
    modules = {
        "__init__": OPERATOR_IMPORTS + REDUCTION + HOOK,
        "samples": SAMPLE_IMPORTS + REDUCTION_SAMPLES,
    }
    found = checked("reduce_logmeanexp", {"dim": [1, 2]}, modules)
    holds(found, "reduce_logmeanexp")
    assert found["out"] == [-1]
    assert lines(REDUCTION, REDUCTION_SAMPLES) <= 10


def test_a_primitive_is_one_file_and_entries_in_tables(checked: Callable[..., dict[str, Any]]) -> None:
    """Dims, derivative and simpler primitives in one file, and array calls; operators use it as any other."""
    modules = {
        "__init__": OPERATOR_IMPORTS + PRIMITIVE_OPERATOR + HOOK,
        "rolling": PRIMITIVE,
        "samples": SAMPLE_IMPORTS + PRIMITIVE_SAMPLES,
    }
    found = checked("rolled", {}, modules)
    holds(found, "rolled")
    assert found["out"] == [-1, 3, 4]


def test_a_scalar_primitive_is_one_entry_and_its_derivative(checked: Callable[..., dict[str, Any]]) -> None:
    """Every renderer writes it by the table of scalar primitives."""
    modules = {
        "__init__": OPERATOR_IMPORTS + SCALAR_OPERATOR + HOOK,
        "squaring": SCALAR,
        "samples": SAMPLE_IMPORTS + SCALAR_SAMPLES,
    }
    found = checked("squares", {}, modules)
    holds(found, "squares")
    assert found["out"] == [-1, 3]
