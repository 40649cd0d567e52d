"""How Sphinx makes the site: `make docs` writes the reference from the code, then this builds site/ of docs/."""

project = "fluidlite"
extensions = ["myst_parser"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
suppress_warnings = ["toc.not_included"]  # pages of the reference and decisions are linked from their indices
html_theme = "furo"
html_title = "fluidlite"
