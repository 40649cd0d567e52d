"""The source texts of the kernels that an executable launches, with the compiler's listings."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fluidlite.compiler.planning.plan import Control, Launch, Move, Step
from fluidlite.compiler.selection.step_choices import step_calls
from fluidlite.compiler.sources.wording import escaped
from fluidlite.platform.context import Context
from fluidlite.program.operator import FUSED_OPERATORS


@dataclass
class KernelText:
    """A compiled kernel.

    ``name``: the name of its files, without suffix; ``steps``: the indices of the steps that launch it.
    """

    name: str
    source: str
    entry: str
    parameters: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)


class _CompileRecorder:
    """A proxy of a context that records the kernels that it compiles."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.compiled: list[tuple[str, str, tuple[str, ...], Any]] = []

    def compile(self, source: str, entry: str, parameters: tuple[str, ...], form: Hashable = None) -> Any:
        kernel = self._context.compile(source, entry, parameters, form)
        self.compiled.append((source, entry, parameters, kernel))
        return kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class KernelTexts:
    """The kernels of a program's steps, each once.

    ``by_kernel``: by ``id`` of the compiled kernel.
    """

    def __init__(self, folder: str) -> None:
        self.all: list[KernelText] = []
        self.by_kernel: dict[int, KernelText] = {}
        self._folder = folder
        self._by_source: dict[tuple[Any, ...], KernelText] = {}
        self._compiled: list[Any] = []  # keeps ids valid

    def add(self, index: int, step: Launch, context: Context) -> list[KernelText]:
        """Record the kernels that a step compiles; return them."""
        if context.language is None or step.skip:
            return []
        recorder: Any = _CompileRecorder(context)
        if step.call.op.steps is None:
            step.choice.prepare(step.call, recorder)
        else:
            for step_call, choice in zip(step_calls(step.call).values(), step.choice.part_choices, strict=True):
                calls = [part.call for part in choice.parts] or [step_call]
                for call, part_choice in zip(calls, choice.part_choices if choice.parts else (choice,), strict=True):
                    part_choice.prepare(call, recorder)
        texts = []
        for source, entry, parameters, kernel in recorder.compiled:
            text = self._by_source.get((context.place, source, entry))
            if text is None:
                text = self._text(source, entry, parameters, context)
                self._by_source[context.place, source, entry] = text
                self.all.append(text)
            if index not in text.steps:
                text.steps.append(index)
            self.by_kernel[id(kernel)] = text
            self._compiled.append(kernel)
            if text not in texts:
                texts.append(text)
        return texts

    def _text(self, source: str, entry: str, parameters: tuple[str, ...], context: Context) -> KernelText:
        language = context.language
        name = f"{self._folder}/{len(self.all):03d}_{entry}"
        text = KernelText(name, source, entry, parameters)
        text.files[name + getattr(language, "suffix", ".c")] = source
        listings = getattr(language, "listings", None)
        if listings is not None:
            text.files |= {name + suffix: each for suffix, each in listings(source, entry, parameters).items()}
        return text

    def files(self, steps: Sequence[Step]) -> dict[str, str]:
        """The texts of all files, each with a head that names the operators that launch the kernel."""
        files = {}
        for kernel in self.all:
            heads = [f"kernel {kernel.entry}({', '.join(kernel.parameters)})"]
            for index in kernel.steps:
                heads.append(f"step {index}: {step_text(steps[index])}")
                heads += [f"    {part}" for part in original_operators(steps[index])]
            for name, text in kernel.files.items():
                mark = ";" if name.endswith(".ll") else "//"
                files[name] = "".join(f"{mark} {line}\n" for line in heads) + text
        return files


def step_text(step: Step) -> str:
    """The operator or the move of a step, with the user's line."""
    if isinstance(step, Move):
        return escaped(f"move {step.name} from {step.source} to {step.target}")
    return escaped(str(step.op) if isinstance(step, Control) else _operator(step))


def _operator(step: Launch) -> str:
    type, call_type = step.op.type, step.call.op.type
    line = f"({step.op.line})" if not original_operators(step) else ""
    return f"{call_type} {line}".rstrip() if type == call_type else f"{call_type}, of {type} {line}".rstrip()


def original_operators(step: Step) -> Sequence[str]:
    """The original operators of a fused one, each with the user's line."""
    if isinstance(step, Move):
        return ()
    hints: Mapping[str, Any] = step.op.hints
    return tuple(map(escaped, hints.get(FUSED_OPERATORS, ())))
