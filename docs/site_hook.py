"""What the site needs beyond Markdown: files from outside docs/, tutorials from scripts, formulas.

MkDocs calls the functions named `on_...`. Pages link to one another, and to files of the
repository, as they lie there, so that links work wherever the files are read; here they are led to
where the site has the same things.
"""

import html
import os
import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
TAKEN = ("*.md", "results/*/*.md", "results/*/*.png", "results/bench/*.json")
"""Files outside docs/ that the site has too, under the same path; not the README, whose place
index.md has."""
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
NAMED_FILE = re.compile(r"(?<=\[)`?(?:[\w-]+/)*[\w-]+\.md`?(?=\]\(([^)\s#]+))")
"""The text of a link that is the name of a page's file."""
FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)

THIN = '<mspace width="0.17em"/>'
NAMED = re.compile(r"<mi>(?:log|exp)</mi>(?=<m(?!o stretchy))")
"""The name of a function with its argument bare, not in brackets."""
FUNCTION = re.compile(r"(?<=</mi>)<mi>(?:log|exp)</mi>")
"""The name of a function right behind a factor."""

ONLY_NAMED = re.compile(
    r'<div class="doc-signature highlight"><pre><span></span><code><span class="n">\w+</span>\n'
    r"</code></pre></div>"
)
"""The signature of an attribute that says no more than the heading above it."""
CELL = re.compile(r"<td(?P<how>[^>]*)>(?P<said>.*?)</td>", re.DOTALL)
SPREAD = re.compile(r"[^±]{1,16} ± [^±]{1,16}")
"""A number and how far it scatters."""
CODE = re.compile(r"<code>([^<]*)</code>")
JOINT = re.compile(r"(?:::|[/._])(?=[A-Za-z_])(?<!\.(?=(?:md|py|json)\b))")
"""Where a name in code may go on in the next line; not before the ending of a file."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies outside docs/, and a page for every tutorial."""
    for pattern in TAKEN:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            if name != "README.md":
                files.append(File.generated(config, name, abs_src_path=str(path)))
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = tutorial(path.read_text(encoding="utf-8"), path.name)
        files.append(File.generated(config, f"tutorials/{path.stem}.md", content=text))
    return files


def on_page_markdown(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where the site has the same file, and call pages by their titles."""
    uri = page.file.src_uri
    if page.file.generated_by is None:
        here = dirname(join("docs", uri))
    else:
        here = "examples" if uri.startswith("tutorials/") else dirname(uri)

    def find(link: str) -> File | None:
        target = normpath(join(here, link))
        site = "index.md" if target == "README.md" else target.removeprefix("docs/")
        if target.startswith("examples/") and target.endswith(".py"):
            site = f"tutorials/{Path(target).stem}.md"
        return files.get_file_from_path(site)

    def lead(link: re.Match) -> str:
        file = find(link[1])
        return link[0] if file is None else relpath(file.src_uri, dirname(uri) or os.curdir)

    def call(link: re.Match) -> str:
        file = find(link[1])
        if file is None or file.src_uri.startswith("results/"):
            return link[0]
        title = re.search(r"^# (.+)$", file.content_string, re.MULTILINE)
        return link[0] if title is None else title[1]

    return LINK.sub(lead, NAMED_FILE.sub(call, text))


def on_page_content(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas as MathML, which browsers draw by themselves; no boxes that say nothing."""

    def draw(formula: re.Match) -> str:
        display = "block" if formula["tag"] == "div" else "inline"
        drawn = convert(html.unescape(formula["tex"]).strip(), display=display)
        # Browsers set no space around the name of a function: "log p" would read "logp".
        return FUNCTION.sub(THIN + r"\g<0>", NAMED.sub(r"\g<0>" + THIN, drawn))

    return FORMULA.sub(draw, ONLY_NAMED.sub("", text))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Cells of tables: long names in code may break at their joints, numbers with a spread never.

    In what is written, not in what is searched: there, names stay whole.
    """

    def break_code(code: re.Match) -> str:
        return "<code>" + JOINT.sub(r"\g<0><wbr>", code[1]) + "</code>"

    def mend(cell: re.Match) -> str:
        text = re.sub(r"<[^>]*>", "", cell["said"]).strip()
        how = cell["how"] + (' class="number"' if SPREAD.fullmatch(text) else "")
        return f"<td{how}>{CODE.sub(break_code, cell['said'])}</td>"

    return CELL.sub(mend, output)


def tutorial(script: str, name: str) -> str:
    """A page from a script: comments at the start of a line are its prose, the rest its code.

    The docstring comes first, its first line the title. Lines of prose are separated from code by
    an empty line; a comment right above code belongs to it.
    """
    title, body = script.removeprefix('"""').split('"""\n', 1)
    heading, _, lead = title.partition("\n")
    parts = [f"# {heading.rstrip('.')}", lead.strip()]
    for block in re.split(r"\n{2,}(?=# |\S)", body.strip("\n")):
        lines = block.splitlines()
        if all(line.startswith("#") for line in lines):
            parts.append("\n".join(line[1:].removeprefix(" ") for line in lines))
        elif parts[-1].startswith("```python"):
            parts[-1] = parts[-1].removesuffix("\n```") + f"\n\n{block}\n```"
        else:
            parts.append(f"```python\n{block}\n```")
    parts.append(f"The whole script is `examples/{name}`; the tests run it.")
    return "\n\n".join(parts) + "\n"
