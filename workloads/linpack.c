/* The LINPACK benchmark: solve a dense system of n equations by LU with partial pivoting.
 *
 * Variants: `dgefa` is the classical column-oriented code (linpack.f90), `blas` is dgetrf/dgetrs of
 * OpenBLAS. Reported as in Dongarra, "The LINPACK benchmark: an explanation": the time to factor,
 * the time to solve, their sum, and (2/3 n^3 + 2 n^2) / total in MFLOP/s.
 *
 * The matrix is random, uniform in [-0.5, 0.5), and b holds the row sums, so x is all ones.
 * Checked: max|b - Ax| / (eps * (|A| * |x| + |b|) * n) <= 16 in infinity norms, the check of HPL
 * and of LINPACK's own driver in the same spirit (LINPACK divides by n * max|a| * max|x| * eps; that
 * figure is printed as `norm_resid`, of order 1 to 10, for comparison with old results).
 */
#include "blas.h"
#include "jsonline.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void nm_dgefa(double *a, int lda, int n, int *ipvt, int *info);
void nm_dgesl(const double *a, int lda, int n, const int *ipvt, double *b);
void dgetrf_(const int *m, const int *n, double *a, const int *lda, int *ipiv, int *info);
void dgetrs_(const char *trans, const int *n, const int *nrhs, const double *a, const int *lda,
             const int *ipiv, double *b, const int *ldb, int *info, size_t trans_length);

static const double limit = 16.0;

/* The same matrix every time for a seed; column by column. */
static void generate(double *a, long n, long lda, long seed, double *b)
{
    uint64_t state = (uint64_t)seed;
    memset(b, 0, (size_t)n * sizeof *b);
    for (long j = 0; j < n; j++)
        for (long i = 0; i < n; i++) {
            double value = nm_random_real(&state);
            a[j * lda + i] = value;
            b[i] += value;
        }
}

static double norm(const double *v, long n)
{
    double largest = 0;
    for (long i = 0; i < n; i++)
        /* Not fmax: a NaN must not be lost. */
        if (!(fabs(v[i]) <= largest))
            largest = fabs(v[i]);
    return largest;
}

/* Generates the system anew into a and b and checks x against it. */
static void check(double *a, long n, long lda, long seed, const double *x, double *b, double *rows)
{
    double largest = 0, error = 0;
    generate(a, n, lda, seed, b);
    double norm_b = norm(b, n);
    memset(rows, 0, (size_t)n * sizeof *rows);
    for (long j = 0; j < n; j++)
        for (long i = 0; i < n; i++) {
            double value = a[j * lda + i];
            rows[i] += fabs(value);
            if (fabs(value) > largest)
                largest = fabs(value);
            b[i] -= value * x[j];
        }
    double residual = norm(b, n), norm_x = norm(x, n);
    for (long i = 0; i < n; i++)
        if (!(fabs(x[i] - 1.0) <= error))
            error = fabs(x[i] - 1.0);
    double scaled = residual / (DBL_EPSILON * (norm(rows, n) * norm_x + norm_b) * (double)n);
    nm_info_number("resid", residual);
    nm_info_number("norm_resid", residual / ((double)n * largest * norm_x * DBL_EPSILON));
    nm_info_number("x_error", error);
    nm_verify("scaled residual", scaled <= limit, scaled, limit);
}

static void solve(bool blas, double *a, int lda, int n, int *pivots, double *x,
                  double *factor_s, double *solve_s)
{
    int info = 0, one = 1;
    uint64_t t0 = nm_now();
    if (blas)
        dgetrf_(&n, &n, a, &lda, pivots, &info);
    else
        nm_dgefa(a, lda, n, pivots, &info);
    uint64_t t1 = nm_now();
    if (info != 0)
        nm_fail("the matrix is singular at column %d", info);
    if (blas)
        dgetrs_("N", &n, &one, a, &lda, pivots, x, &n, &info, 1);
    else
        nm_dgesl(a, lda, n, pivots, x);
    uint64_t t2 = nm_now();
    *factor_s = (double)(t1 - t0) * 1e-9;
    *solve_s = (double)(t2 - t1) * 1e-9;
}

int main(int argc, char **argv)
{
    long n = 3000, seed = 1, threads = 1;
    const char *variant = "dgefa", *core = "auto";
    const struct nm_option options[] = {
        {"n", NM_INT, &n, 1, 40000, "number of equations"},
        {"variant", NM_TEXT, &variant, 0, 0, "dgefa (serial Fortran) or blas (OpenBLAS)"},
        {"threads", NM_INT, &threads, 1, 1024, "threads of OpenBLAS; for blas only"},
        {"core", NM_TEXT, &core, 0, 0,
         "kernels of OpenBLAS: auto, Prescott, Haswell, SkylakeX...; for blas only"},
        {"seed", NM_INT, &seed, 0, 1e15, "seed of the matrix"},
    };
    nm_options(argc, argv, "LINPACK: solve a dense system of linear equations.", options, 5);
    bool blas = strcmp(variant, "blas") == 0;
    if (!blas && strcmp(variant, "dgefa") != 0)
        nm_usage("--variant must be dgefa or blas, not '%s'.", variant);
    nm_blas_setup(argv, threads, core);

    long lda = n + 1; /* as in LINPACK's driver: columns do not all start in one cache set */
    double *a = malloc((size_t)lda * (size_t)n * sizeof *a), *x = malloc((size_t)n * sizeof *x);
    double *b = malloc((size_t)n * sizeof *b), *rows = malloc((size_t)n * sizeof *rows);
    int *pivots = malloc((size_t)n * sizeof *pivots);
    if (!a || !x || !b || !rows || !pivots)
        nm_fail("not enough memory for n = %ld", n);
    nm_info_text("variant", variant);
    if (blas)
        nm_blas_info();

    double factor_s, solve_s;
    generate(a, n, lda, seed, x);
    solve(blas, a, (int)lda, (int)n, pivots, x, &factor_s, &solve_s);
    if (nm_corrupt())
        x[n / 2] += 1e-3;
    check(a, n, lda, seed, x, b, rows);

    double size = (double)n, operations = 2.0 / 3.0 * size * size * size + 2.0 * size * size;
    nm_metric("factor_time", factor_s, "s", "lower", NULL);
    nm_metric("solve_time", solve_s, "s", "lower", NULL);
    nm_metric("total_time", factor_s + solve_s, "s", "lower", NULL);
    nm_metric("rate", operations / (factor_s + solve_s) * 1e-6, "MFLOP/s", "higher", NULL);
    free(a), free(x), free(b), free(rows), free(pivots);
    return nm_finish();
}
