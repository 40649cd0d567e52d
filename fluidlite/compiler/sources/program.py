"""An executable as straight-line Python: NumPy calls, kernels of libraries, launches of native kernels."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from typing import Any

from fluidlite.base.errors import FluidError
from fluidlite.codegen.epilogue import Accumulation, accumulation
from fluidlite.compiler.executable.command_buffer import noted
from fluidlite.compiler.executable.executable import Executable
from fluidlite.compiler.kernel_runs import random_key, relaid
from fluidlite.compiler.memory.live_ranges import LiveRange
from fluidlite.compiler.planning.plan import Launch
from fluidlite.compiler.selection.choice import Choice
from fluidlite.compiler.sources.kernels import KernelTexts, made_of, step_text
from fluidlite.compiler.sources.step_functions import write_steps
from fluidlite.compiler.sources.wording import (
    Word,
    arguments_text,
    body_text,
    dtype_text,
    number_text,
    one_line,
    slots_text,
    stand_in,
    told,
    value_text,
)
from fluidlite.program.codegen_registry import generators
from fluidlite.program.epilogue import THEN, product_call, then_call
from fluidlite.program.kernel_io import IO
from fluidlite.program.op_call import Call
from fluidlite.program.prepared import Prepared
from fluidlite.program.registry import ops
from fluidlite.tensor.layout import PLAIN
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec

_RUNNING = ("host_context", "host_function", "library", "memory", "native", "steps")
_RESERVED = {"np", "functions", "array_functions", "ml_dtypes", "arena", "run", "status", "draw", "float", "Path"}
_RESERVED |= {*_RUNNING, *keyword.kwlist}


class ProgramText:
    """Writes a program that is bound to the host's memory alone.

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
        self._taken = set(_RESERVED)
        self.functions: dict[str, str] = {}
        self._compiled: dict[str, str] = {}
        self._draws = False
        self._status = False

    def text(self) -> str:
        state = [self.name(name, name) for name, _, _ in self.executable.state]
        keys = [(name, self.plan.feed_keys[name]) for name in self.arguments]
        feeds = [self.name(key, name) for name, key in keys]
        for name, key in keys:
            life = self.executable.live_ranges.of[key]
            if not life.loose:
                fed = self._names.pop(key)
                self._declare(key, self.name(key, name + "_held"), life, self.plan.feeds[name])
                self.lines.append(f"{self._names[key]}[...] = {fed}")
        for index, step in enumerate(self.plan.steps):
            assert isinstance(step, Launch)
            self._launch(index, step)
        results = [self._result(key) for _, key, _, _ in self.plan.fetches]
        options = [*feeds, *(["*"] if state or self._draws else []), *state, *(["draw=0"] if self._draws else [])]
        arena = sum(self.executable.memory.arenas.values())
        first = [f"arena = memory({arena})"] if arena else []
        first += ["status = np.zeros(4, np.int64)"] if self._status else []
        body = [*first, *self.lines, f"return {', '.join(results)}" if results else "return None"]
        head = f"def run({', '.join(options)}):"
        heads = [head] if len(head) < 100 else ["def run(", *(f"    {option}," for option in options), "):"]
        work = "\n".join([*heads, *(f"    {line}" if line else "" for line in body)])
        rest = "\n\n\n".join([*("\n".join(block) for block in [self.head] if block), *self.functions.values(), work])
        return "\n".join([*self._top(rest), "", *([] if self.head else [""]), rest, ""])

    def _top(self, rest: str) -> list[str]:
        """What the file is, and what it imports."""
        fetched = ", ".join(one_line(name) for name, _, _, _ in self.plan.fetches) or "nothing"
        lines = [
            '"""A program as it was bound: its operators in the order in which they run, on NumPy arrays.',
            "",
            f"run() gives {fetched}. Temporaries lie in one arena, each where the memory plan put it.",
        ]
        if self.executable.state:
            lines.append("State is given by keyword, and written in place.")
        if self._draws:
            lines.append("draw says how often the program ran before: random numbers depend on it.")
        lines += ['"""', ""]
        if "Path(__file__)" in rest:
            lines += ["from pathlib import Path", ""]
        lines += ["import ml_dtypes"] if "ml_dtypes." in rest else []
        lines += ["import numpy as np", ""]
        used = [name for name in _RUNNING if re.search(rf"(?<![\w.]){name}\(", rest)]
        lines += ["from fluidlite.codegen import functions"] if re.search(r"\bfunctions\.", rest) else []
        lines += ["from fluidlite.render import array_functions"] if "array_functions." in rest else []
        lines += [f"from fluidlite.compiler.sources.running import {', '.join(used)}"] if used else []
        return lines

    # Names

    def name(self, key: str, wanted: str) -> str:
        """Give a value a name."""
        short = re.sub(r"\W+", "_", wanted, flags=re.ASCII).strip("_") or "value"
        short = short if not short[0].isdigit() else f"v{short}"
        found, count = short, 1
        while found in self._taken:
            count += 1
            found = f"{short}_{count}"
        self._taken.add(found)
        self._names[key] = found
        return found

    def _declare(self, key: str, name: str, life: LiveRange, spec: Spec) -> None:
        self.lines.append(f"{name} = {self._at(life, spec)}")

    def _at(self, life: LiveRange, spec: Spec) -> str:
        start = self.executable.memory.at[life]
        if not spec.size:  # there may be no arena
            return f"np.empty({spec.dims!r}, {dtype_text(spec.dtype)})"
        if spec.layout is PLAIN:
            return f"arena[{start}:{start + spec.nbytes}].view({dtype_text(spec.dtype)}).reshape({spec.dims!r})"
        fixed = next(self.executable.fixed[key] for key in life.keys if self.executable.fixed[key].spec is spec)
        strides = fixed.native().strides
        return f"np.ndarray({spec.dims!r}, {dtype_text(spec.dtype)}, arena, {start}, {strides!r})"

    # Steps

    def _launch(self, index: int, step: Launch) -> None:
        ins = [None if key is None else self._names[key] for key in step.ins]
        parts = made_of(step)
        self.lines += ["", f"# {index}: {step_text(step)}", *(f"#     {part}" for part in parts)]
        outs, home = [], []
        for j, out in enumerate(step.outs):
            aside = self.executable.live_ranges.copied.get((index, j))
            if aside is not None:
                name = self.name(f"{out.key}@{index}", f"{out.key}_new")
                self._declare(out.key, name, aside, out.spec)
                home.append(f"{self._names[out.key]}[...] = {name}")
            elif out.state:
                name = self._names[out.key]
            else:
                name = self._output(step, out.key, out.spec, out.shares)
            outs.append(name)
        if step.skip or index in self.executable.live_ranges.views:
            return
        ins, outs = self._seen(step, ins, outs)
        self._work(index, step, ins, outs)
        self.lines += home

    def _output(self, step: Launch, key: str, spec: Spec, shares: int) -> str:
        life = self.executable.live_ranges.of[key]
        if not life.loose:
            name = self.name(key, key)
            self._declare(key, name, life, spec)
            return name
        given = step.ins[shares] if shares >= 0 else None
        source = f"{self._names[given]}.reshape({spec.dims!r})" if given is not None else ""
        name = self.name(key, key)
        self.lines.append(f"{name} = {source or f'np.empty({spec.dims!r}, {dtype_text(spec.dtype)})'}")
        return name

    def _seen(self, step: Launch, ins: list[str | None], outs: list[str]) -> tuple[list[str | None], list[str]]:
        """The operands as the kernel sees them: element by element where all lie in one layout."""
        if not step.blind:
            return ins, outs
        specs = [spec for group in step.call.outs.values() for spec in group]

        def plain(name: str, key: str, spec: Spec) -> str:
            there = self._bytes_of(self.executable.live_ranges.of.get(key), spec)
            if not there:  # it is fed, fetched or state, and lies as its dims say
                return f"{name}.reshape({spec.dims!r})"
            return f"{there}.view({dtype_text(spec.dtype)}).reshape({spec.dims!r})"

        read = [
            None if name is None or key is None else plain(name, key, spec)
            for name, key, spec in zip(ins, step.ins, step.in_specs, strict=True)
        ]
        return read, [plain(n, out.key, spec) for n, out, spec in zip(outs, step.outs, specs, strict=True)]

    def _work(self, index: int, step: Launch, ins: list[str | None], outs: list[str]) -> None:
        choice, run = step.choice, self.executable.prepared.get(index)
        if run is None:
            return
        extra = self._extra(index, step)
        if step.call.op.steps is not None:
            write_steps(self, index, step, ins, outs, extra.get("workspace"))
            return
        if choice.kernel is None and choice.capability == "array":
            self.array(step.call.op.type, run, [*ins, *outs], extra)
            return
        launches = self._recorded(index, step, run) if choice.of_language else None
        if launches is not None:
            self.lines += launches
            return
        if choice.kernel is not None and step.call.op.type in ops and ops.get(step.call.op.type) is step.call.op:
            self.library(index, choice, step.call, [*ins, *outs], extra)
        elif step.call.epilogue is not None:
            self._epilogue(index, step, ins, outs, extra)
        else:
            what = f"{step.call.op.type} has no text: {choice.text} runs it as it was made"
            self.lines.append(f"raise NotImplementedError({what!r})")

    def _extra(self, index: int, step: Launch) -> dict[str, str]:
        """What a kernel is given beside its operands."""
        found = {}
        space = self.executable.live_ranges.workspaces.get(index)
        if space is not None:
            start = self.executable.memory.at[space]
            found["workspace"] = f"arena[{start}:{start + space.nbytes}]"
        if step.random is not None:
            key, stream = random_key(step.random)
            self._draws = self._draws or stream >= 0
            last = f"draw & 0xFFFFFFFF, {stream}" if stream >= 0 else "0, 0"
            found["random"] = f"({key & 0xFFFFFFFF}, {(key >> 32) & 0xFFFFFFFF}, {last})"
        return found

    def array(self, type: str, run: Any, operands: list[str | None], extra: dict[str, str]) -> None:
        """Calls of the array namespace: a function of its own."""
        name = self.name(f"function {len(self.functions)}", type)
        text, positions = run.function(name)
        same = next((known for known, each in self.functions.items() if body_text(each) == body_text(text)), None)
        if same is not None:
            self._taken.discard(name)
            name = same
        else:
            self.functions[name] = text.rstrip()
        given = [str(operands[position]) for position in positions]
        asked = re.match(r"def \w+\((.*)\):", text)
        assert asked is not None
        given += [extra[each] for each in ("workspace", "random") if each in asked[1].split(", ")]
        self.lines.append(f"{name}({', '.join(given)})")

    def library(
        self,
        index: int | str,
        choice: Choice,
        call: Call,
        operands: Sequence[str | None],
        extra: dict[str, str],
        more: str = "",
    ) -> None:
        """A library's kernel, prepared once."""
        assert choice.kernel is not None
        rule = call.epilogue
        type = call.op.type if rule is None else rule.product.type
        name = self.name(f"kernel {index}", f"{type}_{index}")
        attrs = {
            key: value
            for key, value in call.attrs.items()
            if not key.startswith(THEN) and told(call.op.attr(key), value)
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

    def _epilogue(
        self, index: int, step: Launch, ins: Sequence[str | None], outs: Sequence[str], extra: dict[str, str]
    ) -> None:
        """A product that is added to what is there; or one after which another function comes."""
        rule = step.call.epilogue
        assert rule is not None
        found = accumulation(step.call)
        if isinstance(found, Accumulation) and found.factor == 1.0:
            self.library(
                index, step.choice, step.call, [*ins, *outs], extra, f", accumulate={number_text(found.scale)}"
            )
            return
        names = dict(zip(step.call.index, [*ins, *outs], strict=False))
        product, then = product_call(step.call), then_call(step.call)
        result = self.name(f"product {index}", f"product_{index}")
        spec = product.spec(rule.out)
        self.lines.append(f"{result} = np.empty({spec.dims!r}, {dtype_text(spec.dtype)})")
        self.library(index, step.choice, product, [*(names[slot] for slot in product.ins), result], extra)
        given = [result if slot == rule.given else names[rule.inputs[slot]] for slot in then.ins]
        made = [names[rule.outputs[slot]] for slot in then.outs]
        run = generators["array"].prepare(then, self.context)
        space = run.workspace
        self.array(then.op.type, run, [*given, *made], {"workspace": f"memory({space})"} if space else {})

    def _recorded(self, index: int, step: Launch, run: Any) -> list[str] | None:
        """The launches of a native kernel, as text."""
        context = self.context
        words = tuple(Word(text) for text in self._words(index, step))
        tensors, names = self._tensors(index, step)
        workspace = None
        space = self.executable.live_ranges.workspaces.get(index)
        if space is not None:
            workspace = stand_in(Spec.of((space.nbytes,), "uint8"), context)
            start = self.executable.memory.at[space]
            names[id(workspace.span().handle)] = f"arena[{start}:{start + space.nbytes}]"
        given = IO(step.call, tensors, context, step.op_index, words, workspace)  # type: ignore[arg-type]
        return self.launches(step.choice, run, given, names)

    def launches(self, choice: Choice, kernel: Prepared, io: IO, names: dict[int, str]) -> list[str] | None:
        """What a kernel launches, as text; None if that is not all that it does."""
        context, suspected = self.context, self.context.suspect
        try:
            recorder = noted(choice, kernel, context, io)
        except (TypeError, FluidError):
            return None
        if recorder is None:
            return None
        if recorder.marks:
            self._status = True
            names[id(context.status_span().handle)] = "status"
            context._suspect = suspected
        lines = []
        for kernel, items, args, group in recorder.launches:
            text = self.texts.by_kernel.get(id(kernel))
            if text is None:
                return None
            name = self._native(text)
            lines.append(
                f"{name}({', '.join([str(items), str(group), *arguments_text(text.parameters, args, names)])})"
            )
        return lines

    def _words(self, index: int, step: Launch) -> list[str]:
        if step.random is None:
            return ["0"] * 4
        return self._extra(index, step)["random"].strip("()").split(", ")

    def _native(self, text: Any) -> str:
        name = self._compiled.get(text.name)
        if name is None:
            name = self._compiled[text.name] = self.name(f"native {text.name}", text.entry)
            file = next(iter(text.files))
            self.head += [
                f"{name} = native(",
                f"    Path(__file__).parent / {file!r}, {text.entry!r},",
                f"    {text.parameters!r},",
                ")",
            ]
        return name

    def _tensors(self, index: int, step: Launch) -> tuple[list[Tensor], dict[int, str]]:
        """Operands with memory of their own, by which they are known in launches again."""
        tensors, names = [], {}
        specs = [*step.in_specs, *(out.spec for out in step.outs)]
        keys = [*step.ins, *(out.key for out in step.outs)]
        for j, (key, spec) in enumerate(zip(keys, specs, strict=True)):
            if key is None:
                tensors.append(Tensor.of(spec, self.context.place))
                continue
            at = j - len(step.ins)
            held = stand_in(spec, self.context)
            aside = self.executable.live_ranges.copied.get((index, at)) if at >= 0 else None
            name = self._names[f"{key}@{index}" if aside is not None else key]
            life = self.executable.live_ranges.of.get(key) if aside is None else aside
            fixed = self.executable.fixed.get(key)  # what is read blindly is said to be plain
            layout = spec.layout if fixed is None or fixed.spec is None else fixed.spec.layout
            there = "" if layout is PLAIN else self._bytes_of(life, spec)
            names[id(held.span().handle)] = there or name
            tensors.append(held)
        if step.blind:
            seen = [spec for group in (*step.call.ins.values(), *step.call.outs.values()) for spec in group]
            tensors = [relaid(tensor, spec) for tensor, spec in zip(tensors, seen, strict=True)]
        return tensors, names

    def _bytes_of(self, life: LiveRange | None, spec: Spec) -> str:
        """The bytes of a value, in the order in which they lie in the arena; ``""`` of one that does not."""
        start = self.executable.memory.at.get(life) if life is not None else None
        return "" if start is None else f"arena[{start}:{start + spec.nbytes}]"

    def _result(self, key: str) -> str:
        life = self.executable.live_ranges.of.get(key)
        return self._names[key] + ("" if life is not None and life.handed_over else ".copy()")
