"""`EVKF`, the estimator for people with arrays: NumPy in, NumPy out, by scikit-learn's conventions.

It joins the parts of the library: a first readout, the online learner, filter, smoother, forecast
and storage. Everything that it learns is done by `evkf.learning.CompiledLearner` (streams) and
`evkf.learning.Learner` (recordings).
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, TransformerMixin

from evkf.analysis.estimates import Estimates
from evkf.analysis.forecasting import Forecast, forecast
from evkf.dynamics import Dynamics
from evkf.errors import InputError
from evkf.estimators.assembly import FittedState, NotFitted, assemble, learn_recording
from evkf.estimators.saved import load_fitted, save_fitted
from evkf.estimators.settings import Learning
from evkf.estimators.trials import (
    Trials,
    count_columns,
    estimate_trials,
    join,
    read_bin,
    read_trials,
    scan_trials,
)
from evkf.learning import (
    CompiledLearner,
    Learner,
    LearnerState,
    MonitorInfo,
    Nowcast,
)
from evkf.learning.compiled import compute_nowcast
from evkf.learning.monitor import learner_state, with_learner_state
from evkf.likelihoods import Gaussian, Likelihood, StudentT
from evkf.model import Model
from evkf.numerics.checks import check_choice, check_whole, read_array

DEFAULT_LEARNING = Learning()


class EVKF(TransformerMixin, BaseEstimator):
    """States and dynamics behind the activity of a population, learned offline or as it comes.

    Observations are (bins, neurons), or a list of such trials; every trial starts from the learned
    initial state. `fit` starts anew; `partial_fit` and `learn_one` go on from what was learned
    before. There, the first bins are kept until a readout can be found from them, and are learned
    from then. The number of inputs is that of the first data. Numbers have the precision that JAX
    is set to, as a rule float32.

    Args:
        latents: Latent dimensions.
        likelihood: "poisson", "negative_binomial", "bernoulli" or "gaussian", whose readout is
            found; or one of `evkf.likelihoods`, whose readout is known.
        dynamics: "mlp", a network that starts as a random walk; or one of `evkf.dynamics`.
        bin_width: Width of a bin, in seconds as a rule. Rates are expected counts divided by it;
            offsets of a likelihood by name are logarithms of such rates.
        learning: Settings of learning; its fields are also parameters such as `learning__rate`.
        seed: Seed of all randomness.

    Attributes:
        n_features_in_: Number of neurons.
        bins_missing_: Bins still to come until there is a readout; until then there is no
            `state_`, `model_` or `estimate_`.
        learner_: The learner.
        state_: Its present state, a `LearnerState`.
        model_: The present model.
        estimate_: The present state, as the last row of `Estimates`.
        evidence_: Evidence for the dynamics, a `MonitorInfo`, with `Learning(watch=True)`.

    Example:
        >>> import numpy as np
        >>> rates = np.exp(np.sin(np.arange(300)[:, None] / 20 + np.arange(12)))
        >>> counts = np.random.default_rng(0).poisson(rates)
        >>> offline = EVKF(latents=2, learning=Learning(warm_up=100, ring=256)).fit(counts)
        >>> offline.transform(counts).shape, offline.infer(counts).rates.shape
        ((300, 2), (300, 12))
        >>> online = EVKF(latents=2)
        >>> for x in counts:
        ...     online.learn_one(x)
        >>> online.bins_missing_
        100
    """

    _fitted: FittedState | None = None

    def __init__(
        self,
        latents: int = 2,
        likelihood: str | Likelihood = "poisson",
        dynamics: str | Dynamics = "mlp",
        bin_width: float = 1.0,
        *,
        learning: Learning = DEFAULT_LEARNING,
        seed: int = 0,
    ):
        self.latents, self.likelihood, self.dynamics = latents, likelihood, dynamics
        self.bin_width, self.learning, self.seed = bin_width, learning, seed

    def set_params(self, **params: Any) -> Self:
        """Change parameters, for the next `fit`; `learning__rate` and the like among them."""
        nested = {k: v for k, v in params.items() if k.startswith("learning__")}
        super().set_params(**{k: v for k, v in params.items() if k not in nested})
        if nested:
            valid = self.get_params()
            for name in nested:
                if name not in valid:
                    raise InputError(f"no parameter {name!r}", "params", f"pass one of {[*valid]}")
            changed = {name.removeprefix("learning__"): value for name, value in nested.items()}
            self.learning = replace(self.learning, **changed)
        return self

    def fit(
        self,
        X: Any,
        y: None = None,
        *,
        masks: Any = None,
        inputs: Any = None,
        progress: Callable[[int], None] | None = None,
    ) -> Self:
        """Learn from a recording, and forget what was learned before.

        Args:
            X: Observations, (bins, neurons), or a list of trials.
            y: Not used.
            masks: True where observed, as X or (bins,) for whole bins; a list for a list.
            inputs: (bins, inputs); a list for a list.
            progress: Called after every pass with the number of passes done.
        """
        assembly = self._begin(X, inputs).assembly
        trials = read_trials(assembly.model, X, masks, inputs)
        self._fitted = learn_recording(assembly, trials, progress)
        return self

    def partial_fit(self, X: Any, y: None = None, *, masks: Any = None, inputs: Any = None) -> Self:
        """Go on learning, bin by bin; see `fit` for the arguments.

        An array goes on where the last one ended; every trial of a list begins anew.
        """
        fitted = self._fitted or self._begin(X, inputs)
        self._learn(fitted, read_trials(fitted.assembly.model, X, masks, inputs, follows=True))
        return self

    def learn_one(
        self,
        x: ArrayLike,
        *,
        mask: ArrayLike | None = None,
        inputs: ArrayLike | None = None,
        fresh: bool = False,
    ) -> None:
        """Observe one bin, and learn.

        Args:
            x: Observations, (neurons,).
            mask: True where observed, (neurons,).
            inputs: The input, (inputs,).
            fresh: True if the bin is the first of a trial.
        """
        if np.ndim(x) != 1:
            raise InputError(f"a bin of shape {np.shape(x)}", "x", "pass shape (neurons,)")
        fitted = self._fitted
        if fitted is None:
            given = None if inputs is None else np.reshape(inputs, (1, -1))
            fitted = self._begin(np.reshape(x, (1, -1)), given)
        self._learn(fitted, read_bin(fitted.assembly.model, x, mask, inputs, fresh))

    def prepare(self, neurons: int, inputs: int = 0) -> Self:
        """Compile everything that a stream needs, so that its first bin does not wait for it.

        Args:
            neurons: Neurons of a bin.
            inputs: Length of its input.
        """
        check_whole(neurons, 1, "neurons")
        check_whole(inputs, 0, "inputs")
        fitted = self._fitted
        if fitted is None:
            fitted = self._begin(np.zeros((1, neurons)), np.zeros((1, inputs)))
        self._compile(fitted)
        self._fitted = fitted
        return self

    def _begin(self, X: Any, inputs: Any) -> FittedState:
        """Return the state of an estimator that has seen nothing, for data of these widths."""
        neurons = count_columns(X)
        if not neurons:
            what = f"0 feature(s) (shape={np.shape(X)}) while a minimum of 1 is required"
            raise InputError(what, "X", "pass one neuron or more")
        num_inputs = 0 if inputs is None else count_columns(inputs, "inputs", "inputs")
        assembly = assemble(self.get_params(deep=False), neurons, num_inputs)
        if assembly.warm_up:
            return FittedState(assembly, warming=True)
        return FittedState(assembly, state=assembly.init(assembly.model))

    def _compile(self, fitted: FittedState) -> CompiledLearner:
        assembly = fitted.assembly
        state = assembly.init(assembly.model) if fitted.state is None else fitted.state
        live = CompiledLearner(assembly.learner, state, monitor=assembly.monitor)
        live.nowcast(np.zeros(assembly.model.dynamics.num_inputs))
        fitted.live, fitted.state = live, None
        return live

    def _learn(self, fitted: FittedState, trials: Trials) -> None:
        """Observe bins and learn from them; during the warm-up keep them."""
        live = fitted.live or self._compile(fitted)
        if fitted.warming:
            kept = [*fitted.kept, trials]
            if fitted.missing > len(trials.fresh):
                fitted.kept, self._fitted = kept, fitted
                return
            trials = join(kept)
            live.state = fitted.assembly.begin(trials)
            fitted.kept, fitted.warming = [], False
        for bin in zip(*trials[:4], strict=True):
            fitted.result = live.observe(*bin)
            live.learn()
        self._fitted = fitted

    def infer(
        self,
        X: Any,
        *,
        given: Literal["past", "all"] = "past",
        masks: Any = None,
        inputs: Any = None,
    ) -> Any:
        """Return `Estimates` of every bin; nothing is learned.

        Every array begins at the initial state, as trials do, also one that goes on where another
        ended: its first bins then are less certain than they could be.

        Args:
            X: Observations, (bins, neurons), or a list of trials, which gives a list.
            given: "past" to filter: of every bin given all up to it, with rates and one-step
                predictions. "all" to smooth: of every bin given all of its trial, with rates.
                A likelihood without a mean has neither rates nor predictions.
            masks: As in `fit`.
            inputs: As in `fit`.
        """
        try:
            _check_mean(self.model_)
        except InputError:
            return self._infer(X, masks, inputs, given, rates=False)
        return self._infer(X, masks, inputs, given)

    def transform(
        self,
        X: Any,
        output: Literal["latents", "rates"] = "latents",
        *,
        masks: Any = None,
        inputs: Any = None,
    ) -> Any:
        """Return filtered means (bins, latents), or rates (bins, neurons); see `infer`."""
        check_choice(output, ("latents", "rates"), "output")
        if output == "latents":
            return _pick(self._infer(X, masks, inputs, rates=False), "mean")
        _check_mean(self.model_)
        return _pick(self._infer(X, masks, inputs), "rates")

    def smooth(self, X: Any, *, masks: Any = None, inputs: Any = None) -> Any:
        """Return smoothed means (bins, latents); see `infer`."""
        return _pick(self._infer(X, masks, inputs, "all", rates=False), "mean")

    def score(self, X: Any, y: None = None, *, masks: Any = None, inputs: Any = None) -> float:
        """Return the mean of the bound $L_t$, in nats per observed bin; more is better.

        It measures how well bins are predicted from those before them.
        """
        given = self._arguments(X, masks, inputs)
        seen = given[2].masks.any(axis=1)
        if not seen.any():
            raise InputError("no observed bins", "masks", "pass one or more")
        return float(np.mean(estimate_trials(*given, rates=False).elbo[seen]))

    def forecast(
        self,
        horizon: int,
        X: Any = None,
        *,
        masks: Any = None,
        inputs: Any = None,
        inputs_ahead: ArrayLike | None = None,
    ) -> Forecast:
        """Return states and expected observations of the next bins, the nearest first.

        Args:
            horizon: Number of bins to predict.
            X: A recording (bins, neurons) from whose end to predict; when left out, from now.
            masks: Of X, as in `fit`.
            inputs: Of X, as in `fit`.
            inputs_ahead: Of the bins to come, (horizon, inputs).

        Returns:
            A `Forecast` of NumPy arrays: `mean`, `cov`, `rate` (expected counts of a bin) and more.
        """
        if X is None:
            filter, model, belief = self.learner_.filter, self.model_, self.state_.filter.belief
        else:
            filter, model, trials, key = self._arguments(X, masks, inputs)
            if trials.many:
                raise InputError("a list of trials", "X", "look ahead from one at a time")
            trace = scan_trials(filter, model, trials, key)
            last = len(trials.fresh) - 1
            belief = jax.tree.map(lambda leaf: jnp.asarray(leaf[last]), trace.belief)
        ahead = forecast(filter, model, belief, horizon, inputs_ahead)
        return Forecast(*jax.tree.map(np.array, tuple(ahead)))

    def forecast_one(self, inputs: ArrayLike | None = None) -> Float[np.ndarray, " N"]:
        """Return the expected observation of the next bin; nothing is changed.

        Until there is a readout, the mean of the bins so far; NaN where nothing was observed.

        Args:
            inputs: Its input, (inputs,).
        """
        fitted = self._begun
        if not fitted.warming:
            return np.array(self._nowcast(inputs).rate)
        if not fitted.kept:
            return np.full(self.n_features_in_, np.nan)
        kept = join(fitted.kept)
        count = kept.masks.sum(axis=0)
        return np.where(count, kept.ys.sum(axis=0) / np.maximum(count, 1), np.nan)

    def freeze(self, *parts: str) -> Self:
        """Stop learning parts of the model; all, if none is named."""
        return self._change(lambda state: self.learner_.freeze(state, *parts))

    def thaw(self, *parts: str) -> Self:
        """Learn parts of the model again; all, if none is named."""
        return self._change(lambda state: self.learner_.thaw(state, *parts))

    @property
    def estimate_(self) -> Estimates:
        """Mean (L,) and covariance (L, L) of the present state, and the bound of the last bin.

        The bound is NaN where none was computed: after several passes, and after loading.
        """
        fitted = self._begun
        nowcast = self._nowcast(np.zeros(fitted.assembly.model.dynamics.num_inputs))
        elbo = np.nan if fitted.elbo is None else fitted.elbo
        if fitted.live is not None and fitted.result is not None:
            elbo = fitted.live.read(fitted.result).info.elbo
        return Estimates(np.array(nowcast.mean), np.array(nowcast.cov), np.array(elbo))

    @property
    def evidence_(self) -> MonitorInfo:
        """Evidence that the dynamics are worth something, and that they have changed."""
        fitted = self._begun
        evidence = fitted.evidence
        if fitted.live is not None and fitted.result is not None:
            evidence = fitted.live.read(fitted.result).evidence
        if evidence is None:
            remedy = "pass learning=Learning(watch=True), and go on with some bins"
            raise NotFitted("no evidence yet", "EVKF", remedy)
        return jax.tree.map(np.array, evidence)

    @property
    def n_features_in_(self) -> int:
        """Number of neurons."""
        return self._begun.assembly.model.likelihood.num_channels

    @property
    def bins_missing_(self) -> int:
        """Bins still to come until there is a first readout; 0 once learning has begun."""
        return self._begun.missing

    @property
    def learner_(self) -> Learner:
        """The learner."""
        return self._begun.assembly.learner

    @property
    def state_(self) -> LearnerState:
        """State of the learner; there is none until the warm-up is done."""
        return learner_state(self._begun.current)

    @property
    def model_(self) -> Model:
        """The present model."""
        return self.state_.model

    def save(self, path: str | os.PathLike, note: dict[str, Any] | None = None) -> None:
        """Write everything to a .safetensors file, from which `load` goes on.

        Args:
            path: The file.
            note: Anything that JSON can hold, to be kept with it.
        """
        save_fitted(path, self._begun, note)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike,
        likelihood: Likelihood | None = None,
        dynamics: Dynamics | None = None,
    ) -> Self:
        """Read a file that `save` wrote, of this version or of version 1.

        Args:
            path: The file.
            likelihood: If the constructor was given one, one of that kind and size. Its numbers
                are not used: all are in the file.
            dynamics: The same for dynamics.
        """
        fitted = load_fitted(path, {"likelihood": likelihood, "dynamics": dynamics})
        loaded = cls(**fitted.assembly.settings)
        loaded._fitted = fitted
        return loaded

    def __getstate__(self) -> dict[str, Any]:
        if self._fitted is not None:
            remedy = "use save and load, or sklearn.base.clone for one that is not fitted"
            raise InputError("a fitted EVKF to be copied or pickled", "EVKF", remedy)
        return dict(vars(self))

    def __sklearn_is_fitted__(self) -> bool:
        return self._fitted is not None and not self._fitted.warming

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

    @property
    def _begun(self) -> FittedState:
        if self._fitted is None:
            raise NotFitted("not fitted yet", "EVKF", "call fit, partial_fit or learn_one first")
        return self._fitted

    def _change(self, change: Callable[[LearnerState], LearnerState]) -> Self:
        """Change the state of the learner."""
        fitted = self._begun
        state = fitted.current
        changed = with_learner_state(state, change(learner_state(state)))
        if fitted.live is None:
            fitted.state = changed
        else:
            fitted.live.state = changed
        return self

    def _nowcast(self, inputs: ArrayLike | None) -> Nowcast:
        """Return the state now, and the expected observation of the next bin."""
        fitted = self._begun
        size = fitted.assembly.model.dynamics.num_inputs
        if inputs is None and size:
            remedy = f"pass shape ({size},): the dynamics take inputs"
            raise InputError("no input", "inputs", remedy)
        u = read_array(np.zeros(0) if inputs is None else inputs, (size,), "inputs")
        if fitted.live is not None and not fitted.warming:
            return fitted.live.nowcast(u)
        return _compiled_nowcast(self.learner_, self.state_, u)

    def _arguments(self, X: Any, masks: Any, inputs: Any) -> tuple[Any, Model, Trials, Any]:
        """Return filter, model, checked trials and key."""
        model, assembly = self.model_, self._begun.assembly
        return assembly.learner.filter, model, read_trials(model, X, masks, inputs), assembly.key

    def _infer(
        self, X: Any, masks: Any, inputs: Any, given: str = "past", rates: bool = True
    ) -> Any:
        check_choice(given, ("past", "all"), "given")
        filter, model, trials, key = self._arguments(X, masks, inputs)
        signals = isinstance(model.likelihood, Gaussian | StudentT)
        per = 1.0 if signals else float(self._begun.assembly.settings["bin_width"])
        estimates = estimate_trials(filter, model, trials, key, given, rates, per)
        return trials.split(estimates._replace(signals=signals))


_compiled_nowcast = jax.jit(compute_nowcast)


def _check_mean(model: Model) -> None:
    """Refuse a model whose likelihood states no expected observations."""
    jax.eval_shape(model.likelihood.mean, jnp.zeros(model.family.dim))


def _pick(estimates: Any, name: str) -> Any:
    """Return a field of estimates, or of each of a list of them."""
    if isinstance(estimates, list):
        return [getattr(each, name) for each in estimates]
    return getattr(estimates, name)
