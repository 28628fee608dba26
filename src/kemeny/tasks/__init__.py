"""Continuing tasks of operations research, many with a known optimum: queues, networks, stocks, machines, heating.

    kemeny train kemeny/CrissCross-v0 --env-kwargs '{"regime": "BM"}'

    from kemeny import tasks
    process = tasks.criss_cross("BM")
    process.model(truncation=40)            # the exact model

Each of these is a `Process`, described once. `Heating` has temperatures as states and power as actions instead, and its
optimum comes from linear-quadratic control. Importing this room registers the environments with Gymnasium. No JAX.
"""

from kemeny.tasks.admission import access_control, admission
from kemeny.tasks.environment import ProcessEnv, ProcessVectorEnv
from kemeny.tasks.heating import Heating, HeatingEnv, HeatingVectorEnv
from kemeny.tasks.inventory import dual_sourcing, lost_sales, perishable
from kemeny.tasks.machines import machine_replacement, maintenance
from kemeny.tasks.network import Activity, Network
from kemeny.tasks.network_rules import LBFS, CMu, MaxWeight, Priority, Threshold
from kemeny.tasks.networks import criss_cross, n_model, reentrant_line, server_allocation, six_class
from kemeny.tasks.process import Outcome, Process
from kemeny.tasks.registration import process_of, register

__all__ = [
    "LBFS",
    "Activity",
    "CMu",
    "Heating",
    "HeatingEnv",
    "HeatingVectorEnv",
    "MaxWeight",
    "Network",
    "Outcome",
    "Priority",
    "Process",
    "ProcessEnv",
    "ProcessVectorEnv",
    "Threshold",
    "access_control",
    "admission",
    "criss_cross",
    "dual_sourcing",
    "lost_sales",
    "machine_replacement",
    "maintenance",
    "n_model",
    "perishable",
    "process_of",
    "reentrant_line",
    "register",
    "server_allocation",
    "six_class",
]

register()
