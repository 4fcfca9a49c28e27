"""Job engines that need newer libraries than the package: `nox -s slow` installs them."""

from importlib.util import find_spec

# They cannot be installed beside the lowest dependencies.
collect_ignore_glob = [] if find_spec("dbos") else ["test_*.py"]
