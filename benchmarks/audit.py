"""Whether what is locked has known vulnerabilities.

Looks up every locked version with pip-audit, which asks a public service, and in safety-db, a list
that comes as a package and needs no service but is some years old. Says which of the two could be
asked; exits with 1 if one of them knows of a vulnerability, or if packages do not fit together.

    python benchmarks/audit.py
"""

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ("requirements/run.txt", "requirements/dev.txt")
TOOLS = ("pip-audit", "safety-db")
LISTED = (
    "from importlib.util import find_spec as f; print(f('safety_db').submodule_search_locations[0])"
)
"""Where the list is; its package looks for it in the working folder, so it is not imported."""


def locked() -> dict[str, str]:
    """Versions by name."""
    lines = "\n".join((ROOT / lock).read_text(encoding="utf-8") for lock in LOCKS).splitlines()
    pins = [Requirement(line) for line in lines if line.strip() and not line.startswith(("#", "-"))]
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}


def listed(pins: dict[str, str], bad: dict[str, list[str]]) -> list[str]:
    """Pins that a list of weak versions holds.

    Args:
        pins: Versions by name.
        bad: Specifiers of weak versions by name.
    """
    weak = {str(canonicalize_name(name)): specs for name, specs in bad.items()}
    return [
        f"{name} {version}: {spec} is weak"
        for name, version in pins.items()
        for spec in weak.get(name, [])
        if SpecifierSet(spec).contains(version, prereleases=True)
    ]


def asked(report: dict) -> tuple[int, list[str]]:
    """Of what pip-audit reports: how many were looked up, and what is known of them."""
    rows = report["dependencies"]
    known = [f"{row['name']} {row['version']}: {weak['id']}"
             for row in rows for weak in row.get("vulns", ())]  # fmt: skip
    return sum("vulns" in row for row in rows), known


def main() -> int:
    """Look all of it up."""
    pins = locked()
    with tempfile.TemporaryDirectory() as name:
        venv.create(name, with_pip=True)
        python = Path(name) / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", *TOOLS], check=True)
        plain = Path(name) / "locked.txt"
        plain.write_text("".join(f"{each}=={version}\n" for each, version in pins.items()))
        audit = [python, "-m", "pip_audit", "-r", plain, "--no-deps", "--disable-pip"]
        done = subprocess.run([*audit, "--format", "json"], capture_output=True, text=True)
        folder = subprocess.check_output([python, "-c", LISTED], text=True).strip()
        bad = json.loads((Path(folder) / "insecure.json").read_text(encoding="utf-8"))
    num, found = asked(json.loads(done.stdout)) if done.stdout else (0, [])
    print(f"pip-audit: {num} of {len(pins)} packages looked up, {len(found)} vulnerabilities")
    if not num:
        print("it reached no service: run this where it does, before a version is published")
    old = listed(pins, {name: specs for name, specs in bad.items() if not name.startswith("$")})
    print(f"safety-db: {len(pins)} packages looked up, {len(old)} vulnerabilities")
    fit = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    print(f"pip check: {fit.stdout.strip()}")
    for each in (*found, *old):
        print(each)
    return int(bool(found or old or fit.returncode))


if __name__ == "__main__":
    sys.exit(main())
