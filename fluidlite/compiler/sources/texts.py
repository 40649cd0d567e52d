"""All texts of a bound program, by the names of their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fluidlite.base.errors import ProgramError
from fluidlite.compiler.executable.executable import Executable
from fluidlite.compiler.planning.plan import Control, Launch, Move, Step
from fluidlite.compiler.sources.kernels import KernelTexts, made_of, step_text
from fluidlite.compiler.sources.program import ProgramText
from fluidlite.compiler.sources.wording import one_line

KERNELS = "kernels"
"""The folder of the kernels' files."""


def sources_of(bound: Executable | None, arguments: Sequence[str]) -> dict[str, str]:
    """Return the texts of all that a bound program runs.

    Parameters
    ----------
    bound : Executable or None
    arguments : sequence of str
        The feeds, in the order in which a call gives them.

    Returns
    -------
    dict of file name to text
        ``steps.txt``: what runs, in order, with the user's lines; ``call.py``: the function that looks at a call's
        arguments and goes straight through; ``program.py``, on the host: the whole program; and of each kernel that
        is compiled its text in the kernel language, and the device's own listings.

    Raises
    ------
    ProgramError
        If nothing is bound.
    """
    if bound is None or not bound.attached or (bound.memory.arenas and not bound.fixed):
        raise ProgramError(
            "there are no sources: nothing of it is bound to memory yet; dims are known at the first call"
            "\n  Do: call it once"
        )
    stages = [bound]
    while (stage := stages[-1].following) is not None:
        stages.append(stage)
    found: dict[str, str] = {}
    for stage in stages:
        folder = f"stage{stage.stage}/" if len(stages) > 1 else ""
        found |= {folder + name: text for name, text in _stage(stage, arguments).items()}
    return found


def write(texts: Mapping[str, str], folder: str | Path) -> list[Path]:
    """Write texts to files; return their paths. The folder is made if it is not there."""
    found = []
    for name, text in texts.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        found.append(path)
    return found


def _stage(bound: Executable, arguments: Sequence[str]) -> dict[str, str]:
    texts, steps = KernelTexts(KERNELS), bound.plan.steps
    used: dict[int, list[str]] = {}
    for index, step in enumerate(steps):
        if isinstance(step, Launch) and index not in bound.live_ranges.views:
            kernels = texts.add(index, step, bound.frame.contexts[step.choice.place])
            used[index] = [next(iter(kernel.files)) for kernel in kernels]
    found = {"steps.txt": _steps(bound, used)}
    fast_path = bound.fast_path() if bound.fast_path is not None else None
    if fast_path is not None:
        found["call.py"] = fast_path.source
    if _on_host(bound):
        found["program.py"] = ProgramText(bound, texts, arguments).text()
    return found | texts.files(steps)


def _on_host(bound: Executable) -> bool:
    if len(bound.contexts) != 1 or bound.stage or bound.plan.pending is not None:
        return False
    (context,) = bound.contexts
    if not context.unit.info.host or context.array is None or not context.array.eager:
        return False
    return all(isinstance(step, Launch) for step in bound.plan.steps)


def _steps(bound: Executable, used: Mapping[int, Sequence[str]]) -> str:
    lines = [f"on {', '.join(map(str, bound.plan.places))}", bound.memory.summary(), ""]
    for index, step in enumerate(bound.plan.steps):
        lines.append(f"{index}: {step_text(step)}")
        lines += [f"    made of {part}" for part in made_of(step)]
        lines += [f"    {one_line(line)}" for line in _facts(bound, index, step)]
        lines += [f"    text {name}" for name in used.get(index, ())]
    return "\n".join(lines) + "\n"


def _facts(bound: Executable, index: int, step: Step) -> list[str]:
    if isinstance(step, Move):
        return [f"{step.why}: {step.spec!r}"]
    if isinstance(step, Control):
        return ["runs itself"]
    if index in bound.live_ranges.views:
        kernel = "nothing to do: a view"
    else:
        kernel = f"{step.choice.how} on {step.choice.place}: {step.choice.text}"
    reads = [f"{key} {spec!r}" for key, spec in zip(step.ins, step.in_specs, strict=True) if key is not None]
    writes = [f"{out.key} {out.spec!r}" for out in step.outs]
    return [kernel, f"reads {', '.join(reads) or 'nothing'}", f"writes {', '.join(writes)}"]
