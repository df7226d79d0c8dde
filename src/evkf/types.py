"""Shape aliases and status flags shared by the whole package.

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
    # Accelerators round products to a few digits by default; updates would not converge. Set here,
    # because all modules that multiply matrices import this one.
    jax.config.update("jax_default_matmul_precision", "highest")


class Status(IntFlag):
    """Status of a step, as bits of `Info.status`.

    Attributes:
        OK: Nothing to report.
        NOT_CONVERGED: The update stopped at its bound on evaluations; the belief is finite but not
            the optimum. This seldom does harm; if it happens often, raise `max_evaluations`.
        FELL_BACK: The update was not finite or not positive definite, and the belief is the
            prediction; or the prediction was NaN, and the last belief replaced it. Check the
            observation of that bin.
        CAPPED: The prediction left the box `max_std` around the origin and was moved back into
            it. The dynamics are unstable there.

    Example:
        >>> Status(5)
        <Status.NOT_CONVERGED|CAPPED: 5>
    """

    OK = 0
    NOT_CONVERGED = 1
    FELL_BACK = 2
    CAPPED = 4
