/* What the operating system's basic operations cost, in ns an operation: median and tail.
 *
 *   syscall   getppid by a raw system call                       100 operations a sample
 *   clock     clock_gettime(CLOCK_MONOTONIC)                     100
 *   handoff   a word handed to another thread by futex            10 (one way)
 *   switch    a byte handed to another process by a pipe          10 (one way)
 *   fault     first touch of a page of private anonymous memory  256
 *   mmap      mmap and munmap of 64 KiB, first page touched       10
 *   forkexec  fork, exec of itself, wait                           1
 *
 * A sample is the mean over that many operations between two readings of the clock; the number is
 * the same everywhere, so that the tail (99th percentile of the samples) compares. A test goes on
 * until its time is used up, but takes at least MINIMUM samples, so a slow emulator ends in time.
 * The two threads or processes of handoff and switch are bound to one processor unless --pin 0:
 * then each hand-over is a switch. Every test checks what its operations returned.
 */
#define _GNU_SOURCE
#include "jsonline.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MINIMUM = 5, MOST = 200000, CHILD_STATUS = 7, FAULT_PAGES = 256, MMAP_BYTES = 65536 };

static double *samples;
static size_t count;
static uint64_t deadline;
static long wrong; /* of the test under way */
static const char *self;

static bool more(void)
{
    return count < MOST && (count < MINIMUM || nm_now() < deadline);
}

static void sample(uint64_t t0, long operations)
{
    samples[count++] = (double)(nm_now() - t0) / (double)operations;
}

static void test_syscall(void)
{
    long parent = (long)getppid();
    while (more()) {
        long sum = 0;
        uint64_t t0 = nm_now();
        for (int i = 0; i < 100; i++)
            sum += syscall(SYS_getppid);
        sample(t0, 100);
        wrong += sum != 100 * parent;
    }
}

static void test_clock(void)
{
    while (more()) {
        uint64_t last = nm_now(), t0 = last;
        for (int i = 0; i < 100; i++) {
            uint64_t now = nm_now();
            wrong += now < last;
            last = now;
        }
        sample(t0, 100);
    }
}

/* --- thread hand-off --- */

static _Atomic uint32_t turn, stop;

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void pass(uint32_t to)
{
    atomic_store(&turn, to);
    syscall(SYS_futex, &turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void wait_for(uint32_t mine)
{
    while (atomic_load(&turn) != mine)
        futex_wait(&turn, 1 - mine);
}

static void *partner_thread(void *argument)
{
    long *seen = argument;
    for (;;) {
        wait_for(1);
        if (atomic_load(&stop))
            return NULL;
        ++*seen;
        pass(0);
    }
}

static void test_handoff(void)
{
    pthread_t thread;
    long seen = 0, passed = 0;
    atomic_store(&turn, 0);
    atomic_store(&stop, 0);
    if (pthread_create(&thread, NULL, partner_thread, &seen))
        nm_fail("handoff: no second thread");
    while (more()) {
        uint64_t t0 = nm_now();
        for (int i = 0; i < 5; i++) {
            pass(1);
            wait_for(0);
        }
        sample(t0, 10);
        passed += 5;
    }
    atomic_store(&stop, 1);
    pass(1);
    pthread_join(thread, NULL);
    wrong += seen != passed;
}

/* --- context switch --- */

static void test_switch(void)
{
    int there[2], back[2];
    unsigned char token = 0, answer = 0;
    if (pipe(there) || pipe(back))
        nm_fail("switch: no pipe: %s", strerror(errno));
    fflush(stdout);
    pid_t child = fork();
    if (child < 0)
        nm_fail("switch: no second process: %s", strerror(errno));
    if (child == 0) {
        close(there[1]);
        close(back[0]);
        while (read(there[0], &token, 1) == 1) {
            token++;
            if (write(back[1], &token, 1) != 1)
                break;
        }
        _exit(0);
    }
    close(there[0]);
    close(back[1]);
    while (more()) {
        uint64_t t0 = nm_now();
        for (int i = 0; i < 5; i++) {
            token = (unsigned char)(count + (size_t)i);
            if (write(there[1], &token, 1) != 1 || read(back[0], &answer, 1) != 1)
                nm_fail("switch: the pipe broke: %s", strerror(errno));
            wrong += answer != (unsigned char)(token + 1);
        }
        sample(t0, 10);
    }
    close(there[1]);
    close(back[0]);
    int status = -1;
    wrong += waitpid(child, &status, 0) != child || status != 0;
}

/* --- memory --- */

static void *map(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        nm_fail("mmap: %s", strerror(errno));
    return p;
}

static void test_fault(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = FAULT_PAGES * page;
    while (more()) {
        volatile unsigned char *p = map(bytes);
        madvise((void *)p, bytes, MADV_NOHUGEPAGE); /* a fault a page; kernels without it have none */
        unsigned sum = 0;
        uint64_t t0 = nm_now();
        for (size_t i = 0; i < bytes; i += page) {
            sum += p[i + 8];
            p[i] = 1;
        }
        sample(t0, FAULT_PAGES);
        wrong += sum != 0;
        munmap((void *)p, bytes);
    }
}

static void test_mmap(void)
{
    while (more()) {
        uint64_t t0 = nm_now();
        for (int i = 0; i < 10; i++) {
            volatile unsigned char *p = map(MMAP_BYTES);
            wrong += p[0] != 0;
            p[0] = 1;
            wrong += munmap((void *)p, MMAP_BYTES) != 0;
        }
        sample(t0, 10);
    }
}

static void test_forkexec(void)
{
    char *const arguments[] = {(char *)self, "--child", NULL};
    fflush(stdout);
    while (more()) {
        int status = -1;
        uint64_t t0 = nm_now();
        pid_t child = fork();
        if (child < 0)
            nm_fail("forkexec: fork: %s", strerror(errno));
        if (child == 0) {
            execv(self, arguments);
            _exit(127);
        }
        pid_t ended = waitpid(child, &status, 0);
        sample(t0, 1);
        wrong += ended != child || !WIFEXITED(status) || WEXITSTATUS(status) != CHILD_STATUS;
    }
}

static const struct {
    const char *name;
    void (*run)(void);
    bool pair; /* two that take turns: bound to one processor */
} tests[] = {
    {"syscall", test_syscall, false}, {"clock", test_clock, false},
    {"handoff", test_handoff, true},  {"switch", test_switch, true},
    {"fault", test_fault, false},     {"mmap", test_mmap, false},
    {"forkexec", test_forkexec, false},
};
enum { TESTS = sizeof tests / sizeof *tests };

/* Binds this process to the processor it is on; false where that is not possible. */
static bool bind_here(cpu_set_t *before)
{
    cpu_set_t one;
    int cpu = sched_getcpu();
    if (cpu < 0 || sched_getaffinity(0, sizeof *before, before) != 0)
        return false;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return sched_setaffinity(0, sizeof one, &one) == 0;
}

static void run(int index, double seconds, bool pin)
{
    char name[32];
    cpu_set_t before;
    bool bound = pin && tests[index].pair && bind_here(&before);
    count = 0;
    wrong = 0;
    deadline = nm_now() + (uint64_t)(seconds * 1e9);
    tests[index].run();
    if (bound)
        sched_setaffinity(0, sizeof before, &before);
    if (pin && tests[index].pair && !bound) {
        snprintf(name, sizeof name, "%s_unpinned", tests[index].name);
        nm_info_number(name, 1);
    }
    snprintf(name, sizeof name, "%s_samples", tests[index].name);
    nm_info_number(name, (double)count);
    if (nm_corrupt())
        wrong++;
    snprintf(name, sizeof name, "wrong results of %s", tests[index].name);
    nm_verify(name, wrong == 0, (double)wrong, 0);
    nm_metric(tests[index].name, nm_quantile(samples, count, 0.5), "ns", "lower", NULL);
    snprintf(name, sizeof name, "%s_p99", tests[index].name);
    nm_metric(name, nm_quantile(samples, count, 0.99), "ns", "lower", NULL);
}

/* Marks the tests that the list names. */
static void choose(const char *list, bool chosen[TESTS])
{
    for (const char *at = list;;) {
        size_t length = strcspn(at, ",");
        bool found = false;
        for (int i = 0; i < TESTS; i++)
            if ((length == 3 && strncmp(at, "all", 3) == 0)
                || (strlen(tests[i].name) == length && strncmp(at, tests[i].name, length) == 0))
                found = chosen[i] = true;
        if (!found)
            nm_usage("there is no test '%.*s'; there are syscall, clock, handoff, switch, fault, "
                     "mmap, forkexec.", (int)length, at);
        if (at[length] == '\0')
            return;
        at += length + 1;
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--child") == 0)
        return CHILD_STATUS;
    double seconds = 0.1;
    long pin = 1;
    const char *list = "all";
    bool chosen[TESTS] = {false};
    const struct nm_option options[] = {
        {"tests", NM_TEXT, &list, 0, 0,
         "all, or with commas: syscall,clock,handoff,switch,fault,mmap,forkexec"},
        {"seconds", NM_REAL, &seconds, 0.001, 3600, "time for each test"},
        {"pin", NM_INT, &pin, 0, 1, "1: handoff and switch on one processor"},
    };
    nm_options(argc, argv, "osbench: cost of basic operations of the operating system.", options, 3);
    choose(list, chosen);
    static char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    self = length > 0 ? path : argv[0];
    samples = malloc(MOST * sizeof *samples);
    if (!samples)
        nm_fail("not enough memory");
    memset(samples, 0, MOST * sizeof *samples); /* no page faults of our own in a sample */
    for (int i = 0; i < TESTS; i++)
        if (chosen[i])
            run(i, seconds, pin != 0);
    free(samples);
    return nm_finish();
}
