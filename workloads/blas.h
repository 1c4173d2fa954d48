/* OpenBLAS with a stated number of threads. */
#ifndef NM_BLAS_H
#define NM_BLAS_H

/* Makes OpenBLAS use `threads` threads and the kernels of `core` ("auto": what OpenBLAS chooses
 * for the processor it finds; else a name as Prescott, Haswell, SkylakeX). OpenBLAS reads both
 * from its environment before main() runs, so the program starts itself once more with
 * OPENBLAS_NUM_THREADS and OPENBLAS_CORETYPE set; where that cannot be done it goes on, limits the
 * threads afterwards, and ends as an error if the core is another than asked for. Call it before
 * any output. */
void nm_blas_setup(char **argv, long threads, const char *core);

/* Prints which kernels OpenBLAS chose for this processor, its version and its threads. */
void nm_blas_info(void);

#endif
