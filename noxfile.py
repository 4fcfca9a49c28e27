"""The project's checks.

`nox` runs those that each change needs, in eight minutes on two cores. `nox -t full` runs the others that CI runs, and
repeats nothing that `nox` has shown on the same Python; both together take 37 minutes. What takes longer is `nox -s
soak` and `nox -t nightly`. CONTRIBUTING.md has the table, `nox -l` the list.
"""

import functools
import itertools
import os
import random
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"

PROJECT = nox.project.load_toml("pyproject.toml")
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
COVERAGE = Path(".nox", ".cache", "coverage").resolve()
WHEELS = Path(".nox", ".cache", "wheel").resolve()


def runs(version: str) -> bool:
    """Tell whether `pythonX.Y` really starts: a pyenv shim may be found and still refuse."""
    executable = shutil.which(f"python{version}")
    if executable is None:
        return False
    return subprocess.run([executable, "-c", "pass"], capture_output=True, check=False).returncode == 0


# Under CI=true nox fails on an interpreter that it cannot find, so sessions are declared for those alone that run.
# If none is found by name, the interpreter that runs nox takes their place (None).
PYTHONS: list[str] | None = [version for version in SUPPORTED if runs(version)] or None
LOWEST_PYTHON = PYTHONS[0] if PYTHONS else None
# Traced, tests take twice as long: the newest Python is tested that way, and not once more without.
TRACED_PYTHON = PYTHONS[-1] if PYTHONS else None

nox.options.sessions = ["lint", "types", f"tests-{LOWEST_PYTHON}" if PYTHONS else "tests", "docs", "release-check"]

# What tells `tests/conftest.py` to insist on the installed wheel rather than the work tree; PYTHONSAFEPATH keeps the
# working directory, which is the checkout, out of `sys.path`. Where containers forbid bytecode, it is allowed again:
# else each worker rewrites the assertions of all tests, and each process of a test compiles what it imports.
INSTALLED = {"PYTHONSAFEPATH": "1", "MOBILEMONEY_TESTS_INSTALLED": "1", "PYTHONDONTWRITEBYTECODE": ""}

# Many tests wait for databases and processes: as many workers as cores would leave a third of the cores idle. Each has
# a PostgreSQL of its own, so there are not too many.
WORKERS = min(max(2, 3 * (os.cpu_count() or 1) // 2), 16)
PYTEST = ("-m", "pytest", "-n", str(WORKERS), "--dist", "worksteal")
# What a second Python need not show again; MOBILEMONEY_TESTS_PAIRS of tests/support/scale.py says which repetitions.
PORTABLE = ("-m", "not once and not soak")

# Property tests that find a rare case only among thousands of examples, in less than two minutes together.
LAWS = (
    *(f"tests/calls/test_{name}.py" for name in ("bucket", "limiter", "pipeline", "refusals", "retry")),
    *(f"tests/payments/test_{name}.py" for name in ("budget", "evidence", "shared_limiter")),
)

built: list[Path] = []


def group(name: str) -> tuple[str, ...]:
    """Return the requirements of one dependency group."""
    return nox.project.dependency_groups(PROJECT, name)


def wheel(session: nox.Session) -> str:
    """Build the wheel, once in a run of nox, and return the requirement that installs it with every extra."""
    if not built:
        shutil.rmtree(WHEELS, ignore_errors=True)
        session.install("build", *PROJECT["build-system"]["requires"])  # `release-check` builds in isolation
        session.run("python", "-m", "build", "--no-isolation", "--wheel", "--outdir", str(WHEELS), silent=True)
        built.extend(WHEELS.glob("*.whl"))
    (path,) = built
    return f"mobilemoney-async[all] @ {path.as_uri()}"


def new_seed(option: str) -> str:
    """Return an option with a new seed, which is printed, or with that of `.ci/run`, which the content decides."""
    return f"{option}={os.environ.get('MOBILEMONEY_TESTS_SEED') or random.SystemRandom().randrange(2**32)}"


def lowest_constraints() -> list[str]:
    """Return each direct dependency pinned to the lowest version that `pyproject.toml` allows.

    Only direct dependencies: the lowest releases of what *they* need are not ours to vouch for.
    """
    metadata = PROJECT["project"]
    requirements = [*metadata["dependencies"], *itertools.chain(*metadata["optional-dependencies"].values())]
    # A constraint names no extras: the requirement itself does.
    return [
        re.sub(r"\[.*?\]", "", requirement).replace(">=", "==")
        for requirement in requirements
        if not requirement.startswith(metadata["name"])
    ]


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting (ruff), the Dockerfile (hadolint) and the workflows (zizmor)."""
    session.install(*group("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    pages = [str(page) for folder in (".", "docs", "docs/reference") for page in Path(folder).glob("*.md")]
    session.run("ruff", "format", "--check", "--line-length", "79", *pages)
    session.run("hadolint", "Dockerfile")
    session.run("zizmor", "--offline", "--quiet", ".github")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types: of package and tests (mypy), of a user's program and of all that is public (basedpyright)."""
    session.install(wheel(session), *group("test"), *group("browser"), *group("engines"), *group("types"))
    session.run("mypy")
    session.run("basedpyright")
    session.run("basedpyright", "--verifytypes", "mobilemoney_async", "--ignoreexternal", env=INSTALLED)


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Test the installed wheel with the newest dependencies; on all Pythons but the lowest over httpx2."""
    session.install(wheel(session), *group("test"), *group("engines"))
    if session.python in {LOWEST_PYTHON, None}:
        session.run("python", *PYTEST, *session.posargs, env=INSTALLED)
    else:
        env = {**INSTALLED, "MOBILEMONEY_TESTS_PAIRS": "one", "MOBILEMONEY_TESTS_WIRE": "httpx2"}
        session.run("python", *PYTEST, *PORTABLE, *session.posargs, env=env)


@nox.session(python=False, tags=["full"])
def tests_between(session: nox.Session) -> None:
    """Test on each Python between the lowest, which `nox` tests, and the newest, which `coverage` tests."""
    for version in (PYTHONS or [])[1:-1]:
        session.notify(f"tests-{version}")


@nox.session(python=LOWEST_PYTHON, tags=["full"])
def tests_lowest(session: nox.Session) -> None:
    """Test the installed wheel with the lowest dependencies that `pyproject.toml` allows."""
    constraints = Path(session.create_tmp(), "lowest.txt")
    constraints.write_text("\n".join(lowest_constraints()), encoding="utf-8")
    session.install(wheel(session), *group("test"), "--constraint", str(constraints))
    env = {**INSTALLED, "MOBILEMONEY_TESTS_PAIRS": "even"}
    session.run("python", *PYTEST, *PORTABLE, *session.posargs, env=env)


@nox.session(python=TRACED_PYTHON, tags=["full"])
def coverage(session: nox.Session) -> None:
    """Test the installed wheel on the newest Python; fail under the coverage that `pyproject.toml` asks for."""
    session.install(wheel(session), *group("test"))
    shutil.rmtree(COVERAGE, ignore_errors=True)
    COVERAGE.mkdir(parents=True)
    env = {**INSTALLED, "MOBILEMONEY_TESTS_PAIRS": "odd", "COVERAGE_FILE": str(COVERAGE / "data")}
    session.run("coverage", "run", *PYTEST, *PORTABLE, *session.posargs, env=env)
    session.run("coverage", "combine", "--quiet", env=env)
    session.run("coverage", "report", env=env)


@nox.session(python=LOWEST_PYTHON, default=False)
def soak(session: nox.Session) -> None:
    """Run the long tests at full scale (`nightly`: four times), then the tests of the store on partitioned tables."""
    session.install(wheel(session), *group("test"), *group("engines"))
    env = {**INSTALLED, "MOBILEMONEY_TESTS_SOAK": "1"}
    session.run("python", *PYTEST, "-m", "soak", *session.posargs, env=env)
    partitioned = ("tests/payments", "-k", "postgres", "-m", "not soak and not once")
    session.run("python", *PYTEST, *partitioned, env={**INSTALLED, "MOBILEMONEY_TESTS_PARTITIONED": "1"})


@nox.session(python=LOWEST_PYTHON, tags=["full"])
def laws(session: nox.Session) -> None:
    """Try the laws of the rate limit, of retries and of evidence on thousands of new examples, and print their seed."""
    session.install(wheel(session), *group("test"))
    env = {**INSTALLED, "MOBILEMONEY_TESTS_EXAMPLES": "15"}
    session.run("python", *PYTEST, "-m", "hypothesis", *LAWS, new_seed("--hypothesis-seed"), *session.posargs, env=env)


@nox.session(python=LOWEST_PYTHON, tags=["full"])
def fuzz(session: nox.Session) -> None:
    """Fuzz the readers of foreign bytes for two minutes, from the inputs in tests/fuzz/corpus."""
    session.install(wheel(session), *group("test"), *group("fuzz"))
    options = ("-max_total_time=120", "-max_len=4096", "-verbosity=0", new_seed("-seed"))
    session.run("python", "-m", "tests.fuzz", *options, session.create_tmp(), "tests/fuzz/corpus", *session.posargs)


@nox.session(python=LOWEST_PYTHON, tags=["full"])
def openapi(session: nox.Session) -> None:
    """Send the sandbox requests that schemathesis makes from the OpenAPI document; print their seed."""
    session.install(wheel(session), *group("openapi"))
    session.run("python", "-m", "tests.openapi", "--max-examples", "50", new_seed("--seed"), *session.posargs)


@nox.session(python=LOWEST_PYTHON, tags=["nightly"], default=False)
def nightly(session: nox.Session) -> None:
    """Run the long tests at four times their scale, thousands of new examples of the laws, new histories."""
    session.install(wheel(session), *group("test"))
    env = {**INSTALLED, "MOBILEMONEY_TESTS_SOAK": "4", "MOBILEMONEY_TESTS_EXAMPLES": "30"}
    options = ("-m", "soak or hypothesis", new_seed("--hypothesis-seed"), "-o", "faulthandler_timeout=7200")
    session.run("python", *PYTEST, *options, *session.posargs, env=env)
    session.run("python", "-m", "tests.simulation", "--minutes", "10", new_seed("--seed"))


@nox.session(python=LOWEST_PYTHON, tags=["full"])
def simulate(session: nox.Session) -> None:
    """Run new histories of the simulator for two minutes, and print their seeds; longer: `-- --minutes 60`."""
    session.install(wheel(session), *group("test"))
    # Their number is fixed, so that the histories of a seed are the same on a faster machine.
    options = session.posargs or ("--minutes", "2", "--seeds", "20", new_seed("--seed"))
    session.run("python", "-m", "tests.simulation", *options)


@nox.session(python=LOWEST_PYTHON, default=False)
def mutants(session: nox.Session) -> None:
    """Count the mutants of the money modules that the tests notice, all or `-- --sample 250`; fail below 0.95."""
    session.install("-e", ".[all]", *group("test"), *group("mutants"))
    session.run("python", "-m", "tests.mutants", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the docs into build/docs; a warning, a broken link or an unknown name is an error."""
    session.install(wheel(session), *group("docs"))
    # From nothing: what is kept of an earlier build hides warnings.
    shutil.rmtree("build/docs", ignore_errors=True)
    doctrees = session.create_tmp()
    options = ("-W", "--keep-going", "-E", "-q", "-j", "auto", "-d", doctrees)
    session.run("python", "-m", "sphinx", *options, "docs", "build/docs", env=INSTALLED)


@nox.session(python=LOWEST_PYTHON, tags=["full"])
def browser(session: nox.Session) -> None:
    """Try the pages in a headless Chromium; without one, skip, or fail under MOBILEMONEY_DEMAND_BROWSER."""
    chromiums = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    if not any(map(shutil.which, chromiums)) or not shutil.which("chromedriver"):
        missing = "no Chromium with its driver: `apt-get install chromium chromium-driver`"
        (session.error if os.environ.get("MOBILEMONEY_DEMAND_BROWSER") else session.skip)(missing)
    session.install(wheel(session), *group("test"), *group("browser"))
    env = {**INSTALLED, "MOBILEMONEY_TESTS_BROWSER": "1"}
    # A file's tests share one Chromium.
    parallel = ("-n", "2", "--dist", "loadfile")
    session.run("python", "-m", "pytest", "tests/browser", *parallel, *session.posargs, env=env)


@nox.session(python=False, tags=["nightly"], default=False)  # it needs a registry of images
def container(session: nox.Session) -> None:
    """Build the image of the sandbox and ask it for a page; without Docker, skip: `lint` has checked its Dockerfile."""
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "ls"], capture_output=True, check=False).returncode != 0:
        session.skip("no Docker with its plugin compose answers")
    session.run("docker", "compose", "up", "--build", "--wait", external=True)  # until it is healthy
    session.run("docker", "compose", "down", "--rmi", "local", external=True)


@nox.session(name="release-check", python=LOWEST_PYTHON)
def release_check(session: nox.Session) -> None:
    """Build sdist and wheel into dist/ and check both; run the quick start from the wheel in an empty environment."""
    dist = Path("dist").resolve()
    shutil.rmtree(dist, ignore_errors=True)
    session.install("build[virtualenv]", "twine>=6")
    session.run("python", "-m", "build", "--outdir", str(dist), silent=True)  # the wheel is made from the sdist
    session.run("twine", "check", "--strict", *map(str, sorted(dist.iterdir())))
    (path,) = dist.glob("*.whl")
    with zipfile.ZipFile(path) as content:
        names = content.namelist()
        (metadata,) = (content.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    licences = {name.rpartition("/")[2] for name in names if ".dist-info/licenses/" in name}
    if "License-Expression: MIT AND 0BSD\n" not in metadata or licences != {"LICENSE", "htmx.LICENSE.txt"}:
        session.error("the wheel does not name its licences, or lacks the text of one")
    if not any(name.endswith(".dist-info/sboms/sbom.cdx.json") for name in names):
        session.error("the wheel lacks its bill of materials")
    version = path.name.split("-")[1]
    if f"## [{version}]" not in Path("CHANGELOG.md").read_text(encoding="utf-8"):
        session.error(f"CHANGELOG.md says nothing about {version}")
    quick_start = re.search(r"```python\n(.*?)```", Path("README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert quick_start is not None

    empty = Path(session.create_tmp(), "empty").resolve()
    shutil.rmtree(empty, ignore_errors=True)
    session.run("python", "-m", "venv", str(empty))
    programs = empty / ("Scripts" if os.name == "nt" else "bin")
    session.chdir(empty)  # where nothing of the checkout can be imported
    run = functools.partial(session.run, external=True)
    run(str(programs / "python"), "-m", "pip", "install", "--quiet", f"mobilemoney-async[all] @ {path.as_uri()}")
    run(str(programs / "python"), "-W", "error", "-c", quick_start[1])
    run(str(programs / "mobilemoney"), "--version")
    run(str(programs / "mobilemoney"), "demo")


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Run the benchmarks, beside the libraries that they are compared with."""
    session.install(wheel(session), *group("bench"))
    session.run("python", "benchmarks/run.py", *session.posargs, env={"PYTHONSAFEPATH": "1"})
