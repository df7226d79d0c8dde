"""README and docs have their numbers from committed results, and every result is told of."""

import json
import re
from pathlib import Path

import fill_in
import pytest

from evkf.errors import InputError
from evkf.reproduce.catalogue import TITLES

ROOT = Path(__file__).resolve().parent.parent
TOLD = (
    "README.md",
    "filters.md",
    "learning.md",
    "performance.md",
    "reliability.md",
    "reproduction.md",
)
"""Pages that must have numbers from results."""
SETTINGS = {
    r"[Bb]ins of\s+(?:\d+ to )?\d+ ms": "width of bins",
    r"\b\d+ ms bins": "width of bins",
    r"\ba session at\s+\d+ ms": "width of bins",
    r"\b(?:1 to 10|10 to 50) ms": "width of bins to choose",
    r"\btime\s+constant 25 ms": "of a simulated network",
    r"\b20 ms at most if it runs": "how long a session sleeps",
    r"\bJumps below 50 ms": "limit of the clock",
}
"""Milliseconds that are not measured, and what they are."""
UNCHECKED = r"not in\s+`results/`|\b(?:measured|timed|tried|counted)\s+(?:once\s+)?by\s+hand"
"""How figures are excused that nobody can check."""

TABLES = """# A table: of two

About 3 trials.

| method | RMSE | paper | KL |
|---|---:|---:|---:|
| eVKF | **0.10 ± 0.01** (0.15) | 0.15 | — |
| OVS, slow (2) | 0.20 ± 0.02 | 0.25 | 1 |

## Claims

- **Confirmed**: all.
- Not that.

![A picture](one.png)

## More

| method | RMSE |
|---|---:|
| eVKF | 0.3 |
"""


@pytest.fixture
def results(tmp_path):
    (tmp_path / "one.md").write_text(TABLES, encoding="utf-8")
    one = '{"config": {"trials": 3}, "rows": [{"R": 0.5}, {"R": 0.25}]}'
    (tmp_path / "one.json").write_text(one, encoding="utf-8")
    return tmp_path


def said(source: str, results: Path, before: str = "old") -> str:
    """What a marked place comes to hold."""
    text = f"At <!-- results: {source} -->{before}<!-- end -->, so."
    filled = fill_in.fill(text, "page", results)
    assert fill_in.fill(filled, "page", results) == filled
    assert filled.startswith(f"At <!-- results: {source} -->")
    assert filled.endswith("<!-- end -->, so.")
    return filled.split("-->")[1].removesuffix("<!-- end ").strip()


@pytest.mark.parametrize("name", TITLES)
def test_every_table_has_its_full_run(name):
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert (ROOT / "results" / "paper" / f"{name}.md").is_file()
    assert f"(../results/paper/{name}.md)" in page
    assert "later:" not in page


@pytest.mark.parametrize("page", fill_in.pages(), ids=lambda page: page.name)
def test_pages_say_what_results_say(page):
    text = page.read_text(encoding="utf-8")
    assert fill_in.fill(text, page.name) == text, "other numbers than results/: make numbers"
    assert page.name not in TOLD or "<!-- results: " in text


@pytest.mark.parametrize("page", fill_in.pages(), ids=lambda page: page.name)
def test_no_measured_time_is_typed(page):
    text = page.read_text(encoding="utf-8")
    assert not re.search(UNCHECKED, text)
    code = r"^ *```.*?^ *```|`[^`]+`"
    for known in (fill_in.PLACE.pattern, code, *SETTINGS):
        text = re.sub(known, "", text, flags=re.DOTALL | re.MULTILINE)
    typed = [found[0] for found in re.finditer(r".{0,60}\d+(?:\.\d+)? ?(?:µs|ms)\b", text)]
    assert not typed, "mark them with their result, or name the setting in SETTINGS"


@pytest.mark.parametrize(
    "path",
    sorted(path for kind in ("json", "md") for path in (ROOT / "results").rglob(f"*.{kind}")),
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_every_result_is_named_on_a_page(path):
    name = re.escape(path.relative_to(ROOT / "results").with_suffix("").as_posix())
    pages = "".join(page.read_text(encoding="utf-8") for page in fill_in.pages())
    assert re.search(rf"(?:<!-- results: |results/){name}\.(?:json|md)", pages)


def test_every_result_of_the_paper_is_told():
    """Its tables stand on the page, or a link leads to it."""
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    for path in (ROOT / "results" / "paper").glob("*.md"):
        taken = f"<!-- results: paper/{path.name} ", f"](../results/paper/{path.name})"
        assert any(words in text for words in taken), path.name


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("one.md # A table: of two | eVKF | RMSE", "0.10 ± 0.01"),
        ("one.md # A table: of two | eVKF | RMSE | mean", "0.10"),
        ("one.md # A table: of two | eVKF | paper", "0.15"),
        ("one.md # More | eVKF | RMSE", "0.3"),
        ("one.md | OVS, slow (2) | KL", "1"),
        ("one.json : config.trials", "3"),
        ("one.json : config.trials : .1f", "3.0"),
        ("one.json : rows.1.R", "0.25"),
        ("one.json : rows.0.R / 10 : .2f", "0.05"),
        ("one.json : rows.*.R", "0.75"),
        ("one.md # Claims", "- **Confirmed**: all.\n- Not that."),
        ("one.md # More", "| method | RMSE |\n|---|---:|\n| eVKF | 0.3 |"),
    ],
)
def test_places_take_what_is_there(results, source, found):
    assert said(source, results) == found


def test_a_table_is_made_of_what_a_check_wrote(results):
    row = {"gap": 0.25, "kl": 1e9, "chamfer_above_floor": 2.0, "std": 0.1}
    found = {f"{kind}, {name}": row for name in ("elbo", "kl") for kind in ("poisson", "gaussian")}
    (results / "losses.json").write_text(json.dumps(found), encoding="utf-8")
    head, line, *rows = said("losses.json # table", results).splitlines()
    cells = "0.25 | diverged | 2.00 | 0.100"
    assert rows == [f"| {name} | {cells} | {cells} |" for name in ("elbo", "kl")]
    assert head.count("|") == line.count("|") == 10


def test_a_whole_file_gives_its_tables_and_lists(results):
    blocks = said("one.md", results).split("\n\n")
    assert [block.count("\n") for block in blocks] == [3, 1, 2]
    assert "picture" not in str(blocks)


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ("two.md", "no such result .*results/two.md"),
        ("one.md # Lost", "no heading 'Lost'.*'Claims'"),
        ("one.md | eVKF | RMSE", "2 such cells"),
        ("one.md | GPFA | RMSE", "0 such cells"),
        ("one.md # More | eVKF | RMSE | median", "median"),
        ("one.json : config.seeds", "no 'seeds'.*there is trials"),
        ("one.json : config.trials : z", "3 in the format"),
        ("one.json : rows.2.R", "no '2'"),
        ("one.json : rows / 10 : .0f", "in the format"),
        ("one.json : rows.*.S", "no 'S'.*there is R"),
        ("one.json : config.*", r"no '\*'"),
        ("one.json # table", "no table of one.json.*losses.json"),
    ],
)
def test_what_is_not_there_is_named(results, source, match):
    with pytest.raises(InputError, match=match):
        said(source, results)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a <!-- results: one.md -->", "close every one"),
        ("a <!-- results: one.md --> b <!-- results: one.md --><!-- end -->", "no end"),
        ("a <!-- end -->", "close every one"),
        ("a\n<!-- results: one.json : config.trials -->3<!-- end -->", "start of a line"),
    ],
)
def test_places_that_are_not_closed_or_break_a_paragraph(results, text, match):
    with pytest.raises(InputError, match=match):
        fill_in.fill(text, "page", results)


def test_check_tells_and_writes_nothing(results, monkeypatch, capsys):
    page = results / "page.md"
    page.write_text("At <!-- results: one.json : config.trials -->4<!-- end -->.", encoding="utf-8")
    monkeypatch.setattr(fill_in, "pages", lambda: [page])
    monkeypatch.setattr(fill_in.fill, "__defaults__", (results,))
    monkeypatch.setattr("sys.argv", ["fill_in.py", "--check"])
    assert fill_in.main() == 1
    assert "page.md" in capsys.readouterr().out
    assert "-->4<!--" in page.read_text(encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["fill_in.py"])
    assert fill_in.main() == 0
    assert "-->3<!--" in page.read_text(encoding="utf-8")
