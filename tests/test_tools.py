"""Building host tools: with a compiler that is a shell script, in a cache of the test's own."""

from __future__ import annotations

import os
import threading

import pytest

from nearmetal import tools
from nearmetal.tools import ToolError

COMPILER = """#!/bin/sh
case $1 in
version) echo "go version go{version} linux/amd64" ;;
install)
  echo build >> "{folder}/builds"
  env > "{folder}/env"
  echo "go: downloading gvisor.dev/gvisor v0.0.0"
  for i in $(seq 130); do echo gvisor.dev/gvisor/pkg$i; done
  {then}
  printf '#!/bin/sh\\necho runsc version test\\n' > "$GOBIN/runsc"; chmod +x "$GOBIN/runsc" ;;
esac
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NEARMETAL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tools"


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Put a compiler on PATH, of a version, that does something before it ends well; PATH has
    nothing of gVisor's or Go's else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    path = [one for one in os.environ["PATH"].split(":")
            if not any(os.path.exists(f"{one}/{name}") for name in ("go", "runsc"))]
    monkeypatch.setenv("PATH", ":".join([str(folder), *path]))

    def make(version="1.26.3", then=":"):
        go = folder / "go"
        go.write_text(COMPILER.format(version=version, then=then, folder=tmp_path))
        go.chmod(0o755)
        return tmp_path

    return make


@pytest.fixture
def no_downloads(monkeypatch):
    """What would be fetched is refused, and remembered."""
    asked, real = [], tools._run

    def run(argv, **more):
        if argv[0] in ("apt-get",) or "pip" in argv:
            asked.append(list(argv))
            raise ToolError("no downloads in tests.")
        return real(argv, **more)

    monkeypatch.setattr(tools, "_run", run)
    return asked


@pytest.mark.parametrize("text, version", [
    ("go version go1.26.3 linux/amd64", (1, 26, 3)), ("go version go1.19 linux/amd64", (1, 19)),
    ("go version devel", ()), ("", ())])
def test_go_version(text, version):
    assert tools.go_version(text) == version


def test_it_is_built_once_and_says_what_it_does(cache, compiler):
    folder, said = compiler(), []
    assert tools.find_runsc() is None
    built = tools.runsc(said.append)
    assert built == tools.find_runsc() and os.access(built, os.X_OK)
    assert built.parent.name == f"runsc-{tools.RUNSC_VERSION}"
    assert any("1 modules fetched" in line for line in said)
    assert any("120 packages compiled" in line for line in said)
    assert "runsc version test" in said[-1]
    assert tools.runsc() == built
    assert (folder / "builds").read_text() == "build\n"
    assert sorted(path.name for path in cache.iterdir()) == [".lock", built.parent.name]


def test_the_compiler_is_told_how(cache, compiler):
    folder = compiler()
    tools.runsc()
    env = dict(line.split("=", 1) for line in (folder / "env").read_text().splitlines()
               if "=" in line)
    assert env["CGO_ENABLED"] == "0" and env["GOMAXPROCS"] == "2"
    assert "-mod=mod" in env["GOFLAGS"] and env["GOTOOLCHAIN"] == "local"
    for name in ("GOCACHE", "GOMODCACHE", "GOBIN"):
        assert env[name].startswith(str(cache))


def test_two_at_once_build_once(cache, compiler):
    folder, found = compiler(then="sleep 0.3"), []
    threads = [threading.Thread(target=lambda: found.append(tools.runsc())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 3 and len(set(found)) == 1
    assert (folder / "builds").read_text() == "build\n"


def test_a_failed_build_leaves_nothing_and_tells_both_reasons(cache, compiler, no_downloads):
    compiler(then="echo 'syntax error'; exit 1")
    said = []
    with pytest.raises(ToolError) as error:
        tools.runsc(said.append)
    assert "syntax error" in error.value.message and "Debian's" in error.value.message
    assert no_downloads == [["apt-get", "download", "-q", "runsc"]]
    assert [path.name for path in cache.iterdir()] == [".lock"]
    assert tools.find_runsc() is None


@pytest.mark.parametrize("says, cause", [
    ("dial tcp: lookup proxy: no such host", "cannot be reached"),
    ("write /x: No space left on device", "disk is full")])
def test_known_troubles_have_a_remedy(cache, compiler, no_downloads, says, cause):
    compiler(then=f"echo '{says}'; exit 1")
    with pytest.raises(ToolError, match=cause) as error:
        tools.runsc()
    assert error.value.remedy


def test_an_old_compiler_is_not_used(cache, compiler, no_downloads):
    compiler(version="1.19.8")
    said = []
    with pytest.raises(ToolError):
        tools.runsc(said.append)
    assert any(tools.GO_PACKAGE in words for words in no_downloads)
    assert any("fetching a Go compiler" in line for line in said)


def test_a_build_has_a_time_limit(cache, compiler, no_downloads, monkeypatch):
    compiler(then="sleep 60")
    monkeypatch.setattr(tools, "BUILD_LIMIT", 0.5)
    with pytest.raises(ToolError, match="did not end in"):
        tools.runsc()


def test_what_a_killed_build_left_goes(cache, compiler):
    compiler()
    (cache / f".runsc-{tools.RUNSC_VERSION}.new").mkdir(parents=True)
    (cache / ".go-left").mkdir()
    built = tools.runsc()
    assert sorted(path.name for path in cache.iterdir()) == [".lock", built.parent.name]


def test_an_installed_runsc_is_found(cache, compiler, tmp_path):
    compiler()
    installed = tmp_path / "bin" / "runsc"
    installed.write_text("#!/bin/sh\n")
    installed.chmod(0o755)
    assert tools.find_runsc() == installed


def test_a_cache_that_cannot_be_written(compiler, monkeypatch, tmp_path):
    compiler()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NEARMETAL_CACHE", str(tmp_path / "file"))
    with pytest.raises(ToolError, match="cannot be written") as error:
        tools.runsc()
    assert "NEARMETAL_CACHE" in error.value.remedy
