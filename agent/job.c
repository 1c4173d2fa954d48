/* Jobs: starting commands, and killing all that came of them. */
#include "agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MARK "NEARMETAL_JOB"

static char agent_mark[24];   /* "<random>." ; a job's mark is this, its channel and ";" */
static char outer_marks[512]; /* those of the agents around this one */

uint64_t monotonic_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t realtime_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void job_marks_init(void)
{
	uint64_t random = 0;
	const char *outer = getenv(MARK);

	if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
		random = realtime_ns() ^ (uint64_t)getpid() << 48; /* a guest may lack entropy */
	snprintf(agent_mark, sizeof agent_mark, "%016llx.", (unsigned long long)random);
	snprintf(outer_marks, sizeof outer_marks, "%s", outer ? outer : "");
}

/* The strings of a SPAWN frame: cwd, argv, env. */
struct request {
	uint8_t kind;
	const char *cwd;
	char **argv, **env;
	uint32_t argc, envc;
};

static bool request_parse(const struct frame *f, struct request *r)
{
	const char *p, *end = (const char *)f->payload + f->len;
	uint32_t n, i;

	if (f->len < 10 || f->payload[f->len - 1] != 0)
		return false;
	r->kind = f->payload[0];
	r->argc = get32(f->payload + 1);
	r->envc = get32(f->payload + 5);
	if (r->argc == 0 || r->argc > FRAME_MAX || r->envc > FRAME_MAX)
		return false;
	r->argv = calloc((size_t)r->argc + 1, sizeof *r->argv);
	r->env = calloc((size_t)r->envc + 1, sizeof *r->env);
	if (!r->argv || !r->env)
		return false;
	p = (const char *)f->payload + 9;
	n = 1 + r->argc + r->envc;
	for (i = 0; i < n && p < end; i++) {
		if (i == 0)
			r->cwd = p;
		else if (i <= r->argc)
			r->argv[i - 1] = (char *)p;
		else
			r->env[i - 1 - r->argc] = (char *)p;
		p += strlen(p) + 1;
	}
	return i == n && p == end;
}

static int copy(int from, int to)
{
	static char bytes[65536];
	ssize_t got;

	while ((got = read(from, bytes, sizeof bytes)) > 0) {
		for (ssize_t done = 0, n; done < got; done += n) {
			n = write(to, bytes + done, (size_t)(got - done));
			if (n < 0)
				return errno;
		}
	}
	return got < 0 ? errno : 0;
}

/* Standard input becomes the file at `path`, whole or not at all. */
static int put_file(const char *path, const char *mode)
{
	char aside[4096];
	int fd, error;

	if (snprintf(aside, sizeof aside, "%s.%d.part", path, (int)getpid()) >= (int)sizeof aside)
		return ENAMETOOLONG;
	fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return errno;
	error = copy(0, fd);
	if (!error && fchmod(fd, (mode_t)strtoul(mode, NULL, 8)))
		error = errno;
	if (close(fd) && !error)
		error = errno;
	if (!error && rename(aside, path))
		error = errno;
	if (error)
		unlink(aside);
	return error;
}

static int get_file(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	return fd < 0 ? errno : copy(fd, 1);
}

static void transfer(const struct request *r)
{
	int error = EINVAL;

	if (r->kind == SPAWN_PUT && r->argc == 2)
		error = put_file(r->argv[0], r->argv[1]);
	else if (r->kind == SPAWN_GET && r->argc == 1)
		error = get_file(r->argv[0]);
	if (error)
		dprintf(2, "%s: %s\n", r->argv[0], strerror(error));
	_exit(error ? 1 : 0);
}

static void close_above_stderr(void)
{
	if (close_range(3, ~0u, 0))
		for (int fd = 3; fd < 1024; fd++)
			close(fd);
}

/* In the child: become the command. `report` takes the errno of a start that failed. */
static void child(const struct request *r, uint32_t channel, const int fds[3], int report)
{
	char mark[640];
	sigset_t none;
	int error;

	setsid();
	for (int i = 0; i < 3; i++) /* the ends are above 2: main() keeps 0, 1, 2 open */
		dup2(fds[i], i);
	for (int i = 1; i < NSIG; i++)
		signal(i, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	for (uint32_t i = 0; i < r->envc; i++)
		putenv(r->env[i]);
	snprintf(mark, sizeof mark, "%s%s%u;", outer_marks, agent_mark, channel);
	setenv(MARK, mark, 1);
	if (r->kind != SPAWN_EXEC) {
		close_above_stderr(); /* among them `report`, and the other end of our own input */
		transfer(r);
	}
	if (chdir(r->cwd) == 0)
		execvp(r->argv[0], r->argv);
	error = errno;
	if (write(report, &error, sizeof error) < 0)
		_exit(126);
	_exit(127);
}

static void close_pair(int pair[2])
{
	for (int i = 0; i < 2; i++)
		if (pair[i] >= 0)
			close(pair[i]);
}

static int start(const struct request *r, struct job *job)
{
	int pipes[4][2] = {{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}}; /* in, out, err, report */
	int error = 0;

	for (int i = 0; i < 4 && !error; i++)
		if (pipe2(pipes[i], O_CLOEXEC))
			error = errno;
	if (!error) {
		const int fds[3] = {pipes[0][0], pipes[1][1], pipes[2][1]};

		job->started = monotonic_ns();
		job->pid = fork();
		if (job->pid == 0)
			child(r, job->channel, fds, pipes[3][1]);
		if (job->pid < 0)
			error = errno;
	}
	if (!error) {
		close(pipes[3][1]);
		pipes[3][1] = -1;
		if (read(pipes[3][0], &error, sizeof error) != sizeof error)
			error = 0; /* closed by a successful exec */
	}
	if (error) {
		for (int i = 0; i < 4; i++)
			close_pair(pipes[i]);
		return error;
	}
	job->in = pipes[0][1];
	job->out[0] = pipes[1][0];
	job->out[1] = pipes[2][0];
	close(pipes[0][0]);
	close(pipes[1][1]);
	close(pipes[2][1]);
	close(pipes[3][0]);
	fcntl(job->in, F_SETFL, O_NONBLOCK);
	fcntl(job->out[0], F_SETFL, O_NONBLOCK);
	fcntl(job->out[1], F_SETFL, O_NONBLOCK);
	return 0;
}

struct job *job_start(const struct frame *f, int *error)
{
	struct request r = {0};
	struct job *job = calloc(1, sizeof *job);

	*error = job ? 0 : ENOMEM;
	if (job && !request_parse(f, &r))
		*error = EINVAL;
	if (!*error) {
		job->channel = f->channel;
		job->credit[0] = job->credit[1] = WINDOW_OUTPUT;
		*error = start(&r, job);
	}
	free(r.argv);
	free(r.env);
	if (*error) {
		free(job);
		return NULL;
	}
	return job;
}

void job_free(struct job *job)
{
	if (job->in >= 0)
		close(job->in);
	for (int i = 0; i < 2; i++)
		if (job->out[i] >= 0)
			close(job->out[i]);
	buffer_free(&job->input);
	free(job);
}

/* A process and its parent. */
struct family {
	pid_t pid, parent;
	bool doomed;
};

static size_t read_proc(pid_t pid, const char *file, char *bytes, size_t size)
{
	char path[64];
	size_t have = 0;
	ssize_t got;
	int fd;

	snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	while (have < size && (got = read(fd, bytes + have, size - have)) > 0)
		have += (size_t)got; /* a read may give no more than a page */
	close(fd);
	return have;
}

static bool carries(pid_t pid, const char *mark)
{
	static char environment[256 * 1024];
	size_t have = read_proc(pid, "environ", environment, sizeof environment);

	return memmem(environment, have, mark, strlen(mark)) != NULL;
}

static pid_t parent_of(pid_t pid)
{
	char stat[512];
	size_t have = read_proc(pid, "stat", stat, sizeof stat - 1);
	const char *name_end;

	stat[have] = 0;
	name_end = strrchr(stat, ')'); /* the name itself may hold anything */
	if (!name_end || strlen(name_end) < 4 || name_end[2] == 'Z')
		return -1; /* gone, or dead already */
	return (pid_t)atoi(name_end + 4);
}

static size_t list_processes(struct family **list)
{
	struct dirent *entry;
	size_t count = 0, size = 0;
	DIR *proc = opendir("/proc");

	*list = NULL;
	while (proc && (entry = readdir(proc))) {
		pid_t pid = (pid_t)atoi(entry->d_name), parent;

		if (pid <= 1 || pid == getpid() || (parent = parent_of(pid)) < 0)
			continue;
		if (count == size) {
			size = size ? 2 * size : 256;
			*list = realloc(*list, size * sizeof **list);
			if (!*list)
				abort();
		}
		(*list)[count++] = (struct family){pid, parent, false};
	}
	if (proc)
		closedir(proc);
	return count;
}

/* SIGKILL all that descend from `root`, or carry `mark`; how many there were. */
static int kill_kin(pid_t root, const char *mark)
{
	struct family *list;
	size_t count = list_processes(&list);
	bool more = true;
	int killed = 0;

	for (size_t i = 0; i < count; i++)
		list[i].doomed = list[i].pid == root || (root > 0 && list[i].parent == root) ||
				 carries(list[i].pid, mark);
	while (more) {
		more = false;
		for (size_t i = 0; i < count; i++)
			for (size_t j = 0; j < count && !list[i].doomed; j++)
				if (list[j].doomed && list[i].parent == list[j].pid)
					more = list[i].doomed = true;
	}
	for (size_t i = 0; i < count; i++)
		if (list[i].doomed && kill(list[i].pid, SIGKILL) == 0)
			killed++;
	free(list);
	return killed;
}

/* A process may fork while the others are being killed: look again until none is left. */
static void kill_until_gone(pid_t root, const char *mark)
{
	for (int round = 0; round < 50 && kill_kin(root, mark); round++)
		usleep(1000);
}

void job_kill_tree(uint32_t channel, pid_t pid)
{
	char mark[40];

	snprintf(mark, sizeof mark, "%s%u;", agent_mark, channel);
	kill_until_gone(pid, mark);
	if (pid > 0) /* where there is no /proc to look in */
		kill(-pid, SIGKILL);
}

/* Orphans come to us (PR_SET_CHILD_SUBREAPER), so all that we ever started descends from us. */
void job_kill_all(void)
{
	if (getpid() == 1)
		kill(-1, SIGKILL);
	else
		kill_until_gone(getpid(), agent_mark);
}
