"""Another revision of the repository beside this one, for comparisons with it."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@contextlib.contextmanager
def worktree(revision: str) -> Iterator[Path]:
    """Check out a revision into a temporary folder until the block ends."""
    with tempfile.TemporaryDirectory(prefix="evkf-before-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", tree, revision], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", tree], check=True)
