/* OpenBLAS with a stated number of threads. */
#ifndef NM_BLAS_H
#define NM_BLAS_H

/* Makes OpenBLAS use `threads` threads. OpenBLAS makes its threads before main() runs, so the
 * program starts itself once more with OPENBLAS_NUM_THREADS set; where that cannot be done it
 * goes on and limits the number afterwards. Call it before any output. */
void nm_blas_threads(char **argv, long threads);

/* Prints which kernels OpenBLAS chose for this processor, its version and its threads. */
void nm_blas_info(void);

#endif
