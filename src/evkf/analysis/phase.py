r"""Phase portraits of the dynamics: velocity fields, fixed points, slow points and limit cycles.

All functions ignore noise and use the one-bin map $z \mapsto f(z, u)$: the mean of the latent state
in the next bin, given the latent state z and a constant input u. The dynamics may be known or
learned; noise must be additive and Gaussian (`evkf.dynamics.GaussianDynamics`). The speed at z is
$|f(z, u) - z|$, the distance moved in one bin.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Complex, Float
from numpy.typing import ArrayLike

from evkf.dynamics import Dynamics, GaussianDynamics
from evkf.errors import InputError
from evkf.numerics.checks import read_array, read_positive, real_numbers
from evkf.types import Input, Matrix, Scalar, Vector

NUM_STEPS = 100
"""Number of steps of the search for fixed points."""
AT_REST = 1e-5
"""Largest speed at a fixed point, as a share of the median speed at the first points."""
SAME = 1e-3
"""Distance below which two fixed points count as the same point, as a share of the longest side of
the box around the first points."""
RECURS = 1e-2
"""Largest distance between two returns to the same place of a cycle, as a share of the longest side
of the box around the cycle."""
RETURNS = 3
"""Smallest number of times that a cycle must repeat."""


class FixedPoints(NamedTuple):
    """Points where the latent state stays in place, or moves slowly.

    Attributes:
        points: The points, (points, latents).
        eigenvalues: Eigenvalues of the Jacobian of the one-bin map at each point,
            (points, latents), largest absolute value first.
        stable: True for each point whose eigenvalues all have absolute value below 1.
        speed: $|f(z, u) - z|$ at each point, the distance that the latent state moves in one bin.
    """

    points: Float[np.ndarray, "K L"]
    eigenvalues: Complex[np.ndarray, "K L"]
    stable: Bool[np.ndarray, " K"]
    speed: Float[np.ndarray, " K"]


class LimitCycle(NamedTuple):
    """A limit cycle: a closed path that the latent state repeats.

    Attributes:
        period: Duration of one turn in bins; not rounded to whole bins.
        points: Points of one turn, one for each bin, (bins, latents).
        multipliers: Floquet multipliers, the eigenvalues of the Jacobian of one turn, (latents,).
            The first is the multiplier nearest to 1, which belongs to motion along the cycle. The
            remaining multipliers follow, largest absolute value first.
        stable: True if all multipliers except the first have absolute value below 1.
    """

    period: float
    points: Float[np.ndarray, "n L"]
    multipliers: Complex[np.ndarray, " L"]
    stable: bool


def grid(low: ArrayLike, high: ArrayLike, num: int) -> Float[np.ndarray, "num num 2"]:
    """Return a regular grid of points in the plane, (num, num, 2).

    Points of one row have the same second coordinate, as matplotlib expects.

    Args:
        low: Lowest coordinates: one number for both dimensions, or two numbers.
        high: Highest coordinates: one number for both dimensions, or two numbers.
        num: Number of points along each side.

    Example:
        >>> grid(-1, [1, 3], 3)[:, 0]
        array([[-1., -1.],
               [-1.,  1.],
               [-1.,  3.]])
    """
    corners = []
    for value, where in ((low, "low"), (high, "high")):
        corner = real_numbers(value, where)
        if corner.shape not in ((), (2,)):
            raise InputError(f"{where} of shape {corner.shape}", where, "pass a number or two")
        corners.append(np.broadcast_to(corner, 2))
    (left, bottom), (right, top) = corners
    sides = np.linspace(left, right, num), np.linspace(bottom, top, num)
    return np.stack(np.meshgrid(*sides), -1)


def velocity_field(
    dynamics: Dynamics, points: ArrayLike, u: ArrayLike | None = None, bin_width: float = 1.0
) -> Float[np.ndarray, "... L"]:
    r"""Return the velocity of the latent state at each point, $(f(z, u) - z) / \Delta$.

    Args:
        dynamics: Dynamics that have additive Gaussian noise.
        points: Points z, (..., latents).
        u: Constant input, (inputs,); zero when left out.
        bin_width: Bin width $\Delta$ in seconds, for velocities per second. The default, 1, gives
            velocities per bin.

    Returns:
        Velocities, (..., latents).

    Example:
        >>> from evkf.dynamics import VanDerPol
        >>> field = velocity_field(VanDerPol(), grid(-2, 2, 20), bin_width=0.005)
        >>> field.shape
        (20, 20, 2)
    """
    flow, u = _read_flow(dynamics, u)
    points = read_array(points, (*np.shape(points)[:-1], flow.dim), "points")
    width = read_positive(bin_width, (), "bin_width")
    moves = _moves(flow, points.reshape(-1, flow.dim), u)
    return np.asarray(moves.reshape(points.shape) / width)


def fixed_points(
    dynamics: Dynamics,
    starts: ArrayLike,
    u: ArrayLike | None = None,
    margin: float | None = None,
) -> FixedPoints:
    """Find and return fixed points, where $f(z, u) = z$, by a search from many first points.

    A search ends at a fixed point if the speed there is zero up to rounding, or at most 1e-5 times
    the median speed at the first points. For learned dynamics, fixed points outside the region of
    training states are discarded. Two fixed points count as the same point if their distance is at
    most 1/1000 of the longest side of the box around the first points.

    Args:
        dynamics: Dynamics that have additive Gaussian noise.
        starts: First points of the search, (starts, latents): latent states that the dynamics were
            learned from, or a grid.
        u: Constant input, (inputs,); zero when left out.
        margin: Largest distance of a fixed point from the box around the first points, in each
            dimension; learned dynamics mean little far from the data. When left out, half the
            longest side of the box, or no limit if all first points are equal.

    Returns:
        Fixed points, slowest first.

    Example:
        >>> from evkf.dynamics import VanDerPol
        >>> found = fixed_points(VanDerPol(), grid(-2, 2, 5).reshape(-1, 2))
        >>> len(found.points), bool(found.stable[0])
        (1, False)
    """
    flow, u = _read_flow(dynamics, u)
    first, ends, speed, rest = _search(flow, u, starts, AT_REST)
    low, high = first.min(0), first.max(0)
    side = np.max(high - low)
    if margin is None:
        margin = 0.5 * side if side > 0 else np.inf
    near = np.all((ends >= low - margin) & (ends <= high + margin), axis=-1)
    kept: list[int] = []
    for k in np.argsort(speed):
        if not (rest[k] and near[k]):
            continue
        if all(np.linalg.norm(ends[k] - ends[j]) > SAME * side for j in kept):
            kept.append(k)
    return _describe(flow, ends[kept], speed[kept], u)


def slow_points(
    dynamics: Dynamics, starts: ArrayLike, u: ArrayLike | None = None, tolerance: float = 1e-3
) -> FixedPoints:
    """Minimise the speed $|f(z, u) - z|$ from each first point, and return slow end points.

    Use this function instead of `fixed_points` if fixed points form a line, a ring or a sheet:
    close points are not merged. Along a line of fixed points one eigenvalue is 1, so `stable` has
    little meaning. For learned dynamics, points outside the region of training states are
    discarded.

    Args:
        dynamics: Dynamics that have additive Gaussian noise.
        starts: First points of the search, (starts, latents).
        u: Constant input, (inputs,); zero when left out.
        tolerance: Largest speed of a slow point, as a share of the median speed at the first
            points.

    Example:
        >>> from evkf.dynamics import RingAttractor
        >>> ring = slow_points(RingAttractor(), [[1.5, 0.0], [0.0, 2.0]])
        >>> ring.points.round(2) + 0.0
        array([[1., 0.],
               [0., 1.]], dtype=float32)
    """
    flow, u = _read_flow(dynamics, u)
    tolerance = float(read_positive(tolerance, (), "tolerance"))
    _, ends, speed, slow = _search(flow, u, starts, tolerance)
    return _describe(flow, ends[slow], speed[slow], u)


def limit_cycle(
    dynamics: Dynamics, start: ArrayLike, u: ArrayLike | None = None, max_bins: int = 20_000
) -> LimitCycle | None:
    """Run the dynamics without noise, and return the limit cycle that the run settles into.

    The first half of the run is discarded. In the second half, the points where the path crosses a
    plane (through the centre of the path, perpendicular to the longest axis of the path) must
    repeat three times or more, up to 1% of the size of the path. A cycle should last twenty bins or
    more, because crossings are interpolated between bins.

    Args:
        dynamics: Dynamics that have additive Gaussian noise and two latent dimensions or more.
        start: First latent state of the run, (latents,); not a fixed point.
        u: Constant input, (inputs,); zero when left out.
        max_bins: Number of bins to run, at least six times the period.

    Returns:
        The limit cycle, or None if the run comes to rest, diverges or does not repeat.

    Example:
        >>> from evkf.dynamics import VanDerPol
        >>> cycle = limit_cycle(VanDerPol(), [1.0, 0.0], max_bins=4000)
        >>> cycle.points.shape, cycle.stable
        ((152, 2), True)
    """
    flow, u = _read_flow(dynamics, u)
    if flow.dim < 2:
        raise InputError(f"{flow.dim} latent", "dynamics", "cycles need two latents or more")
    if max_bins < 2:
        raise InputError(f"max_bins = {max_bins}", "max_bins", "run for some periods of a cycle")
    run = np.asarray(_run(flow, read_array(start, (flow.dim,), "start"), u, max_bins))
    if not np.all(np.isfinite(run)):
        return None
    tail = run[max_bins // 2 :].astype(float)
    size = np.max(np.ptp(tail, axis=0))
    rounding = 100 * np.finfo(run.dtype).eps * np.max(np.abs(tail))
    if size <= max(1e-3 * np.max(np.ptp(run, axis=0)), rounding):
        return None
    times, turns = _find_returns(tail, RECURS * size)
    if turns is None:
        return None
    count = (len(times) - 1) // turns
    period = float(times[count * turns] - times[0]) / count
    whole, first = int(period), int(times[0]) + 1
    points = run[max_bins // 2 :][first : first + whole + 1]
    jacobians = np.asarray(_jacobians(flow, jnp.asarray(points), u), float)
    # Floquet multipliers: eigenvalues of the Jacobian of one turn, including a fraction of the last
    # bin, since the period is not a whole number of bins.
    turn = np.eye(jacobians.shape[-1])
    for jacobian in jacobians[:-1]:
        turn = jacobian @ turn
    share = period - whole
    turn = (1 - share) * turn + share * jacobians[-1] @ turn
    values = np.linalg.eigvals(turn).astype(complex)
    trivial = np.argmin(np.abs(values - 1))
    others = np.delete(values, trivial)
    multipliers = np.concatenate([values[[trivial]], others[np.argsort(-np.abs(others))]])
    stable = bool(np.all(np.abs(multipliers[1:]) < 1))
    return LimitCycle(period, points[: round(period)], multipliers, stable)


def _find_returns(
    orbit: Float[np.ndarray, "T L"], tolerance: float
) -> tuple[np.ndarray, int | None]:
    """Return when a path crosses a plane upwards, and how many crossings make one turn of a cycle.

    The plane passes through the mean of the path and is perpendicular to the longest axis of the
    path (first principal axis). Every `turns`-th crossing must lie at the same place, and this
    pattern must repeat `RETURNS` times or more; the smallest such `turns` is returned.

    Args:
        orbit: The path, (bins, latents).
        tolerance: Largest distance between two crossings that count as the same place.

    Returns:
        Times of all crossings in bins (interpolated), and `turns`, which is None if the crossings
        do not repeat.
    """
    centred = orbit - orbit.mean(0)
    axis = np.linalg.svd(centred, full_matrices=False)[2][0]
    height = centred @ axis
    before = np.flatnonzero((height[:-1] < 0) & (height[1:] >= 0))
    share = height[before] / (height[before] - height[before + 1])
    places = orbit[before] + share[:, None] * (orbit[before + 1] - orbit[before])
    index = np.arange(len(places))
    for turns in range(1, (len(places) - 1) // RETURNS + 1):
        miss = np.linalg.norm(places - places[index % turns], axis=-1)
        if np.max(miss) <= tolerance:
            return before + share, turns
    return before + share, None


def _search(
    flow: GaussianDynamics, u: Input, starts: ArrayLike, tolerance: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Minimise the speed from each first point, and return where the searches end.

    Args:
        flow: Dynamics that have additive Gaussian noise.
        u: Constant input, (inputs,).
        starts: First points, (starts, latents).
        tolerance: Largest speed of a slow point, as a share of the median speed at the first
            points.

    Returns:
        First points, end points, speeds at the end points, and True for each end point that is slow
        and inside the region where the dynamics are known or were learned.
    """
    first = read_array(starts, (*np.shape(starts)[:-1], flow.dim), "starts")
    if first.ndim != 2 or len(first) == 0:
        what = f"starts of shape {first.shape}"
        raise InputError(what, "starts", f"pass shape (starts, {flow.dim})")
    last = _descend(flow, first, u)
    usual, speed = (
        np.linalg.norm(np.asarray(_moves(flow, points, u)), axis=-1) for points in (first, last)
    )
    ends = np.asarray(last)
    rounding = 4 * np.finfo(ends.dtype).eps * np.linalg.norm(ends, axis=-1)
    slow = speed <= np.maximum(tolerance * np.median(usual), rounding)
    # Fixed points of learned dynamics outside the region of training states are artefacts.
    return np.asarray(first), ends, speed, slow & np.asarray(jax.vmap(flow.covers)(last))


def _describe(
    flow: GaussianDynamics, points: np.ndarray, speed: np.ndarray, u: Input
) -> FixedPoints:
    """Return points and speeds as `FixedPoints`, with eigenvalues of the Jacobian added."""
    values = np.linalg.eigvals(np.asarray(_jacobians(flow, jnp.asarray(points), u)))
    order = np.argsort(-np.abs(values), axis=-1)
    values = np.take_along_axis(values, order, -1).astype(complex)
    return FixedPoints(points, values, np.all(np.abs(values) < 1, axis=-1), speed)


@jax.jit
def _moves(flow: GaussianDynamics, points: Float[Array, "K L"], u: Input) -> Float[Array, "K L"]:
    return jax.vmap(lambda z: flow.mean(z, u) - z)(points)


@jax.jit
def _jacobians(
    flow: GaussianDynamics, points: Float[Array, "K L"], u: Input
) -> Float[Array, "K L L"]:
    return jax.vmap(jax.jacfwd(lambda z: flow.mean(z, u)))(points)


@partial(jax.jit, static_argnames="num_bins")
def _run(flow: GaussianDynamics, start: Vector, u: Input, num_bins: int) -> Float[Array, "T L"]:
    def body(z: Vector, _: None) -> tuple[Vector, Vector]:
        return flow.mean(z, u), z

    return lax.scan(body, start, length=num_bins)[1]


@jax.jit
def _descend(flow: GaussianDynamics, starts: Float[Array, "K L"], u: Input) -> Float[Array, "K L"]:
    """Return end points of Levenberg–Marquardt steps that minimise $|f(z, u) - z|^2$."""

    def move(z: Vector) -> Vector:
        return flow.mean(z, u) - z

    def step(_: Array, carry: tuple[Vector, Scalar]) -> tuple[Vector, Scalar]:
        z, damping = carry
        residual, jacobian = move(z), jax.jacfwd(move)(z)
        curvature: Matrix = jacobian.T @ jacobian
        ridge = damping * jnp.trace(curvature) * jnp.eye(len(z), dtype=z.dtype)
        new = z - jnp.linalg.solve(curvature + ridge, jacobian.T @ residual)
        better = jnp.sum(move(new) ** 2) < jnp.sum(residual**2)
        damping = jnp.clip(damping * jnp.where(better, 0.1, 10), jnp.finfo(z.dtype).eps, 1e8)
        return jnp.where(better, new, z), damping

    def descend(start: Vector) -> Vector:
        return lax.fori_loop(0, NUM_STEPS, step, (start, jnp.full((), 1e-2, start.dtype)))[0]

    return jax.vmap(descend)(starts)


def _read_flow(dynamics: Dynamics, u: ArrayLike | None) -> tuple[GaussianDynamics, Input]:
    """Check and return dynamics and a constant input, which is zero when None is given."""
    if not isinstance(dynamics, GaussianDynamics):
        raise InputError(
            f"{type(dynamics).__name__} has no noise-free map",
            "dynamics",
            "pass dynamics with additive Gaussian noise, such as model_.dynamics of an EVKF",
        )
    size = (dynamics.num_inputs,)
    return dynamics, read_array(np.zeros(size) if u is None else u, size, "u")
