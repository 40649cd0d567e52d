"""The operators' checks notice mistakes: each of thirty random ones makes a check fail.

Ten scalar expressions, ten array kernels and ten hand-written kernels are broken, one at a time. A mutant that no check
catches is a sample that is missing, or one that computes the same: then it belongs into the list of those, with the
reason.
"""

from __future__ import annotations

import ast
import functools
import inspect
import random
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from forks import Forks
from operator_checks import pairwise

import fluidlite as fluid
from fluidlite import plugin_loader
from fluidlite.codegen.expr import Expr
from fluidlite.codegen.lower import _cache as traces
from fluidlite.codegen.primitives import PRIMITIVES
from fluidlite.conformance.check import operators_with_samples
from fluidlite.devices.cpu import CPUDevice, NumPyArrays
from fluidlite.platform.context_pool import open_contexts
from fluidlite.platform.device_registry import devices
from fluidlite.plugin import DeviceInfo
from fluidlite.program.kernel_registry import Kernel, kernels
from fluidlite.program.opdef import OpDef
from fluidlite.program.registry import ops
from fluidlite.program.rules import ScalarRule
from fluidlite.testing import Check, checks

SEED = 21
EACH = 10
PLUGINS = str(Path(__file__).parent.parent / "plugins")
WORKER = Path(__file__).with_name("language_mutant.py")
CAUGHT = 4
"""The worker's exit status if a check failed; below 0, the kernel took it down."""
SECONDS = 60

EQUIVALENT_EXPRESSIONS: dict[str, str] = {
    r"^margin_rank_loss_grad: mul is div": "labels are 1 and -1",
}
"""Patterns of ``operator: change`` that give the same values, with the reason."""

EQUIVALENT_ARRAY: dict[str, str] = {
    r"top_k\._order_on_host: .*(MAX_ARGMAX_K|k \* 4|flat\[at\] > minimum)": "it only chooses the faster of two ways",
    r"top_k\._partitioned_order: floating and .* is floating or": "floats are all sorted then, which is slower",
    r"top_k\..*: -1 is \+1": "rows are matrices there: their last axis is 1",
    r"sorting\._packed_key: 2 is 3": "only lines of thousands of elements need so few bits; they have their own test",
    r"sampling\.random_crop: -1 is \+1": "its seed is one number",
    r"gather_tree\.gather_tree: .* \+ xp\.zeros\(\(1, beams\)": "nothing is added, for the dims of the sum",
    r"set_rows\.set_rows: out_span\.": "samples lie on X; tests/transformers/test_fed_state.py has those that do not",
    r"where\._from_table: 1 is 2": "one row more of a table of which the last one is nobody's; others of them raise",
}
"""Patterns of ``module.function: line -> changed line`` that give the same values, with the reason."""

EQUIVALENT_LANGUAGE: dict[str, str] = {
    r"^(l1_norm|squared_l2_norm|mean|isfinite|isinf|isnan): .*(kept = gid|kept_size)": "of one sum, the number is 0",
    r"^(lookup|gather|index|scatter)\w*: .*(: n\d+ \+ 1;|v\d+ <= n\d+L?\) \?)": "what is out of range raises",
}
"""Patterns of ``operator: changed lines`` that give the same values, with the reason."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def operator_checks(type: str) -> list[Check]:
    """The checks of an operator, of a gradient operator's forward operator, and of random numbers if it draws some."""
    base = type.removesuffix("_grad")
    found = checks([base if base in ops else type])
    if ops.get(type).random:
        found += [check for check in checks() if check.id.startswith("random[")]
    return found


def forget() -> None:
    """Drop what was chosen, traced and prepared before: it would hide a change, or keep one."""
    traces.clear()
    for op in ops:
        op.derived.clear()
    ops.generation += 1
    kernels.generation += 1
    for context in open_contexts():
        context.prepared.clear()


def caught(tests: list[Check], places: list[str]) -> bool:
    """Whether a check fails."""
    for check in tests:
        for place in places:
            try:
                check(place)
            except Exception:
                return True
    return False


# Expressions -------------------------------------------------------------------------------------------------------

SWAPS = {
    "add": "sub", "sub": "add", "mul": "div", "div": "mul", "maximum": "minimum", "minimum": "maximum", "exp": "expm1",
    "log": "log1p", "sqrt": "abs", "tanh": "sin", "sin": "cos", "cos": "sin", "erf": "tanh", "floor": "ceil",
    "ceil": "floor", "round": "floor", "less": "greater", "less_equal": "less", "greater": "less",
    "greater_equal": "greater", "equal": "not_equal", "not_equal": "equal", "logical_and": "logical_or",
    "logical_or": "logical_and", "logical_xor": "logical_or", "abs": "neg", "neg": "abs", "sign": "abs", "pow": "mul",
    "mod": "floordiv", "rem": "mod", "floordiv": "mod", "asin": "atan", "acos": "atan", "atan": "tanh", "sinh": "cosh",
    "cosh": "sinh",
}  # fmt: skip


def changes(node: Expr) -> list[tuple[str, Expr]]:
    """Ways to break one node."""
    found = []
    if node.op in SWAPS:
        found.append((f"{node.op} is {SWAPS[node.op]}", Expr(SWAPS[node.op], node.args, node.value)))
    if node.op == "where":
        condition, a, b = node.args
        found.append(("where takes the other branch", Expr("where", (condition, b, a))))
    if node.op == "const" and not isinstance(node.value, bool):
        wrong = node.value + 1 if isinstance(node.value, int) else node.value * 1.25 + 0.5
        found.append((f"{node.value!r} is {wrong!r}", Expr("const", (), wrong)))
    if node.op in PRIMITIVES and PRIMITIVES[node.op].kind == "arithmetic" and len(node.args) == 2:
        found += [(f"{node.op} without operand {i + 1}", node.args[1 - i]) for i in (0, 1)]
    return found


def sites(expr: Expr, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], str, Expr]]:
    """Every way to break an expression: where, what, and the node instead."""
    for text, node in changes(expr):
        yield path, text, node
    for i, arg in enumerate(expr.args):
        yield from sites(arg, (*path, i))


def replaced(expr: Expr, path: tuple[int, ...], node: Expr) -> Expr:
    """The expression with another node at a path."""
    if not path:
        return node
    args = list(expr.args)
    args[path[0]] = replaced(args[path[0]], path[1:], node)
    return Expr(expr.op, tuple(args), expr.value)


@contextmanager
def broken_expression(op: OpDef, point: float) -> Iterator[set[str]]:
    """Break an operator's expression, wherever it is traced; yields what was changed."""
    rule, done = op.scalar, set[str]()
    assert rule is not None

    @functools.wraps(rule.function)
    def function(*args: Any, **options: Any) -> Any:
        result = rule.function(*args, **options)
        keys = list(result) if isinstance(result, Mapping) else None
        values = list(result.values()) if keys else list(result) if isinstance(result, tuple) else [result]
        found = [(i, *site) for i, value in enumerate(values) if isinstance(value, Expr) for site in sites(value)]
        if found:
            i, path, text, node = found[int(point * len(found))]
            values[i] = replaced(values[i], path, node)
            done.add(text)
        return dict(zip(keys, values, strict=True)) if keys else tuple(values)

    op.scalar = ScalarRule(function, rule.outputs, rule.supports)
    forget()
    try:
        yield done
    finally:
        op.scalar = rule
        forget()


def expression_mutant(rng: random.Random) -> tuple[str, bool] | None:
    """Break a random expression; return what was done and whether it was caught, or None if nothing was done."""
    op = rng.choice([op for op in ops if op.scalar is not None and ops.find(op.type.removesuffix("_grad"))])
    with broken_expression(op, rng.random()) as done:
        found = caught(operator_checks(op.type), ["cpu"])
    what = f"{op.type}: {', '.join(sorted(done))}"
    return (what, found) if done and not excluded(what, EQUIVALENT_EXPRESSIONS) else None


# Array kernels -----------------------------------------------------------------------------------------------------

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add,
    ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And, ast.USub: ast.UAdd,
}  # fmt: skip
NAMES = {
    "sum": "max", "max": "min", "min": "max", "exp": "expm1", "log": "log1p", "argmax": "argmin", "multiply": "add",
    "subtract": "add", "divide": "multiply", "maximum": "minimum", "minimum": "maximum", "zeros_like": "ones_like",
    "zeros": "ones", "ones": "zeros", "abs": "negative", "sqrt": "abs", "add": "subtract",
}  # fmt: skip


def breakings(tree: ast.AST) -> list[tuple[ast.AST, str, Any]]:
    """Every (node, field, other value) that breaks a function's body."""
    found: list[tuple[ast.AST, str, Any]] = []
    alike: set[ast.AST] = set()  # -1 and -2 both mean "the rest" to reshape; zip(strict=) only guards
    for node in ast.walk(tree):
        if isinstance(node, ast.UnaryOp):
            alike.add(node.operand)
        if isinstance(node, ast.keyword) and node.arg == "strict":
            alike.add(node.value)
    for node in ast.walk(tree):
        if node in alike:
            continue
        operator = getattr(node, "op", None)
        if type(operator) in OPERATORS:
            found.append((node, "op", OPERATORS[type(operator)]()))
        if isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
            found.append((node, "ops", [OPERATORS[type(node.ops[0])](), *node.ops[1:]]))
        if isinstance(node, ast.Attribute) and node.attr in NAMES:
            found.append((node, "attr", NAMES[node.attr]))
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            found.append((node, "value", not node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            found.append((node, "value", node.value + 1))
    return found


def array_functions() -> dict[str, tuple[FunctionType, set[str]]]:
    """The functions of array kernels, helpers included, with the operators of their module."""
    found: dict[str, tuple[FunctionType, set[str]]] = {}
    modules: dict[str, set[str]] = {}
    for kernel in kernels:
        if "array" in kernel.places:
            modules.setdefault(kernel.function.__module__, set()).add(kernel.op)
    for name, types in sorted(modules.items()):
        for value in vars(sys.modules[name]).values():
            function = value.function if isinstance(value, Kernel) else value
            if isinstance(function, FunctionType) and function.__module__ == name and not function.__closure__:
                mine = {value.op} if isinstance(value, Kernel) else types
                known = found.setdefault(f"{name.rpartition('.')[2]}.{function.__name__}", (function, set()))
                known[1].update(mine)
    return {name: each for name, each in found.items() if not name.endswith("register_kernels")}


@contextmanager
def broken_function(function: FunctionType, point: float) -> Iterator[str]:
    """Break a function of a module; yields its line before and after."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list, definition.returns = [], None
    for argument in definition.args.args:
        argument.annotation = None
    found = breakings(ast.Module(definition.body, []))
    if not found:
        yield ""
        return
    node, field, value = found[int(point * len(found))]
    before = ast.unparse(node)
    setattr(node, field, value)
    namespace: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(tree), "<mutant>", "exec"), function.__globals__, namespace)
    original = function.__code__
    function.__code__ = namespace[function.__name__].__code__
    forget()
    try:
        yield f"{before} is {ast.unparse(node)}"
    finally:
        function.__code__ = original
        forget()


def array_mutant(rng: random.Random) -> tuple[str, bool] | None:
    """Break a random function of the array kernels, and run what depends on it in every style of array."""
    functions = array_functions()
    family = rng.choice(sorted({name.partition(".")[0] for name in functions}))  # few functions or many: all alike
    name = rng.choice(sorted(name for name in functions if name.partition(".")[0] == family))
    function, types = functions[name]
    with broken_function(function, rng.random()) as change:
        what = f"{name}: {change}"
        if not change or excluded(what, EQUIVALENT_ARRAY):
            return None
        unique = {check.id: check for type in sorted(types) for check in operator_checks(type)}
        every = list(unique.values())
        return what, caught(every, ["cpu"]) or caught(pairwise(every), ["strict", "queued"])


class QueuedArrays(NumPyArrays):
    """NumPy in the style of a device: functions take a place for their result, reading a value is not free."""

    eager = False


class QueuedDevice(CPUDevice):
    kind = "queued"

    def info(self, index: int) -> DeviceInfo:
        return DeviceInfo(name="NumPy as if it were far", alignment=64)

    def array(self, index: int) -> NumPyArrays:
        return QueuedArrays()


@pytest.fixture
def styles() -> Iterator[None]:
    """Two more places, so that all styles of array run."""
    pytest.importorskip("array_api_strict")
    fluid.places()
    device = QueuedDevice()
    devices.add(device, __file__)
    sys.path.insert(0, PLUGINS)
    try:
        record = plugin_loader.load("strict", "strict_device")
    finally:
        sys.path.remove(PLUGINS)
    assert record.state == "loaded", record.traceback
    yield
    plugin_loader.unload("strict")
    devices.remove(device)


# Hand-written kernels ------------------------------------------------------------------------------------------------


def language_mutant(rng: random.Random, forks: Forks) -> tuple[str, bool] | None:
    """Break a random hand-written kernel's text, in a process of its own."""
    families: dict[str, set[str]] = {}
    for kernel in kernels:
        if "language" in kernel.places:
            families.setdefault(kernel.function.__module__, set()).add(kernel.op.removesuffix("_grad"))
    operator = rng.choice(sorted(families[rng.choice(sorted(families))] & set(operators_with_samples())))
    try:
        run = forks(WORKER, operator, "opencl", str(rng.random()), timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"{operator}: it does not end", True
    what = f"{operator}: {' | '.join(run.stdout.strip().splitlines())}"
    assert run.returncode in (0, 3, CAUGHT) or run.returncode < 0, run.stderr
    return (what, run.returncode != 0) if run.returncode != 3 and not excluded(what, EQUIVALENT_LANGUAGE) else None


# The tests ---------------------------------------------------------------------------------------------------------


def excluded(what: str, reasons: Mapping[str, str]) -> bool:
    """Whether a mutant is known to compute the same."""
    return any(re.search(pattern, what) for pattern in reasons)


def survivors(mutant: Callable[[random.Random], tuple[str, bool] | None], number: int, seed: int = SEED) -> list[str]:
    """Break so many times; return what no check caught."""
    rng, made, left = random.Random(seed), 0, []
    while made < number:
        found = mutant(rng)
        if found is not None:
            made += 1
            left += [found[0]] if not found[1] else []
    return left


def test_nothing_is_caught_without_a_mutant(styles: None) -> None:
    assert not caught(operator_checks("relu") + operator_checks("softmax"), ["cpu", "strict", "queued"])


def test_broken_expressions_are_caught() -> None:
    assert survivors(expression_mutant, EACH) == []


def test_broken_array_kernels_are_caught(styles: None) -> None:
    assert survivors(array_mutant, EACH) == []


@pytest.mark.opencl
def test_broken_language_kernels_are_caught(forks: Forks) -> None:
    assert survivors(functools.partial(language_mutant, forks=forks), EACH) == []
