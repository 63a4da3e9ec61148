"""Formulas as MathML, which browsers draw themselves: no script, nothing to fetch."""

from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml


def setup(app: Any) -> dict[str, bool]:
    """Register the renderer that `html_math_renderer` names."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(latex2mathml.tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f"<div class='math'>{latex2mathml.tex2mathml(node.astext(), as_block=True)}</div>")
    raise nodes.SkipNode
