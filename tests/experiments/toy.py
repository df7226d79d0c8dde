"""Tasks that take no time, and behave as a specification says."""

import os
import signal
import time
from pathlib import Path


def run(spec):
    """Rows of squares; may wait, fail, or take the process down, once or always."""
    folder = Path(spec["folder"])
    with (folder / "computed").open("a") as log:
        log.write(f"{spec['seeds'][0]}\n")
    time.sleep(spec.get("seconds", 0))
    if spec.get("fails"):
        raise ArithmeticError("as told")
    dies, died = spec.get("dies"), folder / "died"
    if dies == "always" or (dies == "once" and not died.exists()):
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"rows": [{"trial": seed, "square": seed**2} for seed in spec["seeds"]]}
