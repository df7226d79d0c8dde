r"""Observation models $p_\psi(y|z)$."""

from evkf.likelihoods.base import Likelihood, ReadoutLikelihood, Site
from evkf.likelihoods.bernoulli import Bernoulli
from evkf.likelihoods.custom import Custom, Joint
from evkf.likelihoods.gaussian import Gaussian
from evkf.likelihoods.negative_binomial import NegativeBinomial
from evkf.likelihoods.poisson import Poisson
from evkf.likelihoods.student_t import StudentT

__all__ = [
    "Bernoulli",
    "Custom",
    "Gaussian",
    "Joint",
    "Likelihood",
    "NegativeBinomial",
    "Poisson",
    "ReadoutLikelihood",
    "Site",
    "StudentT",
]
