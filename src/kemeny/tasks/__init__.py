"""Continuing tasks of operations research, many of them with a known optimum: queues, networks, stocks, machines.

    kemeny train kemeny/CrissCross-v0 --env-kwargs '{"regime": "BM"}'

    from kemeny import tasks
    process = tasks.criss_cross("BM")
    process.model(truncation=40)            # the exact model

Each task is a `Process`, described once. Importing this room registers the environments with Gymnasium. No JAX.
"""

from kemeny.tasks.environment import ProcessEnv, ProcessVectorEnv
from kemeny.tasks.network import Activity, Network
from kemeny.tasks.network_rules import LBFS, CMu, MaxWeight, Priority, Threshold
from kemeny.tasks.networks import criss_cross, n_model, reentrant_line, server_allocation, six_class
from kemeny.tasks.process import Outcome, Process
from kemeny.tasks.registration import process_of, register

__all__ = [
    "LBFS",
    "Activity",
    "CMu",
    "MaxWeight",
    "Network",
    "Outcome",
    "Priority",
    "Process",
    "ProcessEnv",
    "ProcessVectorEnv",
    "Threshold",
    "criss_cross",
    "n_model",
    "process_of",
    "reentrant_line",
    "register",
    "server_allocation",
    "six_class",
]

register()
