"""Run the tasks of an experiment, store each result in a file, and time the steps of methods.

A task is the unit of work of an experiment: usually one method applied to a block of trials. A task
is described by its specification, a JSON object that names the module of the experiment and
everything that the result depends on, including a hash of the source code. The result of a task is
stored in a file whose name is a hash of the specification. The file is written completely or not at
all. A task whose result is already stored is not run again, unless the caller asks for it. Tasks
run in new processes on this machine, or on a Dask cluster.
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
"""Function that is called with the number of finished tasks and the number of all tasks."""

SETTINGS = {"NPROC": "1", "XLA_FLAGS": with_small_loops("")}
"""Environment variables of a process that runs tasks. With other values, results would differ by
rounding errors."""
PATIENCE = 10
"""Seconds to wait for a Dask scheduler to answer."""
MOST_LOST = 3
"""Number of processes that may die while they run a task, before the task counts as failed."""


class TaskError(EvkfError):
    """Error: some tasks failed. The results of the tasks that succeeded are stored."""


def specification(module: str, seeds: Sequence[int], **settings: Any) -> Spec:
    """Return the specification of a task: a dictionary that can be written as JSON.

    Args:
        module: Name of the module whose function `run` runs the task.
        seeds: Numbers of the trials that the task processes together.
        settings: Everything else that the result depends on, such as the method and number of bins.

    Example:
        >>> specification("evkf.reproduce.chaotic.experiment", [0, 1], method="evkf")["seeds"]
        [0, 1]
    """
    return {"module": module, "versions": task_versions(module), **settings, "seeds": list(seeds)}


def task_versions(module: str) -> dict[str, str]:
    """Return the versions of libraries and the hash of the code that a task's result depends on.

    Args:
        module: Name of the experiment's module. The hash is that of this module and of all modules
            of evkf that this module imports.

    Example:
        >>> list(task_versions("evkf.reproduce.chaotic.experiment"))
        ['evkf', 'jax', 'jaxlib', 'numpy', 'source']
    """
    libraries = versions()
    del libraries["python"]  # results do not depend on the version of Python
    return libraries | {"source": digest(module)}


def blocks(num: int, size: int) -> list[list[int]]:
    """Split the trial numbers 0 to `num` - 1 into blocks of at most `size`, and return the blocks.

    Example:
        >>> blocks(7, 5)
        [[0, 1, 2, 3, 4], [5, 6]]
    """
    return [list(range(i, min(i + size, num))) for i in range(0, num, size)]


def address(spec: Spec) -> str:
    """Return the name of a task's result file, without suffix: a hash of the specification.

    Example:
        >>> address({"a": 1, "b": 2}) == address({"b": 2, "a": 1})
        True
    """
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:32]


def work(text: str) -> str:
    """Run one task in this process, and return its outcome as JSON.

    The outcome is `{"result": ...}`, or `{"error": message}` if the task raised an exception.
    Exceptions are returned as text because some of them cannot be sent between processes. Linear
    algebra uses one thread, so that results do not depend on the number of cores. It is also an
    error if the versions of libraries or code here differ from the versions in the specification,
    or if JAX was already initialised with settings other than `SETTINGS`.

    Args:
        text: Specification of the task as JSON.
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
    """Return the results of tasks in the given order, and run the tasks that have no stored result.

    Raise InputError if a stored file cannot be read, and TaskError after all tasks have ended if
    some of them failed.

    Args:
        specs: Specifications of the tasks.
        store: Folder of result files. Each result is stored when its task ends, so that an
            interrupted call loses no finished task.
        scheduler: Address of a Dask scheduler. Without an address, tasks run in processes on this
            machine.
        progress: Function that is called with the number of finished tasks and the number of all
            tasks.
        recompute: Whether to run the tasks that have a stored result again.
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
    """Run tasks, and yield the name and the outcome of each task when the task ends."""
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
    """Run tasks on a Dask cluster, and yield the name and the outcome of each task.

    If a worker of the cluster dies, Dask gives its tasks to other workers.
    """
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
    """Call a function once for each text, in new processes, and yield the answers.

    As many processes run at once as this process may use cores. If a text kills its process, no
    other text is affected, and the text is tried again in a new process, `MOST_LOST` times in all.
    All processes end when this iterator ends, and when the parent process ends.

    Args:
        function: Function at the top level of a module, so that other processes can import it.
        texts: Arguments of the function, by name.

    Yields:
        The name of a text and the answer of the function, in the order in which the calls end. The
        answer is None if every process that tried the text died.
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
        while not all(future.done() for future in futures):  # a process may be starting now
            for process in set(multiprocessing.active_children()) - before:
                process.kill()
            time.sleep(0.01)


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Context in which new processes are started that ignore Ctrl-C.

    Only the parent process handles Ctrl-C, and ends the processes that it started.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # else a new process would, and unblock SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """Make this process end as soon as its parent process ends, even in the middle of a task."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


TimedCall = Callable[[int], Any]
"""Compiled function of a bin number. Each call processes the observation of that bin and keeps the
filter state (and the learned model) for the next call."""

TOGETHER, TURN = 16, 160
"""TOGETHER: number of successive steps that are averaged before the median is taken, because some
methods do not learn in every step. TURN: number of steps of one method before the next method
has its turn. It is large enough for the data of a method to be in the cache of the processor
again."""


class StepTime(NamedTuple):
    """Median time of a method's compiled step, and of an empty compiled call for comparison.

    Attributes:
        step_ms: Time of a step in milliseconds.
        empty_us: Time of an empty call in microseconds, measured in turn with the steps.
    """

    step_ms: float
    empty_us: float


def time_steps(calls: Sequence[TimedCall], bins: range) -> list[StepTime]:
    """Time the steps of several methods, and return the times of each method.

    The methods take turns, so that other load on the machine slows all of them alike.

    Args:
        calls: One function for each method, as `timed_call` returns.
        bins: Bins that are timed. Earlier bins are processed first, without timing.
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
    """Return a function that processes one bin of a recording, for `time_steps`.

    The function takes the number of a bin. A filter filters the observation of that bin; a learner
    filters the observation and then learns from it. The internal state is kept from one call to the
    next, so bins must be passed in order.

    Args:
        method: A filter or a learner.
        model: Model that the filter uses, or that learning starts from.
        ys: Observations, one row per bin.
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
    """Return the platform that JAX uses, the name of the device, and the number of CPU cores."""
    kind = jax.devices()[0]
    name = kind.device_kind
    if kind.platform == "cpu":
        info = Path("/proc/cpuinfo")
        lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        name = next(iter(names), platform.processor() or platform.machine())
    return {"platform": kind.platform, "name": name, "cores": os.cpu_count()}
