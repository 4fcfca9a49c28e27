"""The project's checks.

`nox` runs the fast lane, which each change needs: style, types, and the quick tests. `nox -t full` runs the others that
CI runs, and repeats nothing that `nox` has shown on the same Python. Both check: they draw the same examples each time.
`nox -t nightly` searches: it draws new ones. CONTRIBUTING.md has the table, `nox -l` the list.
"""

import functools
import itertools
import os
import random
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"

PROJECT = nox.project.load_toml("pyproject.toml")
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
COVERAGE = Path(".nox", ".cache", "coverage").resolve()


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
NEWEST_PYTHON = PYTHONS[-1] if PYTHONS else None
PYTHONS_BETWEEN = PYTHONS[1:-1] or PYTHONS[-1:] if PYTHONS else None
# Measuring coverage costs next to nothing where Python itself tells which lines run, from 3.12 on.
MEASURES = NEWEST_PYTHON not in {None, "3.11"}

nox.options.sessions = ["fast"]

# What tells `tests/conftest.py` to insist on the installed wheel rather than the work tree; PYTHONSAFEPATH keeps the
# working directory, which is the checkout, out of `sys.path`. Where containers forbid bytecode, it is allowed again:
# else each worker rewrites the assertions of all tests, and each process of a test compiles what it imports.
INSTALLED = {"PYTHONSAFEPATH": "1", "MOBILEMONEY_TESTS_INSTALLED": "1", "PYTHONDONTWRITEBYTECODE": ""}

# Many tests wait for databases and processes: as many workers as cores would leave a third of the cores idle. Each has
# a PostgreSQL of its own, so there are not too many. Each collects all tests: `.ci/run` says fewer where several run.
WORKERS = int(os.environ.get("MOBILEMONEY_TESTS_WORKERS") or min(max(2, 3 * (os.cpu_count() or 1) // 2), 16))
PYTEST = ("-m", "pytest", "-n", str(WORKERS), "--dist", "worksteal")
# What a second Python need not show again. MOBILEMONEY_TESTS_PAIRS of tests/support/scale.py says which repetitions.
QUICK = ("-m", "not once and not slow")

# Tests of what meets the HTTP client.
MEETS_HTTP = ("tests/calls", "tests/resources", "tests/test_client.py", "tests/test_money_safety.py")

# Of this run alone, or of all runs of `.ci/run`: the first of them builds the wheel.
temporary = tempfile.TemporaryDirectory(prefix="wheel-")
WHEELS = Path(os.environ.get("MOBILEMONEY_TESTS_WHEELS") or temporary.name)


def group(name: str) -> tuple[str, ...]:
    """Return the requirements of one dependency group."""
    return nox.project.dependency_groups(PROJECT, name)


def wheel(session: nox.Session) -> str:
    """Build the wheel, once in a run, and return the requirement that installs it with every extra."""
    if not any(WHEELS.glob("*.whl")):
        session.install("build", *PROJECT["build-system"]["requires"])  # `release-check` builds in isolation
        session.run("python", "-m", "build", "--no-isolation", "--wheel", "--outdir", str(WHEELS), silent=True)
    (path,) = WHEELS.glob("*.whl")
    return f"mobilemoney-async[all] @ {path.as_uri()}"


def new_seed(option: str) -> str:
    """Return an option with a new seed, which is printed with the command."""
    return f"{option}={random.SystemRandom().randrange(2**32)}"


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


def together(*commands: Callable[[], object]) -> None:
    """Run commands at the same time, since most of them use one core, or wait; the first failure counts."""
    with ThreadPoolExecutor(len(commands)) as threads:
        for each in [threads.submit(command) for command in commands]:
            each.result()


@nox.session(python=NEWEST_PYTHON)
def fast(session: nox.Session) -> None:
    """Check style, types and coverage (from Python 3.12 on), and run the quick tests against the installed wheel."""
    session.install(wheel(session), *group("dev"), *group("browser"))
    style(session)
    run = functools.partial(measure if MEASURES else test, session, "-m", "not slow", *session.posargs)
    env = {"MOBILEMONEY_TESTS_LIMIT": "1", "MOBILEMONEY_TESTS_PAIRS": "even"}
    together(functools.partial(types, session), functools.partial(run, env=env))
    if MEASURES and not session.posargs:
        session.run("coverage", "report", env=traced())


def style(session: nox.Session) -> None:
    """Check style and formatting (ruff), the Dockerfile (hadolint) and the workflows (zizmor)."""
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    pages = [str(page) for folder in (".", "docs", "docs/reference") for page in Path(folder).glob("*.md")]
    session.run("ruff", "format", "--check", "--line-length", "79", *pages)
    session.run("hadolint", "Dockerfile")
    session.run("zizmor", "--offline", "--quiet", ".github")


def types(session: nox.Session) -> None:
    """Check the types: of package and tests (mypy), of a user's program and of all that is public (basedpyright)."""
    session.run("mypy")
    session.run("basedpyright")
    session.run("basedpyright", "--verifytypes", "mobilemoney_async", "--ignoreexternal", env=INSTALLED)


def test(session: nox.Session, *options: str, env: dict[str, str]) -> None:
    """Run tests."""
    session.run("python", *PYTEST, *options, env={**INSTALLED, **env})


def traced() -> dict[str, str]:
    """Return the environment of a measured run."""
    return {**INSTALLED, "COVERAGE_FILE": str(COVERAGE / "data"), "COVERAGE_CORE": "sysmon"}


def measure(session: nox.Session, *options: str, env: dict[str, str]) -> None:
    """Run tests, and combine what their processes have measured."""
    shutil.rmtree(COVERAGE, ignore_errors=True)
    COVERAGE.mkdir(parents=True)
    session.run("coverage", "run", *PYTEST, *options, env={**traced(), **env})
    session.run("coverage", "combine", "--quiet", env=traced())


@nox.session(python=sorted({*PYTHONS[:1], *PYTHONS[-1:]}) if PYTHONS else None, tags=["full"])
def slow(session: nox.Session) -> None:
    """Run the slow tests, one half on the lowest Python and one on the newest, at a quarter of their scale."""
    session.install(wheel(session), *group("test"), *group("engines"))
    if session.python == LOWEST_PYTHON:
        test(session, "-m", "slow", *session.posargs, env={"MOBILEMONEY_TESTS_PAIRS": "even"})
    if session.python == NEWEST_PYTHON:
        test(session, "-m", "slow and not once", *session.posargs, env={"MOBILEMONEY_TESTS_PAIRS": "odd"})


@nox.session(python=LOWEST_PYTHON, tags=["full"])
def lowest(session: nox.Session) -> None:
    """Run the other half of the quick tests with the lowest versions that `pyproject.toml` allows, also of Python."""
    constraints = Path(session.create_tmp(), "lowest.txt")
    constraints.write_text("\n".join(lowest_constraints()), encoding="utf-8")
    session.install(wheel(session), *group("test"), "--constraint", str(constraints))
    test(session, *QUICK, *session.posargs, env={"MOBILEMONEY_TESTS_PAIRS": "odd"})


@nox.session(python=PYTHONS_BETWEEN, tags=["full"])
def httpx2(session: nox.Session) -> None:
    """Run the tests of what meets the HTTP client over httpx2, on the Pythons between the lowest and the newest."""
    session.install(wheel(session), *group("test"))
    env = {"MOBILEMONEY_TESTS_PAIRS": "one", "MOBILEMONEY_TESTS_WIRE": "httpx2"}
    test(session, *QUICK, *(session.posargs or MEETS_HTTP), env=env)


@nox.session(python=LOWEST_PYTHON, default=False)
def soak(session: nox.Session) -> None:
    """Run the long tests at full scale (`nightly`: four times), then the tests of the store on partitioned tables."""
    session.install(wheel(session), *group("test"), *group("engines"))
    test(session, "-m", "soak", *session.posargs, env={"MOBILEMONEY_TESTS_SOAK": "1"})
    partitioned = ("tests/payments", "-k", "postgres", "-m", "not soak and not once")
    test(session, *partitioned, env={"MOBILEMONEY_TESTS_PARTITIONED": "1"})


@nox.session(python=LOWEST_PYTHON, tags=["full"])
def fuzz(session: nox.Session) -> None:
    """Fuzz the readers of foreign bytes with the same 20,000 inputs, from those in tests/fuzz/corpus."""
    session.install(wheel(session), *group("test"), *group("fuzz"))
    runs = [session.posargs] if session.posargs else [["-runs=10000", f"-seed={seed}"] for seed in (1, 2)]
    together(*(functools.partial(run_fuzzer, session, f"found-{name}", *each) for name, each in enumerate(runs)))


def run_fuzzer(session: nox.Session, folder: str, *options: str) -> None:
    """Fuzz from the corpus alone: what an earlier run has found is in another folder each time."""
    found = Path(session.create_tmp(), folder)
    shutil.rmtree(found, ignore_errors=True)
    found.mkdir()
    command = ("-m", "tests.fuzz", "-max_len=4096", "-verbosity=0", *options, str(found), "tests/fuzz/corpus")
    session.run("python", *command)


@nox.session(python=LOWEST_PYTHON, tags=["full"])
def openapi(session: nox.Session) -> None:
    """Send the sandbox the same requests, which schemathesis makes from the OpenAPI document."""
    session.install(wheel(session), *group("openapi"))
    options = session.posargs or ("--max-examples", "50", "--seed", "1")
    session.run("python", "-m", "tests.openapi", *options)


@nox.session(python=LOWEST_PYTHON, default=False)
def simulate(session: nox.Session) -> None:
    """Run four histories of the simulator beside those that `slow` plays; new ones for an hour: `-- --minutes 60`."""
    session.install(wheel(session), *group("test"))
    session.run("python", "-m", "tests.simulation", *(session.posargs or ("--seed", "1", "--seeds", "4")))


@nox.session(python=LOWEST_PYTHON, tags=["nightly"], default=False)
def nightly(session: nox.Session) -> None:
    """Search: the long tests at four times their scale; new examples, histories, inputs, requests, and their seeds."""
    session.install(wheel(session), *group("test"))
    env = {"MOBILEMONEY_TESTS_SEARCH": "1", "MOBILEMONEY_TESTS_SOAK": "4"}
    env["MOBILEMONEY_TESTS_EXAMPLES"] = "30"
    options = ("-m", "soak or hypothesis", new_seed("--hypothesis-seed"), "-o", "faulthandler_timeout=7200")
    test(session, *options, *session.posargs, env=env)
    session.notify("simulate", ["--minutes", "10", new_seed("--seed")])
    session.notify("fuzz", ["-max_total_time=600", new_seed("-seed")])
    session.notify("openapi", ["--max-examples", "300", new_seed("--seed")])


@nox.session(python=LOWEST_PYTHON, tags=["nightly"], default=False)
def stalls(session: nox.Session) -> None:
    """Run the tests in real time while their processes are stopped at random, by a seed that is printed."""
    session.install(wheel(session), *group("test"), *group("engines"))
    installed = [f"{name}={value}" for name, value in INSTALLED.items()]  # of pytest: the stalls are the checkout's
    tests = ("python", *PYTEST, "-m", "(real_time or slow) and not once and not stops", *session.posargs)
    session.run("python", "-m", "tests.support.stalls", new_seed("--seed"), "env", *installed, *tests)


@nox.session(python=NEWEST_PYTHON, tags=["nightly"], default=False)
def branches(session: nox.Session) -> None:
    """Run all tests on the newest Python, and report the branches that none of them takes."""
    session.install(wheel(session), *group("test"))
    env = {"MOBILEMONEY_TESTS_BRANCHES": "true", "COVERAGE_CORE": "ctrace"}
    measure(session, "-m", "not once", *session.posargs, env=env)
    session.run("coverage", "report", env={**traced(), **env})


@nox.session(python=NEWEST_PYTHON, default=False)
def mutants(session: nox.Session) -> None:
    """Count the mutants of the money modules that the tests notice, all or `-- --sample 250`; fail below 0.95."""
    session.install("-e", ".[all]", *group("test"), *group("mutants"))
    session.run("python", "-m", "tests.mutants", *session.posargs)


@nox.session(tags=["full"])
def docs(session: nox.Session) -> None:
    """Build the docs into build/docs; a warning, a broken link or an unknown name is an error."""
    session.install(wheel(session), *group("docs"))
    # From nothing: what is kept of an earlier build hides warnings.
    shutil.rmtree("build/docs", ignore_errors=True)
    doctrees = session.create_tmp()
    # Not -j: it saves nothing here, and after an error Sphinx may wait for ever for its children.
    options = ("-W", "--keep-going", "-E", "-q", "-d", doctrees)
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
    """Build the image of the sandbox and ask it for a page; without Docker, skip: `fast` has checked its Dockerfile."""
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "ls"], capture_output=True, check=False).returncode != 0:
        session.skip("no Docker with its plugin compose answers")
    session.run("docker", "compose", "up", "--build", "--wait", external=True)  # until it is healthy
    session.run("docker", "compose", "down", "--rmi", "local", external=True)


@nox.session(name="release-check", python=LOWEST_PYTHON, tags=["full"])
def release_check(session: nox.Session) -> None:
    """Build sdist and wheel into dist/ and check both; run the quick start from the wheel on each Python found."""
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
    if re.search(r"\]\((?!https?:|mailto:|#)", metadata):
        session.error("the long description has links that lead nowhere on an index of packages")
    version, changes = path.name.split("-")[1], Path("CHANGELOG.md").read_text(encoding="utf-8")
    if ".dev" not in version:
        if f"## [{version}]" not in changes:
            session.error(f"CHANGELOG.md says nothing about {version}")
        if re.search(r"^## \[Unreleased\]\n+(?!\n|## \[)", changes, re.MULTILINE):
            session.error("CHANGELOG.md has changes under Unreleased")
    missing = missing_from_sdist(session, dist)
    if missing:
        session.error(f"the sdist lacks {', '.join(sorted(missing))}")
    quick_start = re.search(r"```python\n(.*?)```", Path("README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert quick_start is not None

    empty = Path(session.create_tmp(), "empty").resolve()
    shutil.rmtree(empty, ignore_errors=True)
    empty.mkdir()
    session.chdir(empty)  # where nothing of the checkout can be imported
    together(*(functools.partial(try_wheel, session, path, version, quick_start[1]) for version in PYTHONS or [""]))


def try_wheel(session: nox.Session, wheel: Path, version: str, program: str) -> None:
    """Install a wheel in an empty environment of a Python, and run a program, the commands and their demo.

    With pip on the lowest Python. On the others with uv where nox uses it, for a twentieth of pip's processor time.
    """
    run = functools.partial(session.run, external=True)
    environment = Path(f"python{version}").resolve()
    programs = environment / ("Scripts" if os.name == "nt" else "bin")
    requirement = f"mobilemoney-async[all] @ {wheel.as_uri()}"
    if session.venv_backend == "uv" and version != LOWEST_PYTHON:
        run("uv", "venv", "--quiet", "--python", f"python{version}", str(environment))
        run("uv", "pip", "install", "--quiet", "--python", str(environment), requirement)
    else:
        run(f"python{version}", "-m", "venv", str(environment))
        run(str(programs / "python"), "-m", "pip", "install", "--quiet", requirement)
    run(str(programs / "python"), "-W", "error", "-c", program)
    run(str(programs / "mobilemoney"), "--version")
    run(str(programs / "mobilemoney"), "demo")


def missing_from_sdist(session: nox.Session, dist: Path) -> set[str]:
    """Return the files of the repository that the sdist lacks: `nox` runs from either. None outside a checkout."""
    if not Path(".git").exists():
        return set()
    kept = str(session.run("git", "ls-files", external=True, silent=True)).splitlines()
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as content:
        packed = {name.partition("/")[2] for name in content.getnames()}
    return {*kept} - packed


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Run the benchmarks, beside the libraries that they are compared with."""
    session.install(wheel(session), *group("bench"))
    session.run("python", "benchmarks/run.py", *session.posargs, env={"PYTHONSAFEPATH": "1"})


@nox.session(python=LOWEST_PYTHON, tags=["full"])
def bench_small(session: nox.Session) -> None:
    """Run each benchmark at its smallest size, which shows that it runs, and nothing about speed."""
    session.install(wheel(session), *group("bench"))
    env = {"PYTHONSAFEPATH": "1", "MOBILEMONEY_BENCH_SMALL": "1"}
    programs = [f"benchmarks/{name}.py" for name in ("run", "fleet", "goodput")]
    together(*(functools.partial(session.run, "python", each, env=env) for each in programs))
