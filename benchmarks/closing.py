"""How every long check ends: figures to a file, what was missed on the screen, an exit code."""

import json
from pathlib import Path


def close(result: dict, missed: list[str], path: Path | None) -> int:
    """Write the figures, print what fell short, and return the exit code."""
    if path is not None:
        path.write_text(json.dumps(result, indent=2) + "\n")
    print("\n".join(missed) if missed else "all targets met")
    return int(bool(missed))
