"""How all fuzzers here use Hypothesis."""

from hypothesis import HealthCheck, settings


def seeded(num_cases: int) -> settings:
    """So many cases, the same in every run; nothing is stored, and a slow machine is no failure."""
    return settings(
        max_examples=num_cases,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
