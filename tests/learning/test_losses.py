"""What the losses are, and where they lead."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evkf.dynamics import Linear
from evkf.filters import VariationalKalmanFilter, scan_filter
from evkf.learning import LOSSES, Learner, adam
from evkf.learning.ring import Bins, Window
from evkf.likelihoods import Gaussian
from evkf.model import Model, simulate
from evkf.parameters import free, split
from tests.learning.cases import FILTER, KEY, seen
from tests.quick import quick_compilation  # noqa: F401

TRUE, WEIGHT, NOISE, BINS = 0.01, 0.9, 0.003, 2000


def scalar(variance):
    return Model(Linear([[WEIGHT]], variance), Gaussian([[1.0]], noise=NOISE))


@pytest.fixture(scope="module")
def stream():
    return simulate(scalar(TRUE), jax.random.key(0), BINS)[1]


@pytest.mark.parametrize("loss", LOSSES)
def test_fixed_points(stream, loss):
    """The noise of a scalar stream, which the printed loss cannot find."""
    slow = adam(rate=2e-2, decay=1500)
    learner = Learner(loss=loss, parts=("noise",), ring=BINS, optimiser=slow)
    state, trace = learner.scan(learner.init(scalar(3 * TRUE)), stream)
    found = float(state.model.dynamics.noise.var()[0])
    if loss == "natural_literal":
        assert found < 0.01 * TRUE
    else:
        assert abs(found - TRUE) < 0.1 * TRUE
    assert not np.any(trace.learned.skipped)


def test_gradients_vanish_at_the_truth_on_average(stream):
    model = scalar(TRUE)
    filter = VariationalKalmanFilter()
    beliefs = scan_filter(filter, model, stream)[1].belief
    length = 10
    starts = np.arange(20, BINS - length, length)
    index = starts[:, None] + np.arange(length)
    bins = Bins(
        stream[index],
        jnp.ones((*index.shape, 1), bool),
        jnp.zeros((*index.shape, 0)),
        jnp.zeros(index.shape, bool),
        jax.tree.map(lambda leaf: leaf[index], beliefs),
    )
    before = jax.tree.map(lambda leaf: leaf[starts - 1], beliefs)

    @jax.jit
    def slopes(start, bins):
        """Of every loss and window in the logarithm of the standard deviation."""
        learned, rest = split(free(model, ("noise",)), ("noise",))
        one = jax.tree.map(lambda leaf: leaf[None], Window(start, bins, jnp.zeros(length, int)))

        def value(learned, loss):
            return loss(filter, eqx.combine(learned, rest).build(), one, KEY)[0]

        found = [jax.grad(value)(learned, loss) for loss in LOSSES.values()]
        return jnp.stack([jax.tree.leaves(grad)[0][0] for grad in found])

    found = np.array(jax.vmap(slopes)(before, bins))
    # In units of its standard error, neighbouring windows being nearly independent.
    score = found.mean(0) / (found.std(0) / np.sqrt(len(found)))
    scores = dict(zip(LOSSES, score, strict=True))
    assert scores.pop("natural_literal") > 20
    assert max(np.abs(list(scores.values()))) < 3.5, scores


@pytest.mark.parametrize("name", ["linear", "diagonal_gaussian"])
def test_one_step_divergence_at_the_filters_own_beliefs(name):
    """There it is the filter's bound."""
    model, window, elbo = seen(name)
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), window)
    value, _ = jax.jit(LOSSES["kl"])(FILTER, model, both, KEY)
    np.testing.assert_allclose(value, -jnp.mean(elbo), rtol=1e-7)


def test_natural_losses_learn_the_readout_as_kl_does():
    model, window, _ = seen("linear")
    one = jax.tree.map(lambda leaf: leaf[None], window)

    @jax.jit
    def slopes(model):
        return [
            jax.grad(lambda m, loss=loss: loss(FILTER, m, one, KEY)[0])(model).likelihood
            for loss in (LOSSES["kl"], LOSSES["natural"], LOSSES["natural_literal"])
        ]

    kl, natural, literal = slopes(model)
    assert np.all(np.abs(kl.C) > 1e-6)
    for other in (natural, literal):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), kl, other)
