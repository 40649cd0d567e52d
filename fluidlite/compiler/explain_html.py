"""The report of explain as HTML: a bar of the kinds of kernels, one row for each operator, and the memory plot."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from fluidlite.compiler.policy import KERNEL_KINDS

if TYPE_CHECKING:
    from fluidlite.compiler.explain import Report

KIND_STYLES = {
    "native": ("#1a7f4b", "a kernel of a library, registered for this kind of place"),
    "generated": ("#2563b8", "compiled from the operator's expression"),
    "generic": ("#5b6bc0", "written once for all places of a capability"),
    "decomposed": ("#8a6d1f", "computed by other operators"),
    "widened": ("#a8561b", "computed in a wider data type, with casts"),
    "fallback": ("#b3412e", "runs on another place, with copies"),
    "pinned": ("#7a5195", "runs on the host by its definition"),
    "control": ("#66707a", "runs other operators, or the host"),
}
"""Colour and explanation of each kind of kernel."""
STYLE = """
.fluidlite-report{font:14px/1.45 system-ui,sans-serif;color:#1c232b;background:#fff}
.fluidlite-report{max-width:1180px;margin:0 auto;padding:12px}
.fluidlite-report h1{font-size:19px;margin:0 0 2px}.fluidlite-report h2{font-size:15px;margin:22px 0 6px}
.fluidlite-report p{margin:2px 0 10px;color:#4a5561}
.fluidlite-report .bar{display:flex;height:12px;border-radius:6px;overflow:hidden;margin:10px 0 8px}
.fluidlite-report .legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin-bottom:12px;color:#4a5561}
.fluidlite-report .dot{display:inline-block;width:10px;height:10px;border-radius:5px;margin-right:6px}
.fluidlite-report table{border-collapse:collapse;width:100%}
.fluidlite-report td:last-child{min-width:150px}
.fluidlite-report th{text-align:left;font-weight:600;color:#4a5561;border-bottom:2px solid #d5dbe1;padding:5px 8px}
.fluidlite-report td{text-align:left;vertical-align:top;border-bottom:1px solid #e8ecf0;padding:5px 8px}
.fluidlite-report .how{color:#fff;border-radius:4px;padding:1px 7px;font-size:12px;white-space:nowrap}
.fluidlite-report .n{color:#8a949e;text-align:right;font-variant-numeric:tabular-nums}
.fluidlite-report code{font:12.5px ui-monospace,monospace;overflow-wrap:anywhere}
.fluidlite-report summary{cursor:pointer;color:#4a5561;white-space:nowrap}
.fluidlite-report details ul{margin:4px 0;padding-left:18px}.fluidlite-report .unknown{color:#b3412e}
.fluidlite-report svg{width:100%;height:auto;border:1px solid #e8ecf0;border-radius:6px}
""".replace("\n", "")


def page(report: Report) -> str:
    """Return the report as self-contained HTML, for notebooks and files."""
    summary = report.summary
    counts = {how: summary[how] for how in (*KERNEL_KINDS, "control") if summary[how]}
    bar = "".join(
        f'<div style="flex:{count};background:{KIND_STYLES[how][0]}" title="{count} {how}"></div>'
        for how, count in counts.items()
    )
    legend = "".join(
        f'<span title="{escape(KIND_STYLES[how][1])}"><i class="dot" style="background:{KIND_STYLES[how][0]}"></i>'
        f"<b>{count}</b> {how}</span>"
        for how, count in counts.items()
    )
    heads = "".join(f"<th>{h}</th>" for h in ("", "operator", "how", "place", "kernel", "moves", "not chosen", "line"))
    rows = "".join(_row(number, row) for number, row in enumerate(report.data(), 1))
    return (
        f'<div class="fluidlite-report"><style>{STYLE}</style><h1>Plan on {escape(str(summary["place"]))}</h1>'
        f'<p>{escape(report.summary_line())}</p><div class="bar">{bar}</div><div class="legend">{legend}</div>'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{_fetches(report)}{_memory(report)}</div>"
    )


def _row(number: int, row: dict[str, Any]) -> str:
    operator = f"<b>{escape(row['op'])}</b> &rarr; <code>{escape(', '.join(row['outputs'][:2]))}</code>"
    if len(row["outputs"]) > 2:
        operator += f" and {len(row['outputs']) - 2} more"
    if row["made_of"]:
        operator += _details(f"made of {len(row['made_of'])} operators", [escape(text) for text in row["made_of"]])
    if row["not_fused"]:
        operator += _details("not fused", [escape(row["not_fused"])])
    how = f'<span class="how" style="background:{KIND_STYLES[row["how"]][0]}">{row["how"]}</span>'
    moves = row["moves"]
    items = [
        f"<code>{escape(m['name'])}</code> {escape(m['from'])} &rarr; {escape(m['to'])}, "
        f"{_bytes(m['bytes'])} ({m['why']})"
        for m in moves
    ]
    sizes = [m["bytes"] for m in moves if m["bytes"] is not None]
    total = _bytes(sum(sizes)) if len(sizes) == len(moves) else f"{_bytes(None)} in all"
    cell = _details(f"{len(moves)} {'move' if len(moves) == 1 else 'moves'}, {total}", items) if moves else ""
    refused = [f"<b>{escape(name)}</b>: {escape(reason)}" for name, reason in row["refused"]]
    refused_head = f"{len(refused)} {'other' if len(refused) == 1 else 'others'}"
    return (
        f'<tr><td class="n">{number}</td><td>{operator}</td><td>{how}</td><td>{escape(row["place"])}</td>'
        f"<td>{escape(row['kernel'])}</td><td>{cell}</td>"
        f"<td>{_details(refused_head, refused) if refused else ''}</td>"
        f"<td><code>{escape(row['line'])}</code></td></tr>"
    )


def _details(head: str, items: list[str]) -> str:
    inner = "".join(f"<li>{item}</li>" for item in items)
    return f"<details><summary>{head}</summary><ul>{inner}</ul></details>"


def _bytes(number: int | None) -> str:
    if number is None:
        return '<span class="unknown">bytes unknown</span>'
    return f"{number:,}&nbsp;B"


def _fetches(report: Report) -> str:
    fetches = report.plan.fetches
    if not fetches:
        return ""
    items = "".join(
        f"<li><code>{escape(name)}</code> from {escape(str(place))}, "
        f"{_bytes(spec.nbytes if spec.nbytes >= 0 else None)}</li>"
        for name, _, place, spec in fetches
    )
    return f"<h2>Fetches</h2><ul>{items}</ul>"


def _memory(report: Report) -> str:
    memory = report.memory
    if memory is None:
        return "<h2>Memory plan</h2><p>None: it is made for compiled programs whose dims are all known.</p>"
    return f"<h2>Memory plan</h2><p>{escape(memory.summary())}</p>{memory.svg()}"
