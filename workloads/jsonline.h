/* What every workload shares: JSON lines on standard output, the monotonic clock, options.
 *
 * One JSON object a line; types: metric, verify, elapsed, info, error. A program ends with
 * `return nm_finish();`, which prints its elapsed time and gives the exit status:
 * 0 when every check held, 1 when one failed. A wrong command line ends with status 2.
 */
#ifndef NM_JSONLINE_H
#define NM_JSONLINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An option `--name VALUE`. Bounds apply to NM_INT and NM_REAL. A flag takes no value. */
enum nm_kind { NM_INT, NM_REAL, NM_TEXT, NM_FLAG };
struct nm_option {
    const char *name;
    enum nm_kind kind;
    void *target; /* long *, double *, const char ** or bool *; holds the default */
    double low, high;
    const char *help;
};

/* Reads the command line. `--help` prints the options with defaults and ends with status 0; an
 * unknown option or a bad value prints one sentence on standard error and ends with status 2.
 * Also starts the clock of nm_finish(). A last argument `--corrupt`, which --help does not list,
 * makes nm_corrupt() true: the tests use it to see that a wrong answer is found. */
void nm_options(int argc, char **argv, const char *summary,
                const struct nm_option *options, size_t count);

/* Ends with status 2 after one sentence on standard error. */
_Noreturn void nm_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

bool nm_corrupt(void);

/* CLOCK_MONOTONIC in ns. */
uint64_t nm_now(void);

/* A metric line. `point` is NULL or the inside of a JSON object, `"bytes":%ld`. A value that is
 * not finite ends the program as an error: it is never printed as a number. */
void nm_metric(const char *name, double value, const char *unit, const char *better,
               const char *point, ...) __attribute__((format(printf, 5, 6)));

/* A check: prints it, remembers a failure for nm_finish(), returns `ok`. */
bool nm_verify(const char *what, bool ok, double value, double limit);

void nm_info_text(const char *key, const char *value);
void nm_info_number(const char *key, double value);

/* Prints an error line and ends with status 1. */
_Noreturn void nm_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

int nm_finish(void);

/* Statistics of samples: the array is sorted in place. `q` from 0 to 1 (nearest rank). */
double nm_quantile(double *values, size_t count, double q);

/* splitmix64: a small generator, the same sequence on every machine. */
uint64_t nm_random(uint64_t *state);
/* Uniform in [-0.5, 0.5). */
double nm_random_real(uint64_t *state);

#endif
