"""Wheel and sdist, tried as others will: in clean environments, extra by extra, Python by Python.

Builds both into dist/. For every Python and every extra an environment of its own gets the wheel
with that extra, and its feature must work; in the environment without extras the same must fail in
a line that names the extra to install. The five-minute start is typed into a shell from its page,
with the wheel in place of the name of the package. What cannot be had (a Python, CUDA) is said.

    python benchmarks/release.py [--python PATH ...] [--only EXTRA ...] [--json FILE]

Environments are made by uv, and packages come from the index that it is set to.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

from closing import close

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13")
NONE = "none"
"""The environment without extras."""
IN_SDIST = ("examples", "benchmarks", "docs", "tests", "results", "CITATION.cff", "mkdocs.yml")
PATIENCE_S = 600

RECORDING = """
import numpy as np
from evkf.data import Recording
recording = Recording(np.ones((20, 3), int), 0.02)
"""
FEATURES = {
    NONE: """
import jax, numpy as np
from evkf import Model, VariationalKalmanFilter, scan_filter, simulate
from evkf.dynamics import Linear
from evkf.likelihoods import Poisson
model = Model(Linear([[0.9]], noise=0.1), Poisson(np.ones((3, 1))))
states, counts = simulate(model, jax.random.key(0), 20)
_, trace = scan_filter(VariationalKalmanFilter(), model, counts)
assert not np.any(trace.info.status)
""",
    "storage": """
import numpy as np
from evkf.data.storage import load_tree, save_tree
save_tree("tree.safetensors", {"a": np.arange(3.0)}, {"note": 1})
tree, meta = load_tree("tree.safetensors", {"a": np.zeros(3)})
assert tree["a"][2] == 2 and meta["note"] == 1
""",
    "xarray": RECORDING
    + """
from evkf.analysis.estimates import Estimates, to_xarray
found = Estimates(np.zeros((20, 2)), np.zeros((20, 2, 2)), np.zeros(20), np.ones((20, 3)))
assert to_xarray(found).rates.shape == (20, 3)
""",
    "hdf5": RECORDING
    + """
from evkf.data import open_recording, write_arrays
write_arrays("counts.h5", recording)
assert open_recording("counts.h5").counts.shape == (20, 3)
""",
    "nwb": RECORDING
    + """
from evkf.data import open_recording, recording_to_nwb
recording_to_nwb("counts.nwb", recording, seed=0)
assert open_recording("counts.nwb").num_units == 3
""",
    "cluster": """
from pathlib import Path
from evkf.reproduce.runner import run_tasks, specification
def run(spec):
    return {"square": spec["seeds"][0] ** 2}
if __name__ == "__main__":
    specs = [specification("feature", [3])]
    try:
        from distributed import LocalCluster
    except ModuleNotFoundError:
        run_tasks(specs, Path("store"), "tcp://127.0.0.1:9")
        raise
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0") as here:
        assert run_tasks(specs, Path("store"), here.scheduler_address) == [{"square": 9}]
""",
    "live": """
import numpy as np
from evkf.live.frames import Frame
from evkf.live.zeromq import ZmqSender
sender = ZmqSender("tcp://127.0.0.1:58761")
sender.send(Frame(0, y=np.array([0, 2, 1], np.uint8)))
assert sender.unacknowledged == 1
sender.close()
""",
    "lsl": """
from evkf.data.files import need
need("Lab Streaming Layer", "lsl", "pylsl")
import pylsl
from evkf.rigs.lsl_out import channels
layout = channels(2, ["a"], 0, True)
info = pylsl.StreamInfo("latents", "Latents", len(layout), 100.0, pylsl.cf_double64, "evkf-check")
assert info.channel_count() == len(layout)
""",
    "web": """
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen
from evkf.web.access import Place
from evkf.web.process import WebProcess
from evkf.web.reel import Screen
from evkf.web.settings import describe_stream
hello = describe_stream("check", latents=2, channels=["a"], bin_width=0.01)
screen = Screen("check", "rig", 0.01, 2, ["a"], 0, True, False, [], None)
web = WebProcess(Place("127.0.0.1", 0), Path(tempfile.mkdtemp()), hello, screen=screen)
page = ""
for _ in range(100):
    try:
        page = urlopen(web.address, timeout=10).read().decode()
        break
    except OSError:
        time.sleep(0.2)
web.close()
assert "<html" in page
""",
}
"""What must work with an extra, and without it say which is missing."""


class Env(NamedTuple):
    """A clean environment."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"


def run(command: list, **options) -> subprocess.CompletedProcess[str]:
    """Run a command, and keep what it says."""
    text = [str(part) for part in command]
    return subprocess.run(
        text, capture_output=True, text=True, timeout=PATIENCE_S, check=False, **options
    )


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[-1] if lines else "nothing said"


def pythons(given: list[str]) -> dict[str, Path]:
    """By version, those that are given or found by name."""
    found: dict[str, Path] = {}
    for name in given or [f"python{version}" for version in VERSIONS]:
        path = shutil.which(name)
        if path is None:
            continue
        done = run([path, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"])
        version = done.stdout.strip()
        if done.returncode == 0 and version in VERSIONS:
            found.setdefault(version, Path(path))
    return found


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist."""
    done = run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT)
    if done.returncode:
        raise RuntimeError(done.stderr)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def left_out(wheel: Path, sdist: Path) -> list[str]:
    """What the archives lack, or have too much of."""
    wrong = []
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    sources = {
        p.relative_to(ROOT / "src").as_posix()
        for pattern in ("*.py", "*.pyi", "py.typed")
        for p in (ROOT / "src").rglob(pattern)
    }
    pages = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src").rglob("web/page/*.*")}
    wrong += [f"the wheel lacks {name}" for name in sorted((sources | pages) - set(names))]
    strange = [name for name in names if not name.startswith(("evkf/", "evkf-"))]
    wrong += [f"the wheel holds {name}" for name in strange]
    with tarfile.open(sdist) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    return wrong + [f"the sdist lacks {name}" for name in IN_SDIST if name not in tops]


def make(uv: str, python: Path, folder: Path, wheel: Path, extra: str) -> Env:
    """An environment with the wheel and an extra, and nothing else."""
    env = Env(folder)
    what = str(wheel) if extra == NONE else f"{wheel}[{extra}]"
    for command in (
        [uv, "venv", "--quiet", "--python", python, folder],
        [uv, "pip", "install", "--quiet", "--python", env.python, what],
    ):
        done = run(command)
        if done.returncode:
            raise RuntimeError(f"{extra}: {done.stderr.strip()}")
    return env


def try_feature(env: Env, extra: str) -> subprocess.CompletedProcess[str]:
    """Use what an extra is for; from a file, since processes are started from it."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "feature.py"
        script.write_text(FEATURES[extra], encoding="utf-8")
        return run([env.python, script], cwd=folder)


def five_minutes(wheel: Path, python: Path) -> str | None:
    """Type the page into a shell, in an empty folder; what went wrong, if anything."""
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    lines = []
    for kind, block in re.findall(r"^```(console|python)\n(.*?)^```", page, re.M | re.S):
        lines.append(block if kind == "console" else f"python3 - <<'END'\n{block}END\n")
    typed = "".join(lines)
    named = typed.replace('"evkf[', f'"{wheel}[').replace("python3 -m venv", f"{python} -m venv")
    assert named.count(str(wheel)) == 1, "the page installs the package once"
    with tempfile.TemporaryDirectory() as folder:
        done = run(["bash", "-euo", "pipefail", "-c", named], cwd=folder)
    return None if done.returncode == 0 else last_line(done)


def cuda(uv: str, env: Env, wheel: Path) -> str:
    """Whether the extra can be had; it is not installed, for its libraries are large."""
    command = [uv, "pip", "install", "--dry-run", "--python", env.python, f"{wheel}[cuda]"]
    done = run(command)
    return "can be resolved, not installed" if done.returncode == 0 else last_line(done)


def main() -> int:
    """Build, try everything, and say what fell short."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", action="append", default=[], help="an interpreter to try")
    parser.add_argument("--only", action="append", default=[], choices=FEATURES, metavar="EXTRA")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    given = parser.parse_args()
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        parser.error("uv is not installed: pip install uv")
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    wheel, sdist = build(dist)
    missed = left_out(wheel, sdist)
    print(f"built {wheel.name}, {sdist.name}")
    found, rows = pythons(given.python), []
    lacking = [version for version in VERSIONS if version not in found]
    if lacking:
        print(f"not found, not tried: Python {', '.join(lacking)}")
    if not found:
        missed.append("no Python to try")
    extras = given.only or list(FEATURES)
    resolved = "not tried"
    for version, python in found.items():
        with tempfile.TemporaryDirectory() as place:
            bare = make(uv, python, Path(place) / NONE, wheel, NONE)
            for extra in extras:
                env = bare
                said = "needs none"
                if extra != NONE:
                    without = try_feature(bare, extra)
                    said = last_line(without)
                    if without.returncode == 0 or f"evkf[{extra}]" not in said:
                        missed.append(f"Python {version}, without {extra}: {said}")
                    env = make(uv, python, Path(place) / extra, wheel, extra)
                done = try_feature(env, extra)
                works = done.returncode == 0
                if not works:
                    missed.append(f"Python {version}, {extra}: {last_line(done)}")
                rows.append({"python": version, "extra": extra, "works": works, "without": said})
                print(f"Python {version}  {extra:8}  {'works' if works else 'FAILS'}  | {said}")
            resolved = cuda(uv, bare, wheel)
        wrong = five_minutes(wheel, python)
        print(f"Python {version}  five-minute start: {wrong or 'as typed'}")
        if wrong:
            missed.append(f"Python {version}, five-minute start: {wrong}")
    print(f"cuda: {resolved}")
    result = {"wheel": wheel.name, "rows": rows, "lacking": lacking, "cuda": resolved}
    return close(result, missed, given.json)


if __name__ == "__main__":
    sys.exit(main())
