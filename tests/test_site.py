"""The documentation builds as a site that needs nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from site_hook import on_post_page, tutorial

ROOT = Path(__file__).resolve().parent.parent
LOADED = re.compile(r"<(?:script|img|iframe|source)[^>]* src=\"?([^\"\s>]+)|<link ([^>]*)>")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def pages(folder: Path) -> dict[str, str]:
    found = folder.rglob("*.html")
    return {p.relative_to(folder).as_posix(): p.read_text(encoding="utf-8") for p in found}


def test_every_page_is_there(site: Path):
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    named = re.findall(r"[\w/]+\.md", str(nav))
    assert len(named) == len(set(named))
    assert {name.replace(".md", ".html") for name in named} <= pages(site).keys()
    docs = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    scripts = {f"tutorials/{p.stem}.md" for p in (ROOT / "examples").glob("*.py")}
    assert docs | scripts <= set(named)


def test_nothing_comes_from_elsewhere(site: Path):
    for name, text in pages(site).items():
        for source, link in LOADED.findall(text):
            loaded = source or ("" if "canonical" in link else link)
            assert not re.search(r"(^|[\"'=])(https?:)?//", loaded), f"{name} loads {loaded}"


def test_formulas_are_drawn(site: Path):
    method = pages(site)["method.html"]
    assert method.count("<math") > 30
    assert "arithmatex" not in method
    assert not re.search(r"<mi>(log|exp)</mi><m[is]", method.replace("<mspace", "<space"))
    assert "<mi>h</mi><mi>exp" not in method


def test_names_of_the_reference_have_their_docstrings(site: Path):
    text = pages(site)["api/estimator.html"]
    assert "partial_fit" in text
    assert "States and dynamics behind the activity" in text


def test_links_out_of_docs_lead_to_pages_of_the_site(site: Path):
    found = pages(site)
    assert 'href="results/paper/table1.html"' in found["reproduction.html"]
    assert 'href="recordings.html"' in found["CHANGELOG.html"]
    assert 'href="closed_loop.html"' in found["tutorials/index.html"]


def test_pages_are_called_by_their_titles(site: Path):
    found = pages(site)
    assert '<a href="security.html">Network safety</a>' in found["live_protocol.html"]
    assert '<a href="paper_map.html">paper_map.md</a>' not in "".join(found.values())


def test_classes_and_named_tuples_have_their_signatures(site: Path):
    found = {name: re.sub(r"<[^>]*>", "", text) for name, text in pages(site).items()}
    assert re.search(r"EVKF\(\s*latents=2,", found["api/estimator.html"])
    assert "Frame(seq, y, mask=None" in found["api/live.html"]


def test_cells_break_names_at_their_joints_and_numbers_nowhere():
    cells = "<td><code>tests/a_b.py</code></td><td>0.1 ± 0.2</td><td>1</td>"
    assert on_post_page(cells, page=None, config=None) == (
        '<td><code>tests/<wbr>a_<wbr>b.py</code></td><td class="number">0.1 ± 0.2</td><td>1</td>'
    )


def test_a_script_becomes_a_page():
    head = '"""A title.\n\nMore.\n"""\n\nx = 1'
    blocks = head, "# Prose, with\n# two lines.", "# why\ny = 2", "z = 3"
    script = "\n\n".join(blocks) + "\n"
    assert tutorial(script, "a.py").splitlines() == [
        "# A title",
        "",
        "More.",
        "",
        "```python",
        "x = 1",
        "```",
        "",
        "Prose, with",
        "two lines.",
        "",
        "```python",
        "# why",
        "y = 2",
        "",
        "z = 3",
        "```",
        "",
        "The whole script is `examples/a.py`; the tests run it.",
    ]
