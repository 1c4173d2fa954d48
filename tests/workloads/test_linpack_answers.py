"""LINPACK: the factors are those of LAPACK, and the printed residual is the true one."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program_lines import SOURCES, lines_of
from scipy.linalg import lu_factor


def info_of(text):
    return {key: value for item in lines_of(text, "info") for key, value in item.items()}


def splitmix(seed):
    """The generator of jsonline.c, after Steele, Lea and Flood (2014)."""
    mask = 2**64 - 1
    while True:
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        z = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        yield ((z ^ (z >> 31)) >> 11) * 2.0**-53 - 0.5


def matrix(n, seed):
    numbers = splitmix(seed)
    return np.array([next(numbers) for _ in range(n * n)]).reshape((n, n), order="F")


@pytest.fixture(scope="module")
def kernels(programs):
    """The Fortran routines as a shared library."""
    library = programs / "linpack.so"
    subprocess.run(["gfortran", "-O1", "-shared", "-fPIC", f"-J{programs}", "-o", str(library),
                    str(SOURCES / "linpack.f90")], check=True, timeout=60)
    return ctypes.CDLL(str(library))


def dgefa(kernels, a):
    n = a.shape[0]
    factors = np.asfortranarray(a.copy())
    pivots, info = np.zeros(n, dtype=np.int32), ctypes.c_int()
    kernels.nm_dgefa(factors.ctypes.data_as(ctypes.c_void_p), n, n,
                     pivots.ctypes.data_as(ctypes.c_void_p), ctypes.byref(info))
    return factors, pivots, info.value


def dgesl(kernels, factors, pivots, b):
    n, x = factors.shape[0], b.copy()
    kernels.nm_dgesl(factors.ctypes.data_as(ctypes.c_void_p), n, n,
                     pivots.ctypes.data_as(ctypes.c_void_p), x.ctypes.data_as(ctypes.c_void_p))
    return x


@settings(deadline=None)
@given(n=st.integers(1, 30), seed=st.integers(0, 2**32))
def test_the_factors_are_lapacks(kernels, n, seed):
    a = matrix(n, seed)
    factors, pivots, info = dgefa(kernels, a)
    expected, rows = lu_factor(a)
    assert info == 0
    assert (pivots - 1 == rows).all()
    assert np.triu(factors) == pytest.approx(np.triu(expected), rel=1e-9, abs=1e-11)
    x = dgesl(kernels, factors, pivots, a.sum(axis=1))
    assert np.abs(a @ x - a.sum(axis=1)).max() < 1e-11


def test_a_known_system(kernels):
    """2x + y = 5, 4x + y = 9: x = 2, y = 1; the second row is the first pivot."""
    factors, pivots, _ = dgefa(kernels, np.array([[2.0, 1.0], [4.0, 1.0]]))
    assert pivots.tolist() == [2, 2]
    assert dgesl(kernels, factors, pivots, np.array([5.0, 9.0])).tolist() == [2.0, 1.0]


def test_a_singular_matrix_is_told(kernels):
    assert dgefa(kernels, np.zeros((3, 3)))[2] == 3
    assert dgefa(kernels, np.array([[1.0, 2.0], [2.0, 4.0]]))[2] == 2


@pytest.mark.parametrize("variant", ["dgefa", "blas"])
def test_the_residual_is_that_of_the_same_system_in_numpy(run, kernels, variant):
    n, seed = 60, 7
    done = run("linpack", "--n", str(n), "--seed", str(seed), "--variant", variant)
    info = info_of(done.stdout)
    a = matrix(n, seed)
    # b as the program adds it up, column by column.
    b = np.zeros(n)
    for j in range(n):
        b = b + a[:, j]
    if variant == "dgefa":
        factors, pivots, _ = dgefa(kernels, a)
        x = dgesl(kernels, factors, pivots, b)
        assert info["x_error"] == pytest.approx(np.abs(x - 1).max(), rel=1e-9)
    eps = np.finfo(float).eps
    scale = n * np.abs(a).max() * eps
    assert info["norm_resid"] == pytest.approx(info["resid"] / scale, rel=1e-6)
    check = lines_of(done.stdout, "verify")[0]
    norms = np.abs(a).sum(axis=1).max() + np.abs(b).max()
    assert check["value"] == pytest.approx(info["resid"] / (eps * norms * n), rel=1e-6)
    assert check["limit"] == 16
    assert 0 < info["norm_resid"] < 16


def test_the_rate_is_operations_by_time(run):
    done = run("linpack", "--n", "200")
    values = {item["metric"]: item["value"] for item in lines_of(done.stdout, "metric")}
    operations = 2 / 3 * 200**3 + 2 * 200**2
    assert values["rate"] == pytest.approx(operations / values["total_time"] / 1e6, rel=1e-6)
    assert values["total_time"] == pytest.approx(values["factor_time"] + values["solve_time"])
