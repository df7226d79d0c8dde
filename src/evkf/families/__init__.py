r"""Exponential families for the latent state.

A family is the kind of distribution that a belief about the latent state has. Each class is a
`Family`. A `Family` computes natural and mean parameters, log-partition, log density, entropy, KL
divergence, samples, and deterministic nodes for expectations.

The table lists the values that a belief stores. All values but those of the first two classes are
natural parameters, for each dimension: $m$ is the mean, $v$ the variance, $\alpha$ and $\beta$
are the shapes of a Beta or the shape and the rate of a Gamma, and $\lambda$ is the log odds (of
the continuous Bernoulli: the slope of the log density). The last column says if a filter can
correct the variance of a prediction separately from its mean (the variance correction). That needs
a family in which the mean does not fix the variance.

| class | state | values stored in a belief | variance correction |
|---|---|---|---|
| `GaussianFamily` | real, correlated | mean vector and covariance matrix | yes |
| `LowRankGaussianFamily` | real, many, correlated | mean, diagonal and low-rank factor | yes |
| `DiagonalGaussianFamily` | real, independent | $(m/v, -1/(2v))$ | yes |
| `GammaFamily` | positive | $(\alpha - 1, -\beta)$ | yes |
| `BetaFamily` | in (0, 1) | $(\alpha - 1, \beta - 1)$ | yes |
| `ContinuousBernoulliFamily` | in [0, 1] | $\lambda$ | no |
| `BernoulliFamily` | 0 or 1 | $\lambda$ | no |
| `ProductFamily` | blocks of dimensions | one array for each block | if yes for every block |

A `ProductFamily` combines one-dimensional families, which are the classes from
`DiagonalGaussianFamily` to `BernoulliFamily`.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
