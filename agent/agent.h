/* nm-agent: runs commands for the lab on the machine it is on. */
#ifndef NM_AGENT_H
#define NM_AGENT_H

#include "frame.h"

#include <stdbool.h>
#include <sys/resource.h>
#include <sys/types.h>

#define AGENT_PORT 7077
#define WINDOW_STDIN (64u * 1024)
#define WINDOW_STDIN_TTY (16u * 1024) /* a tty's own buffers hold little, and drop the rest */
#define WINDOW_OUTPUT (256u * 1024)

/* A command under way, on one channel. */
struct job {
	uint32_t channel;
	pid_t pid;
	int in;               /* its standard input, -1 closed */
	int out[2];           /* its standard output and error, -1 closed */
	struct buffer input;  /* not yet taken by it; at most a window */
	bool input_ends;      /* close `in` when `input` is empty */
	uint32_t credit[2];   /* bytes of output that the lab will still take */
	uint64_t started;     /* monotonic ns */
	uint64_t last_output; /* monotonic ns; when its output was last seen to move */
	bool killed;          /* the lab wants its end, and no more of its output */
	bool exited;
	int wait_status;
	uint64_t elapsed;
	long max_rss;         /* KiB */
	struct job *next;
};

/* Names of jobs in the environment of all their processes, so that a whole tree is found even
 * when its members have left the process group or lost their parents. */
void job_marks_init(void);
/* Start what a SPAWN frame asks for; NULL and `*error` (errno) when that fails. */
struct job *job_start(const struct frame *f, int *error);
void job_free(struct job *job);
/* SIGKILL every process of channel `channel`, however far it has strayed. */
void job_kill_tree(uint32_t channel, pid_t pid);
/* SIGKILL everything this agent has started. */
void job_kill_all(void);

uint64_t monotonic_ns(void);
uint64_t realtime_ns(void);

/* Serve one lab over a pair of descriptors (may be the same); returns when its stream ends. */
void session_serve(int in, int out, uint32_t window_stdin);

/* Mount what a Linux system has mounted, and bring up lo; each only where it is missing. */
void init_system(void);

int rsh_main(int argc, char **argv);

#endif
