"""One Hypothesis profile for all tests: no deadline, for kernels compile; the same examples in every run."""

from contextlib import suppress

from hypothesis import HealthCheck, settings

settings.register_profile(
    "evenload", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("evenload")

# Now and then Hypothesis draws a number that the code of a loaded module mentions. Which modules are loaded
# depends on the tests that ran before in the process, and so would the examples.
with suppress(ImportError, AttributeError):
    from hypothesis.internal.conjecture import providers

    nothing = providers.Constants()
    if hasattr(providers, "_get_local_constants"):
        providers._get_local_constants = lambda: nothing
