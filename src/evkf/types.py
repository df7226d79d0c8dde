"""Names of array shapes, and status flags, for the whole package.

Letters in shapes: `L` latent dimensions, `N` observed channels, `T` bins, `S` samples or nodes,
`U` inputs, `K` natural parameters per dimension.
"""

from enum import IntFlag

import jax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Shaped

Vector = Float[Array, " L"]
Matrix = Float[Array, "L L"]
Scalar = Float[Array, ""]
Observation = Shaped[Array, " N"]
Mask = Bool[Array, " N"]
Input = Float[Array, " U"]
Key = PRNGKeyArray | Shaped[Array, "..."]
Count = Int[Array, ""]
Nat = PyTree[Float[Array, "..."]]
Belief = PyTree[Float[Array, "..."]]

if getattr(jax.config, "jax_default_matmul_precision", None) is None:
    # GPUs and TPUs round matrix products to a few digits by default, so updates would not converge.
    # Set this here, because all modules that multiply matrices import this module.
    jax.config.update("jax_default_matmul_precision", "highest")


class Status(IntFlag):
    """Status of one step of a filter; `Info.status` has these values as bits.

    Attributes:
        OK: Nothing to report.
        NOT_CONVERGED: The update stopped after `max_evaluations` evaluations. The belief is finite,
            but not the optimum. This seldom does harm; if it happens often, raise
            `max_evaluations`.
        FELL_BACK: The update was not finite or not positive definite, so the belief is the
            prediction. Or the prediction was NaN, so the previous belief replaced the prediction.
            Check the observation of that bin.
        CAPPED: Mean or standard deviation of the prediction was above `max_std` in some dimension
            (in absolute value), and was reduced to `max_std`. The dynamics are unstable there.

    Example:
        >>> Status(5)
        <Status.NOT_CONVERGED|CAPPED: 5>
    """

    OK = 0
    NOT_CONVERGED = 1
    FELL_BACK = 2
    CAPPED = 4
