/* MPI bandwidth between pairs of processes, after `com` of the Presta stress benchmark (LLNL), as
 * used by Youseff et al., "Evaluating the performance impact of Xen on MPI and process execution
 * for HPC systems" (2006), section 4.1.
 *
 * A test is `operations` messages between two readings of the clock. Unidirectional: the first
 * process of a pair sends, the other receives, and at the end answers with one empty message, so
 * that the last byte has arrived when the clock is read. Bidirectional: both send and receive at
 * once. A test's time is that of its slowest process.
 *
 *   bandwidth     all bytes of all pairs (both directions) / time, in MB/s (MB = 10^6 bytes),
 *                 mean over the tests as total bytes / total time; `_max` is the best test
 *   optime        time of the slowest process / operations, in us, mean over the tests
 *
 * Every message carries its number, which the receiver compares; a whole message is compared byte
 * by byte before and after the tests of a size.
 */
#include "jsonline.h"
#include "mpi-common.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAG = 7, TAG_END = 8 };

static struct {
    int rank, size, partner;
    bool sender;
    unsigned char *out, *in;
    long wrong; /* messages or bytes that were not what they should be */
    MPI_Comm comm;
} me;

static void unidirectional(long bytes, long operations)
{
    if (me.sender) {
        for (long i = 0; i < operations; i++) {
            nm_stamp(me.out, (size_t)bytes, i);
            MPI_Send(me.out, (int)bytes, MPI_BYTE, me.partner, TAG, me.comm);
        }
        MPI_Recv(NULL, 0, MPI_BYTE, me.partner, TAG_END, me.comm, MPI_STATUS_IGNORE);
        return;
    }
    for (long i = 0; i < operations; i++) {
        MPI_Recv(me.in, (int)bytes, MPI_BYTE, me.partner, TAG, me.comm, MPI_STATUS_IGNORE);
        me.wrong += !nm_stamped(me.in, (size_t)bytes, i);
    }
    MPI_Send(NULL, 0, MPI_BYTE, me.partner, TAG_END, me.comm);
}

static void bidirectional(long bytes, long operations)
{
    for (long i = 0; i < operations; i++) {
        MPI_Request requests[2];
        MPI_Status statuses[2];
        nm_stamp(me.out, (size_t)bytes, i);
        MPI_Irecv(me.in, (int)bytes, MPI_BYTE, me.partner, TAG, me.comm, &requests[0]);
        MPI_Isend(me.out, (int)bytes, MPI_BYTE, me.partner, TAG, me.comm, &requests[1]);
        MPI_Waitall(2, requests, statuses);
        me.wrong += !nm_stamped(me.in, (size_t)bytes, i);
    }
}

/* One test; returns the seconds of the slowest process, on every process. */
static double test(bool both, long bytes, long operations)
{
    double longest = 0;
    MPI_Barrier(me.comm);
    uint64_t t0 = nm_now();
    if (both)
        bidirectional(bytes, operations);
    else
        unidirectional(bytes, operations);
    double mine = (double)(nm_now() - t0) * 1e-9;
    MPI_Allreduce(&mine, &longest, 1, MPI_DOUBLE, MPI_MAX, me.comm);
    return longest;
}

/* Whether the message received last is the partner's, byte by byte. */
static void compare(bool both, long bytes)
{
    if (!both && me.sender)
        return;
    if (nm_corrupt())
        me.in[(size_t)bytes / 2] ^= 1;
    me.wrong += (long)nm_wrong(me.in, (size_t)bytes, me.partner);
}

/* Operations that fit into the limit, from a growing trial; the same number on every process. */
static long fit(bool both, long bytes, long operations, double seconds, long tests)
{
    double budget = seconds / (double)(tests + 1);
    long trial = 1;
    double took = test(both, bytes, trial);
    while (took < budget / 20 && trial < operations) {
        trial = trial * 4 < operations ? trial * 4 : operations;
        took = test(both, bytes, trial);
    }
    /* Once more: a first long message, or a neighbour, must not decide alone. */
    double again = test(both, bytes, trial);
    double possible = budget / (fmin(took, again) / (double)trial);
    if (possible >= (double)operations)
        return operations;
    return possible < 2 ? 2 : (long)possible;
}

static void measure(bool both, long bytes, long operations, long tests, double seconds)
{
    const char *mode = both ? "bi" : "uni";
    char name[32];
    nm_fill(me.out, (size_t)bytes, me.rank);
    memset(me.in, 0, (size_t)bytes);
    test(both, bytes, 2); /* connections, first page faults */
    compare(both, bytes);
    memset(me.in, 0, (size_t)bytes);
    if (seconds > 0) {
        long fitting = fit(both, bytes, operations, seconds, tests);
        if (fitting < operations && me.rank == 0) {
            snprintf(name, sizeof name, "%s_operations_%ld", mode, bytes);
            nm_info_number(name, (double)fitting);
        }
        operations = fitting < operations ? fitting : operations;
    }
    double total = 0, best = INFINITY;
    for (long i = 0; i < tests; i++) {
        double took = test(both, bytes, operations);
        total += took;
        best = took < best ? took : best;
    }
    compare(both, bytes);
    if (me.rank != 0)
        return;
    double megabytes = (double)bytes * (double)operations * (me.size / 2) * (both ? 2 : 1) * 1e-6;
    snprintf(name, sizeof name, "%s_bandwidth", mode);
    nm_metric(name, megabytes * (double)tests / total, "MB/s", "higher", "\"bytes\":%ld", bytes);
    snprintf(name, sizeof name, "%s_bandwidth_max", mode);
    nm_metric(name, megabytes / best, "MB/s", "higher", "\"bytes\":%ld", bytes);
    snprintf(name, sizeof name, "%s_optime", mode);
    nm_metric(name, total / (double)tests / (double)operations * 1e6, "us", "lower",
              "\"bytes\":%ld", bytes);
}

int main(int argc, char **argv)
{
    long low = 32, high = 8388608, operations = 1000, tests = 3;
    double seconds = 0;
    const char *mode = "both", *pairs = "neighbour";
    const struct nm_option options[] = {
        {"min", NM_INT, &low, 1, 1 << 30, "smallest message in bytes; sizes double from there"},
        {"max", NM_INT, &high, 1, 1 << 30, "largest message in bytes"},
        {"operations", NM_INT, &operations, 1, 1e9, "messages in a test"},
        {"tests", NM_INT, &tests, 1, 1e6, "tests of each size"},
        {"mode", NM_TEXT, &mode, 0, 0, "uni, bi or both"},
        {"seconds", NM_REAL, &seconds, 0, 1e6,
         "limit for a size and mode; fewer operations when it would take longer; 0: none"},
        {"pairs", NM_TEXT, &pairs, 0, 0, "neighbour (0-1, 2-3) or half (i with i + size/2)"},
    };
    nm_options(argc, argv, "Presta com: MPI bandwidth between pairs of processes.", options, 7);
    bool uni = strcmp(mode, "bi") != 0, bi = strcmp(mode, "uni") != 0;
    if (uni && bi && strcmp(mode, "both") != 0)
        nm_usage("--mode must be uni, bi or both, not '%s'.", mode);
    if (high < low)
        nm_usage("--max %ld is smaller than --min %ld.", high, low);
    bool neighbour = nm_pairs(pairs);

    MPI_Init(&argc, &argv);
    me.comm = MPI_COMM_WORLD;
    MPI_Comm_rank(me.comm, &me.rank);
    MPI_Comm_size(me.comm, &me.size);
    if (me.size % 2) {
        if (me.rank == 0)
            nm_usage("an even number of MPI processes is needed, not %d.", me.size);
        return 2;
    }
    me.partner = nm_partner(me.rank, me.size, neighbour);
    me.sender = nm_first(me.rank, me.size, neighbour);
    me.out = malloc((size_t)high);
    me.in = malloc((size_t)high);
    if (!me.out || !me.in)
        nm_fail("not enough memory for messages of %ld bytes", high);
    if (me.rank == 0)
        nm_mpi_info(me.size);
    for (long bytes = low; bytes <= high; bytes *= 2) {
        if (uni)
            measure(false, bytes, operations, tests, seconds);
        if (bi)
            measure(true, bytes, operations, tests, seconds);
    }
    long wrong = 0;
    MPI_Reduce(&me.wrong, &wrong, 1, MPI_LONG, MPI_SUM, 0, me.comm);
    int status = 0;
    if (me.rank == 0) {
        nm_verify("wrong bytes or messages", wrong == 0, (double)wrong, 0);
        status = nm_finish();
    }
    MPI_Finalize();
    return status;
}
