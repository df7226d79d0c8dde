"""`EVKF`, the estimator for people with arrays: NumPy in, NumPy out, by scikit-learn's conventions.

It puts together what the library has in parts: a first readout, the online learner, filter,
smoother, forecast and storage. scikit-learn itself is not needed.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from evkf.analysis.forecasting import Forecast, forecast
from evkf.analysis.smoothing import smooth
from evkf.dynamics import Dynamics
from evkf.errors import InputError
from evkf.estimators.params import WithParams
from evkf.estimators.saved import load_stream, save_stream
from evkf.estimators.stream import NotFitted, Stream, open_stream
from evkf.estimators.trials import (
    AXES,
    Trials,
    count_channels,
    filled_up,
    filter_trials,
    import_xarray,
    read_one_bin,
    read_trials,
    results,
)
from evkf.learning import Learner, LearnerState, MonitorInfo
from evkf.likelihoods import Likelihood
from evkf.model import Model
from evkf.numerics.checks import check_whole


class Estimate(NamedTuple):
    """The belief about the state now."""

    mean: Float[np.ndarray, " L"]
    cov: Float[np.ndarray, "L L"]


class EVKF(WithParams):
    """States and dynamics behind the activity of a population, learned offline or as it comes.

    Observations are (bins, neurons), or a list of such trials; every trial starts from the learned
    initial state. `fit` starts anew; `partial_fit` and `learn_one` go on from what was learned
    before. There, the first bins are kept until a readout can be found from them, and are learned
    from then. Numbers have the precision that JAX is set to, as a rule float32.

    Args:
        latents: Latent dimensions.
        likelihood: "poisson", "negative_binomial", "bernoulli" or "gaussian", whose readout is
            found; or one of `evkf.likelihoods`, whose readout is known.
        dynamics: "mlp", a network that starts as a random walk; or one of `evkf.dynamics`.
        bin_width: Width of a bin, for a likelihood by name; in seconds, as a rule, so that offsets
            are logarithms of spikes per second.
        hidden: Hidden units of the network, or those of several layers.
        warm_up: Bins from which a readout is found; `fit` makes do with fewer.
        learn: What is learned, of "dynamics", "noise", "readout", "observation" and "prior". When
            left out all, but nothing of a likelihood that is known.
        loss: A loss of `evkf.learning.Learner`.
        rate: The largest learning rate, reached after 30 steps of a stream; it falls to 0.3 of
            that. Several passes end with 0.05 of it, and a stream that follows goes on so.
        steps: Gradient steps after every bin.
        ring: Bins kept for replay.
        watch: Whether to watch the evidence (`evidence_`), and to learn anew after a change of the
            dynamics; it takes two more filter steps a bin.
        passes: How many times `fit` goes through the data: once is bin by bin, as a stream is
            learned; more often by `evkf.learning.pretrain`, which is best for recordings.
        num_inputs: Length of the inputs.
        seed: Of all randomness.

    Attributes:
        n_features_in_: Neurons.
        bins_missing_: Bins still to come until there is a readout; until then there is no
            `state_`, `model_` or `estimate_`.
        learner_: The learner.
        state_: All it knows, as a `LearnerState`.
        model_: The model as it is now.
        estimate_: Mean and covariance of the state now.
        evidence_: What the dynamics are worth now, as a `MonitorInfo`, with `watch`.

    Example:
        >>> import numpy as np
        >>> rates = np.exp(np.sin(np.arange(300)[:, None] / 20 + np.arange(12)))
        >>> counts = np.random.default_rng(0).poisson(rates)
        >>> offline = EVKF(latents=2, warm_up=100, ring=256).fit(counts)
        >>> offline.transform(counts).shape
        (300, 2)
        >>> online = EVKF(latents=2, warm_up=400)
        >>> for y in counts:
        ...     online.learn_one(y)
        >>> online.bins_missing_
        100
    """

    _stream: Stream | None = None
    _settings: dict[str, Any] | None = None

    def __init__(
        self,
        latents: int = 2,
        likelihood: str | Likelihood = "poisson",
        dynamics: str | Dynamics = "mlp",
        bin_width: float = 1.0,
        hidden: int | Sequence[int] = 32,
        warm_up: int = 400,
        learn: Sequence[str] | None = None,
        loss: str = "elbo",
        rate: float = 1e-2,
        steps: int = 1,
        ring: int = 4096,
        watch: bool = False,
        passes: int = 1,
        num_inputs: int = 0,
        seed: int = 0,
    ):
        self.latents, self.likelihood, self.dynamics = latents, likelihood, dynamics
        self.bin_width, self.hidden, self.warm_up = bin_width, hidden, warm_up
        self.learn, self.loss, self.rate, self.steps = learn, loss, rate, steps
        self.ring, self.watch, self.passes = ring, watch, passes
        self.num_inputs, self.seed = num_inputs, seed

    def fit(
        self,
        X: Any,
        y: None = None,
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
            progress: Told after every pass how many are done.
        """
        check_whole(self.passes, 1, "passes")
        stream = self._open(count_channels(X))
        stream.fit(read_trials(stream.model, X, masks, inputs), self.passes, progress)
        self._adopt(stream)
        return self

    def partial_fit(self, X: Any, y: None = None, masks: Any = None, inputs: Any = None) -> Self:
        """Go on learning, bin by bin; see `fit` for the arguments.

        An array goes on where the last one ended; every trial of a list begins anew.
        """
        stream = self._stream or self._open(count_channels(X))
        stream.take(read_trials(stream.model, X, masks, inputs, follows=True))
        self._adopt(stream)
        return self

    def prepare(self, neurons: int) -> Self:
        """Compile all that a stream will need, before it begins: the first bin would wait for it.

        Args:
            neurons: How many a bin will have.
        """
        check_whole(neurons, 1, "neurons")
        stream = self._stream or self._open(neurons)
        stream.prepare()
        self._adopt(stream)
        return self

    def learn_one(
        self,
        y: ArrayLike,
        mask: ArrayLike | None = None,
        u: ArrayLike | None = None,
        fresh: bool = False,
    ) -> None:
        """Take in one bin, and learn.

        Args:
            y: Observations, (neurons,).
            mask: True where observed, (neurons,).
            u: The input, (inputs,).
            fresh: Whether the bin is the first of a trial.
        """
        if np.ndim(y) != 1:
            raise InputError(f"a bin of shape {np.shape(y)}", "y", "pass shape (neurons,)")
        stream = self._stream or self._open(np.shape(y)[0])
        stream.take(read_one_bin(stream.model, y, mask, u, fresh))
        self._adopt(stream)

    def transform(
        self,
        X: Any,
        masks: Any = None,
        inputs: Any = None,
        return_cov: bool = False,
        as_xarray: bool = False,
    ) -> Any:
        """Filtered means (bins, latents): of every bin given all up to it. Nothing is learned.

        Every array begins at the initial state, as trials do, also one that goes on where another
        ended: the first bins then tell less than they could.

        Args:
            X: Observations, (bins, neurons), or a list of trials, which gives a list.
            masks: As in `fit`.
            inputs: As in `fit`.
            return_cov: Whether to return covariances (bins, latents, latents) too.
            as_xarray: Whether to return labelled arrays.
        """
        trials = self._read(X, masks, inputs)
        found = filter_trials(self.learner_.filter, self.model_, trials, self._begun.key)
        return results(trials, found.mean, found.cov if return_cov else None, as_xarray)

    def smooth(
        self,
        X: Any,
        masks: Any = None,
        inputs: Any = None,
        return_cov: bool = False,
        as_xarray: bool = False,
    ) -> Any:
        """Smoothed means (bins, latents): of every bin given all of its trial; see `transform`."""
        trials = self._read(X, masks, inputs)
        found = smooth(self.learner_.filter, self.model_, *filled_up(trials), self._begun.key)
        mean, cov = (np.array(leaf)[: len(trials.fresh)] for leaf in (found.mean, found.cov))
        return results(trials, mean, cov if return_cov else None, as_xarray)

    def score(self, X: Any, y: None = None, masks: Any = None, inputs: Any = None) -> float:
        """How well bins are foretold from those before them: nats per bin, more is better.

        The mean of the bound $L_t$ over all bins with an observation.
        """
        trials = self._read(X, masks, inputs)
        found = filter_trials(self.learner_.filter, self.model_, trials, self._begun.key)
        seen = trials.masks.any(axis=1)
        if not seen.any():
            raise InputError("no observed bins", "masks", "pass one or more")
        return float(np.mean(found.elbo[seen]))

    def forecast(
        self,
        horizon: int,
        X: Any = None,
        masks: Any = None,
        inputs: Any = None,
        inputs_ahead: ArrayLike | None = None,
        as_xarray: bool = False,
    ) -> Any:
        """States and expected observations of the next bins, the nearest first.

        Args:
            horizon: How many bins to look ahead.
            X: A recording (bins, neurons) from whose end to look ahead; when left out, from now.
            masks: Of X, as in `fit`.
            inputs: Of X, as in `fit`.
            inputs_ahead: Of the bins to come, (horizon, inputs).
            as_xarray: Whether to return mean, cov and rate as a labelled data set.

        Returns:
            A `Forecast` of NumPy arrays: `mean`, `cov`, `rate` (expected counts of a bin) and more.
        """
        model, filter = self.model_, self.learner_.filter
        if X is None:
            belief = self.state_.filter.belief
        else:
            trials = self._read(X, masks, inputs)
            if trials.many:
                raise InputError("a list of trials", "X", "look ahead from one at a time")
            found = filter_trials(filter, model, trials, self._begun.key)
            belief = jax.tree.map(lambda leaf: jnp.asarray(leaf[-1]), found.belief)
        ahead = forecast(filter, model, belief, horizon, inputs_ahead)
        if not as_xarray:
            return Forecast(*jax.tree.map(np.array, tuple(ahead)))
        arrays = {name: (axes, np.array(getattr(ahead, name))) for name, axes in AXES.items()}
        return import_xarray().Dataset(arrays, {"bin": np.arange(1, horizon + 1)})

    def predict_one(self, u: ArrayLike | None = None) -> Float[np.ndarray, " N"]:
        """The expected observation of the next bin; nothing is changed.

        Until there is a readout, the mean of the bins so far.

        Args:
            u: Its input, (inputs,).
        """
        stream = self._begun
        return stream.mean() if stream.missing else np.array(stream.outlook(u).rate)

    def freeze(self, *parts: str) -> Self:
        """Keep parts of the model as they are from now on; all, if none is named."""
        self._begun.change(lambda state: self.learner_.freeze(state, *parts))
        return self

    def thaw(self, *parts: str) -> Self:
        """Let parts of the model move again; all, if none is named."""
        self._begun.change(lambda state: self.learner_.thaw(state, *parts))
        return self

    @property
    def estimate_(self) -> Estimate:
        """Mean and covariance of the state now."""
        stream = self._begun
        outlook = stream.outlook(np.zeros(stream.model.dynamics.num_inputs))
        return Estimate(np.array(outlook.mean), np.array(outlook.cov))

    @property
    def evidence_(self) -> MonitorInfo:
        """What the dynamics are worth, and whether they have changed."""
        evidence = self._begun.evidence
        if evidence is None:
            raise NotFitted("no evidence yet", "EVKF", "pass watch=True, and go on with some bins")
        return jax.tree.map(np.array, evidence)

    @property
    def n_features_in_(self) -> int:
        """Neurons."""
        return self._begun.model.likelihood.num_channels

    @property
    def bins_missing_(self) -> int:
        """Bins still to come until there is a first readout; 0 means that learning has begun."""
        return self._begun.missing

    @property
    def learner_(self) -> Learner:
        """The learner."""
        return self._begun.learner

    @property
    def state_(self) -> LearnerState:
        """Everything that is known now; there is none until the warm-up is done."""
        return self._begun.state

    @property
    def model_(self) -> Model:
        """The model as it is now."""
        return self.state_.model

    def save(self, path: str | os.PathLike, note: dict[str, Any] | None = None) -> None:
        """Write everything to a .safetensors file, to go on from as if nothing had been.

        Args:
            path: The file.
            note: Anything that JSON can hold, to be kept with it.
        """
        save_stream(path, self._settings or {}, self._begun, note)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike,
        likelihood: Likelihood | None = None,
        dynamics: Dynamics | None = None,
    ) -> Self:
        """Read what `save` wrote.

        Args:
            path: The file.
            likelihood: If the constructor was given one, one of that kind and size. Its numbers
                are not used: all are in the file.
            dynamics: The same for dynamics.
        """
        given = {"likelihood": likelihood, "dynamics": dynamics}
        params, stream = load_stream(path, given, lambda params, num: cls(**params)._open(num))
        loaded = cls(**params)
        loaded._adopt(stream)
        return loaded

    def __getstate__(self) -> dict[str, Any]:
        if self._stream is not None:
            remedy = "use save and load, or sklearn.base.clone for one that is not fitted"
            raise InputError("a fitted EVKF to be copied or pickled", "EVKF", remedy)
        return vars(self)

    def __sklearn_is_fitted__(self) -> bool:
        return self._stream is not None and not self._stream.missing

    @property
    def _begun(self) -> Stream:
        if self._stream is None:
            raise NotFitted("not fitted yet", "EVKF", "call fit, partial_fit or learn_one first")
        return self._stream

    def _read(self, X: Any, masks: Any, inputs: Any) -> Trials:
        return read_trials(self.model_, X, masks, inputs)

    def _open(self, neurons: int) -> Stream:
        settings = self.get_params()
        del settings["passes"]
        return open_stream(neurons, **settings)

    def _adopt(self, stream: Stream) -> None:
        if stream is not self._stream:
            self._stream, self._settings = stream, self.get_params()
