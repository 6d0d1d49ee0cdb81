"""Settings of this folder's property tests."""

from hypothesis import settings

# Time is no property here: the machine is shared, and a slow example says nothing.
settings.register_profile("healthcheck", deadline=None, max_examples=100)
settings.load_profile("healthcheck")
