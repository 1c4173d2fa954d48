#define _GNU_SOURCE
#include "blas.h"
#include "jsonline.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void nm_blas_threads(char **argv, long threads)
{
    char text[16];
    const char *now = getenv("OPENBLAS_NUM_THREADS");
    snprintf(text, sizeof text, "%ld", threads);
    if (!now || strcmp(now, text) != 0) {
        setenv("OPENBLAS_NUM_THREADS", text, 1);
        execv("/proc/self/exe", argv);
    }
    openblas_set_num_threads((int)threads);
}

void nm_blas_info(void)
{
    nm_info_text("blas", openblas_get_config());
    nm_info_text("blas_core", openblas_get_corename());
    nm_info_number("blas_threads", openblas_get_num_threads());
}
