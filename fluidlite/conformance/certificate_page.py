"""The certificate as one HTML file, without scripts or external resources, for light and dark mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from html import escape

from fluidlite.conformance.certificate import FAILED, KNOWN, PASSED, Certificate, CheckOutcome, OperatorRow

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #5d6778; --line: #e3e7ee; --paper: #fff; --card: #f6f8fb;
  --good: #14804a; --bad: #c02626; --warn: #9a6700;
  --native: #14804a; --generic: #2f6fd0; --generated: #6d4fc4; --decomposed: #0e8a9c; --widened: #8d6e1f;
  --fallback: #c9820a;
  --pinned: #808898; --control: #b0b7c3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf2; --soft: #98a2b5; --line: #2b3342; --paper: #141922;
  --card: #1b222e; --good: #4cc38a; --bad: #ff7b72; --warn: #e3b341;
  --native: #3fae77; --generic: #5b95ea; --generated: #9a80e8; --decomposed: #37b3c5; --widened: #c2a04a;
  --fallback: #dd9d35; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 28px; margin: 0 0 4px; letter-spacing: -.01em; }
h2 { font-size: 18px; margin: 40px 0 12px; }
.sub { color: var(--soft); margin: 0 0 24px; }
.verdict { display: inline-block; padding: 3px 14px; border-radius: 99px; font-weight: 600; font-size: 15px;
  vertical-align: 5px; margin-left: 12px; color: #fff; background: var(--good); }
.verdict.bad { background: var(--bad); }
@media (prefers-color-scheme: dark) { .verdict { color: #10151d; } }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px; }
.tile b { display: block; font-size: 24px; font-weight: 650; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.bar { display: flex; height: 14px; border-radius: 7px; overflow: hidden; margin: 6px 0 2px; background: var(--line); }
.bars { display: grid; grid-template-columns: 90px 1fr; gap: 2px 12px; align-items: center; margin-top: 8px; }
.bars span { color: var(--soft); font-size: 13px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; margin-top: 12px; font-size: 14px; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 7px; }
dl { display: grid; grid-template-columns: 130px 1fr; gap: 4px 16px; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; font-weight: 600; color: var(--soft); border-bottom: 2px solid var(--line);
  padding: 6px 10px 6px 0; position: sticky; top: 0; background: var(--paper); }
td { border-bottom: 1px solid var(--line); padding: 4px 10px 4px 0; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
code, pre { font: 13px/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px; overflow-x: auto;
  white-space: pre-wrap; overflow-wrap: anywhere; }
.chip { display: inline-block; white-space: nowrap; margin-right: 10px; }
.chip i { display: inline-block; width: 9px; height: 9px; border-radius: 2px; margin-right: 6px; }
.chip small { color: var(--soft); margin-left: 4px; }
.bad { color: var(--bad); font-weight: 600; } .warn { color: var(--warn); } .ok { color: var(--good); }
details { border: 1px solid var(--line); border-radius: 10px; padding: 8px 14px; margin: 8px 0; }
details[open] { background: var(--card); } summary { cursor: pointer; }
summary code { font-weight: 600; }
footer { color: var(--soft); font-size: 13px; margin-top: 48px; }
@media (max-width: 640px) { main { padding: 24px 14px; } dl { grid-template-columns: 1fr; } dt { margin-top: 6px; } }
"""

_HOWS = ("native", "generic", "generated", "decomposed", "widened", "fallback", "pinned", "control")


def page(certificate: Certificate) -> str:
    """The whole HTML document.

    Parameters
    ----------
    certificate : Certificate

    Returns
    -------
    str
        Texts of the device and of errors are escaped.
    """
    parts = [
        _head(certificate),
        _tiles(certificate),
        _kernels(certificate),
        _device(certificate),
        _tolerances(certificate),
        _failures(certificate),
        _known_failures(certificate),
        _operators(certificate),
    ]
    title = escape(f"{certificate.place}: {certificate.verdict}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f"<body><main>{''.join(parts)}<footer>{_footer(certificate)}</footer></main></body></html>\n"
    )


def _head(certificate: Certificate) -> str:
    mark = "verdict" if certificate.ok else "verdict bad"
    word = "passed" if certificate.ok else "failed"
    only = f"<p class='warn'>A part of the checks only: {escape(certificate.scope)}.</p>" if certificate.scope else ""
    return (
        f"<h1>{escape(certificate.device['name'])} <span class='{mark}'>{word}</span></h1>"
        f"<p class='sub'>Conformance certificate of the place <code>{escape(certificate.place)}</code>, "
        f"{escape(certificate.date)}</p>{only}"
    )


def _tiles(certificate: Certificate) -> str:
    operators = sum(row.operator not in ("device", "random") for row in certificate.rows())
    failed = certificate.count(FAILED)
    tiles = [
        ("", f"{certificate.count(PASSED):,}", "checks passed"),
        ("bad" if failed else "", f"{failed:,}", "checks failed"),
        ("", f"{certificate.count(KNOWN):,}", "known failures"),
        ("", f"{operators:,}", "operators"),
        ("", f"{certificate.seconds:.0f} s", f"in {certificate.jobs} process{'es' if certificate.jobs != 1 else ''}"),
    ]
    cells = "".join(f"<div class='tile'><b class='{mark}'>{n}</b><span>{what}</span></div>" for mark, n, what in tiles)
    return f"<div class='tiles'>{cells}</div>"


def _kernels(certificate: Certificate) -> str:
    kinds = certificate.selection_counts()
    ordered = sorted(kinds, key=lambda how: (_HOWS.index(how) if how in _HOWS else len(_HOWS), how))
    legend = "".join(
        f"<span><i style='background:{_color(how)}'></i>{escape(how)}: {kinds[how][0]} operators, "
        f"{kinds[how][1]} gradients</span>"
        for how in ordered
    )
    bars = "".join(
        f"<span>{name}</span>{_bar([(how, kinds[how][side]) for how in ordered])}"
        for side, name in enumerate(("operators", "gradients"))
        if any(kinds[how][side] for how in ordered)
    )
    return f"<h2>How kernels come</h2><div class='bars'>{bars}</div><div class='legend'>{legend}</div>" if kinds else ""


def _bar(counts: Iterable[tuple[str, int]]) -> str:
    parts = "".join(
        f"<div style='flex:{n};background:{_color(how)}' title='{n} {how}'></div>" for how, n in counts if n
    )
    return f"<div class='bar'>{parts}</div>"


def _color(how: str) -> str:
    return f"var(--{how})" if how in _HOWS else "var(--control)"


def _device(certificate: Certificate) -> str:
    device = certificate.device
    memory = "unknown" if device["memory"] is None else f"{device['memory'] / 2**20:,.0f} MiB"
    facts = [
        ("device", device["name"]),
        ("memory", f"{memory}, aligned to {device['alignment']} bytes"),
        ("capabilities", ", ".join(device["capabilities"])),
        ("queues", str(device["queues"])),
        ("dtypes", ", ".join(device["dtypes"])),
        (
            "plugin",
            " ".join(filter(None, (certificate.plugin["name"], certificate.plugin["version"])))
            + f" ({certificate.plugin['origin']})",
        ),
        ("versions", ", ".join(f"{name} {version}" for name, version in certificate.versions.items())),
    ]
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    return f"<h2>Device</h2><dl>{rows}</dl>"


def _tolerances(certificate: Certificate) -> str:
    raised = certificate.raised_tolerances()
    dtypes = list(next(iter(certificate.tolerances.values())))
    head = "".join(f"<th class='n'>{dtype}</th>" for dtype in dtypes)
    rows = "".join(
        f"<tr><td>{kind}</td>" + "".join(_tolerance_cell(*table[dtype]) for dtype in dtypes) + "</tr>"
        for kind, table in certificate.tolerances.items()
    )
    note = "The device has loosened those in colour." if raised else "The framework's, none loosened."
    return (
        f"<h2>Relative tolerances</h2><p class='sub'>{note} Integers, indices and random bits must be equal.</p>"
        f"<table><tr><th></th>{head}</tr>{rows}</table>"
    )


def _tolerance_cell(default: float, used: float) -> str:
    if default == used:
        return f"<td class='n'>{used:g}</td>"
    return f"<td class='n warn'>{used:g} <small>instead of {default:g}</small></td>"


def _failures(certificate: Certificate) -> str:
    if certificate.ok:
        return ""
    items = "".join(_failure(certificate, outcome) for outcome in certificate.failures)
    return f"<h2>Failures</h2>{items}"


def _failure(certificate: Certificate, outcome: CheckOutcome) -> str:
    first = outcome.error.splitlines()[0]
    details = f"<pre>{escape(outcome.traceback.rstrip())}</pre>" if outcome.traceback else ""
    return (
        f"<details><summary><code>{escape(outcome.id)}</code> <span class='bad'>{escape(first)}</span></summary>"
        f"<p>Reproduce:</p><pre>{escape(certificate.reproduction(outcome))}</pre>{details}</details>"
    )


def _known_failures(certificate: Certificate) -> str:
    outcomes = [outcome for outcome in certificate.outcomes if outcome.state == KNOWN]
    if not outcomes:
        return ""
    rows = "".join(f"<tr><td><code>{escape(o.id)}</code></td><td>{escape(o.error)}</td></tr>" for o in outcomes)
    return f"<h2>Known failures</h2><table><tr><th>check</th><th>reason</th></tr>{rows}</table>"


def _operators(certificate: Certificate) -> str:
    rows = "".join(_row(row) for row in certificate.rows())
    return (
        "<h2>Operators</h2><table><tr><th>operator</th><th>kernel</th><th>gradient</th><th class='n'>checks</th>"
        f"<th class='n'>failed</th></tr>{rows}</table>"
    )


def _row(row: OperatorRow) -> str:
    failed = len(row.failures)
    cell = f"<td class='n bad'>{failed}</td>" if failed else "<td class='n ok'>0</td>"
    if row.count(KNOWN):
        cell = cell.replace("</td>", f" <span class='warn'>({row.count(KNOWN)} known)</span></td>")
    return (
        f"<tr><td><code>{escape(row.operator)}</code></td><td>{_chips(row.kernel)}</td><td>{_chips(row.gradient)}</td>"
        f"<td class='n'>{len(row.outcomes)}</td>{cell}</tr>"
    )


def _chips(uses: Counter[tuple[str, str]]) -> str:
    several = len(uses) > 1
    return "".join(
        f"<span class='chip'><i style='background:{_color(how)}'></i>{escape(' '.join(filter(None, (how, library))))}"
        + (f"<small>{count} of {uses.total()}</small>" if several else "")
        + "</span>"
        for (how, library), count in uses.most_common()
    )


def _footer(certificate: Certificate) -> str:
    modules = "".join(f" --plugin {module}" for module in certificate.plugins)
    return f"Made by <code>fluidlite certify {escape(certificate.place + modules)}</code>."
