"""Writes docs/index.md, the front page of the site, from README.md: links lead to pages of the site.

python tools/docs_index.py
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
READERS = {
    "Tutorials": (
        "programs",
        "networks",
        "nodes",
        "books",
        "computations",
        "write_a_kernel",
        "write_an_operator",
        "write_a_device_plugin",
    ),
    "How-to": (
        "layers",
        "sequences",
        "structured_losses",
        "recurrent",
        "decoding",
        "control_flow",
        "sparse_rows",
        "loaders",
        "data_parallel",
        "node_layers",
        "devices",
        "transfers_and_views",
        "in_place",
        "places",
        "memory",
        "tensors",
        "debugging",
        "profiling",
        "explain",
        "old_scripts",
        "old_models",
        "define_an_operator",
        "array_device",
        "plugins",
    ),
    "Reference": (
        "reference/layers",
        "reference/operators",
        "reference/modules/index",
        "reference/primitives",
        "reference/tensor_primitives",
        "reference/array_namespace",
        "glossary",
    ),
    "Explanation": (
        "architecture",
        "operators",
        "expressions_to_kernels",
        "kernels",
        "passes",
        "fusion",
        "memory_plan",
        "generated_code",
        "hand_written_kernels",
        "benchmarks",
        "decisions/README",
    ),
}
"""Pages by what a reader is after."""


def index(readme: str) -> str:
    """The README as a page of docs/: what it links to there is beside it; other files are named, and not linked."""

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        if target.startswith("docs/"):
            return match[0].replace("](docs/", "](")
        if match[0].startswith("!"):
            return match[0]
        return match[0] if "://" in target or target.startswith("#") else f"{text} (`{target}`)"

    linked = re.sub(r"!?\[([^\]]+)\]\(([^)\s]+)\)", link, readme)
    return linked + "".join(map(_tree, READERS.items()))


def _tree(group: tuple[str, Sequence[str]]) -> str:
    """A group of the table of contents."""
    name, pages = group
    return f"\n```{{toctree}}\n:caption: {name}\n:hidden:\n\n" + "".join(f"{page}\n" for page in pages) + "```\n"


if __name__ == "__main__":
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (ROOT / "docs" / "index.md").write_text(index(readme), encoding="utf-8")
