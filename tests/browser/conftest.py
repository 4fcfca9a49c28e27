"""Pages in a headless Chromium. These tests run where they are asked for: `nox -s browser`."""

import os

# Elsewhere there need be neither a browser nor what drives it.
collect_ignore_glob = [] if os.environ.get("MOBILEMONEY_TESTS_BROWSER") else ["test_*.py"]
