"""What the collectives of this library are called for: a message between ranks says which function of `ug` it is of."""

from enum import IntEnum

from unilaunch.interfaces import calls


class Purpose(IntEnum):
    """The function that a user has called."""

    NONE = calls.NONE
    HALO = 2
    SUM_HALO = 3
    FETCH = 4
    GATHER = 5
    MEAN = 6
    SUM_RANKS = 7
    SUM_GRADIENTS = 8
    DISTRIBUTE = 9
    LOAD = 10
    ACCURACY = 11
    CHECK = 12


calls.CallLog.name_purposes(purpose.name.lower() for purpose in [*Purpose][1:])
