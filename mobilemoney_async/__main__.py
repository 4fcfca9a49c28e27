"""`python -m mobilemoney_async` is `mobilemoney`."""

from mobilemoney_async.cli import main

main()
