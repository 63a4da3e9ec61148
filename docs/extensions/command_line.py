"""The page of the command line, made from the commands themselves."""

from pathlib import Path
from typing import Any

import typer

from heatbath.cli import app as heatbath_app


def setup(app: Any) -> dict[str, bool]:
    """Write the page before Sphinx looks for its sources."""
    app.connect("config-inited", lambda app, _config: write(Path(app.srcdir) / "reference/command-line.md"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write(page: Path) -> None:
    """Write the page, and leave it alone where nothing has changed."""
    text = "# Command line\n\n" + "\n".join(_describe(typer.main.get_command(heatbath_app), "heatbath", 1))
    if not page.exists() or page.read_text() != text:
        page.write_text(text)


def _describe(command: Any, name: str, level: int) -> list[str]:
    lines = [] if level == 1 else [f"{'#' * level} {name}", ""]
    lines += [(command.help or "").strip(), ""]
    for key, one in getattr(command, "commands", {}).items():  # a group's
        lines += _describe(one, f"{name} {key}", level + 1)
    if hasattr(command, "commands"):
        return lines
    usage = command.collect_usage_pieces(command.context_class(command))
    lines += [f"```text\n{' '.join([name, *usage])}\n```", ""]
    rows = [
        (f"`{', '.join((*p.opts, *p.secondary_opts))}`", p.help or "", _default(p))
        for p in command.params
        if p.param_type_name == "option"
    ]
    if rows:
        lines += ["| option | meaning | default |", "| --- | --- | --- |"]
        lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return [*lines, ""]


def _default(option: Any) -> str:
    if option.required:
        return "required"
    plain = option.default is not None and not callable(option.default) and option.default != ()
    return f"`{option.default}`" if plain and option.default is not False else ""
