"""The texts of an executable, by file name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fluidlite.base.errors import ProgramError
from fluidlite.base.text_file import write_text
from fluidlite.compiler.executable.executable import Executable
from fluidlite.compiler.planning.plan import Control, Launch, Move, Step
from fluidlite.compiler.sources.kernels import KernelTexts, original_operators, step_text
from fluidlite.compiler.sources.program import ProgramText
from fluidlite.compiler.sources.wording import escaped

KERNEL_FOLDER = "kernels"
"""The folder of the kernel files."""


def sources_of(executable: Executable | None, arguments: Sequence[str]) -> dict[str, str]:
    """Return the texts of an executable, by file name.

    ``arguments``: the feeds, in the order of a call's arguments.
    ``steps.txt``: the steps in order, with the user's lines; ``call.py``: the generated fast path of a call;
    ``program.py``: on the host, the whole program; and for each compiled kernel its text in the kernel language and the
    device's listings.
    Raises ProgramError if the executable is not linked.
    """
    if executable is None or not executable.attached or (executable.memory.arenas and not executable.fixed):
        raise ProgramError(
            "there are no sources: nothing of it is bound to memory yet; dims are known at the first call"
            "\n  Do: call it once"
        )
    stages = [executable]
    while (stage := stages[-1].next_stage) is not None:
        stages.append(stage)
    texts: dict[str, str] = {}
    for stage in stages:
        folder = f"stage{stage.stage}/" if len(stages) > 1 else ""
        texts |= {folder + name: text for name, text in _stage(stage, arguments).items()}
    return texts


def write(texts: Mapping[str, str], folder: str | Path) -> list[Path]:
    """Write texts to files in a folder, which is created if necessary; return the paths."""
    paths = []
    for name, text in texts.items():
        paths.append(write_text(folder, text, "the sources", inside=name))
    return paths


def _stage(executable: Executable, arguments: Sequence[str]) -> dict[str, str]:
    texts, steps = KernelTexts(KERNEL_FOLDER), executable.plan.steps
    used: dict[int, list[str]] = {}
    for index, step in enumerate(steps):
        if isinstance(step, Launch) and index not in executable.live_ranges.views:
            kernels = texts.add(index, step, executable.frame.contexts[step.choice.place])
            used[index] = [next(iter(kernel.files)) for kernel in kernels]
    stage_texts = {"steps.txt": _steps(executable, used)}
    fast_path = executable.fast_path() if executable.fast_path is not None else None
    if fast_path is not None:
        stage_texts["call.py"] = fast_path.source
    if _on_host(executable):
        stage_texts["program.py"] = ProgramText(executable, texts, arguments).text()
    return stage_texts | texts.files(steps)


def _on_host(executable: Executable) -> bool:
    if len(executable.contexts) != 1 or executable.stage or executable.plan.pending is not None:
        return False
    (context,) = executable.contexts
    if not context.unit.info.host or context.array is None or not context.array.eager:
        return False
    return all(isinstance(step, Launch) for step in executable.plan.steps)


def _steps(executable: Executable, used: Mapping[int, Sequence[str]]) -> str:
    lines = [f"on {', '.join(map(str, executable.plan.places))}", executable.memory.summary(), ""]
    for index, step in enumerate(executable.plan.steps):
        lines.append(f"{index}: {step_text(step)}")
        lines += [f"    made of {part}" for part in original_operators(step)]
        lines += [f"    {escaped(line)}" for line in _facts(executable, index, step)]
        lines += [f"    text {name}" for name in used.get(index, ())]
    return "\n".join(lines) + "\n"


def _facts(executable: Executable, index: int, step: Step) -> list[str]:
    if isinstance(step, Move):
        return [f"{step.why}: {step.spec!r}"]
    if isinstance(step, Control):
        return ["runs itself"]
    if index in executable.live_ranges.views:
        kernel = "nothing to do: a view"
    else:
        kernel = f"{step.choice.how} on {step.choice.place}: {step.choice.text}"
    reads = [f"{key} {spec!r}" for key, spec in zip(step.ins, step.in_specs, strict=True) if key is not None]
    writes = [f"{out.key} {out.spec!r}" for out in step.outs]
    return [kernel, f"reads {', '.join(reads) or 'nothing'}", f"writes {', '.join(writes)}"]
