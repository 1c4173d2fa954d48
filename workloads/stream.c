/* Memory bandwidth in the manner of STREAM (McCalpin): copy, scale, add, triad on three arrays.
 *
 * Bytes are counted as STREAM counts them (16 for copy and scale, 24 for add and triad an element;
 * MB = 10^6 bytes). The first repetition is not counted. Best and mean (bytes / mean time) are
 * printed. The three arrays are checked at the end against the same arithmetic on scalars.
 */
#include "jsonline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const names[4] = {"copy", "scale", "add", "triad"};
static const double bytes_per_element[4] = {16, 16, 24, 24};
static const double scalar = 3.0, limit = 1e-13;

/* Not inlined, so that the compiler cannot merge or drop loops. */
__attribute__((noinline)) static void kernel(int which, double *restrict a, double *restrict b,
                                             double *restrict c, long n)
{
    switch (which) {
    case 0:
        /* The Makefile keeps the compiler from making this a call of memcpy. */
        for (long i = 0; i < n; i++)
            c[i] = a[i];
        break;
    case 1:
        for (long i = 0; i < n; i++)
            b[i] = scalar * c[i];
        break;
    case 2:
        for (long i = 0; i < n; i++)
            c[i] = a[i] + b[i];
        break;
    default:
        for (long i = 0; i < n; i++)
            a[i] = b[i] + scalar * c[i];
        break;
    }
}

/* Mean relative error of an array whose elements should all be `expected`. */
static double error_of(const double *v, long n, double expected)
{
    double sum = 0;
    for (long i = 0; i < n; i++)
        sum += fabs(v[i] - expected);
    return sum / (double)n / fabs(expected);
}

static void check(const double *a, const double *b, const double *c, long n, long repetitions)
{
    double ea = 1.0, eb = 2.0, ec = 0.0;
    for (long r = 0; r < repetitions; r++) {
        ec = ea;
        eb = scalar * ec;
        ec = ea + eb;
        ea = eb + scalar * ec;
        /* Keep the numbers in range for any number of repetitions, as main() does. */
        if (ea > 1e100)
            ea = 1.0;
    }
    double wrong[3] = {error_of(a, n, ea), error_of(b, n, eb), error_of(c, n, ec)};
    const char *const what[3] = {"error of array a", "error of array b", "error of array c"};
    for (int i = 0; i < 3; i++)
        nm_verify(what[i], wrong[i] <= limit, wrong[i], limit);
}

int main(int argc, char **argv)
{
    long n = 10000000, repetitions = 10;
    const struct nm_option options[] = {
        {"elements", NM_INT, &n, 1000, 4e9, "elements of each of the three arrays"},
        {"repetitions", NM_INT, &repetitions, 2, 100000, "repetitions; the first is not counted"},
    };
    nm_options(argc, argv, "STREAM: memory bandwidth by copy, scale, add and triad.", options, 2);
    size_t bytes = (size_t)n * sizeof(double);
    double *a = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    double *b = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    double *c = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!a || !b || !c)
        nm_fail("not enough memory for three arrays of %ld elements", n);
    for (long i = 0; i < n; i++) {
        a[i] = 1.0;
        b[i] = 2.0;
        c[i] = 0.0;
    }
    nm_info_number("array_bytes", (double)bytes);

    double total[4] = {0}, best[4] = {INFINITY, INFINITY, INFINITY, INFINITY};
    for (long r = 0; r < repetitions; r++) {
        for (int k = 0; k < 4; k++) {
            uint64_t t0 = nm_now();
            kernel(k, a, b, c, n);
            double seconds = (double)(nm_now() - t0) * 1e-9;
            if (r > 0) {
                total[k] += seconds;
                best[k] = seconds < best[k] ? seconds : best[k];
            }
        }
        if (a[0] > 1e100)
            for (long i = 0; i < n; i++)
                a[i] = 1.0;
    }
    if (nm_corrupt())
        b[n / 2] += 1.0 + b[n / 2];
    check(a, b, c, n, repetitions);
    for (int k = 0; k < 4; k++) {
        double moved = bytes_per_element[k] * (double)n * 1e-6;
        char name[16];
        nm_metric(names[k], moved / best[k], "MB/s", "higher", NULL);
        snprintf(name, sizeof name, "%s_mean", names[k]);
        nm_metric(name, moved / (total[k] / (double)(repetitions - 1)), "MB/s", "higher", NULL);
    }
    free(a), free(b), free(c);
    return nm_finish();
}
