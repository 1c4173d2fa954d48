#define _GNU_SOURCE
#include "jsonline.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *program = "workload";
static uint64_t started;
static bool failed, corrupt;

uint64_t nm_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

bool nm_corrupt(void) { return corrupt; }

void nm_usage(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s: ", program);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(2);
}

static void show_default(const struct nm_option *option)
{
    switch (option->kind) {
    case NM_INT: printf(" [%ld]", *(long *)option->target); break;
    case NM_REAL: printf(" [%g]", *(double *)option->target); break;
    case NM_TEXT: printf(" [%s]", *(const char **)option->target); break;
    case NM_FLAG: break;
    }
}

static _Noreturn void help(const char *summary, const struct nm_option *options, size_t count)
{
    printf("%s\n\nusage: %s [--option VALUE ...]\n\n", summary, program);
    for (size_t i = 0; i < count; i++) {
        const char *value = options[i].kind == NM_FLAG ? "" : options[i].kind == NM_INT ? "N"
                            : options[i].kind == NM_REAL ? "X" : "TEXT";
        printf("  --%-12s %-5s %s", options[i].name, value, options[i].help);
        show_default(&options[i]);
        printf("\n");
    }
    printf("  --help             this text\n\n"
           "Prints JSON lines: metric, verify, info, elapsed. Exit status: 0 right, 1 wrong answer\n"
           "or error, 2 wrong command line.\n");
    exit(0);
}

static void set(const struct nm_option *option, const char *text)
{
    char *end = NULL;
    if (option->kind == NM_TEXT) {
        *(const char **)option->target = text;
        return;
    }
    errno = 0;
    double value = option->kind == NM_INT ? (double)strtol(text, &end, 10) : strtod(text, &end);
    if (errno || end == text || *end != '\0' || !isfinite(value))
        nm_usage("--%s needs %s, not '%s'.", option->name,
                 option->kind == NM_INT ? "a whole number" : "a number", text);
    if (value < option->low || value > option->high)
        nm_usage("--%s must be from %.15g to %.15g, not %s.", option->name, option->low,
                 option->high, text);
    if (option->kind == NM_INT)
        *(long *)option->target = strtol(text, NULL, 10);
    else
        *(double *)option->target = value;
}

void nm_options(int argc, char **argv, const char *summary,
                const struct nm_option *options, size_t count)
{
    started = nm_now();
    if (argc > 0) {
        const char *slash = strrchr(argv[0], '/');
        program = slash ? slash + 1 : argv[0];
    }
    for (int i = 1; i < argc; i++) {
        const struct nm_option *found = NULL;
        if (strcmp(argv[i], "--help") == 0)
            help(summary, options, count);
        if (strcmp(argv[i], "--corrupt") == 0) {
            corrupt = true;
            continue;
        }
        for (size_t j = 0; j < count; j++)
            if (strncmp(argv[i], "--", 2) == 0 && strcmp(argv[i] + 2, options[j].name) == 0)
                found = &options[j];
        if (!found)
            nm_usage("there is no option '%s'; --help lists them.", argv[i]);
        if (found->kind == NM_FLAG)
            *(bool *)found->target = true;
        else if (++i >= argc)
            nm_usage("--%s needs a value.", found->name);
        else
            set(found, argv[i]);
    }
}

static void print_text(const char *text)
{
    putchar('"');
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            printf("\\%c", *c);
        else if (*c < 0x20)
            printf("\\u%04x", *c);
        else
            putchar(*c);
    }
    putchar('"');
}

static void print_number(double value)
{
    if (isfinite(value))
        printf("%.17g", value);
    else
        printf("null");
}

void nm_metric(const char *name, double value, const char *unit, const char *better,
               const char *point, ...)
{
    if (!isfinite(value))
        nm_fail("%s came out as %g", name, value);
    printf("{\"type\":\"metric\",\"metric\":\"%s\",\"value\":%.9g,\"unit\":\"%s\",\"better\":\"%s\"",
           name, value, unit, better);
    if (point) {
        va_list arguments;
        va_start(arguments, point);
        printf(",\"point\":{");
        vprintf(point, arguments);
        printf("}");
        va_end(arguments);
    }
    printf("}\n");
    fflush(stdout);
}

bool nm_verify(const char *what, bool ok, double value, double limit)
{
    printf("{\"type\":\"verify\",\"ok\":%s,\"what\":", ok ? "true" : "false");
    print_text(what);
    printf(",\"value\":");
    print_number(value);
    printf(",\"limit\":");
    print_number(limit);
    printf("}\n");
    fflush(stdout);
    failed = failed || !ok;
    return ok;
}

void nm_info_text(const char *key, const char *value)
{
    printf("{\"type\":\"info\",\"%s\":", key);
    print_text(value);
    printf("}\n");
}

void nm_info_number(const char *key, double value)
{
    printf("{\"type\":\"info\",\"%s\":", key);
    print_number(value);
    printf("}\n");
}

void nm_fail(const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    printf("{\"type\":\"error\",\"message\":");
    print_text(text);
    printf("}\n");
    fflush(stdout);
    exit(1);
}

int nm_finish(void)
{
    printf("{\"type\":\"elapsed\",\"ns\":%llu}\n", (unsigned long long)(nm_now() - started));
    /* A full disk or a closed pipe must not pass for a good run. */
    if (fflush(stdout) != 0 || ferror(stdout))
        return 1;
    return failed ? 1 : 0;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double nm_quantile(double *values, size_t count, double q)
{
    if (count == 0)
        nm_fail("no samples");
    qsort(values, count, sizeof *values, ascending);
    size_t rank = (size_t)ceil(q * (double)count);
    return values[rank > 0 ? rank - 1 : 0];
}

uint64_t nm_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double nm_random_real(uint64_t *state)
{
    return (double)(nm_random(state) >> 11) * 0x1p-53 - 0.5;
}
