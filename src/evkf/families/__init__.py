r"""Exponential families for the latent state.

Each is a `Family`: natural and mean parameters, log-partition, density, entropy, divergence,
samples and deterministic nodes, all accurate to rounding over the whole range of the family.

| class | state | parameters per dimension | variance correction |
|---|---|---|---|
| `GaussianFamily` | real, correlated | mean and covariance | yes |
| `LowRankGaussianFamily` | real, many, correlated | mean, variances and a factor | yes |
| `DiagonalGaussianFamily` | real | $(m/v, -1/2v)$ | yes |
| `GammaFamily` | positive | $(\alpha - 1, -\beta)$ | yes |
| `BetaFamily` | in (0, 1) | $(\alpha - 1, \beta - 1)$ | yes |
| `ContinuousBernoulliFamily` | in [0, 1] | $\lambda$ | no |
| `BernoulliFamily` | 0 or 1 | $\lambda$ | no |
| `ProductFamily` | blocks of the univariate ones | those of its parts | if all parts' |
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
