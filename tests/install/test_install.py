"""Proves that other projects can build against the installed library, by
find_package and by pkg-config, that each public header compiles alone as C11 and
as C++17, and that what they build runs a job."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/all_reduce.c"


def sh(*command, **kwargs):
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=300,
        **kwargs,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def prefix(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("prefix")
    sh("cmake", "--install", ROOT / "build", "--prefix", prefix)
    return prefix


def run_job(prefix, program):
    out = sh(
        prefix / "bin/gpubridge",
        "run",
        "--islands",
        "nvidia:2,amd:1",
        "--",
        program,
        env={**os.environ, "LD_LIBRARY_PATH": str(library_folder(prefix))},
    )
    assert out.count("the sum is 6") == 3, out


def library_folder(prefix):
    return next(prefix.rglob("libgpubridge.so")).parent


def test_find_package(prefix, tmp_path):
    source = ROOT / "tests/install/find_package"
    sh(
        "cmake", "-S", source, "-B", tmp_path,
        f"-DCMAKE_PREFIX_PATH={prefix}", f"-DEXAMPLE={EXAMPLE}",
    )  # fmt: skip
    sh("cmake", "--build", tmp_path)
    run_job(prefix, tmp_path / "all_reduce")


def test_pkg_config(prefix, tmp_path):
    assert shutil.which("pkg-config"), "scripts/setup system installs it"
    folder = library_folder(prefix) / "pkgconfig"
    flags = sh(
        "pkg-config", "--cflags", "--libs", "gpubridge",
        env={**os.environ, "PKG_CONFIG_PATH": str(folder)},
    ).split()  # fmt: skip
    program = tmp_path / "all_reduce"
    sh("cc", "-std=c11", "-Wall", "-Werror", EXAMPLE, *flags, "-o", program)
    run_job(prefix, program)


HEADERS = sorted(p.name for p in (ROOT / "include/gpubridge").glob("*.h")) + [
    "version.h"
]


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize(
    "compiler", [("cc", "c", "-std=c11"), ("c++", "c++", "-std=c++17")]
)
def test_header_compiles_alone(prefix, header, compiler):
    command, language, standard = compiler
    sh(
        command, "-x", language, standard, "-Wall", "-Wextra", "-Werror",
        "-pedantic", "-fsyntax-only", f"-I{prefix}/include", "-",
        input=f"#include <gpubridge/{header}>\nint main(void) {{ return 0; }}\n",
    )  # fmt: skip


def test_wheel_builds_and_imports(tmp_path):
    """`pip install .` into a fresh environment; no torch is needed to import."""
    python = tmp_path / "venv/bin/python"
    sh("python3", "-m", "venv", tmp_path / "venv")
    sh(
        ROOT / ".venv/bin/pip", "--disable-pip-version-check", "-q", "wheel",
        "--no-build-isolation", "--no-deps", "-w", tmp_path, ROOT,
    )  # fmt: skip
    wheel = next(tmp_path.glob("gpubridge-*.whl"))
    assert "abi3" in wheel.name, wheel.name
    sh(python, "-m", "pip", "-q", "install", "--no-deps", wheel)
    out = sh(
        python, "-c",
        "import sys, gpubridge; print(gpubridge.__version__, 'torch' in sys.modules)",
        cwd=tmp_path,
    )  # fmt: skip
    assert out.split() == ["0.1.0", "False"]


def test_editable_install_imports(tmp_path):
    python = tmp_path / "venv/bin/python"
    sh("python3", "-m", "venv", "--system-site-packages", tmp_path / "venv")
    site = sh(
        ROOT / ".venv/bin/python", "-c", "import site; print(site.getsitepackages()[0])"
    ).strip()
    env = {**os.environ, "PYTHONPATH": site}
    sh(
        python, "-m", "pip", "-q", "install", "--no-build-isolation", "--no-deps",
        "-e", ROOT, f"-Cbuild-dir={tmp_path}/build", env=env,
    )  # fmt: skip
    out = sh(
        python, "-c", "import gpubridge; print(gpubridge.__file__)", cwd=tmp_path
    )
    assert str(ROOT / "python/gpubridge") in out
