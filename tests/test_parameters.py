"""Every number of a model belongs to one part, or to none that learning may touch."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from evkf import dynamics as dyn
from evkf import likelihoods as lik
from evkf.errors import InputError
from evkf.model import Model
from evkf.parameters import PARTS, Thawed, bound_noise, free, part_of, split, thawed_vector
from tests.learning.cases import MODELS, network, readout
from tests.quick import quick_compilation  # noqa: F401


def named(model, parts=PARTS):
    """Part -> names of its leaves."""
    tree, found = free(model, parts), {}
    flat = [(path, part_of(path)) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    for path, part in flat:
        name = jax.tree_util.keystr(path[1:] if path[0].name == "model" else path)
        found.setdefault(part, set()).add(name)
    return found


def test_parts_of_a_network_under_several_likelihoods():
    likelihood = lik.Joint(
        [
            lik.Poisson(*readout()),
            lik.NegativeBinomial(*readout()),
            lik.StudentT(*readout()),
            lik.Gaussian(*readout()),
        ]
    )
    found = named(Model(dyn.ResidualMLP(2, 0.1, jax.random.key(0)), likelihood))
    assert found["noise"] == {".dynamics.noise.log_std"}
    layers = [f".dynamics.network.{kind}[{i}]" for kind in ("weights", "biases") for i in (0, 1)]
    assert found["dynamics"] == set(layers)
    readouts = {f".likelihood.parts[{i}].{name}" for i in range(4) for name in "Cb"}
    assert found["readout"] == readouts
    assert found["observation"] == {
        ".likelihood.parts[1].log_dispersion",
        ".likelihood.parts[2].log_scale",
        ".likelihood.parts[3].noise.log_std",
    }
    assert found["prior"] == {".prior.mean", ".prior.cov.log_diagonal", ".prior.cov.lower"}
    fixed = {".dynamics.low", ".dynamics.high", ".prior.mean", ".prior.cov"}
    fixed |= {f".likelihood.parts[{i}].bin_width" for i in range(4)}
    assert found[None] == fixed | {".likelihood.parts[2].df"}


def test_parts_of_other_models():
    linear = named(MODELS["linear"]())
    assert linear["dynamics"] == {f".dynamics.{n}" for n in ("weight", "bias", "input_weight")}
    assert linear["noise"] == {".dynamics.noise.log_diagonal", ".dynamics.noise.lower"}
    pendulum = named(Model(dyn.VanDerPol(), lik.Gaussian(np.eye(2))))
    assert pendulum["dynamics"] >= {".dynamics.gamma", ".dynamics.tau"}
    assert ".dynamics.dt" in pendulum[None]
    gamma = named(MODELS["gamma"](), ("dynamics",))
    assert ".dynamics.log_precision" in gamma["dynamics"]
    weights = lik.Custom(lambda p, z, y: -((y - p @ z) ** 2), 2, jnp.eye(2))
    custom = named(Model(dyn.Linear(np.eye(2), 1.0), weights))
    assert custom["observation"] == {".likelihood.params"}


@pytest.mark.parametrize("name", ["linear", "joint"])
def test_taking_apart_and_putting_together(name):
    model = MODELS[name]()
    tree = free(model, PARTS)
    learned, rest = split(tree, ("readout", "prior"))
    again = eqx.combine(learned, rest).build()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-14), again, model)
    sizes = sum(leaf.size for leaf in jax.tree.leaves(learned))
    # C and b; mean, log diagonal and lower triangle.
    assert sizes == 4 * 2 + 4 + 2 + 2 + 4
    assert len(jax.tree.leaves(rest)) + len(jax.tree.leaves(learned)) == len(jax.tree.leaves(tree))


def test_thawed_vector_follows_the_flat_order():
    parts = ("dynamics", "noise", "readout", "prior")
    tree = free(MODELS["linear"](), parts)
    learned = split(tree, parts)[0]
    flat, unravel = ravel_pytree(learned)
    thawed = Thawed(*(jnp.asarray(part in ("noise", "prior")) for part in PARTS))
    moved = unravel(flat + thawed_vector(learned, thawed))
    for part, paths in named(MODELS["linear"](), parts).items():
        for path in paths if part in parts else ():
            change = _at(moved, path) - _at(learned, path)
            np.testing.assert_allclose(change, float(part in ("noise", "prior")), atol=1e-12)


def _at(tree, path):
    for name in (path if path.startswith(".prior") else ".model" + path).split(".")[1:]:
        tree = getattr(tree, name)
    return tree


def test_floor_of_the_noise():
    likelihood = lik.Joint([lik.Gaussian(*readout(), noise=1e-8), lik.Poisson(*readout())])
    model = Model(dyn.Linear(np.eye(2), 1e-8 * np.eye(2)), likelihood)
    held = bound_noise(free(model, PARTS), 1e-2).build()
    np.testing.assert_allclose(held.dynamics.noise.var(), 1e-4)
    np.testing.assert_allclose(held.likelihood.parts[0].noise.var(), 1e-4)
    np.testing.assert_allclose(held.prior.cov, model.prior.cov)
    np.testing.assert_array_equal(held.likelihood.parts[1].b, model.likelihood.parts[1].b)
    assert np.all(bound_noise(free(model, PARTS), 2.0).build().prior.cov.diagonal() > 3.99)


@pytest.mark.parametrize("parts", [(), ("weights",), ("dynamics", "everything")])
def test_unknown_parts(parts):
    with pytest.raises(InputError, match="choose one or more"):
        free(MODELS["linear"](), parts)


def test_initial_states_are_learned_for_gaussian_beliefs():
    dynamics = dyn.GammaDynamics(network(2), 2, 25.0, num_inputs=1)
    with pytest.raises(InputError, match="leave 'prior' out"):
        free(Model(dynamics, lik.Poisson(*readout())), ("dynamics", "prior"))
