"""mkdocs hook: puts files of the repository that lie outside docs/ on the site, and leads links to them there.

The pages of docs/ are also read on a code host, so their links name files of the repository. It also says where a
narrow screen may break code: not after the dashes of an option, but after the dots and brackets of a long name.
"""

import ast
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
#: The page of the site for each file or folder of the repository outside docs/.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/results": "results.md",
    "examples": "examples.md",
    "hostfiles": "hostfiles.md",
}
_SOURCES = {page: source for source, page in PAGES.items()}
_LINK = re.compile(r"(\]\(|src=\")([^)\s\"#:]+)(#[^)\s\"]*)?(?=[)\"])")
_CODE = re.compile(r"<code>[^<]*</code>|<div class=\"language-(?:bash|console) .*?</div>", re.DOTALL)
_OPTION = re.compile(r"(?<![\w-])--?\w[\w-]*(?![^<>]*>)")
_LONG = re.compile(r"<span class=\"option\">[^<]*</span>|[^\s<>]{16,}(?![^<>]*>)")
_JOINT = re.compile(r"[.(\[=/_]+(?=[\w(\[])")
_FENCES = {".py": "python", ".sh": "bash", ".toml": "toml", ".ipynb": "json", ".json": "json"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each entry of `PAGES`."""
    for source, page in PAGES.items():
        path = ROOT / source
        content = path.read_text(encoding="utf-8") if path.is_file() else "\n".join(_listing(path))
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Return the page with its links to files of the repository turned into links to pages of the site."""
    here = page.file.src_uri
    source = _SOURCES.get(here, f"docs/{here}")
    return _LINK.sub(lambda link: f"{link[1]}{_on_site(link[2], source, here)}{link[3] or ''}", markdown)


def on_page_content(html: str, **_: object) -> str:
    """Return the page with each option in an element that `site.css` keeps on one line, and breaks in a line's code."""
    return _CODE.sub(lambda code: _with_breaks(_OPTION.sub(r'<span class="option">\g<0></span>', code[0])), html)


def _with_breaks(code: str) -> str:
    return code if code.startswith("<div") else _LONG.sub(_broken, code)


def _broken(word: re.Match[str]) -> str:
    return word[0] if word[0].startswith("<span") else _JOINT.sub(r"\g<0><wbr>", word[0])


def _on_site(target: str, source: str, here: str) -> str:
    """Return where *target*, a link in the repository's file *source*, leads from the site's page *here*.

    A link that leads nowhere is left as it is: mkdocs reports it.
    """
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    folder, name = posixpath.split(path)
    if folder in PAGES:
        return f"{_relative(PAGES[folder], here)}#{_anchor(name)}"
    if path in PAGES:
        return _relative(PAGES[path], here)
    return _relative(path.removeprefix("docs/"), here) if path.startswith("docs/") else target


def _relative(page: str, here: str) -> str:
    return posixpath.relpath(page, posixpath.dirname(here) or ".")


def _anchor(name: str) -> str:
    return name.lower().replace(".", "-").replace("_", "-")


def _listing(folder: Path) -> Iterator[str]:
    """Give the page of a folder: each file with its text."""
    yield f"# {folder.name.capitalize()}\n\nThe files in the folder `{folder.name}/` of the repository.\n"
    for file in sorted(path for path in folder.iterdir() if path.is_file()):
        text = file.read_text(encoding="utf-8")
        yield f"\n## {file.name} {{#{_anchor(file.name)}}}\n"
        if file.suffix == ".ipynb":
            yield "A notebook: open it with Jupyter.\n"
            continue
        if file.suffix == ".py" and (about := ast.get_docstring(ast.parse(text))):
            yield f"{about.splitlines()[0]}\n"
        yield f"```{_FENCES.get(file.suffix, 'text')}\n{text.rstrip()}\n```\n"
