"""One Hypothesis profile for all tests: the first call of a kernel compiles, so no deadline."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "evenload", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("evenload")
