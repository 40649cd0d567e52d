"""Writes docs/architecture.svg: the packages in the order of .importlinter, and which imports which.

    python tools/architecture_picture.py [--check]

The arcs are the imports that the code has (those for type checkers only, and those inside functions, too). ``--check``
writes nothing, and fails if the picture is another.
"""

from __future__ import annotations

import ast
import configparser
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "architecture.svg"
ROW, TOP, LEFT, WIDTH = 24, 30, 20, 980
ARCS = 430
"""Where the arcs start, from the left."""


def rows() -> list[list[str]]:
    """The packages by row, as import-linter holds them: each imports only those below."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    lines = (line for line in parser["importlinter:contract:packages"]["layers"].splitlines() if line.strip())
    return [[name.strip().removeprefix("fluidlite.") for name in line.split("|")] for line in lines]


def summary(package: str) -> str:
    """The first sentence of a package's docstring."""
    path = ROOT / "fluidlite" / package
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.split("\n")[0].split(";")[0].rstrip(".")


def imported(file: Path) -> set[str]:
    """The modules of fluidlite that a file names in imports, in full."""
    found = set[str]()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if name.startswith("fluidlite.")}


def edges(packages: set[str]) -> set[tuple[str, str]]:
    found = set[tuple[str, str]]()
    for package in packages:
        path = ROOT / "fluidlite" / package
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]:
            targets = {name.split(".")[1] for name in imported(file)}
            found |= {(package, target) for target in targets & packages if target != package}
    return found


def draw() -> str:
    """The picture as SVG: a row of packages a line, an arc an import; blue goes down, red goes up."""
    order = rows()
    line = {package: number for number, row in enumerate(order) for package in row}
    height = TOP + ROW * len(order) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="13">',
        "<title>The packages of fluidlite, and which imports which</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="18" fill="#555">A package imports what is below it (blue). Red imports go up: '
        "built-in devices are plugins.</text>",
    ]
    for number, row in enumerate(order):
        y = TOP + ROW * number + ROW // 2
        text = escape(summary(row[0]) if len(row) == 1 else "")
        if len(text) > 46:
            text = text[:46].rpartition(" ")[0] + " ..."
        parts.append(f'<text x="{LEFT}" y="{y + 4}" font-weight="bold">{escape(" | ".join(row))}</text>')
        if text:
            parts.append(f'<text x="{LEFT + 110}" y="{y + 4}" font-size="11" fill="#555">{text}</text>')
    drawn = {(line[a], line[b]) for a, b in edges(set(line)) if line[a] != line[b]}
    for a, b in sorted(drawn):
        start, end = TOP + ROW * a + ROW // 2, TOP + ROW * b + ROW // 2
        reach = 2 * ARCS / 3 * (abs(b - a) / len(order)) ** 0.7 + 40
        color, wide = ("#3468a8", 0.7) if a < b else ("#c33", 1.5)
        x = ARCS + (60 if a < b else 55)
        title = f"{'|'.join(order[a])} imports {'|'.join(order[b])}"
        parts.append(
            f'<path d="M{x} {start} C{x + reach:.0f} {start} {x + reach:.0f} {end} {x} {end}" fill="none" '
            f'stroke="{color}" stroke-width="{wide}"><title>{title}</title></path>'
        )
        parts.append(f'<circle cx="{x}" cy="{end}" r="2.5" fill="{color}"/>')
    return "\n".join([*parts, "</svg>", ""])


def main(check: bool) -> int:
    text = draw()
    if check:
        same = TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text
        if not same:
            print(f"{TARGET.name} is not of this import graph\n  Do: python tools/architecture_picture.py")
        return 0 if same else 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
