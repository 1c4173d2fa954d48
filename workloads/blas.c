#define _GNU_SOURCE
#include "blas.h"
#include "jsonline.h"

#include <cblas.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static bool differs(const char *variable, const char *value)
{
    const char *now = getenv(variable);
    return !now || strcmp(now, value) != 0;
}

void nm_blas_setup(char **argv, long threads, const char *core)
{
    char text[16];
    bool choose = strcmp(core, "auto") != 0;
    snprintf(text, sizeof text, "%ld", threads);
    if (differs("OPENBLAS_NUM_THREADS", text) || (choose && differs("OPENBLAS_CORETYPE", core))) {
        setenv("OPENBLAS_NUM_THREADS", text, 1);
        if (choose)
            setenv("OPENBLAS_CORETYPE", core, 1);
        execv("/proc/self/exe", argv);
    }
    openblas_set_num_threads((int)threads);
    if (choose && strcasecmp(openblas_get_corename(), core) != 0)
        nm_fail("OpenBLAS has kernels for %s here, not for %s", openblas_get_corename(), core);
}

void nm_blas_info(void)
{
    nm_info_text("blas", openblas_get_config());
    nm_info_text("blas_core", openblas_get_corename());
    nm_info_number("blas_threads", openblas_get_num_threads());
}
