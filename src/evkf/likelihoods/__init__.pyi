from .base import Likelihood, ReadoutLikelihood, Site
from .bernoulli import Bernoulli
from .custom import Custom, Joint
from .gaussian import Gaussian
from .negative_binomial import NegativeBinomial
from .poisson import Poisson
from .student_t import StudentT

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
