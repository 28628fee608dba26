"""Networks with published results: criss-cross, the N-model, extended six-class networks, re-entrant lines."""

from collections.abc import Sequence

import numpy as np

from kemeny.errors import UserError
from kemeny.tasks.network import Activity, Network

CRISS_CROSS = {
    "IL": (0.3, 1.5),
    "BL": (0.3, 1.0),
    "IM": (0.6, 1.5),
    "BM": (0.6, 1.0),
    "IH": (0.9, 1.5),
    "BH": (0.9, 1.0),
}
"""The arrival rate and the rate of station 2 in each regime: imbalanced or balanced, of light, medium or heavy load."""


def criss_cross(regime: str = "BM", *, arrival: float | None = None, mu2: float | None = None) -> Network:
    """The criss-cross network (Harrison & Wein 1989) in a regime of Martins, Shreve & Soner (1996).

    Station 1 serves class 1 (option 0), whose jobs go on to class 2, or class 3 (option 1), whose jobs leave, each at
    rate 2. Station 2 serves class 2 at rate μ₂, and they leave. Jobs arrive in classes 1 and 3 at rate λ each. The cost
    is the number of jobs. `arrival` and `mu2` replace λ and μ₂ of the regime.
    """
    if regime not in CRISS_CROSS:
        raise UserError(f"The criss-cross network has no regime {regime!r}; its regimes are {', '.join(CRISS_CROSS)}.")
    rate, second = CRISS_CROSS[regime]
    rate, second = rate if arrival is None else arrival, second if mu2 is None else mu2
    return Network(
        arrivals=(rate, 0.0, rate),
        activities=(Activity(0, 0, 2.0), Activity(0, 2, 2.0), Activity(1, 1, second)),
        routing=((0, 1, 0), (0, 0, 0), (0, 0, 0)),
        holding=(1.0, 1.0, 1.0),
        name=f"criss-cross network {regime}",
    )


def n_model(load: float = 0.95) -> Network:
    """The N-model (Harrison 1998; rates of Dai & Gluzman 2022): a second server may help the first.

    Jobs of class 1 arrive at rate 1.3·load, jobs of class 2 at rate 0.4·load. Server 1 serves class 1 at rate 1. Server
    2 serves class 2 at rate 1 (option 0) or class 1 at rate ½ (option 1), the latter only if there are at least two
    jobs of class 1. The cost is 3·x₁ + x₂.
    """
    return Network(
        arrivals=(1.3 * load, 0.4 * load),
        activities=(Activity(0, 0, 1.0), Activity(1, 1, 1.0), Activity(1, 0, 0.5, at_least=2)),
        routing=((0, 0), (0, 0)),
        holding=(3.0, 1.0),
        name="N-model",
    )


SIX_CLASS_SIZES = (6, 9, 12, 15, 18, 21)
"""Numbers of classes with published results (Dai & Gluzman 2022)."""


def six_class(classes: int = 6, *, arrival: float = 9 / 140) -> Network:
    """The extended six-class network (Bertsimas, Gamarnik & Rikun 2011): a station for every three classes.

    Jobs arrive in classes 1 and 3. Class j goes on to class j + 3; of the last station, the first class goes on to
    class 2, and the others leave. The mean service times are 8, 2, 4 at odd stations and 6, 7, 1 at even ones. The cost
    is the number of jobs. The load of each station is 0.9.
    """
    if classes < 6 or classes % 3:
        raise UserError(f"The extended six-class network has 6, 9, 12, … classes, not {classes}.")
    means = ((8.0, 2.0, 4.0), (6.0, 7.0, 1.0))
    activities = [Activity(j // 3, j, 1 / means[j // 3 % 2][j % 3]) for j in range(classes)]
    routing = np.zeros((classes, classes))
    for j in range(classes - 3):
        routing[j, j + 3] = 1.0
    routing[classes - 3, 1] = 1.0
    arrivals = np.zeros(classes)
    arrivals[[0, 2]] = arrival
    return Network(arrivals.tolist(), activities, routing.tolist(), (1.0,) * classes, f"six-class network of {classes}")


def reentrant_line(
    stations: Sequence[int] = (1, 2, 2, 1), means: Sequence[float] = (0.3, 0.6, 0.1, 0.6), arrival: float = 1.0
) -> Network:
    """A re-entrant line: every job visits these stations in this order, each visit a class of its own.

    `stations` are counted from 1, and `means` are the mean service times. The default is the line of Lu & Kumar (1991),
    which is unstable if the last classes have priority at station 1 and class 2 at station 2, although its load is 0.9
    and 0.7. The cost is the number of jobs.
    """
    if len(stations) != len(means) or not stations:
        raise UserError(
            f"A line has one mean service time per visit, but {len(stations)} visits and {len(means)} means."
        )
    count = len(stations)
    if any(not 0 < mean < np.inf for mean in means) or any(station < 1 for station in stations):
        raise UserError("The mean service times of a line must be positive, and its stations are counted from 1.")
    activities = [
        Activity(station - 1, j, 1 / mean) for j, (station, mean) in enumerate(zip(stations, means, strict=True))
    ]
    return Network(
        [arrival] + [0.0] * (count - 1),
        activities,
        np.eye(count, k=1).tolist(),
        (1.0,) * count,
        f"re-entrant line of {count} visits",
    )


def server_allocation(
    arrivals: Sequence[float] = (0.2, 0.15, 0.1),
    service: Sequence[float] = (1.0, 0.5, 0.4),
    holding: Sequence[float] = (1.0, 2.0, 4.0),
) -> Network:
    """One server and several classes that leave after service: the cμ rule is optimal (Cox & Smith 1961)."""
    if len(service) != len(arrivals):
        raise UserError(f"There are {len(arrivals)} arrival rates, one per class, but {len(service)} service rates.")
    classes = len(arrivals)
    activities = [Activity(0, j, rate) for j, rate in enumerate(service)]
    return Network(
        tuple(arrivals), activities, np.zeros((classes, classes)).tolist(), tuple(holding), "server allocation"
    )
