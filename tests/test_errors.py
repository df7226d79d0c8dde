"""Bad input at the boundary: refused, with what is wrong, where, and what to do about it."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evkf import dynamics as dyn
from evkf import families as fam
from evkf import likelihoods as lik
from evkf.analysis.smoothing import FixedLag, smooth
from evkf.errors import EvkfError, InputError
from evkf.filters import (
    CompiledStep,
    ExtendedKalman,
    ParticleFilter,
    State,
    VariationalKalmanFilter,
    scan_filter,
)
from evkf.learning import Learner, Monitor, adam
from evkf.model import Model, simulate
from evkf.numerics.covariance import as_covariance
from evkf.types import Status
from tests.quick import quick_compilation  # noqa: F401

C = np.array([[1.0, 0.5], [-0.3, 0.8], [0.2, 0.2]])
KEY = jax.random.key(0)
NAN = np.where(np.eye(2), np.nan, 1.0)
CROOKED = [[1.0, 0.5], [0.1, 1.0]]
INDEFINITE = [[1.0, 2.0], [2.0, 1.0]]
SINGULAR = [[1.0, 1.0], [1.0, 1.0]]


def linear(**options):
    return dyn.Linear([[0.9, 0.1], [0.0, 0.8]], **{"noise": 0.1, **options})


def network(inputs, outputs):
    return dyn.Network([inputs, 4, outputs], KEY)


def saturating():
    return dyn.NaturalDynamics(fam.ContinuousBernoulliFamily(2), network(2, 2))


POISSON = Model(linear(), lik.Poisson(C))
DRIVEN = Model(linear(input_weight=np.ones((2, 1))), lik.Poisson(C))
BERNOULLI = Model(linear(), lik.Bernoulli(C))
CUSTOM = Model(linear(), lik.Custom(lambda z, y: y * z[0], 3))
SATURATING = Model(saturating(), lik.Gaussian(C))
FILTER = VariationalKalmanFilter()
YS = np.ones((5, 3))


def scan(ys=YS, masks=None, us=None, model=POISSON, **options):
    return scan_filter(FILTER, model, ys, masks, us, **options)


def step(y=YS[0], mask=None, model=POISSON, filter=FILTER, **options):
    return filter.step(model, filter.init(model), jnp.asarray(y), mask, **options)


def compiled(keyed=False, key=None, y=YS[0], mask=YS[0] > 0, model=POISSON, u=None):
    built = CompiledStep(FILTER, model, keyed=keyed)
    return built(built.init(), y, mask, u, key)


def spoiled(index, value):
    ys = YS.copy()
    ys[index] = value
    return ys


def belief(cov):
    return fam.GaussianBelief(jnp.zeros(2), jnp.asarray(cov, float))


# name: (what to do, what, where, remedy); the last three as they stand in the message
CONSTRUCTION = {
    # readouts
    "C is a vector": (lambda: lik.Poisson([1.0, 2.0]), "shape (2,)", "C", "matrix"),
    "C is a tensor": (lambda: lik.Bernoulli(np.ones((2, 2, 2))), "(2, 2, 2)", "C", "matrix"),
    "C has NaN": (lambda: lik.Gaussian(NAN), "not finite", "C", "finite"),
    "C is complex": (lambda: lik.Gaussian(C + 1j), "complex", "C", "real"),
    "C is text": (lambda: lik.Gaussian([["a", "b"]]), "<U1", "C", "real"),
    "b too short": (lambda: lik.StudentT(C, [0.0]), "3 channels", "b", "length 3"),
    "b a column": (lambda: lik.Poisson(C, np.zeros((3, 1))), "(3, 1)", "b", "length 3"),
    "b has infinity": (lambda: lik.Poisson(C, [0, np.inf, 0]), "not finite", "b", "finite"),
    "bin width zero": (lambda: lik.Poisson(C, bin_width=0.0), "0.0", "bin_width", "above 0"),
    "bin width negative": (lambda: lik.Bernoulli(C, bin_width=-1), "-1", "bin_width", "above 0"),
    "bin width NaN": (lambda: lik.Gaussian(C, bin_width=np.nan), "nan", "bin_width", "above 0"),
    "bin widths": (lambda: lik.Poisson(C, bin_width=[1, 1, 1]), "(3,)", "bin_width", "number"),
    "unknown link": (lambda: lik.Poisson(C, link="relu"), "'relu'", "link", "softplus"),
    "dispersion": (lambda: lik.NegativeBinomial(C, dispersion=-2.0), "-2", "dispersion", "above 0"),
    "dispersions": (lambda: lik.NegativeBinomial(C, None, [1, 2]), "(2,)", "dispersion", "(3,)"),
    "df": (lambda: lik.StudentT(C, df=0.0), "0.0", "df", "above 0"),
    "scale": (lambda: lik.StudentT(C, scale=[1.0, 0.0, 1.0]), "0.0", "scale", "above 0"),
    "no parts": (lambda: lik.Joint([]), "no parts", "Joint", "at least one"),
    # covariances
    "variance zero": (lambda: linear(noise=0.0), "0.0", "noise", "above zero"),
    "variance negative": (lambda: linear(noise=[0.1, -1.0]), "-1.0", "noise", "not standard"),
    "variance NaN": (lambda: linear(noise=np.nan), "nan", "noise", "above zero"),
    "variances": (lambda: linear(noise=[1.0, 1.0, 1.0]), "(3,)", "noise", "2 variances"),
    "noise shape": (lambda: lik.Gaussian(C, noise=np.eye(2)), "(2, 2)", "noise", "(3, 3)"),
    "noise has NaN": (lambda: linear(noise=NAN), "NaN", "noise", "finite"),
    "noise crooked": (lambda: linear(noise=CROOKED), "symmetric", "noise", "P.T"),
    "noise indefinite": (lambda: linear(noise=INDEFINITE), "eigenvalue -1", "noise", "identity"),
    "noise singular": (lambda: linear(noise=SINGULAR), "positive definite", "noise", "identity"),
    "covariance size": (
        lambda: linear(noise=as_covariance(1.0, 3, "x")),
        "3 components for 2",
        "noise",
        "pass one of 2 dimensions",
    ),
    # dynamics
    "weight not square": (lambda: dyn.Linear(C, 0.1), "(3, 2)", "weight", "square"),
    "weight a vector": (lambda: dyn.Linear([1.0], 0.1), "(1,)", "weight", "any"),
    "weight has NaN": (lambda: dyn.Linear(NAN, 0.1), "not finite", "weight", "finite"),
    "weight complex": (lambda: dyn.Linear([[1j]], 0.1), "complex", "weight", "real"),
    "bias": (lambda: linear(bias=[1.0]), "(1,)", "bias", "(2,)"),
    "input weight": (lambda: linear(input_weight=np.ones((3, 1))), "(3, 1)", "input_weight", "(2,"),
    "input weight flat": (lambda: linear(input_weight=np.ones(2)), "(2,)", "input_weight", "any"),
    "rnn weight": (lambda: dyn.ChaoticRNN(C), "(3, 2)", "weight", "(3, 3)"),
    "tau": (lambda: dyn.VanDerPol(tau=0.1), "()", "tau", "(2,)"),
    "gamma": (lambda: dyn.VanDerPol(gamma=[1.0, 2.0]), "(2,)", "gamma", "()"),
    "dt": (lambda: dyn.Lorenz(dt=np.inf), "finite, got inf", "dt", "above 0"),
    "network length": (
        lambda: dyn.NaturalDynamics(fam.GammaFamily(2), network(2, 3)),
        "(3,)",
        "network",
        "length 4",
    ),
    "gamma network": (lambda: dyn.GammaDynamics(network(2, 4), 2, 1.0), "(4,)", "network", "2"),
    "precision": (lambda: dyn.GammaDynamics(network(2, 2), 2, 0.0), "0.0", "precision", "above"),
    "concentration": (
        lambda: dyn.BetaDynamics(network(2, 2), 2, -3.0),
        "-3.0",
        "concentration",
        "above",
    ),
    "no dimensions": (lambda: fam.GammaFamily(0), "dim = 0", "dim", "1 or more"),
    # models
    "readout columns": (
        lambda: Model(linear(), lik.Poisson(np.ones((3, 4)))),
        "(3, 4) for 2 latents",
        "Poisson",
        "2 columns",
    ),
    "readout columns of a part": (
        lambda: Model(linear(), lik.Joint([lik.Poisson(C), lik.Gaussian(np.ones((1, 3)))])),
        "(1, 3) for 2 latents",
        "Gaussian",
        "2 columns",
    ),
    "wrong family": (
        lambda: Model(linear(), lik.Poisson(C), family=fam.GammaFamily(2)),
        "GammaFamily beliefs for GaussianFamily dynamics",
        "family",
        "GaussianFamily(2)",
    ),
    "no stand-in for others": (
        lambda: Model(saturating(), lik.Poisson(C), family=fam.DiagonalGaussianFamily(2)),
        "DiagonalGaussianFamily beliefs for ContinuousBernoulliFamily",
        "family",
        "ContinuousBernoulliFamily(2)",
    ),
    "family size": (
        lambda: Model(linear(), lik.Poisson(C), family=fam.DiagonalGaussianFamily(3)),
        "3 dimensions for dynamics of 2",
        "family",
        "DiagonalGaussianFamily(2)",
    ),
    "family size of the same family": (
        lambda: Model(linear(), lik.Poisson(C), family=fam.GaussianFamily(3)),
        "3 dimensions for dynamics of 2",
        "family",
        "use GaussianFamily(2)",
    ),
    "prior of another family": (
        lambda: Model(linear(), lik.Poisson(C), jnp.zeros((2, 2))),
        "no GaussianFamily belief",
        "prior",
        "from_moments",
    ),
    "prior of another size": (
        lambda: Model(linear(), lik.Poisson(C), fam.GaussianBelief(jnp.zeros(3), jnp.eye(3))),
        "over 2 dimensions",
        "prior",
        "from_moments",
    ),
    "prior crooked": (
        lambda: Model(linear(), lik.Poisson(C), belief(CROOKED)),
        "symmetric",
        "prior.cov",
        "P.T",
    ),
    "prior indefinite": (
        lambda: Model(linear(), lik.Poisson(C), belief(INDEFINITE)),
        "eigenvalue -1",
        "prior.cov",
        "identity",
    ),
    "prior mean NaN": (
        lambda: Model(linear(), lik.Poisson(C), belief(np.eye(2))._replace(mean=NAN[0])),
        "not finite",
        "prior",
        "from_moments",
    ),
    "prior outside its family": (
        lambda: Model(
            dyn.GammaDynamics(network(2, 2), 2, 1.0), lik.Poisson(C), jnp.full((2, 2), -3.0)
        ),
        "outside its family",
        "prior",
        "from_moments",
    ),
    "simulate without inputs": (lambda: simulate(DRIVEN, KEY, 5), "no inputs", "us", "(5, 1)"),
    "simulate with too few inputs": (
        lambda: simulate(DRIVEN, KEY, 5, np.ones((4, 1))),
        "(4, 1)",
        "us",
        "(5, 1)",
    ),
    # filters
    "unknown rule": (lambda: VariationalKalmanFilter("sigma"), "'sigma'", "rule", "cubature"),
    "unknown solver": (lambda: VariationalKalmanFilter(solver="lbfgs"), "'lbfgs'", "solver", "cvi"),
    "odd samples": (lambda: VariationalKalmanFilter(num_samples=7), "7", "num_samples", "even"),
    "no samples": (lambda: VariationalKalmanFilter(num_samples=0), "0", "num_samples", "even"),
    "evaluations": (
        lambda: VariationalKalmanFilter(max_evaluations=1),
        "1",
        "max_evaluations",
        "2",
    ),
    "correction twice": (
        lambda: VariationalKalmanFilter("moment_matching", correct=True),
        "correct=True",
        "correct",
        "leave correct out",
    ),
    "tolerance": (lambda: VariationalKalmanFilter(tolerance=-1.0), "-1.0", "tolerance", "above"),
    "max_std": (lambda: VariationalKalmanFilter(max_std=0.0), "0.0", "max_std", "above"),
}

CONSTRUCTION |= {
    "a family of half a dimension": (
        lambda: fam.GaussianFamily(2.5),
        "dim = 2.5",
        "dim",
        "whole number",
    ),
    "a network of no latents": (lambda: dyn.ResidualMLP(0, 0.1, KEY), "dim = 0", "dim", "1 or"),
    "a network of half a unit": (
        lambda: dyn.ResidualMLP(2, 0.1, KEY, hidden=2.9),
        "hidden = 2.9",
        "hidden",
        "whole number",
    ),
    "a product of joint families": (
        lambda: fam.ProductFamily((fam.GaussianFamily(2), fam.GammaFamily(1))),
        "GaussianFamily in a product",
        "parts",
        "Gamma",
    ),
    "products in another order": (
        lambda: Model(
            dyn.NaturalDynamics(
                fam.ProductFamily((fam.GammaFamily(1), fam.BernoulliFamily(1))), network(2, 3)
            ),
            lik.Gaussian(C),
            family=fam.ProductFamily((fam.BernoulliFamily(1), fam.GammaFamily(1))),
        ),
        "BernoulliFamily and GammaFamily beliefs for GammaFamily and BernoulliFamily dynamics",
        "family",
        "leave family out",
    ),
    "a product of other sizes": (
        lambda: Model(
            dyn.NaturalDynamics(
                fam.ProductFamily((fam.GammaFamily(1), fam.BernoulliFamily(1))), network(2, 3)
            ),
            lik.Gaussian(C),
            family=fam.ProductFamily((fam.GammaFamily(2), fam.BernoulliFamily(1))),
        ),
        "2 and 1 dimensions for dynamics of 1 and 1",
        "family",
        "leave family out",
    ),
    "a product of one": (
        lambda: Model(
            saturating(), lik.Poisson(C), family=fam.ProductFamily((fam.GammaFamily(2),))
        ),
        "GammaFamily beliefs for ContinuousBernoulliFamily",
        "family",
        "leave family out, or use ContinuousBernoulliFamily(2)",
    ),
    "half a channel": (
        lambda: lik.Custom(lambda z, y: y * z[0], 2.5),
        "num_channels = 2.5",
        "num_channels",
        "whole number",
    ),
    "an infinite rate": (lambda: adam(rate=np.inf), "rate = inf", "rate", "finite"),
    "a monitor of another filter": (
        lambda: Monitor(ExtendedKalman()),
        "ExtendedKalman",
        "filter",
        "VariationalKalmanFilter()",
    ),
    "a lag behind another filter": (
        lambda: FixedLag(1).push(
            model=POISSON,
            filter=ExtendedKalman(),
            state=FixedLag(1).init(POISSON),
            belief=POISSON.prior,
        ),
        "ExtendedKalman",
        "filter",
        "VariationalKalmanFilter()",
    ),
    "an odd number of samples": (
        lambda: VariationalKalmanFilter(num_samples=3),
        "num_samples = 3",
        "num_samples",
        "even",
    ),
    "a rate that climbs": (lambda: adam(rate=-0.01), "rate = -0.01", "rate", "above zero"),
    "a learner of another filter": (
        lambda: Learner(ExtendedKalman()),
        "ExtendedKalman",
        "filter",
        "VariationalKalmanFilter()",
    ),
    "smoothing by a class": (
        lambda: smooth(VariationalKalmanFilter, POISSON, YS),
        "VariationalKalmanFilter",
        "filter",
        "VariationalKalmanFilter()",
    ),
    "a first state of another size": (
        lambda: simulate(POISSON, KEY, 3, z0=[1, 2, 3]),
        "z0 of shape (3,)",
        "z0",
        "(2,)",
    ),
    "half a bin": (lambda: simulate(POISSON, KEY, 3.5), "num_bins = 3.5", "num_bins", "whole"),
}

RECORDINGS = {
    "one bin": (lambda: scan(YS[0]), "(3,) for 3 channels", "ys", "(bins, 3)"),
    "transposed": (lambda: scan(YS.T), "(3, 5) for 3 channels", "ys", "transpose"),
    "a batch": (lambda: scan(YS[None]), "(1, 5, 3)", "ys", "(bins, 3)"),
    "trials side by side": (
        lambda: scan(YS[None]),
        "(1, 5, 3)",
        "ys",
        "mark the starts with fresh=",
    ),
    "trials in a list": (lambda: scan([YS, YS[:2]]), "unequal lengths", "ys", "concatenate trials"),
    "no filter": (
        lambda: scan_filter(VariationalKalmanFilter, POISSON, YS),
        "type",
        "filter",
        "subclass evkf.filters.Filter",
    ),
    "a seed for a key": (lambda: scan(key=0), "key of type int", "key", "jax.random.key(0)"),
    "a number": (lambda: scan(3.0), "shape ()", "ys", "(bins, 3)"),
    "ragged objects": (lambda: scan(YS.astype(object)), "type object", "ys", "real numbers"),
    "complex": (lambda: scan(YS + 0j), "type complex128", "ys", "real numbers"),
    "text": (lambda: scan(YS.astype(str)), "type <U", "ys", "real numbers"),
    "NaN": (lambda: scan(spoiled((3, 1), np.nan)), "observation nan", "ys[3, 1]", "False in masks"),
    "infinity": (lambda: scan(spoiled((0, 2), np.inf)), "observation inf", "ys[0, 2]", "masks"),
    "negative count": (lambda: scan(spoiled((4, 0), -2)), "count -2.0", "ys[4, 0]", "mask"),
    "fractional count": (lambda: scan(spoiled((1, 1), 0.5)), "0.5", "ys[1, 1]", "whole"),
    "not a spike": (
        lambda: scan(spoiled((1, 1), 2), model=BERNOULLI),
        "outcome: 2.0",
        "ys[1, 1]",
        "Poisson",
    ),
    "mask of integers": (lambda: scan(masks=YS.astype(int)), "int64", "masks", "True = observed"),
    "mask of floats": (lambda: scan(masks=YS), "float64", "masks", "booleans"),
    "mask transposed": (lambda: scan(masks=YS.T > 0), "(3, 5)", "masks", "(5, 3), or (5,)"),
    "mask of channels": (lambda: scan(masks=YS[0] > 0), "(3,)", "masks", "whole bins"),
    "inputs missing": (lambda: scan(model=DRIVEN), "no inputs", "us", "(5, 1)"),
    "inputs a vector": (lambda: scan(us=np.ones(5), model=DRIVEN), "(5,)", "us", "(5, 1)"),
    "inputs too many": (lambda: scan(us=np.ones((5, 2)), model=DRIVEN), "(5, 2)", "us", "(5, 1)"),
    "inputs not wanted": (lambda: scan(us=np.ones((5, 1))), "(5, 1)", "us", "take 0 inputs"),
    "inputs NaN": (
        lambda: scan(us=np.full((5, 1), np.nan), model=DRIVEN),
        "finite",
        "us",
        "finite",
    ),
    "inputs complex": (
        lambda: scan(us=np.ones((5, 1)) + 1j, model=DRIVEN),
        "complex",
        "us",
        "numbers",
    ),
    "a state of another model": (
        lambda: scan(state=State(jnp.zeros((2, 2)))),
        "state of [((2, 2), dtype('float64'))]",
        "state",
        "filter.init",
    ),
}

STEPS = {
    "two bins": (lambda: step(YS[:2]), "(2, 3)", "y", "(3,)"),
    "a channel short": (lambda: step(YS[0, :2]), "(2,)", "y", "(3,)"),
    "a column": (lambda: step(YS[0][:, None]), "(3, 1)", "y", "(3,)"),
    "complex": (lambda: step(YS[0] + 1j), "complex", "y", "real numbers"),
    "mask shape": (lambda: step(mask=jnp.ones(2, bool)), "(2,)", "mask", "(3,)"),
    "mask of integers": (lambda: step(mask=jnp.ones(3, int)), "int64", "mask", "booleans"),
    "no input": (lambda: step(model=DRIVEN), "no input", "u", "(1,)"),
    "input shape": (lambda: step(model=DRIVEN, u=jnp.ones(2)), "(2,)", "u", "(1,)"),
    "input not wanted": (lambda: step(u=jnp.ones(1)), "(1,)", "u", "take 0"),
    "no key for sampling": (lambda: step(model=CUSTOM), "no key", "key", "sampled"),
    "a seed for a key": (lambda: step(key=0), "key of type int", "key", "jax.random.key(0)"),
    "particles without a key": (
        lambda: step(filter=ParticleFilter(9)),
        "no key",
        "key",
        "key=jax.random.key(0)",
    ),
    "compiled particles without a key": (
        lambda: CompiledStep(ParticleFilter(9), POISSON),
        "no key for ParticleFilter",
        "key",
        "CompiledStep(..., keyed=True)",
    ),
    "a compiled bin without a key": (lambda: compiled(keyed=True), "no key", "key", "fold_in"),
    "a key too many": (lambda: compiled(key=KEY), "built without", "key", "keyed=True"),
    "counts as integers": (lambda: compiled(y=YS[0].astype(int)), "y of int64", "y", "float64"),
    "fewer units": (lambda: compiled(y=YS[0, :2]), "y of shape (2,)", "y", "pass shape"),
    "a mask of numbers": (lambda: compiled(mask=YS[0]), "mask of float64", "mask", "bool"),
    "no compiled input": (lambda: compiled(model=DRIVEN), "no input", "u", "(1,)"),
    "a compiled input": (
        lambda: compiled(model=DRIVEN, u=np.ones(2)),
        "u of shape (2,)",
        "u",
        "shape (1,)",
    ),
    "a compiled input too many": (
        lambda: compiled(u=np.ones(1)),
        "an input for dynamics without inputs",
        "u",
        "leave it out",
    ),
    "a list for a bin": (lambda: compiled(y=list(YS[0])), "y of type list", "y", "float64 array"),
    "no moments for a Kalman filter": (
        lambda: step(model=CUSTOM, filter=ExtendedKalman()),
        "ExtendedKalman needs mean and covariance of y given z: no mean_fn was given, no cov_fn",
        "Custom",
        "pass cov_fn=..., or use VariationalKalmanFilter or ParticleFilter",
    ),
    "no key for Monte-Carlo": (
        lambda: step(filter=VariationalKalmanFilter("monte_carlo")),
        "no key",
        "key",
        "monte_carlo",
    ),
    "Newton for a Gaussian": (
        lambda: step(filter=VariationalKalmanFilter(solver="newton")),
        "newton",
        "solver",
        "cvi",
    ),
    "Newton for low rank": (
        lambda: step(
            model=Model(linear(), lik.Poisson(C), family=fam.LowRankGaussianFamily(2, 1)),
            filter=VariationalKalmanFilter(solver="newton"),
        ),
        "LowRankGaussianFamily",
        "solver",
        "use 'auto'",
    ),
    "low rank without Gaussian noise": (
        lambda: step(
            model=Model(
                dyn.NaturalDynamics(fam.LowRankGaussianFamily(2, 1), network(2, 5)), lik.Poisson(C)
            )
        ),
        "NaturalDynamics",
        "dynamics",
        "additive Gaussian noise",
    ),
    "correction of a fixed variance": (
        lambda: step(model=SATURATING, filter=VariationalKalmanFilter(correct=True)),
        "ContinuousBernoulli",
        "correct",
        "moment_matching",
    ),
}


CASES = [
    pytest.param(*case, id=f"{group}: {name}")
    for group, cases in (("make", CONSTRUCTION), ("scan", RECORDINGS), ("step", STEPS))
    for name, case in cases.items()
]


@pytest.mark.parametrize(("act", "what", "where", "remedy"), CASES)
def test_refused(act, what, where, remedy):
    with pytest.raises(InputError) as caught:
        act()
    error = caught.value
    assert what in error.what
    assert where in error.where
    assert remedy in error.remedy
    assert str(error) == f"{error.what} (in {error.where}): {error.remedy}"


def test_errors_can_be_caught_as_values():
    assert issubclass(InputError, EvkfError)
    assert issubclass(InputError, ValueError)


def test_errors_can_be_handed_to_another_process():
    error = InputError("negative count", "ys[0]", "pass counts")
    again = copy.copy(error)
    assert (again.what, again.where, again.remedy) == ("negative count", "ys[0]", "pass counts")
    assert str(again) == str(error)


def test_masked_entries_may_be_anything():
    """NaN, infinity, negative and fractional entries are never read where the mask is False."""
    ys = YS.copy()
    ys[1, :] = [np.nan, -1.0, np.inf]
    ys[3, 0] = 0.5
    masks = np.ones_like(ys, bool)
    masks[1] = False
    masks[3, 0] = False
    _, trace = scan(ys, masks)
    _, clean = scan(np.where(masks, ys, 0), masks)
    assert not np.any(trace.info.status)
    jax.tree.map(np.testing.assert_array_equal, trace, clean)


def test_mask_of_whole_bins():
    whole = np.array([True, False, True, True, False])
    _, trace = scan(masks=whole)
    _, spelled = scan(masks=np.repeat(whole[:, None], 3, 1))
    jax.tree.map(np.testing.assert_array_equal, trace, spelled)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int64", "uint64", "float32"])
def test_number_types_give_the_same(dtype):
    """Nothing wraps around or loses its sign on the way in."""
    ys = np.array([[0, 1, 1], [1, 0, 0]])
    _, trace = scan(ys.astype(dtype))
    _, floats = scan(ys.astype(float))
    jax.tree.map(np.testing.assert_array_equal, trace, floats)


@pytest.mark.parametrize("count", [255, 2**31, 2**53 + 1, np.iinfo(np.uint64).max])
def test_huge_counts_stay_finite(count):
    """Counts at the edges of the integer types: a finite belief, whatever the status says."""
    ys = np.zeros((3, 3), np.uint64)
    ys[1, 0] = count
    _, trace = scan(ys)
    assert np.all(np.isfinite(trace.belief.mean))
    assert np.all(np.isfinite(trace.belief.cov))
    assert trace.belief.mean[1, 0] > trace.belief.mean[0, 0] or trace.info.status[1] != 0


def test_what_cannot_be_seen_under_jit_is_a_status():
    """A NaN that reaches a compiled step falls back to the prediction and says so."""
    state, info = jax.jit(FILTER.step)(POISSON, FILTER.init(POISSON), jnp.full(3, jnp.nan))
    assert int(info.status) & Status.FELL_BACK
    assert np.all(np.isfinite(state.belief.mean))
    prediction = FILTER.predict(POISSON, FILTER.init(POISSON))
    np.testing.assert_allclose(state.belief.mean, prediction.belief.mean, rtol=1e-12)
