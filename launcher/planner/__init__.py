"""The planner: plays a scenario as a discrete-event simulation before a process starts. Pure: no sockets, no clock."""

from .plan import Incarnation, Plan, PlanError, SentMessage
from .scenario import Compute, Execution, Fault, Latency, Link, Scenario, Star, Stragglers
from .simulation import simulate

__all__ = [
    "Compute",
    "Execution",
    "Fault",
    "Incarnation",
    "Latency",
    "Link",
    "Plan",
    "PlanError",
    "Scenario",
    "SentMessage",
    "Star",
    "Stragglers",
    "simulate",
]
