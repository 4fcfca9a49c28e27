"""Requests that schemathesis makes from the OpenAPI document, to a sandbox: `python -m tests.openapi [its options]`."""

import subprocess
import sys

import anyio

from mobilemoney_async.sandbox import Sandbox

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


async def main(*options: str) -> int:
    """Return the exit code: 0 if the sandbox answers each request as the document says."""
    sandbox = Sandbox(speed=1000)
    async with sandbox.serve() as base_url:
        command = [sys.executable, "-m", "schemathesis.cli", "run", base_url.removesuffix("v1") + "openapi.json"]
        command += ["--url", base_url, "--header", f"Authorization: Bearer {sandbox.token}", "--checks", CHECKS]
        command += ["--phases", "examples,coverage,fuzzing", "--warnings", "off", *options]
        # In a folder of its own: it keeps a database of examples.
        async with anyio.TemporaryDirectory() as folder:
            ended = await anyio.run_process(command, check=False, stdout=None, stderr=subprocess.STDOUT, cwd=folder)
    return ended.returncode


if __name__ == "__main__":
    sys.exit(anyio.run(main, *sys.argv[1:]))
