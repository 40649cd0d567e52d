"""The report of explain: a Plan as text, HTML or data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fluidlite.compiler.planning.plan import Move, Plan
from fluidlite.compiler.policy import KERNEL_KINDS
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.program.operator import FUSED_OPERATORS, NOT_EXPANDED, NOT_FUSED
from fluidlite.tensor.tensor_spec import Spec

if TYPE_CHECKING:
    from fluidlite.compiler.memory.memory_plan import MemoryPlan


class Report:
    """Reports the place and kernel of each operator, the moves, and why candidates were refused.

    ``str(report)`` is :meth:`text`; :meth:`data` gives the same as plain dicts; :meth:`html` as a page.

    Parameters
    ----------
    plan : Plan
    memory : callable, optional
        Returns the memory plan; it is called when the attribute ``memory`` is read.
    """

    def __init__(self, plan: Plan, memory: Callable[[], MemoryPlan | None] | None = None) -> None:
        self.plan = plan
        self._memory = memory

    @property
    def summary(self) -> dict[str, Any]:
        """Counts of operators by kind of kernel, of copies between places, and bytes (None if dims are unknown)."""
        hows = Counter(line.how for line in self.plan.lines)
        moves = self.plan.moves
        sizes = [move.spec.nbytes for move in moves]
        return {
            "place": str(self.plan.place),
            "operators": len(self.plan.lines),
            "pruned": self.plan.pruned,
            **{how: hows.get(how, 0) for how in KERNEL_KINDS},
            "control": hows.get("control", 0),
            "feeds": sum(move.why == "feed" for move in moves),
            "transfers": sum(move.why != "feed" for move in moves),
            "fetches": len(self.plan.fetches),
            "bytes": sum(sizes) if all(size >= 0 for size in sizes) else None,
            "libraries": sorted(
                {
                    c.library
                    for line in self.plan.lines
                    if line.choice
                    for c in (line.choice.part_choices or (line.choice,))
                }
            ),
        }

    def copies(self) -> dict[Place, dict[str, int]]:
        """Return the number of copies in and out of each place's context in one run, including fetches."""
        counts: dict[Place, dict[str, int]] = {}

        def count(place: Place, direction: str) -> None:
            counts.setdefault(place, {"copy_in": 0, "copy_out": 0})[direction] += 1

        for move in self.plan.moves:
            if not move.spec.size or move.source == move.target:  # no copy, or one inside the place
                continue
            if not devices.unit(move.source).info.host:
                count(move.source, "copy_out")
            if not devices.unit(move.target).info.host:
                count(move.target, "copy_in")
        for _, _, place, spec in self.plan.fetches:
            if spec.size:
                count(place, "copy_out")
        return counts

    def data(self) -> list[dict[str, Any]]:
        """Return one dict for each operator."""
        rows = []
        for line in self.plan.lines:
            choice = line.choice
            rows.append(
                {
                    "op": line.op.type,
                    "line": str(line.op.line),
                    "outputs": line.op.output_arg_names,
                    "made_of": list(line.op.hints.get(FUSED_OPERATORS, ())),
                    "neighbours": list(line.op.hints.get(NOT_FUSED, ())),
                    "not_fused": line.op.hints.get(NOT_EXPANDED, "") if line.how == "decomposed" else "",
                    "how": line.how,
                    "place": str(choice.place) if choice else str(self.plan.place),
                    "library": choice.library if choice else "",
                    "kernel": choice.text if choice else "run(frame, op)",
                    "parts": [
                        {
                            "op": p.call.op.type,
                            "how": c.how,
                            "library": c.library,
                            "dims": [list(v.dims) for v in p.outs],
                        }
                        for p, c in zip(choice.parts, choice.part_choices, strict=True)
                    ]
                    if choice
                    else [],
                    "widened": dict(zip(("from", "to", "kernel", "bytes"), choice.widened, strict=True))
                    if choice and choice.widened
                    else None,
                    "moves": [_move_data(move) for move in line.moves],
                    "refused": [list(item) for item in choice.refused] if choice else [],
                }
            )
        return rows

    def text(self, refused: bool = False) -> str:
        """Return one line for each operator: kind, place, kernel, outputs, moves; ``refused`` adds other candidates."""
        rows: list[tuple[str, str, str, str]] = []
        notes: list[list[str]] = []
        explained_types: set[str] = set()
        for line in self.plan.lines:
            choice = line.choice
            outs = ", ".join(line.op.output_arg_names[:2]) + (", ..." if len(line.op.output_arg_names) > 2 else "")
            kernel = choice.text if choice else "run(frame, op)"
            rows.append((line.op.type, line.how, str(choice.place) if choice else "", f"{kernel} -> {outs}"))
            note = [f"move {m.name} {m.source} -> {m.target}, {_bytes(m.spec)} ({m.why})" for m in line.moves]
            made_of = line.op.hints.get(FUSED_OPERATORS)
            if made_of:
                note.insert(0, "made of " + ", ".join(made_of))
            if line.how == "decomposed" and NOT_EXPANDED in line.op.hints:
                note.append(f"its parts are not fused: {line.op.hints[NOT_EXPANDED]}")
            if choice is not None and (widened := choice.widened) is not None:
                narrow, wide, taker, nbytes = widened
                size = f"{nbytes:,} bytes" if nbytes >= 0 else "bytes unknown"
                note.append(f"widened {narrow} -> {wide} for {taker}: {size} of casts")
            if refused:
                note += line.op.hints.get(NOT_FUSED, ())
            if choice is not None and refused:
                note += [f"not {candidate}: {reason}" for candidate, reason in choice.refused]
            elif choice is not None and line.how == "fallback" and line.op.type not in explained_types:
                explained_types.add(line.op.type)  # reasons are printed once for each operator type
                note.append("because " + "; ".join(f"{candidate}: {reason}" for candidate, reason in choice.refused))
            if choice is not None and line.how == "pinned":
                note.append(f"pinned: {line.op.definition.host_only}")
            notes.append(note)
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
        lines = [f"Plan on {self.plan.place}"]
        for row, note, line in zip(rows, notes, self.plan.lines, strict=True):
            lines.append("  " + "  ".join(row[i].ljust(widths[i]) for i in range(3)) + f"  {row[3]}  # {line.op.line}")
            lines += [f"      {item}" for item in note]
        for name, _, place, spec in self.plan.fetches:
            lines.append(f"  fetch {name} from {place}, {_bytes(spec)}")
        lines.append(self.summary_line())
        return "\n".join(lines)

    def summary_line(self) -> str:
        """Return the last line of the text."""
        s = self.summary
        hows = ", ".join(f"{s[how]} {how}" for how in (*KERNEL_KINDS, "control") if s[how])
        size = "unknown bytes" if s["bytes"] is None else f"{s['bytes']:,} bytes"
        pruned = f"; {s['pruned']} pruned" if s["pruned"] else ""
        return (
            f"{s['operators']} operators: {hows or 'none'}{pruned}; "
            f"{s['feeds']} feeds copied, {s['transfers']} transfers, {s['fetches']} fetches, {size} moved"
        )

    @property
    def memory(self) -> MemoryPlan | None:
        """The memory plan of a compiled program whose dims are known; None without one."""
        return self._memory() if self._memory is not None else None

    def html(self) -> str:
        """Return the report as HTML: one row for each operator with its moves and refusals, and the memory plot."""
        from fluidlite.compiler.explain_html import page

        return page(self)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.html()


def _move_data(move: Move) -> dict[str, Any]:
    return {
        "name": move.name,
        "from": str(move.source),
        "to": str(move.target),
        "bytes": move.spec.nbytes if move.spec.nbytes >= 0 else None,
        "why": move.why,
    }


def _bytes(spec: Spec) -> str:
    return f"{spec.nbytes:,} bytes" if spec.nbytes >= 0 else f"{spec!r} bytes unknown"
