"""The tables of primitives agree with each other, and with what a namespace must have."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import array_api_strict
import numpy as np
import pytest

from fluidlite import plugin_loader
from fluidlite.base.dtypes import FLOATS
from fluidlite.base.errors import ProgramError
from fluidlite.codegen import functions
from fluidlite.codegen.primitives import PRIMITIVES, Primitive
from fluidlite.conformance import certify, load_plugin_modules
from fluidlite.conformance.device_checks import NAMESPACE, device_checks
from fluidlite.conformance.tolerances import ConformanceError
from fluidlite.expr import derivative_rules, lowering
from fluidlite.expr.decompose import ELEMENTWISE, OPERATORS
from fluidlite.expr.primitives import TENSOR_PRIMITIVES
from fluidlite.expr.tensor import tensor
from fluidlite.expr.tracing import tracing
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.plugin import DeviceInfo
from fluidlite.render import (
    array_functions,
    array_indexing,
    array_moves,
    array_reductions,
    array_windows,
    contractions,
    gathered,
)
from fluidlite.render.array_calls import ARRAY_CALLS
from fluidlite.render.array_functions import OPTIONAL, REQUIRED, REQUIRED_DTYPES, missing_names

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")
LEAVES = {"input", "number", "iota", "offsets", "step_table"}
ARRAY_MODULES = (array_functions, array_indexing, array_moves, array_reductions, array_windows, contractions, gathered)
DECOMPOSED = {"add_rows", "call"}
"""What there is only where a call is said with operators."""
DRAWN = {"random"}
"""What there is only in loops of fused operators, and as an operator: no array calls draw it."""
STEPS = {"steps", "step_result"}
"""What is an operator everywhere, which runs that of one step; its derivative is that of several results at once."""


def test_every_primitive_has_a_rule_of_each_kind() -> None:
    assert set(ARRAY_CALLS) == TENSOR_PRIMITIVES.keys() - DECOMPOSED - DRAWN - STEPS
    assert set(derivative_rules.RULES) == TENSOR_PRIMITIVES.keys() - LEAVES - DECOMPOSED - DRAWN - STEPS
    assert derivative_rules.MULTI_RESULT_RULES.keys() | derivative_rules.RESULT_PRIMITIVES == STEPS
    assert lowering.RULES.keys() <= TENSOR_PRIMITIVES.keys()
    assert lowering.RULES.keys() | ELEMENTWISE | OPERATORS.keys() == TENSOR_PRIMITIVES.keys()
    assert derivative_rules.SCALAR_RULES.keys() <= PRIMITIVES.keys()
    without = PRIMITIVES.keys() - derivative_rules.SCALAR_RULES.keys()
    assert {PRIMITIVES[name].kind for name in without} == {"compare", "logical", "test"}


def test_no_tensor_is_of_an_unknown_primitive() -> None:
    with tracing({}), pytest.raises(ProgramError, match=r"'fold' is no primitive; those are input, number, iota"):
        tensor("fold", (), (), (), "float32")


def least() -> Any:
    """A namespace with what it must have and nothing else."""
    return SimpleNamespace(**{name: getattr(array_api_strict, name) for name in REQUIRED + DTYPES})


def operands(primitive: Primitive) -> Iterator[list[Any]]:
    """Arrays of each dtype that a scalar primitive is called with."""
    for dtype in DTYPES:
        if primitive.kind in ("float", "test", "whole") and dtype not in FLOATS:
            continue
        if dtype == "bool" and primitive.kind not in ("logical", "where", "compare"):
            continue
        if dtype == "bool" and "equal" not in primitive.name and primitive.kind == "compare":
            continue
        if dtype == "bool" and primitive.name in ("less_equal", "greater_equal"):
            continue
        if primitive.kind == "logical" and dtype != "bool":
            continue
        given = [array_api_strict.asarray(np.array([1, 0, 1]).astype(dtype)) for _ in range(primitive.arity)]
        if primitive.kind == "where":
            given[0] = array_api_strict.asarray([True, False, True])
        yield given


@pytest.mark.parametrize("name", PRIMITIVES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_scalar_primitives_use_what_every_namespace_has(name: str) -> None:
    primitive, xp = PRIMITIVES[name], least()
    tried = 0
    for given in operands(primitive):
        kind = str(given[-1].dtype).rpartition(".")[2]
        called = primitive.xp_int if kind not in FLOATS and primitive.xp_int else primitive.xp
        if called.startswith("@"):
            getattr(functions, called[1:])(xp, *given)
        else:
            getattr(xp, called)(*given)
        tried += 1
    assert tried


def test_nothing_is_required_that_is_not_called() -> None:
    from fluidlite.platform import context

    scalar = {name for each in PRIMITIVES.values() for name in (each.xp, each.xp_int)}
    text = "".join(map(inspect.getsource, (functions, context, *ARRAY_MODULES)))
    named = set(re.findall(r"xp\.(\w+)", text)) | {"all", "any", "max", "min", "argmax", "argmin"}  # by their kind
    assert set(REQUIRED) <= scalar | named
    assert not set(REQUIRED) & set(OPTIONAL)


def test_what_is_lacking_is_named() -> None:
    assert missing_names(np, DTYPES) == []
    assert missing_names(array_api_strict, DTYPES) == []
    assert missing_names(least(), (*DTYPES, "float16", "bfloat16")) == []
    xp = least()
    del xp.take, xp.float64, xp.uint8
    assert missing_names(xp, REQUIRED_DTYPES) == ["take", "uint8"]
    assert missing_names(xp, DTYPES) == ["take", "uint8", "float64"]


LEAN = """
from types import SimpleNamespace
import array_api_strict
import strict_device
from fluidlite.plugin import hookimpl

class LeanArrays(strict_device.StrictArrays):
    xp = SimpleNamespace(**{name: each for name, each in vars(array_api_strict).items() if name not in LACKS})

class LeanDevice(strict_device.StrictDevice):
    kind = "lean"
    def array(self, index):
        return LeanArrays()

@hookimpl
def register_devices(register):
    register(LeanDevice())
"""


@pytest.mark.parametrize("lacks", [("take", "float64"), ("cumulative_sum", "searchsorted")])
def test_a_certificate_begins_with_the_namespace(
    lacks: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "plugins"))
    path = tmp_path / f"lean_{lacks[0]}.py"
    path.write_text(f"LACKS = {lacks!r}\n{LEAN}")
    seen: list[str] = []
    try:
        load_plugin_modules([str(path)])
        found = certify(
            "lean", ["relu"], jobs=1, plugins=[str(path)], progress=lambda outcome, *_: seen.append(outcome.id)
        )
    finally:
        plugin_loader.unload(path.stem)
    if "take" in lacks:
        assert seen == [NAMESPACE]
        (failed,) = found.failures
        assert "lacks take, float64, which every namespace must have" in failed.error
        assert "docs/reference/array_namespace.md" in failed.error
    else:
        assert found.ok
        assert NAMESPACE not in seen
        assert len(seen) > 3


def test_a_certificate_asks_for_arrays_of_every_dtype_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "plugins"))
    from strict_device import DTYPES as THE_STANDARDS, StrictArrays, StrictDevice

    class Generous(StrictDevice):
        kind = "generous"
        said: Any = None

        def info(self, index: int) -> DeviceInfo:
            return DeviceInfo("generous", dtypes=(*THE_STANDARDS, "float16"))

        def array(self, index: int) -> Any:
            arrays = StrictArrays()
            if self.said is not None:
                monkeypatch.setattr(arrays, "wrap", lambda *given: self.said, raising=False)
            return arrays

    for said, message in (
        (None, "wrap(span, (1,), 'float16', None) raised TypeError: "),
        ("rubbish", "wrap(span, (1,), 'bool', None) raised AttributeError: "),
        (np.zeros(2, "bool"), "wrap(span, (1,), 'bool', None) gave array([False, False])"),
        (np.zeros(1, "int8"), "wrap(span, (1,), 'bool', None) gave array([0], dtype=int8)"),
    ):
        device = Generous()
        device.said = said
        devices.add(device)
        try:
            with pytest.raises(ConformanceError) as error:
                device_checks()[NAMESPACE](Place("generous", 0))
            assert message in str(error.value)
            assert "\n  Do: return an array of it, or leave " in str(error.value)
        finally:
            devices.remove(device)
