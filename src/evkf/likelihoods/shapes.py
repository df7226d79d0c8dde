"""Check the shapes that an observation model returns, when a `Model` is made.

The check traces the functions with JAX and computes no values. Without this check, a log density of
a wrong shape would raise no error: JAX would repeat it for every channel and count it many times.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from evkf.errors import InputError
from evkf.likelihoods.base import Likelihood, ReadoutLikelihood, Site
from evkf.likelihoods.custom import Custom, Joint
from evkf.numerics.quadrature import LEVELS


def check_likelihood(likelihood: Likelihood, dim: int) -> None:
    """Raise InputError if the input is not an observation model of `dim` latents.

    Args:
        likelihood: The observation model to check; each part of a `Joint` is checked.
        dim: Number of latent dimensions of the model.

    Example:
        >>> from evkf.likelihoods import Poisson
        >>> check_likelihood(Poisson([[1.0, 0.0]]), 2)
    """
    if isinstance(likelihood, type):
        name = likelihood.__name__
        raise InputError(f"the class {name}", "likelihood", f"pass one of it: {name}(...)")
    if not isinstance(likelihood, Likelihood):
        raise InputError(
            f"{type(likelihood).__name__}, not a likelihood",
            "likelihood",
            "wrap a log density, as in Custom(log_prob, num_channels=...), "
            "or derive your class from evkf.likelihoods.Likelihood",
        )
    if isinstance(likelihood, Joint):
        for part in likelihood.parts:
            check_likelihood(part, dim)
        return
    part, name, num = likelihood, type(likelihood).__name__, likelihood.num_channels
    C = getattr(part, "C", None)
    if C is not None and C.shape[1] != dim:
        raise InputError(
            f"readout C of shape {C.shape} for {dim} latents", name, f"let C have {dim} columns"
        )
    if type(part).__module__.startswith("evkf.") and not isinstance(part, Custom):
        return  # the models of this package are right, and tracing takes time
    # Find leaves that cannot be compiled, and NaN, which would make every update fail.
    for path, leaf in jax.tree_util.tree_leaves_with_path(part):
        where = type(part).__name__ + jax.tree_util.keystr(path)
        text = isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "USOMm"
        numeric = isinstance(leaf, jax.Array | np.ndarray | np.generic | complex | float | int)
        if text or not numeric:
            remedy = "mark the field static: eqx.field(static=True)"
            if isinstance(part, Custom):
                remedy = "keep only arrays in params; let functions close over anything else"
            what = "text or objects" if text else f"a {type(leaf).__name__}"
            raise InputError(f"{what} among the arrays", where, remedy)
        real = not isinstance(leaf, Tracer) and jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
        if real and np.any(np.isnan(leaf)):
            raise InputError("NaN", where, "pass numbers")
    z, y, mask, key = jnp.zeros(dim), jnp.zeros(num), jnp.ones(num, bool), jax.random.key(0)
    if isinstance(part, ReadoutLikelihood):
        _check_each(part, y, key)
    _check_method(part, "log_prob", (z, y, mask), [()], "the sum over the observed channels")
    for method, args in (("mean", (z,)), ("sample", (z, key))):
        _check_method(part, method, args, [(num,)], "one number per channel", needed=False)
    spread = "one variance per channel or a matrix"
    _check_method(part, "cov", (z,), [(num,), (num, num)], spread, needed=False)


def _check_each(part: ReadoutLikelihood, y: Array, key: Array) -> None:
    """Raise InputError if an `each_` method returns a wrong shape.

    The kernel must also accept readouts at many quadrature nodes, (nodes, channels).
    """
    num, v = len(y), jnp.ones_like(y)
    nodes = LEVELS[0] + (num == LEVELS[0])  # so that no mixture of the axes has the right shape
    per, log = "one number per channel", "one log density per channel"
    _check_method(part, "each_kernel", (y, y), [(num,)], log)
    at_nodes = jnp.zeros((nodes, num))
    _check_method(part, "each_kernel", (at_nodes, y), [(nodes, num)], f"{log} at every node")
    for method, args in (("each_constant", (y,)), ("each_base", (y,)), ("each_scale", ())):
        _check_method(part, method, args, [(num,)], per)
    for method, args in (("each_mean", (y,)), ("each_var", (y,)), ("each_sample", (y, key))):
        _check_method(part, method, args, [(num,)], per, needed=False)
    terms = Site._make([(num,)] * 3)
    _check_method(part, "each_site", (y, v, y), [terms, None], f"three terms, each {per}")
    _check_method(part, "each_start", (Site(y, y, y), y, v, y), [terms], f"three terms, each {per}")


def _check_method(
    part: Likelihood,
    method: str,
    args: tuple[Array | Site, ...],
    wanted: list[tuple[int, ...] | Site | None],
    what: str,
    needed: bool = True,
) -> None:
    """Raise InputError if a method fails or returns a wrong shape.

    Args:
        part: The observation model.
        method: Name of the method.
        args: Arguments that the method is called with.
        wanted: The shapes that are right; None in this list allows the method to return None.
        what: Words for the right result, for the error.
        needed: If False, the method may raise `InputError` or `NotImplementedError`, because only
            some filters need it.
    """
    where = f"{type(part).__name__}.{method}"
    try:
        result = jax.eval_shape(getattr(part, method), *args)
        shape = jax.tree.map(lambda x: x.shape, result)
    except Exception as error:
        if not needed and isinstance(error, InputError | NotImplementedError):
            return
        if isinstance(error, InputError):
            raise
        first = str(error).partition("\n")[0]
        custom = isinstance(part, Custom)
        before = "params, then " if custom and part.params is not None else ""
        shown = jax.tree.leaves(args[:2] if custom else args)
        shapes = ", ".join(str(x.shape) for x in shown) or "none"
        raise InputError(
            f"{type(error).__name__}: {first}",
            where,
            f"it is called with {before}arguments of shapes {shapes}, and traced by JAX",
        ) from error
    if not any(type(shape) is type(one) and shape == one for one in wanted):
        shapes = " or ".join(map(str, wanted))
        raise InputError(f"a result of shape {shape}", where, f"return {what}, shape {shapes}")
