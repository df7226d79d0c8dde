"""Write `reference.json`: the families' exact values at extreme parameters.

Needs mpmath, which is not among the development tools:

    uv run --with mpmath python -m tests.families.make_reference

Parameters and points are float32 numbers, so both precisions start from the very same ones.
"""

import json
from pathlib import Path

import numpy as np
from mpmath import exp, expm1, log, log1p, loggamma, matrix, mp, mpf, psi, sinh, sqrt

mp.dps = 80
SHAPES = [1e-3, 0.03, 0.5, 1.0, 2.5, 30.0, 1e3, 1e6]


def single(x) -> float:
    return float(np.float32(float(x)))


class GammaFamily:
    points = tuple((a - 1, -b) for a in SHAPES for b in (1e-3, 1.0, 1e3))

    def partition(self, n):
        return loggamma(n[0] + 1) - (n[0] + 1) * log(-n[1])

    def mean_params(self, n):
        return [psi(0, n[0] + 1) - log(-n[1]), (n[0] + 1) / -n[1]]

    def fisher(self, n):
        a, b = n[0] + 1, -n[1]
        return [[psi(1, a), 1 / b], [1 / b, a / b**2]]

    def moments(self, n):
        a, b = n[0] + 1, -n[1]
        return a / b, a / b**2

    def stats(self, z):
        return [log(z), z]

    def where(self, n, side):
        mean, var = self.moments(n)
        return mean * exp(side * min(sqrt(var) / mean, 5))

    def moved(self, n, by):
        return [(n[0] + 1) * (1 + by) - 1, n[1] * (1 - by / 2)]


class BetaFamily(GammaFamily):
    points = tuple((a - 1, b - 1) for a in SHAPES for b in SHAPES)

    def partition(self, n):
        a, b = n[0] + 1, n[1] + 1
        return loggamma(a) + loggamma(b) - loggamma(a + b)

    def mean_params(self, n):
        a, b = n[0] + 1, n[1] + 1
        return [psi(0, a) - psi(0, a + b), psi(0, b) - psi(0, a + b)]

    def fisher(self, n):
        a, b = n[0] + 1, n[1] + 1
        total = psi(1, a + b)
        return [[psi(1, a) - total, -total], [-total, psi(1, b) - total]]

    def moments(self, n):
        a, b = n[0] + 1, n[1] + 1
        return a / (a + b), a * b / (a + b) ** 2 / (a + b + 1)

    def stats(self, z):
        return [log(z), log1p(-z)]

    def where(self, n, side):
        mean, var = self.moments(n)
        width = min(sqrt(var) / (mean * (1 - mean)), 5)
        z = 1 / (1 + exp(-log(mean / (1 - mean)) - side * width))
        return min(max(z, mpf("1e-30")), 1 - mpf(2) ** -24)

    def moved(self, n, by):
        return [(n[0] + 1) * (1 + by) - 1, (n[1] + 1) * (1 - by / 2) - 1]


class ContinuousBernoulliFamily:
    points = tuple(
        (s * x,) for x in (0, 1e-6, 1e-3, 0.3, 1.9, 2.1, 8.0, 50.0, 1e4) for s in (-1, 1)
    )

    def partition(self, n):
        return log(expm1(n[0]) / n[0]) if n[0] else mpf(0)

    def mean_params(self, n):
        return [1 / (1 - exp(-n[0])) - 1 / n[0] if n[0] else mpf(1) / 2]

    def fisher(self, n):
        return [[1 / n[0] ** 2 - 1 / (4 * sinh(n[0] / 2) ** 2) if n[0] else mpf(1) / 12]]

    def moments(self, n):
        return self.mean_params(n)[0], self.fisher(n)[0][0]

    def stats(self, z):
        return [z]

    def where(self, n, side):
        mean, var = self.moments(n)
        return mean + side * sqrt(var) * mpf("0.7")

    def moved(self, n, by):
        return [n[0] * (1 + by) + by / 10]


class BernoulliFamily(ContinuousBernoulliFamily):
    points = tuple((s * x,) for x in (0, 1e-3, 0.3, 3.0, 15.0, 50.0, 80.0) for s in (-1, 1))

    def partition(self, n):
        return log1p(exp(n[0]))

    def mean_params(self, n):
        return [1 / (1 + exp(-n[0]))]

    def fisher(self, n):
        return [[exp(n[0]) / (1 + exp(n[0])) ** 2]]

    def where(self, n, side):
        return mpf(max(side, 0))


class DiagonalGaussianFamily(GammaFamily):
    points = tuple(
        (m / v, -0.5 / v) for m in (-30.0, 0.0, 1e-3, 4.0) for v in (1e-4, 0.1, 1.0, 1e4)
    )

    def partition(self, n):
        return -(n[0] ** 2) / (4 * n[1]) - log(-2 * n[1]) / 2

    def mean_params(self, n):
        mean, var = self.moments(n)
        return [mean, var + mean**2]

    def fisher(self, n):
        mean, var = self.moments(n)
        return [[var, 2 * mean * var], [2 * mean * var, 4 * mean**2 * var + 2 * var**2]]

    def moments(self, n):
        return n[0] / (-2 * n[1]), 1 / (-2 * n[1])

    def stats(self, z):
        return [z, z**2]

    def where(self, n, side):
        mean, var = self.moments(n)
        return mean + side * sqrt(var)

    def moved(self, n, by):
        return [n[0] * (1 + by), n[1] * (1 - by / 2)]


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def rows(family, base):
    """One table per quantity, its rows in the order of the points."""
    nats = [[mpf(single(x)) for x in point] for point in family.points]
    # Small, middling and large moves, and somewhere else altogether.
    others = [
        [
            *(family.moved(n, mpf(by)) for by in ("0.001", "0.05", "0.5")),
            nats[(7 * i + 3) % len(nats)],
        ]
        for i, n in enumerate(nats)
    ]
    others = [[[mpf(single(x)) for x in o] for o in row] for row in others]
    zs = [[mpf(single(family.where(n, side))) for side in (-1, 0, 1)] for n in nats]
    part, mean = family.partition, family.mean_params
    yield "nat", nats
    yield "other", others
    yield "z", zs
    yield "log_partition", [part(n) for n in nats]
    yield "mean_params", [mean(n) for n in nats]
    yield "mean", [family.moments(n)[0] for n in nats]
    yield "var", [family.moments(n)[1] for n in nats]
    yield "entropy", [part(n) - dot(n, mean(n)) - base for n in nats]
    yield "fisher", [family.fisher(n) for n in nats]
    yield "inverse_fisher", [(matrix(family.fisher(n)) ** -1).tolist() for n in nats]
    yield (
        "log_prob",
        [
            [dot(n, family.stats(z)) - part(n) + base for z in row]
            for n, row in zip(nats, zs, strict=True)
        ],
    )
    yield (
        "kl",
        [
            [
                part(o) - part(n) - dot([x - y for x, y in zip(o, n, strict=True)], mean(n))
                for o in row
            ]
            for n, row in zip(nats, others, strict=True)
        ],
    )


def plain(value):
    return [plain(v) for v in value] if isinstance(value, list) else float(value)


def main() -> None:
    families = [
        GammaFamily(),
        BetaFamily(),
        ContinuousBernoulliFamily(),
        BernoulliFamily(),
        DiagonalGaussianFamily(),
    ]
    bases = [mpf(0)] * 4 + [-log(2 * mp.pi) / 2]
    table = {
        type(family).__name__: {name: plain(values) for name, values in rows(family, base)}
        for family, base in zip(families, bases, strict=True)
    }
    text = json.dumps(table).replace('], "', '],\n"') + "\n"  # one quantity a line
    Path(__file__).with_name("reference.json").write_text(text)


if __name__ == "__main__":
    main()
