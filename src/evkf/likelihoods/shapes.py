"""Whether an observation model fits a model: found by tracing, before anything is computed.

A log density of a wrong shape would not fail: it would be broadcast against the mask, and count as
often as there are channels.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from evkf.errors import InputError
from evkf.likelihoods.base import Likelihood, ReadoutLikelihood
from evkf.likelihoods.custom import Custom, Joint


def check_likelihood(likelihood: Likelihood, dim: int) -> None:
    """Refuse what is not an observation model of so many latents.

    Args:
        likelihood: What was handed over.
        dim: Latents of the model.

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
    else:
        _check_part(likelihood, dim)


def _check_part(part: Likelihood, dim: int) -> None:
    name, num = type(part).__name__, part.num_channels
    C = getattr(part, "C", None)
    if C is not None and C.shape[1] != dim:
        raise InputError(
            f"readout C of shape {C.shape} for {dim} latents", name, f"let C have {dim} columns"
        )
    if type(part).__module__.startswith("evkf.") and not isinstance(part, Custom):
        return  # ours fit, and tracing takes time
    z, y, mask, key = jnp.zeros(dim), jnp.zeros(num), jnp.ones(num, bool), jax.random.key(0)
    if isinstance(part, ReadoutLikelihood):
        _check(part, "each_kernel", (y, y), [(num,)], "one log density per channel")
    _check(part, "log_prob", (z, y, mask), [()], "the sum over the observed channels")
    for method, args in (("mean", (z,)), ("sample", (z, key))):
        _check(part, method, args, [(num,)], "one number per channel", needed=False)
    spread = "one variance per channel or a matrix"
    _check(part, "cov", (z,), [(num,), (num, num)], spread, needed=False)


def _check(
    part: Likelihood,
    method: str,
    args: tuple[Array, ...],
    wanted: list[tuple[int, ...]],
    what: str,
    needed: bool = True,
) -> None:
    """Refuse a method that fails, or whose result has another shape.

    One that not every filter needs may refuse, or not be there.
    """
    where = f"{type(part).__name__}.{method}"
    try:
        found = jax.eval_shape(getattr(part, method), *args).shape
    except Exception as error:
        if not needed and isinstance(error, InputError | NotImplementedError):
            return
        if isinstance(error, InputError):
            raise
        first = str(error).partition("\n")[0]
        custom = isinstance(part, Custom)
        before = "params, then " if custom and part.params is not None else ""
        shapes = ", ".join(str(x.shape) for x in (args[:2] if custom else args))
        raise InputError(
            f"{type(error).__name__}: {first}",
            where,
            f"it is called with {before}arguments of shapes {shapes}, and traced by JAX",
        ) from error
    if found not in wanted:
        shapes = " or ".join(map(str, wanted))
        raise InputError(f"a result of shape {found}", where, f"return {what}, shape {shapes}")
