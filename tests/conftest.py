"""For all tests: hypothesis without a deadline, since the machine is shared and a first call imports what it needs."""

from hypothesis import settings

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
