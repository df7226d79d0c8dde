"""Products of univariate families over consecutive blocks of dimensions."""

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from evkf.errors import InputError
from evkf.families.base import Family, Nodes, Univariate, tensor_nodes
from evkf.types import Belief, Key, Matrix, Nat, Scalar, Vector


class ProductFamily(Family):
    r"""Independent blocks of dimensions, where each block has its own one-dimensional family.

    The density is $q(z) = \prod_i q_i(z_{(i)})$ over consecutive blocks $z_{(i)}$ of the latent
    state. Beliefs, natural parameters and mean parameters are tuples of one array for each block.
    Log-partition, entropy and KL divergence are sums over the blocks.

    Args:
        parts: The family of each block, in order; each has its number of dimensions.

    Example:
        >>> import jax.numpy as jnp
        >>> from evkf.families import BernoulliFamily, GammaFamily
        >>> family = ProductFamily((GammaFamily(2), BernoulliFamily(1)))
        >>> belief = family.from_moments(jnp.array([2.0, 1.0, 0.5]), jnp.eye(3))
        >>> [x.shape for x in belief], family.correctable
        ([(2, 2), (1, 1)], False)
    """

    parts: tuple[Univariate, ...]

    def __check_init__(self):
        for part in self.parts:
            if not isinstance(part, Univariate):
                raise InputError(
                    f"{type(part).__name__} in a product",
                    "parts",
                    "pass univariate families: GammaFamily, BetaFamily and the like",
                )

    @property
    def dim(self) -> int:
        return sum(part.dim for part in self.parts)

    @property
    def correctable(self) -> bool:
        return all(part.correctable for part in self.parts)

    def split(self, array: Float[Array, "... L"]) -> list[Float[Array, "... P"]]:
        """Cut the last axis into the blocks, and return one array for each block."""
        ends = list(accumulate(part.dim for part in self.parts))[:-1]
        return jnp.split(array, ends, axis=-1)

    def nat(self, belief: Belief) -> Nat:
        return belief

    def from_nat(self, nat: Nat) -> Belief:
        return nat

    def to_mean(self, nat: Nat) -> Nat:
        return self._map(lambda part, x: part.to_mean(x), nat)

    def to_nat(self, mean_params: Nat) -> Nat:
        return self._map(lambda part, x: part.to_nat(x), mean_params)

    def natural_gradient(self, nat: Nat, grad: Nat) -> Nat:
        r"""Return the natural gradient $F(\lambda)^{-1} g$, block by block (see `Univariate`)."""
        return self._map(lambda part, x, g: part.natural_gradient(x, g), nat, grad)

    def log_partition(self, nat: Nat) -> Scalar:
        return self._sum(lambda part, x: part.log_partition(x), nat)

    def stats(self, z: Vector) -> Nat:
        return self._map(lambda part, x: part.stats(x), self.split(z))

    @property
    def log_base(self) -> float:
        return sum(part.log_base for part in self.parts)

    def log_prob(self, belief: Belief, z: Vector) -> Scalar:
        return self._sum(lambda part, x, y: part.log_prob(x, y), belief, self.split(z))

    def entropy(self, belief: Belief) -> Scalar:
        return self._sum(lambda part, x: part.entropy(x), belief)

    def kl(self, belief: Belief, other: Belief) -> Scalar:
        return self._sum(lambda part, x, y: part.kl(x, y), belief, other)

    def sample(self, belief: Belief, key: Key, num: int) -> Float[Array, "S L"]:
        keys = jax.random.split(key, len(self.parts))
        draws = self._map(lambda part, x, k: part.sample(x, k, num), belief, keys)
        return jnp.concatenate(draws, axis=-1)

    def mean(self, belief: Belief) -> Vector:
        return jnp.concatenate(self._map(lambda part, x: part.mean(x), belief))

    def cov(self, belief: Belief) -> Matrix:
        return jnp.diag(self.var(belief))

    def var(self, belief: Belief) -> Vector:
        return jnp.concatenate(self._map(lambda part, x: part.var(x), belief))

    def from_moments(self, mean: Vector, cov: Matrix) -> Belief:
        blocks = self.split(mean), self.split(jnp.diagonal(cov))
        return self._map(lambda part, m, v: part.each_from_moments(m, v), *blocks)

    def nodes(self, belief: Belief) -> Nodes:
        """Return the tensor product of the two-point rules of all dimensions: $2^L$ nodes.

        Raises:
            InputError: The family has more than 10 dimensions.
        """
        points, weights = zip(*self._map(lambda part, x: part.each_rule(x), belief), strict=True)
        return tensor_nodes(jnp.concatenate(points, -1), jnp.concatenate(weights, -1))

    def from_unconstrained(self, raw: Float[Array, " R"]) -> Nat:
        """Return the natural parameters of any real vector, one array for each block.

        `raw` is cut into consecutive pieces, one for each block, of length `num_raw` of the block's
        family. The `from_unconstrained` of that family maps the piece.
        """
        ends = list(accumulate(part.num_raw for part in self.parts))[:-1]
        stretches = jnp.split(raw, ends)
        return self._map(lambda part, x: part.from_unconstrained(x), stretches)

    @property
    def num_raw(self) -> int:
        return sum(part.num_raw for part in self.parts)

    @property
    def has_log_mgf(self) -> bool:
        return all(part.has_log_mgf for part in self.parts)

    def log_mgf(self, nat: Nat, C: Float[Array, "N L"]) -> Float[Array, "N L"]:
        terms = self._map(lambda part, x, c: part.log_mgf(x, c), nat, self.split(C))
        return jnp.concatenate(terms, axis=-1)

    def valid(self, belief: Belief) -> Bool[Array, ""]:
        return jnp.all(jnp.stack(self._map(lambda part, x: part.valid(x), belief)))

    def _map(self, call: Callable[..., Any], *args: Iterable[Any]) -> tuple[Any, ...]:
        """Return `call(part, ...)` of each part, using the entry for that part of each argument."""
        return tuple(call(part, *own) for part, *own in zip(self.parts, *args, strict=True))

    def _sum(self, call: Callable[..., Scalar], *args: Iterable[Any]) -> Scalar:
        return jnp.sum(jnp.stack(self._map(call, *args)))
