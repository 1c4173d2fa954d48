/* Matrix multiplication C = A * B in double precision by OpenBLAS (cblas_dgemm).
 *
 * The last product is checked twice: by Freivalds' method, C r = A (B r) for random vectors r of
 * +1 and -1, and element by element for a few random rows. Both are scaled so that 16 is the limit:
 * |difference| / (eps * n * bound), where the bound is what the elements can add up to.
 */
#include "blas.h"
#include "jsonline.h"

#include <cblas.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

static const double limit = 16.0;

static void multiply(const double *matrix, const double *v, double *out, long n)
{
    for (long i = 0; i < n; i++) {
        double sum = 0;
        for (long j = 0; j < n; j++)
            sum += matrix[i * n + j] * v[j];
        out[i] = sum;
    }
}

/* Largest scaled error of C r - A (B r). |a|, |b| <= 1/2, so |c| <= n/4; sums of them behave as
 * a random walk, and the bound sqrt(n) * n/4 keeps a single wrong element of size 1 visible. */
static double freivalds(const double *a, const double *b, const double *c, long n, uint64_t *state)
{
    double worst = 0;
    double *r = malloc((size_t)n * 4 * sizeof *r);
    if (!r)
        nm_fail("not enough memory to check");
    double *br = r + n, *abr = r + 2 * n, *cr = r + 3 * n;
    for (int round = 0; round < 3; round++) {
        for (long i = 0; i < n; i++)
            r[i] = (nm_random(state) >> 63) ? 1.0 : -1.0;
        multiply(b, r, br, n);
        multiply(a, br, abr, n);
        multiply(c, r, cr, n);
        for (long i = 0; i < n; i++) {
            double scaled = fabs(cr[i] - abr[i])
                            / (DBL_EPSILON * (double)n * sqrt((double)n) * 0.25);
            if (!(scaled <= worst))
                worst = scaled;
        }
    }
    free(r);
    return worst;
}

/* Largest scaled error over all elements of a few rows, each computed by the definition. */
static double rows(const double *a, const double *b, const double *c, long n, uint64_t *state)
{
    double worst = 0;
    for (int round = 0; round < 4; round++) {
        long i = (long)(nm_random(state) % (uint64_t)n);
        for (long j = 0; j < n; j++) {
            double sum = 0, bound = 0;
            for (long k = 0; k < n; k++) {
                sum += a[i * n + k] * b[k * n + j];
                bound += fabs(a[i * n + k] * b[k * n + j]);
            }
            double scaled = fabs(c[i * n + j] - sum) / (DBL_EPSILON * (double)n * bound);
            if (!(scaled <= worst))
                worst = scaled;
        }
    }
    return worst;
}

int main(int argc, char **argv)
{
    long n = 1000, repetitions = 10, threads = 1, seed = 1;
    const char *core = "auto";
    const struct nm_option options[] = {
        {"n", NM_INT, &n, 1, 40000, "order of the matrices"},
        {"repetitions", NM_INT, &repetitions, 1, 1e6, "multiplications timed"},
        {"threads", NM_INT, &threads, 1, 1024, "threads of OpenBLAS"},
        {"core", NM_TEXT, &core, 0, 0, "kernels of OpenBLAS: auto, Prescott, Haswell, SkylakeX..."},
        {"seed", NM_INT, &seed, 0, 1e15, "seed of the matrices"},
    };
    nm_options(argc, argv, "DGEMM: multiply two matrices with OpenBLAS.", options, 5);
    nm_blas_setup(argv, threads, core);

    size_t elements = (size_t)n * (size_t)n;
    double *a = malloc(elements * sizeof *a), *b = malloc(elements * sizeof *b);
    double *c = calloc(elements, sizeof *c);
    double *times = malloc((size_t)repetitions * sizeof *times);
    if (!a || !b || !c || !times)
        nm_fail("not enough memory for n = %ld", n);
    uint64_t state = (uint64_t)seed;
    for (size_t i = 0; i < elements; i++) {
        a[i] = nm_random_real(&state);
        b[i] = nm_random_real(&state);
    }
    nm_blas_info();

    double total = 0, size = (double)n, operations = 2.0 * size * size * size;
    /* One product before the clock starts: page faults, caches, the threads of OpenBLAS. */
    for (long i = -1; i < repetitions; i++) {
        uint64_t t0 = nm_now();
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)n, (int)n, (int)n, 1.0, a,
                    (int)n, b, (int)n, 0.0, c, (int)n);
        double seconds = (double)(nm_now() - t0) * 1e-9;
        if (i >= 0) {
            times[i] = seconds;
            total += seconds;
        }
    }
    if (nm_corrupt())
        c[elements / 2] += 1e-3;
    double by_vectors = freivalds(a, b, c, n, &state), by_rows = rows(a, b, c, n, &state);
    nm_verify("product with random vectors", by_vectors <= limit, by_vectors, limit);
    nm_verify("elements of random rows", by_rows <= limit, by_rows, limit);
    nm_metric("rate", operations * (double)repetitions / total * 1e-9, "GFLOP/s", "higher", NULL);
    double best = nm_quantile(times, (size_t)repetitions, 0.0);
    nm_metric("rate_best", operations / best * 1e-9, "GFLOP/s", "higher", NULL);
    free(a), free(b), free(c), free(times);
    return nm_finish();
}
