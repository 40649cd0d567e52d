"""The texts of the kernels that an executable launches: a kernel language's, and what comes of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fluidlite.compiler.planning.plan import Control, Launch, Move, Step
from fluidlite.compiler.selection.step_choices import step_calls
from fluidlite.compiler.sources.wording import one_line
from fluidlite.platform.context import Context
from fluidlite.program.operator import MADE_OF


@dataclass
class KernelText:
    """A compiled kernel.

    ``name``: of its files, without suffix.
    """

    name: str
    source: str
    entry: str
    parameters: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)


class _Noting:
    """Stands in for a context while a kernel is prepared, and notes what it compiles."""

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
    """The kernels of a program's steps; one that several steps launch is there once.

    ``by_kernel``: by the id of what the kernel language compiled.
    """

    def __init__(self, folder: str) -> None:
        self.all: list[KernelText] = []
        self.by_kernel: dict[int, KernelText] = {}
        self._folder = folder
        self._known: dict[tuple[Any, ...], KernelText] = {}
        self._held: list[Any] = []

    def add(self, index: int, step: Launch, context: Context) -> list[KernelText]:
        """Note what the kernel of a step compiles; return it."""
        if context.language is None or step.skip:
            return []
        noting: Any = _Noting(context)
        if step.call.op.steps is None:
            step.choice.prepare(step.call, noting)
        else:
            for one, choice in zip(step_calls(step.call).values(), step.choice.part_choices, strict=True):
                pairs = [(part.call, how) for part, how in zip(choice.parts, choice.part_choices, strict=True)]
                for call, how in pairs or [(one, choice)]:
                    how.prepare(call, noting)
        found = []
        for source, entry, parameters, kernel in noting.compiled:
            text = self._known.get((context.place, source, entry))
            if text is None:
                text = self._text(source, entry, parameters, context)
                self._known[context.place, source, entry] = text
                self.all.append(text)
            if index not in text.steps:
                text.steps.append(index)
            self.by_kernel[id(kernel)] = text
            self._held.append(kernel)
            if text not in found:
                found.append(text)
        return found

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
        """All files, each headed by the operators that launch it."""
        found = {}
        for kernel in self.all:
            heads = [f"kernel {kernel.entry}({', '.join(kernel.parameters)})"]
            for index in kernel.steps:
                heads.append(f"step {index}: {step_text(steps[index])}")
                heads += [f"    {part}" for part in made_of(steps[index])]
            for name, text in kernel.files.items():
                mark = ";" if name.endswith(".ll") else "//"
                found[name] = "".join(f"{mark} {line}\n" for line in heads) + text
        return found


def step_text(step: Step) -> str:
    """What a step does, with the user's line."""
    if isinstance(step, Move):
        return one_line(f"move {step.name} from {step.source} to {step.target}")
    return one_line(str(step.op) if isinstance(step, Control) else _operator(step))


def _operator(step: Launch) -> str:
    whole, part = step.op.type, step.call.op.type
    line = f"({step.op.line})" if not made_of(step) else ""
    return f"{part} {line}".rstrip() if whole == part else f"{part}, of {whole} {line}".rstrip()


def made_of(step: Step) -> Sequence[str]:
    """The operators that a fused one was made of, each with the user's line."""
    if isinstance(step, Move):
        return ()
    found: Mapping[str, Any] = step.op.hints
    return tuple(map(one_line, found.get(MADE_OF, ())))
