/* A session: one lab, served by one poll loop. */
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUT_DATA (256u * 1024)     /* take no more output from jobs above this */
#define OUT_MAX (4u * 1024 * 1024) /* take no more requests above this */
#define LINGER_NS 100000000u       /* output held open by a job's orphans is let go after this */

struct session {
	int in, out, signals;
	bool ended;
	struct buffer input, output;
	struct job *jobs;
};

static struct job *find(struct session *s, uint32_t channel)
{
	for (struct job *job = s->jobs; job; job = job->next)
		if (job->channel == channel)
			return job;
	return NULL;
}

static void send_exit(struct session *s, uint32_t channel, const struct job *job, int error)
{
	unsigned char p[28];
	int status = -1, sig = 0;

	if (job && WIFEXITED(job->wait_status))
		status = WEXITSTATUS(job->wait_status);
	if (job && WIFSIGNALED(job->wait_status))
		sig = WTERMSIG(job->wait_status);
	put32(p, (uint32_t)status);
	put32(p + 4, (uint32_t)sig);
	put32(p + 8, (uint32_t)error);
	put64(p + 12, job ? job->elapsed : 0);
	put64(p + 20, job ? (uint64_t)job->max_rss : 0);
	frame_add(&s->output, FRAME_EXIT, channel, p, sizeof p);
}

static void send_credit(struct session *s, uint32_t channel, uint32_t bytes)
{
	unsigned char p[5] = {0};

	put32(p + 1, bytes);
	frame_add(&s->output, FRAME_CREDIT, channel, p, sizeof p);
}

static void spawn(struct session *s, const struct frame *f)
{
	unsigned char p[12];
	int error;
	struct job *job;

	if (find(s, f->channel)) {
		send_exit(s, f->channel, NULL, EEXIST);
		return;
	}
	job = job_start(f, &error);
	if (!job) {
		send_exit(s, f->channel, NULL, error);
		return;
	}
	job->next = s->jobs;
	s->jobs = job;
	put32(p, (uint32_t)job->pid);
	put64(p + 4, job->started);
	frame_add(&s->output, FRAME_STARTED, job->channel, p, sizeof p);
}

static void take_input(struct session *s, const struct frame *f)
{
	struct job *job = find(s, f->channel);

	if (!job || job->in < 0)
		send_credit(s, f->channel, f->len); /* nobody reads it any more */
	else if (job->input.len + f->len <= WINDOW_STDIN)
		buffer_add(&job->input, f->payload, f->len);
	else
		s->ended = true; /* a lab that does not keep to its window */
}

static void answer_clock(struct session *s, const struct frame *f)
{
	unsigned char p[24];

	memcpy(p, f->payload, 8);
	put64(p + 8, monotonic_ns());
	put64(p + 16, realtime_ns());
	frame_add(&s->output, FRAME_CLOCK, f->channel, p, sizeof p);
}

static void add_credit(struct session *s, const struct frame *f)
{
	struct job *job = find(s, f->channel);
	unsigned stream = f->payload[0];
	uint32_t bytes = get32(f->payload + 1);

	if (!job || stream < 1 || stream > 2)
		return;
	if (bytes > WINDOW_OUTPUT - job->credit[stream - 1])
		bytes = WINDOW_OUTPUT - job->credit[stream - 1];
	job->credit[stream - 1] += bytes;
}

static void signal_job(struct session *s, const struct frame *f)
{
	struct job *job = find(s, f->channel);
	int sig = (int)get32(f->payload);

	if (job && sig == SIGKILL)
		job->killed = true;
	if (sig == SIGKILL)
		job_kill_tree(f->channel, job && !job->exited ? job->pid : 0);
	else if (job && !job->exited && sig > 0 && sig < NSIG)
		kill(-job->pid, sig);
}

static void handle(struct session *s, const struct frame *f)
{
	struct job *job;

	if (f->type == FRAME_SPAWN) {
		spawn(s, f);
	} else if (f->type == FRAME_STDIN) {
		take_input(s, f);
	} else if (f->type == FRAME_CLOSE) {
		job = find(s, f->channel);
		if (job)
			job->input_ends = true;
	} else if (f->type == FRAME_KILL && f->len == 4) {
		signal_job(s, f);
	} else if (f->type == FRAME_CREDIT && f->len == 5) {
		add_credit(s, f);
	} else if (f->type == FRAME_CLOCK && f->len == 8) {
		answer_clock(s, f);
	} else {
		s->ended = true; /* out of step: nothing after this can be trusted */
	}
}

static void read_requests(struct session *s)
{
	static unsigned char bytes[65536];
	ssize_t got = read(s->in, bytes, sizeof bytes);
	struct frame f;
	int found = 0;

	if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
		s->ended = true;
		return;
	}
	if (got > 0)
		buffer_add(&s->input, bytes, (size_t)got);
	while (!s->ended && (found = frame_peek(&s->input, &f)) == 1) {
		handle(s, &f);
		buffer_drop(&s->input, FRAME_HEADER + f.len);
	}
	if (found < 0)
		s->ended = true;
}

static void write_replies(struct session *s)
{
	ssize_t put = write(s->out, buffer_head(&s->output), s->output.len);

	if (put > 0)
		buffer_drop(&s->output, (size_t)put);
	else if (put < 0 && errno != EAGAIN && errno != EINTR)
		s->ended = true;
}

static void reap(struct session *s)
{
	struct signalfd_siginfo info;
	struct rusage usage;
	int status;
	pid_t pid;

	while (read(s->signals, &info, sizeof info) == sizeof info)
		if (info.ssi_signo == SIGTERM)
			s->ended = true;
	while ((pid = wait4(-1, &status, WNOHANG, &usage)) > 0) {
		uint64_t now = monotonic_ns();

		for (struct job *job = s->jobs; job; job = job->next) {
			if (job->pid != pid || job->exited)
				continue;
			job->exited = true;
			job->wait_status = status;
			job->elapsed = now - job->started;
			job->max_rss = usage.ru_maxrss;
			job->last_output = now;
		}
	}
}

static void feed(struct session *s, struct job *job)
{
	if (job->in >= 0 && job->input.len) {
		ssize_t put = write(job->in, buffer_head(&job->input), job->input.len);

		if (put < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (put < 0) { /* it reads no more: throw the rest away */
			put = (ssize_t)job->input.len;
			close(job->in);
			job->in = -1;
		}
		buffer_drop(&job->input, (size_t)put);
		send_credit(s, job->channel, (uint32_t)put);
	}
	if (job->in >= 0 && job->input_ends && job->input.len == 0) {
		close(job->in);
		job->in = -1;
	}
}

static bool wants_output(const struct session *s, const struct job *job, int i)
{
	return job->out[i] >= 0 && job->credit[i] > 0 && s->output.len < OUT_DATA;
}

static void drain(struct session *s, struct job *job, int i)
{
	static unsigned char bytes[FRAME_CHUNK];
	size_t most = job->credit[i] < sizeof bytes ? job->credit[i] : sizeof bytes;
	ssize_t got = read(job->out[i], bytes, most);

	if (got > 0) {
		frame_add(&s->output, i ? FRAME_STDERR : FRAME_STDOUT, job->channel, bytes,
			  (uint32_t)got);
		job->credit[i] -= (uint32_t)got;
		job->last_output = monotonic_ns();
	} else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
		close(job->out[i]);
		job->out[i] = -1;
	}
}

static bool unread(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, 0) > 0;
}

/* Report jobs that have ended and said all they had to say. */
static void finish(struct session *s)
{
	struct job **link = &s->jobs;
	uint64_t now = monotonic_ns();

	while (*link) {
		struct job *job = *link;
		bool done = job->exited;

		for (int i = 0; i < 2 && done; i++) {
			if (job->out[i] < 0)
				continue;
			/* Held up by the lab or by a busy host, not by the job: nothing is lost. */
			if (!job->killed && (!wants_output(s, job, i) || unread(job->out[i])))
				job->last_output = now;
			done = now - job->last_output > LINGER_NS;
		}
		if (!done) {
			link = &job->next;
			continue;
		}
		send_exit(s, job->channel, job, 0);
		*link = job->next;
		job_free(job);
	}
}

/* Poll once. `fds` has room for 3 + 3 per job. */
static void turn(struct session *s, struct pollfd *fds)
{
	nfds_t n = 3;
	int timeout = -1;
	struct job *job;

	fds[0] = (struct pollfd){.fd = s->output.len < OUT_MAX ? s->in : -1, .events = POLLIN};
	fds[1] = (struct pollfd){.fd = s->output.len ? s->out : -1, .events = POLLOUT};
	fds[2] = (struct pollfd){.fd = s->signals, .events = POLLIN};
	for (job = s->jobs; job; job = job->next) {
		fds[n++] = (struct pollfd){.fd = job->input.len ? job->in : -1, .events = POLLOUT};
		for (int i = 0; i < 2; i++)
			fds[n++] = (struct pollfd){.fd = wants_output(s, job, i) ? job->out[i] : -1,
						   .events = POLLIN};
		if (job->exited)
			timeout = 20;
	}
	if (poll(fds, n, timeout) < 0)
		return;
	n = 3;
	for (job = s->jobs; job; job = job->next, n += 3)
		for (int i = 0; i < 2; i++)
			if (fds[n + 1 + (nfds_t)i].revents && job->out[i] >= 0)
				drain(s, job, i);
	if (fds[2].revents)
		reap(s);
	if (fds[1].revents)
		write_replies(s);
	if (fds[0].revents)
		read_requests(s);
	for (job = s->jobs; job; job = job->next)
		feed(s, job);
	finish(s);
}

static void open_signals(struct session *s)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	s->signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
	signal(SIGPIPE, SIG_IGN);
}

void session_serve(int in, int out, uint32_t window_stdin)
{
	struct session s = {.in = in, .out = out};
	struct pollfd *fds = NULL;
	unsigned char ready[12];

	job_marks_init();
	open_signals(&s);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	fcntl(in, F_SETFL, fcntl(in, F_GETFL) | O_NONBLOCK);
	fcntl(out, F_SETFL, fcntl(out, F_GETFL) | O_NONBLOCK);
	put32(ready, FRAME_VERSION);
	put32(ready + 4, window_stdin);
	put32(ready + 8, WINDOW_OUTPUT);
	buffer_add(&s.output, FRAME_MAGIC, FRAME_MAGIC_LEN);
	frame_add(&s.output, FRAME_READY, 0, ready, sizeof ready);
	while (!s.ended) {
		size_t jobs = 0;

		for (struct job *job = s.jobs; job; job = job->next)
			jobs++;
		fds = realloc(fds, (3 + 3 * jobs) * sizeof *fds);
		if (!fds)
			abort();
		turn(&s, fds);
	}
	job_kill_all();
	free(fds);
}
