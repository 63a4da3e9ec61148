"""The documentation site: `make docs` builds it offline into out/docs/VERSION, with warnings as errors."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import heatbath

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "extensions"))

project = "heatbath"
author = project_copyright = "The heatbath developers"
release = version = heatbath.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "command_line",
    "mathml",
]
exclude_patterns = ["pages", "extensions", "tutorials", "gallery/*.py", "**/sg_execution_times.rst"]
suppress_warnings = ["config.cache"]  # the gallery's settings hold functions, which cannot be pickled
default_role = "py:obj"  # single backticks in docstrings are names of objects

autodoc_typehints = "none"  # docstrings say what arguments mean
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

_TUTORIALS = (
    "ten_minutes",
    "thermometer",
    "reshuffling",
    "double_well",
    "fokker_planck",
    "figure5",
)  # as they are read


class TutorialOrder:
    """Sorts the tutorials; those that are not listed come last."""

    def __init__(self, _folder: str) -> None:
        pass

    def __call__(self, file: str) -> tuple[int, str]:
        """Return what to sort a file by."""
        name = file.removeprefix("plot_").removesuffix(".py")
        return (_TUTORIALS.index(name) if name in _TUTORIALS else len(_TUTORIALS), name)


sphinx_gallery_conf = {
    "within_subsection_order": TutorialOrder,
    "examples_dirs": str(HERE / "tutorials"),
    "gallery_dirs": str(HERE / "gallery"),
    "filename_pattern": r"/plot_",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
}

html_theme = "furo"
html_title = f"heatbath {version}"
html_math_renderer = "mathml"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]


def setup(app: Any) -> None:
    """Adapt docstrings and pages, which are also read where they lie, to the site."""
    app.connect("autodoc-process-docstring", _show_formulas, priority=0)  # before napoleon takes it apart
    app.connect("source-read", _drop_links_outside)


def _show_formulas(_app: Any, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    """Indented blocks of docstrings are formulas and code: show them as they are."""
    lines[:] = _with_literal_blocks(lines)


def _with_literal_blocks(lines: list[str]) -> Iterator[str]:
    indent, begins = 0, False
    for number, line in enumerate(lines):
        if not line.strip():
            begins = True
        else:
            here = len(line) - len(line.lstrip())
            before = next((one.strip() for one in reversed(lines[:number]) if one.strip()), "")
            if begins and here > indent and not before.endswith("::") and not re.match(r"([-*]|\d\.) ", before):
                yield from (f"{' ' * indent}::", "")
            indent, begins = here, False
        yield line


def _drop_links_outside(_app: Any, _page: str, source: list[str]) -> None:
    """Pages link to files of the repository: tutorials have pages here, of the others the site has only the name."""
    source[0] = re.sub(r"\]\(tutorials/(\w+)\.py\)", r"](gallery/\1)", source[0])
    source[0] = re.sub(r"\[([^\]]+)\]\(\.\./([^)#]+)[^)]*\)", r"\1 (`\2`)", source[0])
