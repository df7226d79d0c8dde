"""Time of imports and of the command line's help, in fresh processes.

    python benchmarks/import_time.py [--quick] [--json FILE]

Medians of ten processes each (three with --quick), taken in turn. Checked: `import evkf` takes at
most 0.3 s more than importing JAX, Equinox and Optax, and `evkf --help` at most 0.6 s. Public names
are imported at first use; how long all of them take is printed too.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from closing import close

MOST_ADDED_S, MOST_HELP_S = 0.3, 0.6
LIBRARIES, IMPORT, NAMES, HELP = (
    "import jax, equinox, optax",
    "import evkf",
    "all public names",
    "evkf --help",
)
COMMANDS = {
    LIBRARIES: ["-c", LIBRARIES],
    IMPORT: ["-c", IMPORT],
    NAMES: ["-c", "import evkf\nfor name in evkf.__all__: getattr(evkf, name)"],
    HELP: ["-m", "evkf", "--help"],
}


def seconds(command: list[str]) -> float:
    """Return the time that a Python process takes."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, *command], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three processes each")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    for command in COMMANDS.values():
        seconds(command)  # writes the bytecode
    rounds = [
        {name: seconds(command) for name, command in COMMANDS.items()}
        for _ in range(3 if args.quick else 10)
    ]
    medians = {name: median(times[name] for times in rounds) for name in COMMANDS}
    for name, value in medians.items():
        print(f"{name:28} {value:.2f} s")
    missed = []
    added = medians[IMPORT] - medians[LIBRARIES]
    if added > MOST_ADDED_S:
        missed.append(f"import evkf: {added:.2f} s above the libraries, not {MOST_ADDED_S} s")
    if medians[HELP] > MOST_HELP_S:
        missed.append(f"evkf --help: {medians[HELP]:.2f} s, not {MOST_HELP_S} s")
    return close({"medians_s": medians, "rounds_s": rounds}, missed, args.json)


if __name__ == "__main__":
    sys.exit(main())
