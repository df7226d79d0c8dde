"""What does not fit is refused when a model is made, not broadcast in every bin."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evkf import Model
from evkf.dynamics import Linear
from evkf.errors import InputError
from evkf.likelihoods import Custom, Joint, Likelihood, Poisson, ReadoutLikelihood, Site

DYNAMICS = Linear(0.9 * np.eye(2), noise=0.1)


def each(z, y):
    return -((y - z[0]) ** 2)


def with_params(params, z, y):
    return -params * (y - z[0]) ** 2


class Summing(ReadoutLikelihood):
    """Forgets that a kernel is one number per channel."""

    C: jax.Array
    b: jax.Array
    log_concave: ClassVar[bool] = True

    def each_kernel(self, a, y):
        return jnp.sum(-((a - y) ** 2))

    def each_mean(self, a):
        return a

    def each_sample(self, a, key):
        return a

    def check(self, ys, mask, where):
        pass


class Whole(Likelihood):
    """A class without a readout, whose log density has the shape that it is told."""

    summed: bool = eqx.field(static=True)
    num_channels: int = eqx.field(static=True, default=5)
    log_concave: ClassVar[bool] = True

    def log_prob(self, z, y, mask):
        terms = jnp.where(mask, each(z, y), 0)
        return jnp.sum(terms) if self.summed else terms

    def mean(self, z):
        return jnp.full(5, z[0])

    def sample(self, z, key):
        return jnp.full(5, z[0])

    def check(self, ys, mask, where):
        pass


class Refusing(Whole):
    """What filtering does not need, it does not offer."""

    error: type[Exception] = eqx.field(static=True, default=NotImplementedError)

    def mean(self, z):
        raise self._because("mean")

    def sample(self, z, key):
        raise self._because("sample")

    def cov(self, z):
        raise self._because("cov")

    def _because(self, method):
        if self.error is InputError:
            return InputError(f"no {method}", "Refusing", "leave it out")
        return self.error(method)


class Odd(Summing):
    """All members that a readout can have, one of them of another shape."""

    odd: str = eqx.field(static=True, default="")

    def _of(self, member, terms):
        return jnp.sum(terms) if self.odd == member else terms

    def each_kernel(self, a, y):
        if self.odd == "nodes":
            return -((jnp.ones((5, 5)) @ a - y) ** 2)
        return self._of("each_kernel", -((a - y) ** 2))

    def each_constant(self, y):
        return self._of("each_constant", -y)

    def each_base(self, y):
        return self._of("each_base", -y)

    def each_scale(self):
        return self._of("each_scale", jnp.ones(5))

    def each_mean(self, a):
        return self._of("each_mean", a)

    def each_var(self, a):
        return self._of("each_var", jnp.ones(5))

    def each_sample(self, a, key):
        return self._of("each_sample", a)

    def each_site(self, a, v, y):
        if self.odd == "start alone":
            return None
        if self.odd == "plain tuple":
            return a, y, v
        return Site(self._of("each_site", a), y, v)

    def each_start(self, site, a, v, y):
        return site._replace(slope=self._of("each_start", y))


class Tagged(Whole):
    """Holds something beside arrays."""

    tag: object = None


def odd(member: str = "") -> Odd:
    return Odd(jnp.ones((5, 2)), jnp.zeros(5), member)


@pytest.mark.parametrize(
    "likelihood",
    [
        Custom(each, 5),
        Custom(lambda z, y: jnp.sum(each(z, y)), 5),
        Custom(with_params, 5, params=jnp.ones(())),
        Custom(lambda z, y: 0.0, 5),
        Custom(each, 5, cov_fn=lambda z: jnp.ones(5)),
        Custom(each, 5, cov_fn=lambda z: jnp.eye(5)),
        odd(),
        odd("start alone"),
        Tagged(True, tag=(np.inf, jnp.ones(2, int), jax.random.key(0), True)),
        Refusing(True),
        Refusing(True, error=InputError),
        Whole(True),
        Joint([Poisson(np.ones((3, 2))), Whole(True)]),
    ],
)
def test_what_fits_is_taken(likelihood: Likelihood):
    assert Model(DYNAMICS, likelihood).likelihood is likelihood


@pytest.mark.parametrize(
    ("likelihood", "said"),
    [
        (Custom(lambda z, y: each(z, y)[:, None], 5), r"\(5, 1\) \(in Custom.log_prob_fn"),
        (Custom(lambda z, y: jnp.sum(each(z, y))[None], 5), r"\(1,\) \(in Custom.log_prob_fn"),
        (Custom(each, 5, sample_fn=lambda z, key: z), r"\(2,\) \(in Custom.sample\)"),
        (Custom(each, 5, mean_fn=lambda z: z[0]), r"\(\) \(in Custom.mean\)"),
        (Custom(each, 5, cov_fn=lambda z: jnp.ones(())), r"\(\) \(in Custom.cov\).*or \(5, 5\)"),
        (Custom(each, 5, cov_fn=lambda z: jnp.ones(1)), r"\(1,\) \(in Custom.cov\)"),
        (
            Tagged(True, tag="V1"),
            r"a str among the arrays \(in Tagged.tag\): mark the field static",
        ),
        (Tagged(True, tag=np.array(["V1"])), r"text or objects among the arrays \(in Tagged.tag\)"),
        (Tagged(True, tag=np.array([None])), r"text or objects among the arrays \(in Tagged.tag\)"),
        (Tagged(True, tag={"a": np.array([0, np.nan])}), r"NaN \(in Tagged.tag\['a'\]\)"),
        (Custom(with_params, 5, params=jnp.nan), r"NaN \(in Custom.params\)"),
        (Custom(with_params, 5, params=("V1",)), r"a str .*Custom.params\[0\]\): keep only arrays"),
        (odd("each_kernel"), r"\(\) \(in Odd.each_kernel\): .* shape \(5,\)"),
        (odd("nodes"), r"\(in Odd.each_kernel\): .* shapes \(20, 5\), \(5,\), and traced"),
        (odd("each_constant"), r"\(\) \(in Odd.each_constant\)"),
        (odd("each_base"), r"\(\) \(in Odd.each_base\)"),
        (odd("each_scale"), r"\(\) \(in Odd.each_scale\)"),
        (odd("each_mean"), r"\(\) \(in Odd.each_mean\)"),
        (odd("each_var"), r"\(\) \(in Odd.each_var\)"),
        (odd("each_sample"), r"\(\) \(in Odd.each_sample\)"),
        (odd("each_site"), r"Site\(value=\(\), .* \(in Odd.each_site\)"),
        (odd("plain tuple"), r"\(\(5,\), \(5,\), \(5,\)\) \(in Odd.each_site\): .* Site\("),
        (odd("each_start"), r"slope=\(\), .* \(in Odd.each_start\)"),
        (Refusing(True, error=TypeError), r"TypeError: mean \(in Refusing.mean\)"),
        (Custom(each, 5, params=jnp.ones(())), r"called with params, then .* \(2,\), \(5,\), and"),
        (Custom(with_params, 5), r"missing 1 required .* of shapes \(2,\), \(5,\), and traced"),
        (Whole(False), r"\(5,\) \(in Whole.log_prob\): return the sum"),
        (Joint([Poisson(np.ones((3, 2))), Whole(False)]), r"in Whole.log_prob"),
        (Summing(jnp.ones((5, 2)), jnp.zeros(5)), r"\(\) \(in Summing.each_kernel\)"),
        (each, r"function, not a likelihood .* Custom\("),
        (Poisson, r"class Poisson .* Poisson\(\.\.\.\)"),
    ],
)
def test_what_does_not_fit_is_refused(likelihood, said: str):
    with pytest.raises(InputError, match=said):
        Model(DYNAMICS, likelihood)
