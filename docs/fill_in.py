"""Put what committed results say into the README and the pages beside this file.

Between `<!-- results: SOURCE -->` and `<!-- end -->` stands what a file under `results/` says:

    paper/table2.md # Poisson observations                      its tables and lists below a heading
    reaching/reaching.md                                        all tables and lists of a file
    reaching/reaching.md | GPFA (not causal) | R² from rates    a cell, by its row and its column
    reaching/reaching.md | GPFA (not causal) | R² from rates | mean      without its spread
    paper/table1.json : config.trials                           a value, by its path
    live/latency.json : 10ms.session.p999 : .2f                 a number, in a format of Python's
    live/latency.json : 10ms.costs_ms.compile / 1000 : .0f      a part of it, such as s of ms
    bench/gpu.json : parts.sessions.figures.1.value : .0f       of a list, the place counted from 0
    adversarial.json : rows.*.bins : ,                          the sum over a list
    losses.json # table                                         what `result_tables` makes of it

`python docs/fill_in.py` writes them, `--check` says what is not as it should be and exits with 1.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from result_tables import tables

from evkf.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
PLACE = re.compile(
    r"(?P<open><!-- results: (?P<source>.*?) -->)(?P<said>.*?)(?P<close><!-- end -->)", re.DOTALL
)
BESIDE = re.compile(r"\*\*|\s*\([^()]*\)$")
"""In a cell: bold type, and the paper's number in brackets."""


def pages() -> list[Path]:
    """All that is filled in."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def fill(text: str, where: str, results: Path = ROOT / "results") -> str:
    """A page with what the results say in every marked place.

    Args:
        text: The page.
        where: Its name.
        results: Folder of the results.
    """

    def say(place: re.Match) -> str:
        source = place["source"]
        if "<!--" in place["said"]:
            raise InputError("no end", f"{where}: {source}", "close it with <!-- end -->")
        if "|" not in source and " : " not in source:
            block = made if source.endswith(".json # table") else lines
            return f"{place['open']}\n\n{block(results, source)}\n\n{place['close']}"
        if place.start() == 0 or text[place.start() - 1] == "\n":
            remedy = "put a word before it: a line that begins with a comment ends its paragraph"
            raise InputError("a number at the start of a line", f"{where}: {source}", remedy)
        one = cell if "|" in source else value
        return place["open"] + one(results, source) + place["close"]

    found = PLACE.sub(say, text)
    num, closed = text.count("<!-- results:"), text.count("<!-- end -->")
    if not num == closed == len(PLACE.findall(text)):
        what = f"{num} times <!-- results: SOURCE -->, and {closed} times <!-- end -->"
        raise InputError(what, where, "close every one")
    return found


def lines(results: Path, source: str) -> str:
    """The tables and lists of a file, or of a part of it."""
    name, _, heading = source.partition(" # ")
    parts = re.split(r"^#+ (.*)$", read(results, name), flags=re.MULTILINE)
    sections = list(zip(parts[1::2], parts[2::2], strict=True))
    wanted = [body for title, body in sections if not heading or title == heading]
    if not wanted:
        titles = ", ".join(repr(title) for title, _ in sections)
        raise InputError(f"no heading {heading!r}", f"results/{name}", f"choose from {titles}")
    blocks = [block.strip() for body in wanted for block in body.split("\n\n")]
    blocks = [block for block in blocks if block.startswith(("|", "- "))]
    if not blocks:
        raise InputError("neither table nor list", f"results/{source}", "name another part")
    return "\n\n".join(blocks)


def made(results: Path, source: str) -> str:
    """The table that is made of a JSON file."""
    name, makers = source.removesuffix(" # table"), tables()
    if name not in makers:
        known = ", ".join(makers)
        raise InputError(f"no table of {name}", "result_tables", f"write one; there are {known}")
    return makers[name](json.loads(read(results, name)))


def cell(results: Path, source: str) -> str:
    """What a table says in a row and a column."""
    place, row, column, *form = (part.strip() for part in source.split("|"))
    if form not in ([], ["mean"]):
        raise InputError(f"{form}", source, "end with | mean, or with the column")
    found = []
    for table in re.findall(r"(?:^\|.*\n?)+", lines(results, place), flags=re.MULTILINE):
        head, _, *body = ([c.strip() for c in r[1:-1].split(" | ")] for r in table.splitlines())
        places = [i for i, name in enumerate(head) if name == column]
        found += [cells[i] for cells in body if cells[0] == row for i in places]
    if len(found) != 1:
        remedy = "name a row and a column that are there once, below a heading (FILE # HEADING)"
        raise InputError(f"{len(found)} such cells", f"results/{source}", remedy)
    text = BESIDE.sub("", found[0])
    return text.split(" ± ")[0] if form else text


def value(results: Path, source: str) -> str:
    """What a JSON file says at a path."""
    name, path, *form = (part.strip() for part in source.split(":"))
    path, *parts = path.split(" / ")
    found = follow(json.loads(read(results, name)), path.split("."), source)
    try:
        for part in parts:
            found /= float(part)
        return format(found, *form)
    except (TypeError, ValueError):
        remedy = "end with : FORMAT, such as .2f or , for a number, or with the path"
        raise InputError(f"{found!r} in the format {form}", f"results/{source}", remedy) from None


def follow(found: Any, path: list[str], source: str) -> Any:
    """What is at a path."""
    for i, key in enumerate(path):
        if isinstance(found, list) and key == "*":
            return sum(follow(each, path[i + 1 :], source) for each in found)
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
            continue
        if not isinstance(found, dict) or key not in found:
            there = ", ".join(found) if isinstance(found, dict) else "nothing"
            raise InputError(f"no {key!r}", f"results/{source}", f"there is {there}")
        found = found[key]
    return found


def read(results: Path, name: str) -> str:
    """A file of results."""
    try:
        return (results / name.strip()).read_text(encoding="utf-8")
    except FileNotFoundError:
        remedy = "commit the result, or take out what is marked with it"
        raise InputError("no such result", f"results/{name.strip()}", remedy) from None


def main() -> int:
    """Fill in, or check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if pages disagree")
    check = parser.parse_args().check
    stale = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        filled = fill(text, page.name)
        if filled != text:
            stale.append(page.name)
            if not check:
                page.write_text(filled, encoding="utf-8")
    verb = "other numbers than results/" if check else "filled in"
    print(f"{verb}: {', '.join(stale)}" if stale else "all pages say what results/ say")
    return int(check and bool(stale))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
