"""Tasks of experiments: each a pure function of its specification, computed once.

A specification is plain JSON that names an experiment's module and all that its result depends on.
The result is stored in a file named by the hash of the specification, written whole or not at all;
what is there already is not computed again. Tasks run in a pool of fresh processes, or on a Dask
cluster.
"""

import hashlib
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax._src import xla_bridge
from threadpoolctl import threadpool_limits

import evkf
from evkf.data.files import replacing
from evkf.errors import EvkfError, InputError

Spec = dict[str, Any]
Result = dict[str, Any]
Tell = Callable[[int, int], None]

MOST_LOST = 3
"""Times that processes may die, one after another, before anything is finished."""
PATIENCE = 10
"""Seconds in which a scheduler must answer."""


class Failure(NamedTuple):
    """A task that ended in an error."""

    spec: Spec
    error: BaseException


class TaskError(EvkfError):
    """Tasks failed; the others are stored."""


def specification(module: str, revision: int, seeds: Sequence[int], **settings: Any) -> Spec:
    """What a task computes.

    Args:
        module: The module whose `run` computes it.
        revision: Raised whenever the same settings come to mean another computation.
        seeds: Trials that are computed together.
        settings: All else that the result depends on.

    Example:
        >>> specification("evkf.experiments.chaotic", 1, [0, 1], method="evkf")["seeds"]
        [0, 1]
    """
    versions = {"evkf": evkf.__version__, "jax": version("jax")}
    return {"module": module, "revision": revision, "versions": versions} | {
        **settings,
        "seeds": list(seeds),
    }


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
    """Compute a task, on whatever machine; specification and result as JSON.

    Products and factorisations use one thread: results do not depend on the number of cores, and
    as many tasks run at once as there are.
    """
    spec = json.loads(text)
    if spec["versions"] != specification("", 0, [])["versions"]:
        what = f"a task for {spec['versions']}, on a worker with evkf {evkf.__version__}"
        raise InputError(what, "worker", "install the same versions of evkf and jax everywhere")
    if not xla_bridge.backends_are_initialized():
        os.environ["NPROC"] = "1"
        jax.config.update("jax_platforms", "cpu")
    run = import_module(spec["module"]).run
    with threadpool_limits(1), jax.enable_x64(True):
        return json.dumps(run(spec))


def run_tasks(
    specs: Sequence[Spec], store: Path, scheduler: str | None = None, tell: Tell | None = None
) -> list[Result]:
    """The results of tasks, in their order; those that are not stored yet are computed.

    Args:
        specs: The tasks.
        store: Folder of results; whatever is finished is in it, also after an interruption.
        scheduler: Address of a Dask scheduler; a pool of processes on this machine without.
        tell: Told how many of the tasks are done.
    """
    store.mkdir(parents=True, exist_ok=True)
    found = {address(spec): _stored(store, spec) for spec in specs}
    missing = {address(spec): spec for spec in specs if found[address(spec)] is None}
    done = len(found) - len(missing)
    if tell:
        tell(done, len(found))
    compute = _on_cluster(scheduler, missing) if scheduler else _on_machine(missing)
    failures = []
    for name, outcome in compute:
        if isinstance(outcome, Failure):
            failures.append(outcome)
            continue
        found[name] = _keep(store, missing[name], json.loads(outcome))
        done += 1
        if tell:
            tell(done, len(found))
    if failures:
        first = failures[0]
        named = {key: first.spec[key] for key in first.spec if key not in ("versions", "revision")}
        raise TaskError(
            f"{len(failures)} of {len(found)} tasks failed, the first with "
            f"{type(first.error).__name__}: {first.error} (in {json.dumps(named)}): "
            "the others are stored; run the command again for those that failed"
        ) from first.error
    return [found[address(spec)] for spec in specs]  # pyright: ignore[reportReturnType]


def _path(store: Path, spec: Spec) -> Path:
    return store / f"{address(spec)}.json"


def _stored(store: Path, spec: Spec) -> Result | None:
    try:
        stored = json.loads(_path(store, spec).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        path = str(_path(store, spec))
        raise InputError("no stored result", path, "delete the file, and run again") from error
    return stored["result"]


def _keep(store: Path, spec: Spec, result: Result) -> Result:
    with replacing(_path(store, spec), overwrite=True) as part:
        part.write_text(json.dumps({"spec": spec, "result": result}), encoding="utf-8")
    return result


Outcomes = Iterator[tuple[str, str | Failure]]


def _on_machine(missing: dict[str, Spec]) -> Outcomes:
    """In a pool of fresh processes; a process that dies is replaced, and its task taken again."""
    left, in_vain = dict(missing), 0
    while left:
        num = len(left)
        with _pool(min(os.cpu_count() or 1, num)) as pool:
            futures = {pool.submit(work, json.dumps(spec)): name for name, spec in left.items()}
            for future in as_completed(futures):
                name = futures[future]
                outcome = _outcome(future, left[name])
                died = isinstance(outcome, Failure) and isinstance(outcome.error, BrokenProcessPool)
                if not died or in_vain == MOST_LOST:
                    del left[name]
                    yield name, outcome
        in_vain = in_vain + 1 if len(left) == num else 0


@contextmanager
def _pool(size: int) -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(size, context, initializer=_ignore_interrupts)
    before = set(multiprocessing.active_children())
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - before:
            process.kill()
        raise
    pool.shutdown()


def _ignore_interrupts() -> None:
    """Ctrl-C is for the process that was started; it ends these."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _on_cluster(scheduler: str, missing: dict[str, Spec]) -> Outcomes:
    """On the workers of a Dask scheduler, which takes tasks of those that die to others."""
    try:
        import distributed
    except ModuleNotFoundError as error:
        what = "a cluster needs Dask, which is not installed"
        raise InputError(what, "--scheduler", 'pip install "evkf[cluster]"') from error
    try:
        client = distributed.Client(scheduler, timeout=PATIENCE)
    except OSError as error:
        remedy = "start one with `dask scheduler`, and check the address"
        raise InputError(f"no scheduler answers: {error}", scheduler, remedy) from error
    with client:
        futures = {
            client.submit(work, json.dumps(spec), key=f"evkf-{name}", retries=MOST_LOST): name
            for name, spec in missing.items()
        }
        try:
            for future in distributed.as_completed(list(futures)):
                name = futures[future]
                yield name, _outcome(future, missing[name])
        finally:
            client.cancel(list(futures))


def _outcome(future: Future, spec: Spec) -> str | Failure:
    try:
        return future.result()
    except Exception as error:
        return Failure(spec, error)
