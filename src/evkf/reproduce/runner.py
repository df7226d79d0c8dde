"""Running an experiment: tasks that are computed once and stored, and the times of steps.

A task is a pure function of its specification: plain JSON that names the module of an experiment
and everything that the result depends on, the source code included. The result is stored in a file
named by a hash of the specification, written whole or not at all; a result that is stored already
is not computed again, unless asked for. Tasks run in fresh processes, or on a Dask cluster.
"""

import hashlib
import json
import multiprocessing
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from importlib import import_module
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import xla_bridge
from threadpoolctl import threadpool_limits

from evkf.data.files import need, replacing, versions
from evkf.errors import EvkfError, InputError
from evkf.filters import CompiledStep, Filter
from evkf.learning import CompiledLearner, Learner
from evkf.model import Model
from evkf.numerics.jax_config import with_small_loops
from evkf.reproduce.source import digest

Spec = dict[str, Any]
Result = dict[str, Any]
Progress = Callable[[int, int], None]
"""Called with how many of how many tasks are done."""

SETTINGS = {"NPROC": "1", "XLA_FLAGS": with_small_loops("")}
"""Environment variables of a task: rows would differ by rounding with others."""
PATIENCE = 10
"""Seconds in which a scheduler must answer."""
MOST_LOST = 3
"""Processes that a task may kill before it counts as failed."""


class TaskError(EvkfError):
    """Tasks failed; the results of the others are stored."""


def specification(module: str, seeds: Sequence[int], **settings: Any) -> Spec:
    """Return the specification of a task.

    Args:
        module: The module whose function `run` computes the task.
        seeds: Trials that are computed together.
        settings: Everything else that the result depends on.

    Example:
        >>> specification("evkf.reproduce.chaotic.experiment", [0, 1], method="evkf")["seeds"]
        [0, 1]
    """
    return {"module": module, "versions": task_versions(module), **settings, "seeds": list(seeds)}


def task_versions(module: str) -> dict[str, str]:
    """Return the versions of libraries, and the digest of the code, that a module's rows depend on.

    Example:
        >>> list(task_versions("evkf.reproduce.chaotic.experiment"))
        ['evkf', 'jax', 'jaxlib', 'numpy', 'source']
    """
    libraries = versions()
    del libraries["python"]  # rows do not depend on it
    return libraries | {"source": digest(module)}


def blocks(num: int, size: int) -> list[list[int]]:
    """Return the numbers of trials, in the blocks that are computed together.

    Example:
        >>> blocks(7, 5)
        [[0, 1, 2, 3, 4], [5, 6]]
    """
    return [list(range(i, min(i + size, num))) for i in range(0, num, size)]


def address(spec: Spec) -> str:
    """Return the name of a result: a hash of its specification.

    Example:
        >>> address({"a": 1, "b": 2}) == address({"b": 2, "a": 1})
        True
    """
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:32]


def work(text: str) -> str:
    """Compute a task in this process; specification and outcome are JSON.

    Products and factorisations use one thread: results do not depend on the number of cores, and as
    many tasks run at once as there are cores. The outcome of a task that fails holds the error in
    words, because some exceptions cannot be sent between processes.
    """
    spec = json.loads(text)
    try:
        if spec["versions"] != (here := task_versions(spec["module"])):
            what = f"a task for {spec['versions']}, on a worker with {here}"
            raise InputError(what, "worker", "install the same versions everywhere")
        if not xla_bridge.backends_are_initialized():
            os.environ.update(SETTINGS)
            jax.config.update("jax_platforms", "cpu")
        elif not SETTINGS.items() <= os.environ.items() or jax.default_backend() != "cpu":
            remedy = "give tasks processes of their own, such as `dask worker --nthreads 1`"
            raise InputError("JAX has computed already, with other settings", "worker", remedy)
        run = import_module(spec["module"]).run
        with threadpool_limits(1), jax.enable_x64(True):
            return json.dumps({"result": run(spec)})
    except Exception as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"})


def run_tasks(
    specs: Sequence[Spec],
    store: Path,
    scheduler: str | None = None,
    progress: Progress | None = None,
    recompute: bool = False,
) -> list[Result]:
    """Return the results of tasks, in their order, and compute those that are not stored.

    Args:
        specs: The tasks.
        store: Folder of results; finished ones are in it, also after an interruption.
        scheduler: Address of a Dask scheduler; without, processes of this machine compute.
        progress: Called with how many of how many tasks are done.
        recompute: Compute all tasks, those that are stored too.
    """
    store.mkdir(parents=True, exist_ok=True)
    every = {address(spec): spec for spec in specs}
    found: dict[str, Result] = {}
    for name in () if recompute else every:
        path = store / f"{name}.json"
        try:
            found[name] = json.loads(path.read_text(encoding="utf-8"))["result"]
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError) as error:
            remedy = "delete the file, and run again"
            raise InputError("not a stored result", str(path), remedy) from error
    if progress:
        progress(len(found), len(every))

    texts = {name: json.dumps(spec) for name, spec in every.items() if name not in found}
    errors = {}
    with closing(_outcomes(texts, scheduler)) as outcomes:
        for name, outcome in outcomes:
            if "error" in outcome:
                errors[name] = outcome["error"]
                continue
            found[name] = outcome["result"]
            with replacing(store / f"{name}.json", overwrite=True) as part:
                content = {"spec": every[name], "result": found[name]}
                part.write_text(json.dumps(content), encoding="utf-8")
            if progress:
                progress(len(found), len(every))
    if errors:
        name, error = next(iter(errors.items()))
        settings = {key: value for key, value in every[name].items() if key != "versions"}
        raise TaskError(
            f"{len(errors)} of {len(every)} tasks failed, the first with {error} "
            f"(in {json.dumps(settings)}): the others are stored; run the command again for these"
        )
    return [found[address(spec)] for spec in specs]


def _outcomes(texts: dict[str, str], scheduler: str | None) -> Generator[tuple[str, Result]]:
    """Compute tasks, and yield the outcome of each as it is finished."""
    if not texts:
        return
    if scheduler:
        yield from _on_cluster(texts, scheduler)
        return
    lost = json.dumps({"error": f"the death of {MOST_LOST} processes"})
    with closing(map_in_processes(work, texts)) as answers:
        for name, answer in answers:
            yield name, json.loads(answer or lost)


def _on_cluster(texts: dict[str, str], scheduler: str) -> Iterator[tuple[str, Result]]:
    """Compute on the workers of a Dask scheduler, which gives the tasks of dead ones to others."""
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
                try:
                    outcome = json.loads(future.result())
                except Exception as error:
                    outcome = {"error": f"{type(error).__name__}: {error}"}
                yield futures[future], outcome
        finally:
            client.cancel(list(futures))


def map_in_processes(
    function: Callable[[str], str], texts: dict[str, str]
) -> Generator[tuple[str, str | None]]:
    """Call a function with texts, in one fresh process for every core.

    Every process is a pool of its own: a text that kills its process harms no other, and is tried
    again, `MOST_LOST` times in all. All processes end with this iterator, and with the process that
    started them.

    Args:
        function: A function of a module, so that other processes can import it.
        texts: Arguments by name.

    Yields:
        A name and the answer, as they come; None if every process died.
    """
    own, ended = threading.local(), threading.Event()
    before = set(multiprocessing.active_children())

    def call(text: str) -> str | None:
        for _ in range(MOST_LOST):
            if ended.is_set():
                break
            if not hasattr(own, "pool"):
                context = multiprocessing.get_context("spawn")
                own.pool = ProcessPoolExecutor(1, context, initializer=_end_with_parent)
            try:
                with _no_interrupts():
                    answer = own.pool.submit(function, text)
                return answer.result()
            except BrokenProcessPool:
                del own.pool
        return None

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = ThreadPoolExecutor(min(cores or 1, len(texts)))
    futures = {threads.submit(call, text): name for name, text in texts.items()}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        ended.set()
        threads.shutdown(wait=False, cancel_futures=True)
        while not all(future.done() for future in futures):  # one may be starting just now
            for process in set(multiprocessing.active_children()) - before:
                process.kill()
            time.sleep(0.01)


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach: this process handles it, and ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # starting a process would do it, and unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """End this process when its parent ends, also if that is killed, in the middle of a task."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


TimedCall = Callable[[int], Any]
"""A compiled function that takes in the bin of a number, and is ready for the next."""

TOGETHER, TURN = 16, 160
"""Steps of a method whose mean is taken before the median, because some methods do not learn in
every step; and steps before the next method's turn, enough to find its memory warm again."""


class StepTime(NamedTuple):
    """Median times of compiled steps, and of an empty compiled call between them."""

    step_ms: float
    empty_us: float


def time_steps(calls: Sequence[TimedCall], bins: range) -> list[StepTime]:
    """Time the steps of several methods in turn, so that what slows the machine slows them all.

    Args:
        calls: One function for every method.
        bins: Bins that are timed; those before are taken in first.
    """
    empty, one = jax.jit(lambda x: x + 1), np.ones(())
    jax.block_until_ready(empty(one))
    for call in calls:
        for bin in range(bins.start):
            jax.block_until_ready(call(bin))
    steps: list[list[float]] = [[] for _ in calls]
    empties: list[list[float]] = [[] for _ in calls]
    for turn in range(bins.start, bins.stop, TURN):
        for call, of_steps, of_empties in zip(calls, steps, empties, strict=True):
            for first in range(turn, min(turn + TURN, bins.stop), TOGETHER):
                some = range(first, min(first + TOGETHER, bins.stop))
                begin = time.perf_counter_ns()
                for bin in some:
                    jax.block_until_ready(call(bin))
                middle = time.perf_counter_ns()
                for _ in some:
                    jax.block_until_ready(empty(one))
                of_steps.append((middle - begin) / len(some))
                of_empties.append((time.perf_counter_ns() - middle) / len(some))
    return [
        StepTime(float(np.median(of_steps)) / 1e6, float(np.median(of_empties)) / 1e3)
        for of_steps, of_empties in zip(steps, empties, strict=True)
    ]


def timed_call(method: Filter | Learner, model: Model, ys: np.ndarray) -> TimedCall:
    """Return a function that filters bins of a recording, and learns from each if a learner does.

    Args:
        method: A filter, or a learner.
        model: The model to start from.
        ys: Observations of all bins that will be timed.
    """
    ys = np.asarray(ys)
    if isinstance(method, Learner):
        live = CompiledLearner(method, model)
        seen = list(ys.astype(model.family.mean(model.prior).dtype))
        return lambda bin: (live.observe(seen[bin]), live.learn())
    step = CompiledStep(method, model, keyed=True)
    carry = step.init()
    rows, mask = list(ys.astype(carry.dtype)), np.ones(ys.shape[1], bool)
    keys = list(jax.random.split(jax.random.key(0), len(ys)))

    def call(bin: int) -> jax.Array:
        nonlocal carry
        carry = step(carry, rows[bin], mask, None, keys[bin])
        return carry

    return call


def device() -> dict[str, Any]:
    """Return the platform on which JAX computes, its name, and the number of cores of the CPU."""
    kind = jax.devices()[0]
    name = kind.device_kind
    if kind.platform == "cpu":
        info = Path("/proc/cpuinfo")
        lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        name = next(iter(names), platform.processor() or platform.machine())
    return {"platform": kind.platform, "name": name, "cores": os.cpu_count()}
