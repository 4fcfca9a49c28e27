"""The scale of the long tests, and how many random examples the property tests try: `noxfile.py` sets both.

| environment variable | unset | `nox -s soak`, `nox -s laws` | `nox -t nightly` |
|---|---|---|---|
| `MOBILEMONEY_TESTS_SOAK` | 0.25 | 1 | 4 |
| `MOBILEMONEY_TESTS_EXAMPLES` | 1 | 15 | 30 |
"""

import os

_SOAK = float(os.environ.get("MOBILEMONEY_TESTS_SOAK", "0.25"))
_EXAMPLES = int(os.environ.get("MOBILEMONEY_TESTS_EXAMPLES", "1"))


def soak(full: int) -> int:
    """Return how many orders, kills or customers a test marked `soak` takes, of so many at full scale."""
    return max(1, round(_SOAK * full))


def examples(usual: int) -> int:
    """Return how many random examples a property test tries, of so many by default."""
    return _EXAMPLES * usual
