"""Process that is the first to use a database, for `test_schema`: with others, which begin when it is told to."""

import sys

import anyio
import sqlalchemy as sa

from mobilemoney_async.database.engine import Database


async def main(url: str) -> None:
    database = Database(url)
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(3):
        await database.write(lambda each: each.execute(sa.text("SELECT version FROM mobilemoney_schema")).scalar_one())
    database.close()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
