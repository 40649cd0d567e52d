"""Print a recipe as a Python program that can be pasted into a test."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.base.dtypes import dtype_name
from fluidlite.testing.fuzz.recipe import Array, Recipe

_MAX_PRINTED_ELEMENTS = 64


def _array(array: Array) -> str:
    dtype = dtype_name(array.dtype)
    if array.size > _MAX_PRINTED_ELEMENTS or not array.size:
        if array.dtype.kind in "iu":
            return f"rng.integers({array.min(initial=0)}, {array.max(initial=0) + 1}, {array.shape}).astype({dtype!r})"
        if array.dtype.kind == "b":
            return f"rng.random({array.shape}) < 0.5"
        low, high = (float(f(array.astype(float))) for f in (np.min, np.max)) if array.size else (0.0, 1.0)
        return f"numbers({low!r}, {high!r}, {array.shape}, {dtype!r})"
    return f"array({array.astype(float).tolist() if array.dtype.kind not in 'biu' else array.tolist()}, {dtype!r})"


def python(recipe: Recipe, place: str) -> str:
    """The recipe as a standalone program that prints the fetched values in both modes.

    Large arrays are replaced by random numbers of the same range.
    """
    lines = [
        "import numpy as np",
        "import fluidlite as fluid",
        "from fluidlite.base.dtypes import NUMPY",
        "rng = np.random.default_rng(0)",
        "def numbers(low, high, dims, dtype): return rng.uniform(low, high, dims).astype(NUMPY[dtype])",
        "def array(values, dtype): return np.array(values).astype(NUMPY[dtype])",
        "program = fluid.Program()",
        "block = program.global_block()",
    ]
    fed = recipe.runs[0]
    for name, value in {**recipe.state, **fed}.items():
        dims = [-1, *value.shape[1:]] if name in recipe.open_dims else list(value.shape)
        extra = ", persistable=True" if name in recipe.state else ", is_data=True"
        if name in recipe.wrt:
            extra += ", stop_gradient=False"
        if name in recipe.lods:
            extra += f", lod_level={len(recipe.lods[name])}"
        lines.append(f"block.create_var({name!r}, {dims}, {dtype_name(value.dtype)!r}{extra})")
    if any(step.block for step in recipe.steps):  # blocks are appended by the recipe's own function
        lines += [
            "from fluidlite.testing.fuzz.blocks import append_all",
            "from fluidlite.testing.fuzz.recipe import Step",
        ]
        steps = ", ".join(
            f"Step({step.type!r}, {_slots(step.inputs)}, {_slots(step.outputs)}, {_plain(step.attrs)!r}, "
            f"{step.block!r})"
            for step in recipe.steps
        )
        lines.append(f"append_all(program, [{steps}])")
    declared = {*recipe.state, *fed}
    for step in recipe.steps if not any(step.block for step in recipe.steps) else ():
        for name in step.writes():
            if name not in declared:
                declared.add(name)
                lines.append(f"block.create_var({name!r})")
        arguments = ", ".join(repr(_plain(part)) for part in (step.inputs, step.outputs, step.attrs))
        lines.append(f"block.append_op({step.type!r}, {arguments})")
    fetches = repr(list(recipe.fetches))
    if recipe.targets:
        targets, wrt = (f"[block.var(n) for n in {list(names)}]" for names in (recipe.targets, recipe.wrt))
        lines.append(f"gradients = fluid.backward.gradients({targets}, {wrt})")
        if recipe.order > 1:
            lines.append(f"gradients = fluid.backward.gradients([g for g in gradients if g is not None], {wrt})")
        fetches += " + [g.name for g in gradients if g is not None]"
    feeds = ", ".join(
        "{" + ", ".join(f"{n!r}: {_fed(recipe, n, a)}" for n, a in run.items()) + "}" for run in recipe.runs
    )
    lines += [f"feeds = [{feeds}]", f"fetches = {fetches}"]
    lines += [f"state = {{{', '.join(f'{n!r}: {_array(a)}' for n, a in recipe.state.items())}}}"]
    lines += [
        'for mode in ("interpreted", "compiled"):',
        f"    exe, scope = fluid.Executor({place!r}, mode=mode), fluid.Scope()",
        "    for name, value in state.items():",
        "        scope.var(name).get_tensor().set(value)",
        "    for feed in feeds:",
        "        print(mode, exe.run(program, feed, fetches, scope=scope, return_numpy=False))",
        "    print({name: scope.find_var(name).get_tensor() for name in state})",
    ]
    return "\n".join(lines)


def _fed(recipe: Recipe, name: str, array: Array) -> str:
    if name not in recipe.lods:
        return _array(array)
    return f"fluid.Tensor().set({_array(array)}, None, {[list(level) for level in recipe.lods[name]]})"


def _slots(part: Any) -> str:
    return repr({slot: tuple(names) for slot, names in part.items()})


def _plain(part: Any) -> Any:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in part.items()}
