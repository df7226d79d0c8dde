"""Tasks of experiments: each a pure function of its specification, computed once.

A specification is plain JSON that names an experiment's module and all that its result depends on,
the source of this package included. The result is stored in a file named by the hash of the
specification, written whole or not at all; what is there already is not computed again, unless it
is asked for anew. Tasks run in fresh processes, or on a Dask cluster.
"""

import hashlib
import json
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
from jax._src import xla_bridge
from threadpoolctl import threadpool_limits

import evkf
from evkf.data.files import replacing
from evkf.data.installed import need, versions
from evkf.errors import EvkfError, InputError
from evkf.numerics.jax_config import with_small_loops
from evkf.reproduce.processes import MOST_LOST, map_in_processes

Spec = dict[str, Any]
Result = dict[str, Any]
Tell = Callable[[int, int], None]
Outcome = dict[str, Any]
"""A result, or an error in words."""
Outcomes = Generator[tuple[str, Outcome]]

SETTINGS = {"NPROC": "1", "XLA_FLAGS": with_small_loops("")}
"""Of the environment: rows would differ by rounding with others."""
PATIENCE = 10
"""Seconds in which a scheduler must answer."""


class TaskError(EvkfError):
    """Tasks failed; the others are stored."""


def specification(module: str, seeds: Sequence[int], **settings: Any) -> Spec:
    """What a task computes.

    Args:
        module: The module whose `run` computes it.
        seeds: Trials that are computed together.
        settings: All else that the result depends on.

    Example:
        >>> specification("evkf.reproduce.chaotic.experiment", [0, 1], method="evkf")["seeds"]
        [0, 1]
    """
    return {"module": module, "versions": known_versions(), **settings, "seeds": list(seeds)}


def known_versions() -> dict[str, str]:
    """Of this package and of what computes for it.

    Example:
        >>> list(known_versions())
        ['evkf', 'jax', 'jaxlib', 'numpy', 'source']
    """
    found = versions() | {"source": SOURCE}
    del found["python"]  # rows do not depend on it
    return found


def _digest(root: Path) -> str:
    """Of the source that rows depend on."""
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if not (name.as_posix().startswith(ASIDE) or name.stem in ("figure", "report")):
            found.update(str(name.as_posix()).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


ASIDE = (
    *("bench/", "cli/", "data/", "live/", "plotting/", "recordings/", "rigs/", "web/"),
    *("reproduce/catalogue.py", "reproduce/reaching/", "analysis/spike_metrics.py"),
    *("analysis/decoding.py", "analysis/phase.py", "estimators/baselines.py"),
    *("estimators/linear_system.py", "estimators/factor_analysis.py"),
    *("estimators/gpfa.py", "estimators/gaussian_process.py"),
)
"""Parts of this package that no row depends on. Of these, tasks load `data/` alone, to write their
results."""
SOURCE = _digest(Path(evkf.__file__).parent)
"""Taken when a process begins, as the code that it runs is."""


def blocks(num: int, size: int) -> list[list[int]]:
    """Trials in the blocks that are computed together.

    Example:
        >>> blocks(7, 5)
        [[0, 1, 2, 3, 4], [5, 6]]
    """
    return [list(range(i, min(i + size, num))) for i in range(0, num, size)]


def address(spec: Spec) -> str:
    """The name of a result: a hash of all that it depends on.

    Example:
        >>> address({"a": 1, "b": 2}) == address({"b": 2, "a": 1})
        True
    """
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:32]


def work(text: str) -> str:
    """Compute a task, on whatever machine; specification and outcome as JSON.

    Products and factorisations use one thread: results do not depend on the number of cores, and
    as many tasks run at once as there are. An error is an outcome too, for not every exception can
    travel between processes.
    """
    spec = json.loads(text)
    try:
        _set_up(spec["versions"])
        run = import_module(spec["module"]).run
        with threadpool_limits(1), jax.enable_x64(True):
            return json.dumps({"result": run(spec)})
    except Exception as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"})


def _set_up(versions: dict[str, str]) -> None:
    """One thread on a CPU and XLA's flags, whatever is set where, before JAX computes anything."""
    if versions != known_versions():
        what = f"a task for {versions}, on a worker with {known_versions()}"
        raise InputError(what, "worker", "install the same versions everywhere")
    if not xla_bridge.backends_are_initialized():
        os.environ.update(SETTINGS)
        jax.config.update("jax_platforms", "cpu")
    elif not SETTINGS.items() <= os.environ.items() or jax.default_backend() != "cpu":
        remedy = "give tasks processes of their own, such as `dask worker --nthreads 1`"
        raise InputError("JAX has computed already, with other settings", "worker", remedy)


def run_tasks(
    specs: Sequence[Spec],
    store: Path,
    scheduler: str | None = None,
    tell: Tell | None = None,
    anew: bool = False,
) -> list[Result]:
    """The results of tasks, in their order; those that are not stored yet are computed.

    Args:
        specs: The tasks.
        store: Folder of results; whatever is finished is in it, also after an interruption.
        scheduler: Address of a Dask scheduler; a pool of processes on this machine without.
        tell: Told how many of the tasks are done.
        anew: Whether to compute what is stored again.
    """
    store.mkdir(parents=True, exist_ok=True)
    found = {address(spec): None if anew else _stored(store, spec) for spec in specs}
    missing = {address(spec): spec for spec in specs if found[address(spec)] is None}
    done = len(found) - len(missing)
    if tell:
        tell(done, len(found))
    failures = []
    with closing(_compute(missing, scheduler)) as outcomes:
        for name, outcome in outcomes:
            if "error" in outcome:
                failures.append((missing[name], outcome["error"]))
                continue
            found[name] = _keep(store, missing[name], outcome["result"])
            done += 1
            if tell:
                tell(done, len(found))
    if failures:
        spec, error = failures[0]
        named = {key: value for key, value in spec.items() if key != "versions"}
        raise TaskError(
            f"{len(failures)} of {len(found)} tasks failed, the first with {error} "
            f"(in {json.dumps(named)}): the others are stored; run the command again for these"
        )
    return [found[address(spec)] for spec in specs]  # pyright: ignore[reportReturnType]


def _compute(missing: dict[str, Spec], scheduler: str | None) -> Outcomes:
    texts = {name: json.dumps(spec) for name, spec in missing.items()}
    if texts:
        yield from _on_cluster(texts, scheduler) if scheduler else _on_machine(texts)


def _path(store: Path, spec: Spec) -> Path:
    return store / f"{address(spec)}.json"


def _stored(store: Path, spec: Spec) -> Result | None:
    path = _path(store, spec)
    try:
        return json.loads(path.read_text(encoding="utf-8"))["result"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        remedy = "delete the file, and run again"
        raise InputError("not a stored result", str(path), remedy) from error


def _keep(store: Path, spec: Spec, result: Result) -> Result:
    with replacing(_path(store, spec), overwrite=True) as part:
        part.write_text(json.dumps({"spec": spec, "result": result}), encoding="utf-8")
    return result


def _on_machine(texts: dict[str, str]) -> Outcomes:
    lost = {"error": f"the death of {MOST_LOST} processes"}
    with closing(map_in_processes(work, texts)) as answers:
        for name, answer in answers:
            yield name, lost if answer is None else json.loads(answer)


def _on_cluster(texts: dict[str, str], scheduler: str) -> Outcomes:
    """On the workers of a Dask scheduler, which takes tasks of those that die to others."""
    need("--scheduler", "cluster", "distributed")
    import distributed

    try:
        client = distributed.Client(scheduler, timeout=PATIENCE)
    except (OSError, ValueError) as error:
        remedy = "start one with `dask scheduler`, and give its address as tcp://host:port"
        raise InputError(f"no scheduler answers: {error}", scheduler, remedy) from error
    with client:
        futures = {
            client.submit(work, text, key=f"evkf-{name}", pure=True): name
            for name, text in texts.items()
        }
        try:
            for future in distributed.as_completed(list(futures)):
                yield futures[future], _outcome(future)
        finally:
            client.cancel(list(futures))


def _outcome(future: Any) -> Outcome:
    try:
        return json.loads(future.result())
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
