#define _GNU_SOURCE
#include "mpi-common.h"
#include "jsonline.h"

#include <string.h>
#include <time.h>

int nm_partner(int rank, int size, bool neighbour)
{
    if (neighbour)
        return rank ^ 1;
    return rank < size / 2 ? rank + size / 2 : rank - size / 2;
}

bool nm_first(int rank, int size, bool neighbour)
{
    return rank < nm_partner(rank, size, neighbour);
}

bool nm_pairs(const char *text)
{
    if (strcmp(text, "neighbour") == 0)
        return true;
    if (strcmp(text, "half") != 0)
        nm_usage("--pairs must be neighbour or half, not '%s'.", text);
    return false;
}

static unsigned char pattern(size_t i, int sender)
{
    return (unsigned char)(i * 31 + (i >> 8) * 17 + (size_t)sender * 101 + 7);
}

static size_t stamp_end(size_t bytes) { return bytes >= 16 ? bytes - 8 : bytes; }

void nm_fill(unsigned char *message, size_t bytes, int sender)
{
    for (size_t i = 0; i < bytes; i++)
        message[i] = pattern(i, sender);
}

size_t nm_wrong(const unsigned char *message, size_t bytes, int sender)
{
    size_t wrong = 0;
    for (size_t i = 8; i < stamp_end(bytes); i++)
        wrong += message[i] != pattern(i, sender);
    return wrong;
}

void nm_stamp(unsigned char *message, size_t bytes, long number)
{
    if (bytes < 8)
        return;
    memcpy(message, &number, 8);
    if (bytes >= 16)
        memcpy(message + bytes - 8, &number, 8);
}

bool nm_stamped(const unsigned char *message, size_t bytes, long number)
{
    if (bytes < 8)
        return true;
    return memcmp(message, &number, 8) == 0
           && (bytes < 16 || memcmp(message + bytes - 8, &number, 8) == 0);
}

void nm_quiet_barrier(MPI_Comm comm)
{
    MPI_Request request;
    int done = 0;
    const struct timespec nap = {0, 1000000};
    MPI_Ibarrier(comm, &request);
    for (;;) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (done)
            return;
        nanosleep(&nap, NULL);
    }
}

void nm_mpi_info(int size)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, "\n")] = '\0';
    for (char *c = text; *c; c++)
        if (*c == '\t')
            *c = ' ';
    nm_info_text("mpi", text);
    nm_info_number("ranks", size);
}
