"""Pages of the site that are made, not written: one per module, the README, the build notes."""

import ast
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PACKAGE = "bqfd_jax"


def modules() -> dict[str, Path]:
    """Source file of every public module, by the module's name."""
    sources = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if not any(part.startswith("_") for part in name.split(".")):
            sources[name] = path
    return sources


def page_of(module: str, source: Path) -> str:
    """Where the page of a module lies below docs/; a package's is the index of its folder."""
    place = module.replace(".", "/").removeprefix(PACKAGE).strip("/")
    if source.name == "__init__.py":
        return f"api/{place}/index.md".replace("//", "/")
    return f"api/{place}.md"


def text_of(module: str, source: Path) -> str:
    """The page itself: what a module defines, and for a package where its names come from."""
    if source.name != "__init__.py":
        return f"::: {module}\n"
    body = ast.parse(source.read_text()).body
    defined = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    listed = [
        ast.literal_eval(node.value)
        for node in body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    # Optional: what has no docstring, an alias of a type say, has no place to link to.
    links = [
        f"- <autoref optional identifier='{place}'><code>{name}</code></autoref>"
        for name, place in sorted(imported.items())
        if not listed or name in listed[0]
    ]
    own = f"::: {module}\n    options:\n      members: {defined}\n"
    return "\n".join([own, "## Names", "", *links, ""] if links else [own])


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the modules to the navigation, a package with its modules as a section."""
    tree: dict = {}
    for module, source in modules().items():
        branch = tree
        for part in module.split("."):
            branch = branch.setdefault(part, {})
        branch[""] = page_of(module, source)
    config.nav = [*config.nav, {"API": _section(tree[PACKAGE])}]
    return config


def _section(branch: dict) -> list:
    """A package's own page, then its modules and packages by name."""
    entries = [branch[""]]
    for name in sorted(set(branch) - {""}):
        inner = branch[name]
        entries.append({name: inner[""] if set(inner) == {""} else _section(inner)})
    return entries


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Makes the pages."""
    for module, source in modules().items():
        page, text = page_of(module, source), text_of(module, source)
        files.append(File.generated(config, page, content=text))
    # Written for the repository, where links go through docs/; here that is the root.
    for page, source in (("index.md", "README.md"), ("build_notes.md", "BUILD_NOTES.md")):
        text = (ROOT / source).read_text().replace("(docs/", "(")
        text = text.replace("(BUILD_NOTES.md", "(build_notes.md")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lets links out of docs/ work both in the repository and on the site."""
    for source, made in (("../BUILD_NOTES.md", "build_notes.md"), ("../README.md", "index.md")):
        markdown = markdown.replace(source, made)
    return markdown
