"""The operator ``load``: reads a variable from a file at each run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fluidlite.base.errors import SavedModelError
from fluidlite.io.lod_tensor_file import is_lod_tensors, read_lod_tensors
from fluidlite.io.paths import folder_of, open_regular
from fluidlite.io.snapshot import SavedFile
from fluidlite.io.tensor_file import Stored, names_in, read_tensors
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Execution
from fluidlite.program.registry import register_op
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec


def read_one(path: Path, name: str, declared: Spec | None) -> Stored:
    """Read the only tensor of a file, in Paddle's format or fluidlite's.

    Raises SavedModelError if the file is missing, damaged, has several tensors, or one that does not fit ``declared``.
    """
    with SavedFile(path.parent, path.name, open_regular(path.parent, path.name, True)) as file:
        if is_lod_tensors(file.peek(4)):
            return read_lod_tensors(file, {name: declared})[name]
        names = names_in(file)
        if len(names) != 1:
            raise SavedModelError(f"{path} holds {len(names)} tensors; expected one\n  Do: fluid.io.load_vars")
        file.rewind()
        return read_tensors(file, {names[0]: declared})[names[0]]


def _run(frame: Any, op: Any) -> None:
    path, name = folder_of(op.attrs["file_path"]), op.output("Out")[0]
    variable = op.block.find_var(name)
    declared = variable.spec if variable is not None else None
    half = op.attrs["load_as_fp16"]
    array, lod = read_one(path, name, declared.with_(dtype="float32") if half and declared is not None else declared)
    if half:
        array = array.astype(np.float16)
    frame.write("Out", [Tensor().set(array, frame.place, [list(level) for level in lod] or None)])


register_op(
    "load",
    Execution(run=_run),
    outputs=(Slot("Out", run_place=True),),
    attrs=(
        Attr("file_path", "str", doc="a file of one tensor"),
        Attr("load_as_fp16", "bool", False, doc="the file holds float32, Out is float16"),
    ),
    doc="Out is the tensor that the file holds, which is read at each run",
    source="Fluid load_op.cc",
)
