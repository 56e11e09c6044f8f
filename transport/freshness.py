"""Which message of a neighbour is used when some are late: the one rule of the planner and of the wall clock.

In an exchange of its round a client waits, at most until a deadline, for all neighbours of which something is still to
be expected: until each has got as far as ``needed_round``. Of each neighbour it then uses, by ``chosen_round``,

- where clients are synchronous (staleness 0): the message of its own round;
- else the freshest that has arrived, unless that is more than ``staleness`` rounds old;
- where there is none such, because the deadline passed, the neighbour is gone or has finished, or a message of a later
  round shows that it has got farther: the freshest that has arrived at all (silence = "stale"), or none ("wait",
  "skip").

Rounds count from 1, ``freshest`` is the latest round of which a message has arrived, and 0 stands for no message.
"""

import math


def needed_round(round: int, staleness: float) -> int:
    """The least round of a neighbour's message that ends the wait for it; 0: nothing has to be waited for."""
    least = round - staleness
    return math.ceil(least) if least > 0 else 0


def chosen_round(round: int, freshest: int, has_own: bool, staleness: float, silence: str) -> int:
    """The round of the message that is used; ``has_own``: whether that of the client's own round has arrived."""
    if staleness == 0:
        if has_own:
            return round
    elif freshest >= round - staleness:
        return freshest
    return freshest if silence == "stale" else 0


def can_be_used(message_round: int, round: int, freshest: int, staleness: float) -> bool:
    """Whether a message that has arrived may be used in this round or a later one; others need not be stored."""
    return message_round == freshest or (staleness == 0 and message_round >= round)
