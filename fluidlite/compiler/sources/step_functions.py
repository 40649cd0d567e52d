"""Emits operators that run another operator step by step: one function for each number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fluidlite.compiler.executable.step_kernels import OneStep, StepKernels, StepLaunch
from fluidlite.compiler.kernel_runs import NO_RANDOM
from fluidlite.compiler.planning.plan import Launch
from fluidlite.compiler.sources.wording import dtype_text, stand_in
from fluidlite.program.kernel_io import IO
from fluidlite.tensor.tensor_spec import Spec

if TYPE_CHECKING:
    from fluidlite.compiler.sources.program import ProgramText


def write_steps(
    writer: ProgramText, index: int, step: Launch, ins: list[str | None], outs: list[str], workspace: str | None
) -> None:
    """Emit the function of a step for each number of rows, and the call of ``steps`` that runs them."""
    kernels = StepKernels(step.call, step.choice.part_choices, writer.context)
    functions = []
    for rows, one_step in kernels.steps.items():
        name = writer.name(f"step {index} {rows}", f"step_{index}_of_{rows}")
        writer.functions[name] = _step_function(writer, f"{index} {rows}", name, step, one_step, kernels.begin)
        functions.append(f"{rows}: {name}")
    groups, remaining = [], list(map(str, ins))
    for slot in ("S", "X", "P"):
        count = len(step.call.ins.get(slot, ()))
        groups.append(f"[{', '.join(remaining[:count])}]")
        remaining = remaining[count:]
    arguments = [f"{{{', '.join(functions)}}}", f"{list(kernels.counts)}", *groups, f"[{', '.join(outs)}]"]
    writer.lines.append(f"steps({', '.join(arguments)}, {workspace}, backward={kernels.backward})")


def _step_function(writer: ProgramText, mark: str, function: str, step: Launch, one: OneStep, begin: int) -> str:
    """The function of one step, on its rows of the operands; ``begin``: the offset of its workspace."""
    temporaries = {key: f"between_{n}" for n, key in enumerate(one.between)}
    operands = [("in", slot, k) for slot in ("S", "X", "P") for k in range(len(step.call.ins.get(slot, ())))]
    results = [("out", "O", k) for k in range(len(step.call.outs["O"]))]
    names = {key: f"{key[1].lower()}{key[2]}" for key in (*operands, *results)} | temporaries
    lines = [
        f"{name} = workspace[{at}:{at + spec.nbytes}].view({dtype_text(spec.dtype)}).reshape({spec.dims!r})"
        for key, name in temporaries.items()
        for spec, at in [(one.between[key][0], begin + one.between[key][1])]
    ]
    outer, writer.lines = writer.lines, lines
    for n, each in enumerate(one.launches):
        operand_names = [names[key] for key in (*each.ins, *each.outs)]
        space_text = "" if each.space is None else f"workspace[{begin + each.space[0]}:{begin + sum(each.space)}]"
        extra = {"workspace": space_text} if space_text else {}
        if each.choice.kernel is None and each.choice.capability == "array":
            writer.array(each.call.op.type, each.kernel, list(operand_names), extra)
            continue
        text = _launches(writer, each, operand_names, space_text) if each.choice.is_kernel_language else None
        if text is not None:
            lines += text
        else:
            writer.library(f"{mark} {n}", each.choice, each.call, operand_names, extra)
    writer.lines = outer
    head = f"def {function}({', '.join([*(names[key] for key in (*operands, *results)), 'workspace'])}):"
    return "\n".join([head, *(f"    {line}" for line in lines)])


def _launches(writer: ProgramText, each: StepLaunch, buffers: Sequence[str], space: str) -> list[str] | None:
    """The launches of a native kernel of a step as text; None if it does more than launch."""
    specs = [spec for group in (*each.call.ins.values(), *each.call.outs.values()) for spec in group]
    tensors = [stand_in(spec, writer.context) for spec in specs]
    names = {id(tensor.span().handle): name for tensor, name in zip(tensors, buffers, strict=True)}
    workspace = None
    if each.space is not None:
        workspace = stand_in(Spec.of((each.space[1],), "uint8"), writer.context)
        names[id(workspace.span().handle)] = space
    return writer.launches(
        each.choice, each.kernel, IO(each.call, tensors, writer.context, 0, NO_RANDOM, workspace), names
    )
