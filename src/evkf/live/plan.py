"""What a session is made of, kept in its folder: given that, it can be built again."""

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from evkf.data.files import replacing, versions
from evkf.dynamics import Driven, GaussianDynamics
from evkf.errors import InputError
from evkf.learning import Learner
from evkf.live.disk import DISK
from evkf.live.engine import Costs, Engine
from evkf.live.journal import Policy
from evkf.live.machine import rehearse
from evkf.live.ports import Settings
from evkf.live.rig import rig_model, start_model
from evkf.model import Model
from evkf.recordings.units import UnitModel

PLAN, MODEL = "session.json", "model.safetensors"
JOURNAL, CHECKPOINTS, LOG = "journal", "checkpoints", "session.log"
COMPILED = "compiled"
"""Names in the folder of a session."""
BEGINNING = (COMPILED, MODEL, LOG, "token", "web.log", "guard", "stopped")
"""What is there before its plan is."""

LEAST_WINDOWS, LEAST_WINDOW = 2, 4
"""A gradient step is made no smaller than that to fit into a bin."""

FITS = 0.5
"""Share of a bin that a gradient step should take at most."""


class Plan(NamedTuple):
    """How a session is built and run; all of it plain values.

    Attributes:
        source: "rig", "replay", "zeromq", "websocket", "open-ephys" or "lsl".
        bin_width: Seconds.
        latents: Of the rig.
        channels: Of the rig.
        seed: Of everything random.
        modelled: Whether the folder holds a model that `evkf fit` wrote.
        learn: Whether it learns.
        num_windows: Windows of a gradient step; 0 leaves the choice to the model's learner.
        window: Bins of each.
        policy: What "durable" means.
        reorder: A missing bin is given up when one so many ahead is there.
        patience: Seconds after which it is given up in any case.
        checkpoint_every: Seconds.
        recording: File that is replayed.
        speed: How many times faster than it was recorded, or than the rig; 0 is as fast as can be.
        bins: How many bins the rig or the replay send; None never ends.
        address: That frames come to; of Open Ephys, where its plugin publishes.
        publish: Address that estimates are published at, if they are.
        horizon: Bins to look ahead in every estimate.
        steer: State that the rig is steered to, if it is.
        controller: "MODULE:NAME" of what makes a controller of the model, if there is one.
        stimulator: "MODULE:NAME" of what makes its stimulator.
        limits: Of stimulation, as `Limits` takes them; those of the rig if left out.
        stream: Name of the stream that bins or spikes come from by Lab Streaming Layer.
        sample_rate: Of Open Ephys, samples a second; None waits for its continuous data to tell.
        lateness: Seconds after its end that a bin waits for spikes that come out of order.
        blank: LINE:SECONDS, bins that are masked around the edges of a TTL line of Open Ephys.
        lsl_out: Name of the stream that estimates go out as, if they do.
        id: Name of the session, the same whenever it is taken up again.
        open_to_all: Whether ZeroMQ may listen where other machines reach it.
        web: HOST:PORT of the web process, if there is one.
        tls_cert: File of its certificate.
        tls_key: File of the key of that.
        no_tls: Whether it does without where other machines reach it.
        real_time: Whether it takes real-time priority where that is permitted.
    """

    source: str
    bin_width: float
    latents: int = 2
    channels: int = 100
    seed: int = 0
    modelled: bool = False
    learn: bool = True
    num_windows: int = 0
    window: int = 0
    policy: Policy = "process-crash"
    reorder: int = 8
    patience: float = 0.1
    checkpoint_every: float = 5.0
    recording: str | None = None
    speed: float = 1.0
    bins: int | None = None
    address: str | None = None
    publish: str | None = None
    horizon: int = 0
    steer: Sequence[float] | None = None
    controller: str | None = None
    stimulator: str | None = None
    limits: Sequence[Any] | None = None
    stream: str | None = None
    sample_rate: float | None = None
    lateness: float = 0.025
    blank: str | None = None
    lsl_out: str | None = None
    id: str = ""
    open_to_all: bool = False
    web: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    no_tls: bool = False
    real_time: bool = True

    @property
    def stimulates(self) -> bool:
        """Whether the loop is closed."""
        return self.steer is not None or self.controller is not None

    @property
    def period(self) -> float:
        """Seconds from one bin to the next, by the clock on the wall."""
        return self.bin_width / self.speed if self.speed else 0.0

    @property
    def settings(self) -> Settings:
        """For the session."""
        return Settings(
            self.period,
            reorder=self.reorder,
            patience=self.patience,
            learn=self.learn,
            checkpoint_every=self.checkpoint_every,
            paced=self.bin_width if self.paced else 0.0,
        )

    @property
    def paced(self) -> bool:
        """Whether the pace of its source is ours."""
        return self.source in ("rig", "replay") and not self.stimulates

    def write(self, folder: Path) -> None:
        """Put it into a folder."""
        with replacing(folder / PLAN, overwrite=True) as part:
            part.write_text(json.dumps(self._asdict(), indent=2) + "\n", encoding="utf-8")

    @staticmethod
    def read(folder: Path) -> "Plan":
        """Of the session in a folder."""
        path = folder / PLAN
        try:
            return Plan(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            remedy = "name the folder that `evkf live` wrote"
            raise InputError("no session", str(folder), remedy) from None
        except (ValueError, TypeError) as error:
            remedy = "restore it from a copy, or use the version of evkf that wrote it"
            raise InputError(f"not a plan of a session: {error}", str(path), remedy) from error


class Parts(NamedTuple):
    """What an engine is built from."""

    learner: Learner
    model: Model
    counts: bool
    """Whether observations are counts."""
    units: Sequence[str]


def parts(plan: Plan, folder: Path) -> Parts:
    """Build what a plan tells of."""
    if plan.modelled:
        unit = UnitModel.load(folder / MODEL)
        assert unit.estimator is not None
        learner, model, counts = unit.estimator.learner_, unit.model, not unit.signals
        units = unit.units
    else:
        sizes = plan.latents, plan.channels, plan.bin_width, plan.seed
        true = rig_model(*sizes, stimulated=plan.stimulates)
        learner, model, counts = Learner(), start_model(true, plan.seed), True
        units = tuple(str(i) for i in range(plan.channels))
    if plan.limits is not None and not model.dynamics.num_inputs:
        model = stimulated(model, len(plan.limits[0]))
    if plan.num_windows:
        learner = resized(learner, plan.num_windows, plan.window)
    return Parts(learner, model, counts, units)


def stimulated(model: Model, num: int) -> Model:
    """A model with so many inputs, of whose effect nothing is known: it is learned.

    Example:
        >>> stimulated(start_model(rig_model(2, 30, 0.01)), 3).dynamics.num_inputs
        3
    """
    if not isinstance(model.dynamics, GaussianDynamics):
        what = f"{type(model.dynamics).__name__} without inputs"
        raise InputError(what, "--controller", "fit a model with inputs")
    dynamics = Driven(model.dynamics, np.zeros((model.dynamics.dim, num)))
    return Model(dynamics, model.likelihood, model.prior, model.family)


def resized(learner: Learner, num_windows: int, window: int) -> Learner:
    """A learner with other windows."""
    return dataclasses.replace(learner, num_windows=num_windows, window=window)


def build(plan: Plan, made: Parts) -> Engine:
    """The engine of a session, before its first bin."""
    return Engine(made.learner, made.model, jax.random.key(plan.seed), plan.horizon)


def fitted(
    plan: Plan,
    folder: Path,
    made: Parts,
    settled: Callable[[], object] = lambda: None,
) -> tuple[Plan, Parts, Engine, Costs]:
    """A plan whose gradient steps fit into a bin, if need be smaller; its engine, rehearsed.

    Args:
        plan: With gradient steps as they are wanted.
        folder: Of the session.
        made: Its parts.
        settled: Returns when what else this process begins with is done, which calls would have
            to wait for.
    """
    while True:
        engine = build(plan, made)
        settled()
        costs = rehearse(engine, plan.real_time)
        num, window = made.learner.num_windows, made.learner.window
        least = num <= LEAST_WINDOWS and window <= LEAST_WINDOW
        fits = costs.learn <= FITS * plan.period or not plan.period
        if fits or least or not plan.learn or not made.learner.ring:
            return plan, made, engine, costs
        plan = plan._replace(
            num_windows=max(num // 2, LEAST_WINDOWS), window=max(window // 2, LEAST_WINDOW)
        )
        made = parts(plan, folder)


def new_folder(folder: Path) -> Path:
    """Make the folder of a session; refuse one that holds something but a beginning that failed."""
    if folder.exists() and (not folder.is_dir() or _holds(folder)):
        what = "there is something already"
        raise InputError(what, str(folder), "name another folder, or `evkf resume` the session")
    DISK.make_folder(folder)
    if not os.access(folder, os.W_OK):
        raise InputError("a folder that cannot be written to", str(folder), "name another")
    return folder


def _holds(folder: Path) -> bool:
    """Whether there is more than what a session writes before its plan."""
    return any(path.name not in BEGINNING for path in folder.iterdir())


def keep_compiled(folder: Path) -> None:
    """Keep what JAX compiles in the folder of a session: who takes it up again waits for less.

    A folder that the environment names for that, as JAX_COMPILATION_CACHE_DIR, serves instead.
    """
    own = str((folder / COMPILED).resolve())
    place = os.environ.get("JAX_COMPILATION_CACHE_DIR", own)
    jax.config.update("jax_compilation_cache_dir", place)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def keep_model(file: Path, folder: Path) -> None:
    """Copy a model into the folder of a session."""
    with replacing(folder / MODEL, overwrite=True) as part:
        shutil.copyfile(file, part)


def describe(plan: Plan, engine: Engine, costs: Costs) -> dict[str, Any]:
    """What a process that takes up a session writes into its journal first."""
    return {
        "plan": plan._asdict(),
        "channels": engine.num_channels,
        "latents": engine.num_latents,
        "dtype": engine.dtype.name,
        "costs": costs._asdict(),
        "versions": versions(),
        "wall_ns": time.time_ns(),
        "monotonic_ns": time.monotonic_ns(),
    }
