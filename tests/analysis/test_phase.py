"""Flow, fixed points and cycles of systems whose own are known."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import root

from evkf.analysis.phase import fixed_points, grid, limit_cycle, slow_points, velocity_field
from evkf.dynamics import (
    ChaoticRNN,
    GammaDynamics,
    Linear,
    Lorenz,
    Network,
    ResidualMLP,
    RingAttractor,
    VanDerPol,
)
from evkf.errors import InputError
from tests.quick import quick_compilation  # noqa: F401


def spiral(radius, angle=0.1, **options):
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return Linear(radius * turn, noise=0.1, **options)


def reference_cycle(gamma):
    """Period of Van der Pol's equation in its own time, and its second Floquet multiplier."""

    def drift(_, z):
        return [z[1], gamma * (1 - z[0] ** 2) * z[1] - z[0], gamma * (1 - z[0] ** 2)]

    def upwards(_, z):
        return z[0]

    upwards.direction = 1
    run = solve_ivp(drift, (0, 200), [2.0, 0.0, 0.0], events=upwards, rtol=1e-10, atol=1e-12)
    times, states = run.t_events[0][-10:], run.y_events[0][-10:]
    growth = (states[-1, 2] - states[0, 2]) / 9
    return (times[-1] - times[0]) / 9, np.exp(growth)


def test_velocity_is_the_drift():
    points = grid([-2, -3], [2, 3], 7)
    assert points.shape == (7, 7, 2)
    np.testing.assert_allclose(points[0, :, 0], np.linspace(-2, 2, 7))
    np.testing.assert_allclose(points[:, 0, 1], np.linspace(-3, 3, 7))
    got = velocity_field(VanDerPol(tau=(0.1, 0.2)), points, bin_width=0.005)
    x, y = np.moveaxis(np.asarray(points), -1, 0)
    exact = np.stack([y / 0.1, (1.5 * (1 - x**2) * y - x) / 0.2], -1)
    np.testing.assert_allclose(got, exact, atol=1e-10)
    pushed = velocity_field(VanDerPol(input_weight=[[0.0], [2.0]]), [0.0, 0.0], u=[3.0])
    np.testing.assert_allclose(pushed, [0.0, 6.0])


@pytest.mark.parametrize(("gamma", "dt"), [(1.5, 0.0005), (0.3, 0.0002)])
def test_the_oscillator_has_its_cycle(gamma, dt):
    period, multiplier = reference_cycle(gamma)
    cycle = limit_cycle(VanDerPol(gamma, dt=dt), [0.5, 0.0], max_bins=100_000)
    assert cycle is not None
    np.testing.assert_allclose(cycle.period * dt / 0.1, period, rtol=0.01)
    assert cycle.points.shape == (round(cycle.period), 2)
    np.testing.assert_allclose(np.max(cycle.points[:, 0]), 2.0, atol=0.03)
    np.testing.assert_allclose(cycle.multipliers[0], 1, atol=0.02)
    np.testing.assert_allclose(cycle.multipliers[1], multiplier, rtol=0.15, atol=1e-3)
    assert cycle.stable
    apart = np.linalg.norm(cycle.points[0] - cycle.points[-1])
    assert apart < 3 * np.linalg.norm(cycle.points[1] - cycle.points[0])


def test_the_oscillator_rests_only_at_the_origin():
    found = fixed_points(VanDerPol(), grid(-3, 3, 8).reshape(-1, 2))
    np.testing.assert_allclose(found.points, [[0.0, 0.0]], atol=1e-8)
    step = 0.05 * np.array([[0.0, 1.0], [-1.0, 1.5]]) + np.eye(2)
    exact = np.linalg.eigvals(step)
    np.testing.assert_allclose(np.sort_complex(found.eigenvalues[0]), np.sort_complex(exact))
    assert not found.stable[0]
    assert limit_cycle(VanDerPol(), [0.0, 0.0]) is None


def test_an_input_moves_the_fixed_point():
    dynamics = spiral(0.9, input_weight=np.eye(2))
    found = fixed_points(dynamics, grid(-1, 1, 3).reshape(-1, 2), u=[0.1, 0.05])
    exact = np.linalg.solve(np.eye(2) - np.asarray(dynamics.weight), [0.1, 0.05])
    np.testing.assert_allclose(found.points, exact[None], atol=1e-9)
    far = fixed_points(dynamics, grid(-1, 1, 3).reshape(-1, 2), u=[10.0, 0.0])
    assert far.points.shape == (0, 2)
    assert far.eigenvalues.shape == (0, 2)
    wide = fixed_points(dynamics, grid(-1, 1, 3).reshape(-1, 2), u=[10.0, 0.0], margin=1e3)
    assert len(wide.points) == len(fixed_points(dynamics, [[1.0, 1.0]], u=[10.0, 0.0]).points) == 1


def test_lorenz_rests_at_three_unstable_points():
    starts = np.random.default_rng(0).uniform([-2, -2, 0], [2, 2, 4], size=(60, 3))
    found = fixed_points(Lorenz(), starts)
    wing = np.sqrt(8 / 3 * 27)
    exact = np.array([[-wing, -wing, 27], [0, 0, 0], [wing, wing, 27]]) / 10
    order = np.argsort(found.points[:, 0])
    np.testing.assert_allclose(found.points[order], exact, atol=1e-8)
    assert not np.any(found.stable)
    assert np.all(found.speed < 1e-6)
    assert limit_cycle(Lorenz(), [1.0, 1.0, 2.0]) is None


def test_a_ring_of_slow_points():
    starts = grid(-2, 2, 12).reshape(-1, 2)
    ring = slow_points(RingAttractor(radius=1.3), starts)
    radius = np.linalg.norm(ring.points, axis=-1)
    on_ring = radius > 0.65
    assert np.sum(on_ring) > 100
    np.testing.assert_allclose(radius[on_ring], 1.3, rtol=0.01)
    np.testing.assert_allclose(radius[~on_ring], 0, atol=0.01)
    angle = np.sort(np.arctan2(*ring.points[on_ring].T))
    assert np.max(np.diff(angle)) < 0.3
    np.testing.assert_allclose(np.abs(ring.eigenvalues[on_ring, 0]), 1, atol=0.01)
    assert limit_cycle(RingAttractor(), [0.3, 0.1]) is None


@pytest.mark.parametrize("radius", [0.99, 0.9999])
def test_a_spiral_comes_to_rest(radius):
    found = fixed_points(spiral(radius, bias=[0.1, 0.0]), grid(-4, 4, 5).reshape(-1, 2))
    assert list(found.stable) == [True]
    np.testing.assert_allclose(np.abs(found.eigenvalues), radius)
    assert limit_cycle(spiral(radius), [1.0, 0.0]) is None


def test_rounding_is_no_cycle():
    """In float32 some runs come to rest only but for a turn around the last bits."""
    with jax.enable_x64(False):
        for angle in np.linspace(0.05, 0.6, 12):
            dynamics = spiral(0.99, angle, bias=[3.0, 1.0])
            assert limit_cycle(dynamics, [1.0, 0.0], max_bins=5000) is None
            found = fixed_points(dynamics, grid(-60, 60, 5).reshape(-1, 2), margin=100.0)
            assert list(found.stable) == [True]


def test_a_run_that_diverges_is_no_cycle():
    assert limit_cycle(spiral(1.1), [1.0, 0.0]) is None
    assert limit_cycle(spiral(1.0001), [1.0, 0.0]) is None


def test_a_cycle_of_two_loops():
    """Two rotations, one twice as fast: several crossings make one turn."""
    turns = [np.asarray(spiral(1.0, angle).weight) for angle in (0.02, 0.04)]
    weight = np.block([[turns[0], np.zeros((2, 2))], [np.zeros((2, 2)), turns[1]]])
    cycle = limit_cycle(Linear(weight, 0.1), [1.0, 0.0, 2.0, 0.0])
    assert cycle is not None
    np.testing.assert_allclose(cycle.period, 2 * np.pi / 0.02, rtol=1e-6)
    np.testing.assert_allclose(np.abs(cycle.multipliers), 1, atol=0.01)


def test_many_fixed_points_are_those_of_another_solver():
    """A network of three units with symmetric weights, which rests in many places."""
    weight = np.array([[1.0, 0.2, -0.3], [0.2, 0.9, 0.1], [-0.3, 0.1, 1.1]])
    starts = np.random.default_rng(0).uniform(-3, 3, size=(200, 3))
    found = fixed_points(ChaoticRNN(weight), starts)

    def drift(z):
        return 2.5 * weight @ np.tanh(z) - z

    runs = [root(drift, start, tol=1e-10) for start in starts]
    others = np.array([run.x for run in runs if run.success])
    far = np.linalg.norm(found.points[:, None] - others, axis=-1)
    assert np.max(np.min(far, axis=0)) < 1e-6
    assert np.max(np.min(far, axis=1)) < 1e-6
    assert len(found.points) >= 9
    slope = 2.5 * weight * (1 - np.tanh(found.points[:, None]) ** 2) - np.eye(3)
    stable = np.max(np.linalg.eigvals(slope).real, axis=-1) < 0
    np.testing.assert_array_equal(found.stable, stable)
    assert 0 < np.sum(stable) < len(stable)


def test_the_edge_of_what_was_visited_is_no_fixed_point():
    """A network that pushes one way everywhere rests nowhere; cut off at its box it would."""
    zero = ResidualMLP(2, 0.1, jax.random.key(0), output_scale=0)
    pushed = eqx.tree_at(lambda d: d.network.biases[-1], zero, jnp.array([0.1, 0.0]))
    seen = pushed.visited(jnp.zeros(2), jnp.array([0.25, 0.25]))
    edge = jnp.array([1.3, 0.0])
    np.testing.assert_allclose(seen.mean(edge, jnp.zeros(0)), edge)
    starts = grid(-1, 1, 4).reshape(-1, 2)
    assert not len(fixed_points(seen, starts).points)
    assert not len(slow_points(seen, starts).points)
    assert not seen.covers(edge)
    assert seen.covers(jnp.array([1.1, -1.1]))
    assert zero.covers(edge)


def test_refusals():
    gamma = GammaDynamics(Network([1, 2, 1], jax.random.key(0)), 1, precision=4.0)
    for call, message in (
        (lambda: fixed_points(gamma, [[1.0]]), "GammaDynamics has no noise-free map"),
        (lambda: fixed_points(VanDerPol(), [[1.0]]), r"starts of shape \(1, 1\)"),
        (lambda: fixed_points(VanDerPol(), [1.0, 2.0]), r"starts of shape \(2,\)"),
        (lambda: velocity_field(VanDerPol(), [np.nan, 1.0]), "points is not finite"),
        (lambda: velocity_field(VanDerPol(), [1.0, 1.0], u=[1.0]), r"u of shape \(1,\)"),
        (lambda: slow_points(VanDerPol(), [[1.0, 1.0]], tolerance=0.0), "tolerance must be"),
        (lambda: limit_cycle(Linear([[0.5]], 0.1), [1.0]), "1 latent"),
        (lambda: limit_cycle(VanDerPol(), [1.0, 0.0], max_bins=1), "max_bins = 1"),
        (lambda: grid([1, 2, 3], 4, 5), "low of shape"),
    ):
        with pytest.raises(InputError, match=message):
            call()
