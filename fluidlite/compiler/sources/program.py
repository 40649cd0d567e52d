"""Emits an executable as straight-line Python: NumPy calls, kernels of libraries, launches of native kernels."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from typing import Any

from fluidlite.base.errors import FluidError
from fluidlite.codegen.epilogue import Accumulation, accumulation
from fluidlite.compiler.executable.command_buffer import record_launches
from fluidlite.compiler.executable.executable import Executable
from fluidlite.compiler.kernel_runs import random_key, with_spec
from fluidlite.compiler.memory.live_ranges import LiveRange
from fluidlite.compiler.planning.plan import Launch
from fluidlite.compiler.selection.choice import Choice
from fluidlite.compiler.sources.kernels import KernelTexts, original_operators, step_text
from fluidlite.compiler.sources.step_functions import write_steps
from fluidlite.compiler.sources.wording import (
    RandomWord,
    arguments_text,
    body_text,
    dtype_text,
    escaped,
    is_not_default,
    number_text,
    slots_text,
    stand_in,
    value_text,
)
from fluidlite.program.codegen_registry import generators
from fluidlite.program.epilogue import ELEMENTWISE_PREFIX, product_call, then_call
from fluidlite.program.kernel_io import IO
from fluidlite.program.op_call import Call
from fluidlite.program.prepared import Prepared
from fluidlite.program.registry import ops
from fluidlite.tensor.layout import PLAIN
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec

_RUNTIME_FUNCTIONS = ("host_context", "host_function", "library", "memory", "native", "steps")
_RESERVED = {"np", "functions", "array_functions", "ml_dtypes", "arena", "run", "status", "draw", "float", "Path"}
_RESERVED |= {*_RUNTIME_FUNCTIONS, *keyword.kwlist}


class ProgramText:
    """Emits the Python text of an executable that is linked to host memory alone.

    ``arguments``: the feeds, in the order of the function's parameters.
    """

    def __init__(self, executable: Executable, texts: KernelTexts, arguments: Sequence[str]) -> None:
        self.executable, self.texts = executable, texts
        (self.context,) = executable.contexts
        self.plan = executable.plan
        self.arguments = arguments
        self.head: list[str] = []
        self.lines: list[str] = []
        self._names: dict[str, str] = {}
        self._used_names = set(_RESERVED)
        self.functions: dict[str, str] = {}
        self._native_names: dict[str, str] = {}
        self._random = False
        self._uses_status = False

    def text(self) -> str:
        state = [self.name(name, name) for name, _, _ in self.executable.state]
        keys = [(name, self.plan.feed_keys[name]) for name in self.arguments]
        feeds = [self.name(key, name) for name, key in keys]
        for name, key in keys:
            live_range = self.executable.live_ranges.of[key]
            if not live_range.is_dynamic:
                feed_name = self._names.pop(key)
                self._declare(self.name(key, name + "_held"), live_range, self.plan.feeds[name])
                self.lines.append(f"{self._names[key]}[...] = {feed_name}")
        for index, step in enumerate(self.plan.steps):
            assert isinstance(step, Launch)
            self._emit_launch(index, step)
        results = [self._result_text(key) for _, key, _, _ in self.plan.fetches]
        options = [*feeds, *(["*"] if state or self._random else []), *state, *(["draw=0"] if self._random else [])]
        arena = sum(self.executable.memory.arenas.values())
        first = [f"arena = memory({arena})"] if arena else []
        first += ["status = np.zeros(4, np.int64)"] if self._uses_status else []
        body = [*first, *self.lines, f"return {', '.join(results)}" if results else "return None"]
        head = f"def run({', '.join(options)}):"
        heads = [head] if len(head) < 100 else ["def run(", *(f"    {option}," for option in options), "):"]
        work = "\n".join([*heads, *(f"    {line}" if line else "" for line in body)])
        rest = "\n\n\n".join([*("\n".join(block) for block in [self.head] if block), *self.functions.values(), work])
        return "\n".join([*self._header(rest), "", *([] if self.head else [""]), rest, ""])

    def _header(self, rest: str) -> list[str]:
        """The docstring and the imports of the file."""
        fetched = ", ".join(escaped(name) for name, _, _, _ in self.plan.fetches) or "nothing"
        lines = [
            '"""A program as it was bound: its operators in the order in which they run, on NumPy arrays.',
            "",
            f"run() gives {fetched}. Temporaries lie in one arena, each where the memory plan put it.",
        ]
        if self.executable.state:
            lines.append("State is given by keyword, and written in place.")
        if self._random:
            lines.append("draw says how often the program ran before: random numbers depend on it.")
        lines += ['"""', ""]
        if "Path(__file__)" in rest:
            lines += ["from pathlib import Path", ""]
        lines += ["import ml_dtypes"] if "ml_dtypes." in rest else []
        lines += ["import numpy as np", ""]
        used = [name for name in _RUNTIME_FUNCTIONS if re.search(rf"(?<![\w.]){name}\(", rest)]
        lines += ["from fluidlite.codegen import functions"] if re.search(r"\bfunctions\.", rest) else []
        lines += ["from fluidlite.render import array_functions"] if "array_functions." in rest else []
        lines += [f"from fluidlite.compiler.sources.running import {', '.join(used)}"] if used else []
        return lines

    # Names

    def name(self, key: str, preferred: str) -> str:
        """Define and return a unique name for a value, close to ``preferred``."""
        stem = re.sub(r"\W+", "_", preferred, flags=re.ASCII).strip("_") or "value"
        stem = stem if not stem[0].isdigit() else f"v{stem}"
        unique, count = stem, 1
        while unique in self._used_names:
            count += 1
            unique = f"{stem}_{count}"
        self._used_names.add(unique)
        self._names[key] = unique
        return unique

    def _declare(self, name: str, live_range: LiveRange, spec: Spec) -> None:
        self.lines.append(f"{name} = {self._array_text(live_range, spec)}")

    def _array_text(self, live_range: LiveRange, spec: Spec) -> str:
        if not spec.size:  # without an arena, too
            return f"np.empty({spec.dims!r}, {dtype_text(spec.dtype)})"
        if spec.layout is PLAIN:
            arena_bytes = self._bytes_of(live_range, spec.nbytes)
            return f"{arena_bytes}.view({dtype_text(spec.dtype)}).reshape({spec.dims!r})"
        start = self.executable.memory.at[live_range]
        tensor = next(self.executable.fixed[key] for key in live_range.keys if self.executable.fixed[key].spec is spec)
        strides = tensor.native().strides
        return f"np.ndarray({spec.dims!r}, {dtype_text(spec.dtype)}, arena, {start}, {strides!r})"

    # Steps

    def _emit_launch(self, index: int, step: Launch) -> None:
        ins = [None if key is None else self._names[key] for key in step.ins]
        parts = original_operators(step)
        self.lines += ["", f"# {index}: {step_text(step)}", *(f"#     {part}" for part in parts)]
        outs, write_backs = [], []
        for j, out in enumerate(step.outs):
            copy_range = self.executable.live_ranges.copied.get((index, j))
            if copy_range is not None:
                name = self.name(f"{out.key}@{index}", f"{out.key}_new")
                self._declare(name, copy_range, out.spec)
                write_backs.append(f"{self._names[out.key]}[...] = {name}")
            elif out.state:
                name = self._names[out.key]
            else:
                name = self._declare_output(step, out.key, out.spec, out.shares)
            outs.append(name)
        if step.skip or index in self.executable.live_ranges.views:
            return
        ins, outs = self._flat_operands(step, ins, outs)
        self._emit_kernel(index, step, ins, outs)
        self.lines += write_backs

    def _declare_output(self, step: Launch, key: str, spec: Spec, shares: int) -> str:
        live_range = self.executable.live_ranges.of[key]
        if not live_range.is_dynamic:
            name = self.name(key, key)
            self._declare(name, live_range, spec)
            return name
        source_key = step.ins[shares] if shares >= 0 else None
        source = f"{self._names[source_key]}.reshape({spec.dims!r})" if source_key is not None else ""
        name = self.name(key, key)
        self.lines.append(f"{name} = {source or f'np.empty({spec.dims!r}, {dtype_text(spec.dtype)})'}")
        return name

    def _flat_operands(
        self, step: Launch, ins: list[str | None], outs: list[str]
    ) -> tuple[list[str | None], list[str]]:
        """The operands as a layout-agnostic kernel gets them: flat, with the dims of the call."""
        if not step.layout_agnostic:
            return ins, outs
        specs = [spec for group in step.call.outs.values() for spec in group]

        def plain(name: str, key: str, spec: Spec) -> str:
            arena_bytes = self._bytes_of(self.executable.live_ranges.of.get(key), spec.nbytes)
            if not arena_bytes:  # feeds, fetches and state are plain
                return f"{name}.reshape({spec.dims!r})"
            return f"{arena_bytes}.view({dtype_text(spec.dtype)}).reshape({spec.dims!r})"

        operands = [
            None if name is None or key is None else plain(name, key, spec)
            for name, key, spec in zip(ins, step.ins, step.in_specs, strict=True)
        ]
        return operands, [plain(n, out.key, spec) for n, out, spec in zip(outs, step.outs, specs, strict=True)]

    def _emit_kernel(self, index: int, step: Launch, ins: list[str | None], outs: list[str]) -> None:
        choice, run = step.choice, self.executable.prepared.get(index)
        if run is None:
            return
        extra = self._extra_arguments(index, step)
        if step.call.op.steps is not None:
            write_steps(self, index, step, ins, outs, extra.get("workspace"))
            return
        if choice.kernel is None and choice.capability == "array":
            self.array(step.call.op.type, run, [*ins, *outs], extra)
            return
        launches = self._recorded_launches(index, step, run) if choice.is_kernel_language else None
        if launches is not None:
            self.lines += launches
            return
        if choice.kernel is not None and step.call.op.type in ops and ops.get(step.call.op.type) is step.call.op:
            self.library(index, choice, step.call, [*ins, *outs], extra)
        elif step.call.epilogue is not None:
            self._emit_epilogue(index, step, ins, outs, extra)
        else:
            what = f"{step.call.op.type} has no text: {choice.text} runs it as it was made"
            self.lines.append(f"raise NotImplementedError({what!r})")

    def _extra_arguments(self, index: int, step: Launch) -> dict[str, str]:
        """The arguments of a kernel beside its operands: its workspace and its random words."""
        arguments = {}
        workspace = self.executable.live_ranges.workspaces.get(index)
        if workspace is not None:
            arguments["workspace"] = self._bytes_of(workspace, workspace.nbytes)
        if step.random is not None:
            key, stream = random_key(step.random)
            self._random = self._random or stream >= 0
            last = f"draw & 0xFFFFFFFF, {stream}" if stream >= 0 else "0, 0"
            arguments["random"] = f"({key & 0xFFFFFFFF}, {(key >> 32) & 0xFFFFFFFF}, {last})"
        return arguments

    def array(self, type: str, run: Any, operands: list[str | None], extra: dict[str, str]) -> None:
        """Emit calls of the array namespace, as a function of their own; equal functions are shared."""
        name = self.name(f"function {len(self.functions)}", type)
        text, positions = run.function(name)
        existing = next((key for key, each in self.functions.items() if body_text(each) == body_text(text)), None)
        if existing is not None:
            self._used_names.discard(name)
            name = existing
        else:
            self.functions[name] = text.rstrip()
        arguments = [str(operands[position]) for position in positions]
        signature = re.match(r"def \w+\((.*)\):", text)
        assert signature is not None
        arguments += [extra[each] for each in ("workspace", "random") if each in signature[1].split(", ")]
        self.lines.append(f"{name}({', '.join(arguments)})")

    def library(
        self,
        index: int | str,
        choice: Choice,
        call: Call,
        operands: Sequence[str | None],
        extra: dict[str, str],
        more: str = "",
    ) -> None:
        """Emit a kernel of a library: prepared once, called in the step."""
        assert choice.kernel is not None
        rule = call.epilogue
        type = call.op.type if rule is None else rule.product.type
        name = self.name(f"kernel {index}", f"{type}_{index}")
        attrs = {
            key: value
            for key, value in call.attrs.items()
            if not key.startswith(ELEMENTWISE_PREFIX) and is_not_default(call.op.attr(key), value)
        }
        training = ", training=True" if call.training else ""
        self.head += [
            f"{name} = library(",
            f"    {choice.kernel.identity!r}, {type!r},",
            f"    {slots_text(call.ins)},",
            f"    {slots_text(call.outs)},",
            f"    {value_text(attrs)}{training}{more},",
            ")",
        ]
        options = [f"{key}={value}" for key, value in extra.items()]
        self.lines.append(f"{name}({', '.join([*map(str, operands), *options])})")

    def _emit_epilogue(
        self, index: int, step: Launch, ins: Sequence[str | None], outs: Sequence[str], extra: dict[str, str]
    ) -> None:
        """Emit a matmul with an epilogue: accumulation by the library, or the plain matmul and a function after it."""
        rule = step.call.epilogue
        assert rule is not None
        accumulated = accumulation(step.call)
        if isinstance(accumulated, Accumulation) and accumulated.factor == 1.0:
            self.library(
                index, step.choice, step.call, [*ins, *outs], extra, f", accumulate={number_text(accumulated.scale)}"
            )
            return
        names = dict(zip(step.call.index, [*ins, *outs], strict=False))
        product, then = product_call(step.call), then_call(step.call)
        result = self.name(f"product {index}", f"product_{index}")
        spec = product.spec(rule.out)
        self.lines.append(f"{result} = np.empty({spec.dims!r}, {dtype_text(spec.dtype)})")
        self.library(index, step.choice, product, [*(names[slot] for slot in product.ins), result], extra)
        inputs = [result if slot == rule.product_slot else names[rule.inputs[slot]] for slot in then.ins]
        results = [names[rule.outputs[slot]] for slot in then.outs]
        run = generators["array"].prepare(then, self.context)
        extra = {"workspace": f"memory({run.workspace})"} if run.workspace else {}
        self.array(then.op.type, run, [*inputs, *results], extra)

    def _recorded_launches(self, index: int, step: Launch, run: Any) -> list[str] | None:
        """The launches of a native kernel as text; None if it does more than launch."""
        context = self.context
        words = tuple(RandomWord(text) for text in self._random_words(index, step))
        tensors, names = self._stand_ins(index, step)
        workspace = None
        arena_range = self.executable.live_ranges.workspaces.get(index)
        if arena_range is not None:
            workspace = stand_in(Spec.of((arena_range.nbytes,), "uint8"), context)
            names[id(workspace.span().handle)] = self._bytes_of(arena_range, arena_range.nbytes)
        io = IO(step.call, tensors, context, step.op_index, words, workspace)  # type: ignore[arg-type]
        return self.launches(step.choice, run, io, names)

    def launches(self, choice: Choice, kernel: Prepared, io: IO, names: dict[int, str]) -> list[str] | None:
        """The launches of a kernel as text; None if it does more than launch."""
        context, suspect = self.context, self.context.may_have_error
        try:
            recorder = record_launches(choice, kernel, context, io)
        except (TypeError, FluidError):
            return None
        if recorder is None:
            return None
        if recorder.marks:
            self._uses_status = True
            names[id(context.status_span().handle)] = "status"
            context._may_have_error = suspect
        lines = []
        for kernel, items, args, group in recorder.launches:
            text = self.texts.by_kernel.get(id(kernel))
            if text is None:
                return None
            name = self._native_name(text)
            lines.append(
                f"{name}({', '.join([str(items), str(group), *arguments_text(text.parameters, args, names)])})"
            )
        return lines

    def _random_words(self, index: int, step: Launch) -> list[str]:
        if step.random is None:
            return ["0"] * 4
        return self._extra_arguments(index, step)["random"].strip("()").split(", ")

    def _native_name(self, text: Any) -> str:
        name = self._native_names.get(text.name)
        if name is None:
            name = self._native_names[text.name] = self.name(f"native {text.name}", text.entry)
            file = next(iter(text.files))
            self.head += [
                f"{name} = native(",
                f"    Path(__file__).parent / {file!r}, {text.entry!r},",
                f"    {text.parameters!r},",
                ")",
            ]
        return name

    def _stand_ins(self, index: int, step: Launch) -> tuple[list[Tensor], dict[int, str]]:
        """Stand-in operands, and the text of each by the ``id`` of its memory, which recorded launches contain."""
        tensors, names = [], {}
        specs = [*step.in_specs, *(out.spec for out in step.outs)]
        keys = [*step.ins, *(out.key for out in step.outs)]
        for j, (key, spec) in enumerate(zip(keys, specs, strict=True)):
            if key is None:
                tensors.append(Tensor.of(spec, self.context.place))
                continue
            output_index = j - len(step.ins)
            tensor = stand_in(spec, self.context)
            copy_range = self.executable.live_ranges.copied.get((index, output_index)) if output_index >= 0 else None
            name = self._names[f"{key}@{index}" if copy_range is not None else key]
            live_range = self.executable.live_ranges.of.get(key) if copy_range is None else copy_range
            fixed = self.executable.fixed.get(key)  # layout-agnostic steps have plain specs
            layout = spec.layout if fixed is None or fixed.spec is None else fixed.spec.layout
            arena_bytes = "" if layout is PLAIN else self._bytes_of(live_range, spec.nbytes)
            names[id(tensor.span().handle)] = arena_bytes or name
            tensors.append(tensor)
        if step.layout_agnostic:
            call_specs = [spec for group in (*step.call.ins.values(), *step.call.outs.values()) for spec in group]
            tensors = [with_spec(each, spec) for each, spec in zip(tensors, call_specs, strict=True)]
        return tensors, names

    def _bytes_of(self, live_range: LiveRange | None, nbytes: int) -> str:
        """The text of bytes in the arena, from the start of a live range; ``""`` if it is not in the arena."""
        start = self.executable.memory.at.get(live_range) if live_range is not None else None
        return "" if start is None else f"arena[{start}:{start + nbytes}]"

    def _result_text(self, key: str) -> str:
        live_range = self.executable.live_ranges.of.get(key)
        return self._names[key] + ("" if live_range is not None and live_range.is_donated else ".copy()")
