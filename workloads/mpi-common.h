/* What the two MPI programs share: pairs of processes, checked messages, idle processes. */
#ifndef NM_MPI_COMMON_H
#define NM_MPI_COMMON_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>

/* The partner of `rank` among `size` processes: rank ^ 1 for "neighbour" (right when processes are
 * dealt round-robin over the machines), rank +- size/2 for "half" (Presta's own, right when they
 * are dealt in two halves). */
int nm_partner(int rank, int size, bool neighbour);

/* Whether this process is the first of its pair. */
bool nm_first(int rank, int size, bool neighbour);

/* Reads "neighbour" or "half"; anything else ends the program as a wrong command line. */
bool nm_pairs(const char *text);

/* Fills a message with a pattern that depends on its sender, and compares a received one with it
 * (the stamp apart); returns the number of wrong bytes. */
void nm_fill(unsigned char *message, size_t bytes, int sender);
size_t nm_wrong(const unsigned char *message, size_t bytes, int sender);

/* Stamps a message with its number, and reads the stamp: the first 8 bytes, and the last 8 where
 * the message holds both. Cheap enough to be done for every message. */
void nm_stamp(unsigned char *message, size_t bytes, long number);
bool nm_stamped(const unsigned char *message, size_t bytes, long number);

/* A barrier for processes that have nothing to do until then: they sleep between looks, so that
 * they do not take the processor from those that measure. */
void nm_quiet_barrier(MPI_Comm comm);

/* Prints the MPI library and the number of processes; on rank 0 only. */
void nm_mpi_info(int size);

#endif
