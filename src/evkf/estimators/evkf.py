"""`EVKF`, an estimator with NumPy arrays in and out, which follows the conventions of scikit-learn.

`EVKF` combines warm-up (finding a first readout), online learning, filter, smoother, forecast and
storage. `evkf.learning.CompiledLearner` learns from streams, `evkf.learning.Learner` and
`evkf.learning.pretrain` from recordings.
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
    """Infer latent states and learn dynamics from neural activity, offline or online.

    Observations are arrays (bins, neurons), or lists of such trials. Every trial starts from the
    learned initial belief about the latent state. `fit` forgets what was learned before.
    `partial_fit` and `learn_one` go on from what was learned before. If these two start with
    nothing learned, and the likelihood was chosen by name, the first bins are kept until a readout
    (weights and offsets of the likelihood) can be estimated. Then the kept bins are learned from.
    The number of inputs is that of the first data. Computation is in the precision that JAX is set
    to, float32 by default.

    Args:
        latents: Number of latent dimensions L.
        likelihood: "poisson", "negative_binomial", "bernoulli" or "gaussian" to estimate the
            readout from the first bins; or an object of `evkf.likelihoods` with a known readout.
        dynamics: "mlp" for a network that starts as a random walk; or an object of `evkf.dynamics`.
        bin_width: Width of a bin, in seconds as a rule. Rates are expected counts per bin divided
            by this width. The offsets of a count likelihood chosen by name are logarithms of such
            rates.
        learning: Settings of learning. Each field is also a parameter, such as `learning__rate`.
        seed: Seed of all random numbers.

    Attributes:
        n_features_in_: Number of neurons.
        bins_missing_: Number of bins still needed until there is a readout. Until then there is no
            `state_`, `model_` or `estimate_`.
        learner_: The `Learner`, which holds the settings of filter and learning.
        state_: Present state of the learner, a `LearnerState`.
        model_: The model with the present parameters.
        estimate_: Estimate of the latent state after the last bin, as `Estimates`.
        evidence_: Evidence for the dynamics, a `MonitorInfo`; only with `Learning(watch=True)`.

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
        """Change parameters for the next `fit`, and return the estimator itself.

        Args:
            params: New values by name. A field of `learning` has a name such as `learning__rate`.
        """
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
        """Forget what was learned before, learn from a recording, and return the estimator itself.

        Args:
            X: Observations, (bins, neurons), or a list of trials.
            y: Not used.
            masks: True where observed, of the shape of X, or (bins,) for whole bins; all observed
                when left out. If X is a list, a list with one array for each trial.
            inputs: Inputs, (bins, inputs); left out if the dynamics take no inputs. If X is a list,
                a list with one array for each trial.
            progress: Function that is called after every pass with the number of passes done.
        """
        assembly = self._begin(X, inputs).assembly
        trials = read_trials(assembly.model, X, masks, inputs)
        self._fitted = learn_recording(assembly, trials, progress)
        return self

    def partial_fit(self, X: Any, y: None = None, *, masks: Any = None, inputs: Any = None) -> Self:
        """Go on learning bin by bin, and return the estimator itself.

        For the arguments see `fit`. If X is an array, its first bin follows the last bin observed
        before. If X is a list, every trial begins at the learned initial belief.
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
        """Observe one bin, then take the gradient steps that are due.

        Args:
            x: Observations, (neurons,).
            mask: True where observed, (neurons,); all observed when left out.
            inputs: Input of the bin, (inputs,); required if the dynamics take inputs.
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
        """Compile the functions that `learn_one` needs, and return the estimator itself.

        The first bin of a stream then does not wait for the compilation.

        Args:
            neurons: Number of neurons.
            inputs: Length of the input vector of a bin; 0 without inputs.
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
        """Return a `FittedState` before the first bin, without changing the estimator.

        Raise `InputError` if X has no columns or a parameter of the estimator is invalid.

        Args:
            X: Observations, whose columns give the number of neurons.
            inputs: Inputs, whose columns give the number of inputs; None for no inputs.
        """
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
        """Observe bins and learn from these bins; during the warm-up, only keep the bins."""
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
        """Return `Estimates` of every bin, or a list of them for a list; nothing is learned.

        Every array, like every trial of a list, begins at the learned initial belief. If an array
        continues a recording, the estimates of its first bins are therefore less certain than those
        of a filter that goes on.

        Args:
            X: Observations, (bins, neurons), or a list of trials.
            given: "past" to filter: each bin is estimated from this bin and all earlier bins of its
                trial; rates and one-step predictions are returned too. "all" to smooth: each bin is
                estimated from all bins of its trial; rates are returned too. If the likelihood
                defines no mean, rates and predictions are left out.
            masks: True where observed; see `fit`.
            inputs: Inputs; see `fit`.
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
        """Return filtered latent states or rates of every bin; nothing is learned.

        Each bin is estimated from this bin and all earlier bins of its trial.

        Args:
            X: Observations, (bins, neurons), or a list of trials, for which a list is returned.
            output: "latents" for means of the latent state, (bins, latents); "rates" for expected
                counts divided by the bin width, or expected signals, (bins, neurons).
            masks: True where observed; see `fit`.
            inputs: Inputs; see `fit`.
        """
        check_choice(output, ("latents", "rates"), "output")
        if output == "latents":
            return _pick(self._infer(X, masks, inputs, rates=False), "mean")
        _check_mean(self.model_)
        return _pick(self._infer(X, masks, inputs), "rates")

    def smooth(self, X: Any, *, masks: Any = None, inputs: Any = None) -> Any:
        """Return smoothed means of the latent states, (bins, latents); nothing is learned.

        Each bin is estimated from all bins of its trial. For a list of trials, return a list. For
        the arguments see `infer`.
        """
        return _pick(self._infer(X, masks, inputs, "all", rates=False), "mean")

    def score(self, X: Any, y: None = None, *, masks: Any = None, inputs: Any = None) -> float:
        """Return the mean of the bound $L_t$ over observed bins, in nats per bin; higher is better.

        $L_t$ is a lower bound on the log-probability of a bin given the earlier bins of its trial.
        Nothing is learned. For the arguments see `fit`.
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
        """Return predictions of latent states and observations in the next bins, in order of time.

        Args:
            horizon: Number of bins to predict.
            X: A recording (bins, neurons), after whose last bin the prediction begins. When left
                out, the prediction begins after the last bin that was learned from.
            masks: True where X was observed; see `fit`.
            inputs: Inputs of X; see `fit`.
            inputs_ahead: Inputs of the bins to predict, (horizon, inputs).

        Returns:
            A `Forecast` of NumPy arrays. Among its fields are `mean` and `cov` of the latent state,
            and `rate`, the expected observation of a bin (for spikes, counts per bin).
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
        """Return the expected observation of the next bin, (neurons,); nothing is learned.

        For spikes, these are expected counts per bin. During the warm-up, return the mean of each
        neuron over the bins so far; NaN for a neuron that was never observed.

        Args:
            inputs: Input of the next bin, (inputs,); required if the dynamics take inputs.
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
        """Stop learning the named parts of the model, and return the estimator itself.

        Args:
            parts: Names among `learner_.parts`; all parts if no name is given.
        """
        return self._change(lambda state: self.learner_.freeze(state, *parts))

    def thaw(self, *parts: str) -> Self:
        """Learn the named parts of the model again, and return the estimator itself.

        Args:
            parts: Names among `learner_.parts`; all parts if no name is given.
        """
        return self._change(lambda state: self.learner_.thaw(state, *parts))

    @property
    def estimate_(self) -> Estimates:
        """Mean (L,) and covariance (L, L) of the latent state, and bound $L_t$, at the last bin.

        The bound is NaN if it was not computed: after training in several passes, after loading,
        and before the first bin.
        """
        fitted = self._begun
        nowcast = self._nowcast(np.zeros(fitted.assembly.model.dynamics.num_inputs))
        elbo = np.nan if fitted.elbo is None else fitted.elbo
        if fitted.live is not None and fitted.result is not None:
            elbo = fitted.live.read(fitted.result).info.elbo
        return Estimates(np.array(nowcast.mean), np.array(nowcast.cov), np.array(elbo))

    @property
    def evidence_(self) -> MonitorInfo:
        """Evidence that the learned dynamics predict, and that the dynamics have changed.

        `NotFitted` is raised unless `Learning(watch=True)` was set and bins were observed.
        """
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
        """Number of bins still needed until there is a first readout; 0 once learning has begun."""
        return self._begun.missing

    @property
    def learner_(self) -> Learner:
        """The `Learner`, which holds the settings of filter and learning."""
        return self._begun.assembly.learner

    @property
    def state_(self) -> LearnerState:
        """Present state of the learner; `NotFitted` is raised until the warm-up is over."""
        return learner_state(self._begun.current)

    @property
    def model_(self) -> Model:
        """Model with the present parameters; `NotFitted` is raised until the warm-up is over."""
        return self.state_.model

    def save(self, path: str | os.PathLike, note: dict[str, Any] | None = None) -> None:
        """Write parameters, and everything learned, to a .safetensors file that `load` can read.

        Args:
            path: Path of the file.
            note: A dictionary that JSON can hold, which is stored in the file too; None for none.
        """
        save_fitted(path, self._begun, note)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike,
        likelihood: Likelihood | None = None,
        dynamics: Dynamics | None = None,
    ) -> Self:
        """Return the estimator in a file that `save` wrote, in this version or in version 1.

        Args:
            path: Path of the file.
            likelihood: If the saved estimator was made with a likelihood object, an object of the
                same kind and size; else None. The object's numbers are not used, because the file
                has them.
            dynamics: The same for a dynamics object.
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
        """Replace the learner's state by `change(state)`, and return the estimator itself."""
        fitted = self._begun
        state = fitted.current
        changed = with_learner_state(state, change(learner_state(state)))
        if fitted.live is None:
            fitted.state = changed
        else:
            fitted.live.state = changed
        return self

    def _nowcast(self, inputs: ArrayLike | None) -> Nowcast:
        """Return the present latent state, and the expected observation of the next bin.

        Args:
            inputs: Input of the next bin, (inputs,); None only if the dynamics take no inputs.
        """
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
        """Check a recording, and return filter, model, trials and JAX random key."""
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
    """Raise `InputError` if the likelihood defines no mean, such as `Custom` without `mean_fn`."""
    jax.eval_shape(model.likelihood.mean, jnp.zeros(model.family.dim))


def _pick(estimates: Any, name: str) -> Any:
    """Return a field of `Estimates`; for a list of `Estimates`, a list of this field."""
    if isinstance(estimates, list):
        return [getattr(each, name) for each in estimates]
    return getattr(estimates, name)
