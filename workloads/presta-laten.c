/* MPI latency between pairs of processes, after `laten` of the Presta stress benchmark (LLNL), as
 * used by Youseff et al., "Evaluating the performance impact of Xen on MPI and process execution
 * for HPC systems" (2006), section 4.1 and figure 4.
 *
 * A test is `operations` ping-pongs of every pair at once between two readings of the clock. The
 * latency of a pair is the elapsed time / operations / 2, that is one way.
 *
 *   latency_max      the slowest pair of a test, mean over the tests (the paper's figure)
 *   latency_mean     mean over pairs and tests
 *   latency_median   median of single ping-pongs (one way), from one more test that reads
 *   latency_p99      the clock at each; its 99th percentile
 *
 * each for every number of processes of `--processes`; the others sleep meanwhile.
 */
#include "jsonline.h"
#include "mpi-common.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAG = 7, MOST = 64 };

static struct {
    int rank, size;
    bool neighbour;
    unsigned char *out, *in;
    double *samples, *gathered;
    long bytes, wrong;
} me;

/* `operations` ping-pongs; with `samples`, the ns of each. The first process of a pair serves. */
static void ping_pong(MPI_Comm comm, int partner, bool first, long operations, double *samples)
{
    uint64_t before = samples ? nm_now() : 0;
    for (long i = 0; i < operations; i++) {
        nm_stamp(me.out, (size_t)me.bytes, i);
        if (first)
            MPI_Send(me.out, (int)me.bytes, MPI_BYTE, partner, TAG, comm);
        MPI_Recv(me.in, (int)me.bytes, MPI_BYTE, partner, TAG, comm, MPI_STATUS_IGNORE);
        me.wrong += !nm_stamped(me.in, (size_t)me.bytes, i);
        if (!first)
            MPI_Send(me.out, (int)me.bytes, MPI_BYTE, partner, TAG, comm);
        if (samples) {
            uint64_t now = nm_now();
            samples[i] = (double)(now - before);
            before = now;
        }
    }
}

static void tail(MPI_Comm comm, int rank, int size, int partner, bool first, long operations)
{
    MPI_Barrier(comm);
    ping_pong(comm, partner, first, operations, me.samples);
    MPI_Gather(me.samples, (int)operations, MPI_DOUBLE, me.gathered, (int)operations, MPI_DOUBLE, 0,
               comm);
    if (rank != 0)
        return;
    /* Both ends of a pair time the same ping-pongs: take one of them. */
    size_t count = 0;
    for (int i = 0; i < size; i++)
        if (nm_first(i, size, me.neighbour)) {
            memmove(me.gathered + count, me.gathered + (size_t)i * (size_t)operations,
                    (size_t)operations * sizeof(double));
            count += (size_t)operations;
        }
    nm_metric("latency_median", nm_quantile(me.gathered, count, 0.5) / 2e3, "us", "lower",
              "\"processes\":%d", size);
    nm_metric("latency_p99", nm_quantile(me.gathered, count, 0.99) / 2e3, "us", "lower",
              "\"processes\":%d", size);
}

/* Seconds of the slowest process for `operations` ping-pongs, on every process. */
static double test(MPI_Comm comm, int partner, bool first, long operations, double *mine)
{
    double longest = 0;
    MPI_Barrier(comm);
    uint64_t t0 = nm_now();
    ping_pong(comm, partner, first, operations, NULL);
    *mine = (double)(nm_now() - t0) * 1e-9;
    MPI_Allreduce(mine, &longest, 1, MPI_DOUBLE, MPI_MAX, comm);
    return longest;
}

/* As many operations as fit the limit, the same number everywhere. */
static long fit(MPI_Comm comm, int partner, bool first, long operations, double seconds, long tests)
{
    double budget = seconds / (double)(tests + 2), mine;
    long trial = operations < 4 ? operations : 4;
    double took = test(comm, partner, first, trial, &mine);
    while (took < budget / 20 && trial < operations) {
        trial = trial * 4 < operations ? trial * 4 : operations;
        took = test(comm, partner, first, trial, &mine);
    }
    double again = test(comm, partner, first, trial, &mine);
    double possible = budget / (fmin(took, again) / (double)trial);
    if (possible >= (double)operations)
        return operations;
    return possible < 4 ? 4 : (long)possible;
}

static void measure(MPI_Comm comm, long operations, long tests, double seconds)
{
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    int partner = nm_partner(rank, size, me.neighbour);
    bool first = nm_first(rank, size, me.neighbour);
    nm_fill(me.out, (size_t)me.bytes, rank);
    memset(me.in, 0, (size_t)me.bytes);
    ping_pong(comm, partner, first, 10, NULL); /* connections */
    if (seconds > 0) {
        long fitting = fit(comm, partner, first, operations, seconds, tests);
        if (fitting < operations && rank == 0) {
            char name[40];
            snprintf(name, sizeof name, "operations_%d", size);
            nm_info_number(name, (double)fitting);
        }
        operations = fitting;
    }
    double sum_max = 0, sum_mean = 0;
    for (long i = 0; i < tests; i++) {
        double mine, sum = 0, to_us = 1e6 / (double)operations / 2.0;
        double longest = test(comm, partner, first, operations, &mine);
        MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, comm);
        sum_max += longest * to_us;
        sum_mean += sum / size * to_us;
    }
    if (nm_corrupt())
        me.in[0] ^= 1;
    me.wrong += !nm_stamped(me.in, (size_t)me.bytes, operations - 1);
    me.wrong += (long)nm_wrong(me.in, (size_t)me.bytes, partner);
    if (rank == 0) {
        nm_metric("latency_max", sum_max / (double)tests, "us", "lower", "\"processes\":%d", size);
        nm_metric("latency_mean", sum_mean / (double)tests, "us", "lower", "\"processes\":%d", size);
    }
    tail(comm, rank, size, partner, first, operations);
}

/* Reads "2,4,8". */
static int read_counts(const char *text, int counts[MOST])
{
    int found = 0;
    for (const char *at = text;; at++) {
        char *end;
        long value = strtol(at, &end, 10);
        if (end == at || (*end != ',' && *end != '\0') || value < 2 || value % 2 || found == MOST)
            nm_usage("--processes needs even numbers with commas, as 2,4,8, not '%s'.", text);
        counts[found++] = (int)value;
        at = end;
        if (*at == '\0')
            return found;
    }
}

int main(int argc, char **argv)
{
    long operations = 1000, tests = 3;
    double seconds = 0;
    const char *pairs = "neighbour", *processes = "2";
    int counts[MOST];
    me.bytes = 8;
    const struct nm_option options[] = {
        {"bytes", NM_INT, &me.bytes, 8, 1 << 30, "bytes of a message"},
        {"operations", NM_INT, &operations, 4, 1e7, "ping-pongs in a test"},
        {"tests", NM_INT, &tests, 1, 1e6, "tests of each number of processes"},
        {"processes", NM_TEXT, &processes, 0, 0, "numbers of communicating processes, as 2,4,8"},
        {"seconds", NM_REAL, &seconds, 0, 1e6,
         "limit for a number of processes; fewer operations when it would take longer; 0: none"},
        {"pairs", NM_TEXT, &pairs, 0, 0, "neighbour (0-1, 2-3) or half (i with i + size/2)"},
    };
    nm_options(argc, argv, "Presta laten: MPI ping-pong latency between pairs of processes.",
               options, 6);
    me.neighbour = nm_pairs(pairs);
    int found = read_counts(processes, counts);

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &me.size);
    for (int i = 0; i < found; i++)
        if (counts[i] > me.size) {
            if (me.rank == 0)
                nm_usage("--processes %d needs as many MPI processes, there are %d.", counts[i],
                         me.size);
            return 2;
        }
    me.out = malloc((size_t)me.bytes);
    me.in = malloc((size_t)me.bytes);
    me.samples = malloc((size_t)operations * sizeof(double));
    me.gathered = me.rank ? NULL : malloc((size_t)operations * (size_t)me.size * sizeof(double));
    if (!me.out || !me.in || !me.samples || (me.rank == 0 && !me.gathered))
        nm_fail("not enough memory for %ld operations", operations);
    if (me.rank == 0)
        nm_mpi_info(me.size);
    for (int i = 0; i < found; i++) {
        MPI_Comm comm;
        MPI_Comm_split(MPI_COMM_WORLD, me.rank < counts[i] ? 0 : MPI_UNDEFINED, me.rank, &comm);
        if (comm != MPI_COMM_NULL) {
            measure(comm, operations, tests, seconds);
            MPI_Comm_free(&comm);
        }
        nm_quiet_barrier(MPI_COMM_WORLD);
    }
    long wrong = 0;
    int status = 0;
    MPI_Reduce(&me.wrong, &wrong, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (me.rank == 0) {
        nm_verify("wrong bytes or messages", wrong == 0, (double)wrong, 0);
        status = nm_finish();
    }
    MPI_Finalize();
    return status;
}
