/* nm-rsh: the agent's client in the manner of ssh, for launchers such as MPICH's Hydra. */
#include "agent.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CONNECT_TRIES 50 /* 0.1 s apart: the other machine's listener may still be starting */

struct relay {
	int fd;
	struct buffer input, output; /* from and to the agent */
	uint32_t credit;             /* bytes of standard input that the agent will take */
	bool ready, stdin_open;
	int status;                  /* -1 while it runs */
};

static int die(const char *what, const char *why)
{
	dprintf(2, "nm-rsh: %s: %s\n", what, why);
	return 255;
}

static int connect_to(const char *host)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(AGENT_PORT)};
	struct timespec pause = {.tv_nsec = 100000000};
	int one = 1;

	if (inet_pton(AF_INET, host, &address.sin_addr) != 1) {
		errno = EADDRNOTAVAIL;
		return -1;
	}
	for (int tries = 0; tries < CONNECT_TRIES; tries++) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (fd < 0)
			return -1;
		if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) {
			setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
			setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
			return fd;
		}
		close(fd);
		if (errno != ECONNREFUSED)
			return -1;
		nanosleep(&pause, NULL);
	}
	return -1;
}

static void request(struct relay *r, const char *command)
{
	static const char head[] = "/\0/bin/sh\0-c"; /* cwd, then the first two arguments */
	struct buffer b = {0};
	unsigned char start[9] = {SPAWN_EXEC};

	put32(start + 1, 3);
	buffer_add(&b, start, sizeof start);
	buffer_add(&b, head, sizeof head);
	buffer_add(&b, command, strlen(command) + 1);
	frame_add(&r->output, FRAME_SPAWN, 1, buffer_head(&b), (uint32_t)b.len);
	buffer_free(&b);
}

static void write_all(int fd, const unsigned char *data, size_t len)
{
	while (len) {
		ssize_t put = write(fd, data, len);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return; /* nobody listens; the command goes on, as under ssh */
		data += put;
		len -= (size_t)put;
	}
}

static void handle(struct relay *r, const struct frame *f)
{
	unsigned char credit[5];
	int status, sig, error;

	if (f->type == FRAME_READY && f->len == 12) {
		r->credit = get32(f->payload + 4);
		r->ready = true;
	} else if (f->type == FRAME_STDOUT || f->type == FRAME_STDERR) {
		int stream = f->type == FRAME_STDOUT ? 1 : 2;

		write_all(stream, f->payload, f->len);
		credit[0] = (unsigned char)stream;
		put32(credit + 1, f->len);
		frame_add(&r->output, FRAME_CREDIT, f->channel, credit, sizeof credit);
	} else if (f->type == FRAME_CREDIT && f->len == 5) {
		r->credit += get32(f->payload + 1);
	} else if (f->type == FRAME_EXIT && f->len == 28) {
		status = (int)get32(f->payload);
		sig = (int)get32(f->payload + 4);
		error = (int)get32(f->payload + 8);
		if (error)
			die("/bin/sh", strerror(error));
		r->status = error ? 255 : sig ? 128 + sig : status;
	}
}

static bool receive(struct relay *r)
{
	static unsigned char bytes[65536];
	ssize_t got = read(r->fd, bytes, sizeof bytes);
	struct frame f;
	int found;

	if (got < 0 && errno == EINTR)
		return true;
	if (got <= 0)
		return false;
	buffer_add(&r->input, bytes, (size_t)got);
	if (!r->ready && r->input.len >= FRAME_MAGIC_LEN) {
		if (memcmp(buffer_head(&r->input), FRAME_MAGIC, FRAME_MAGIC_LEN))
			return false;
		buffer_drop(&r->input, FRAME_MAGIC_LEN);
		r->ready = true;
	}
	while (r->ready && (found = frame_peek(&r->input, &f)) != 0) {
		if (found < 0)
			return false;
		handle(r, &f);
		buffer_drop(&r->input, FRAME_HEADER + f.len);
	}
	return true;
}

static void take_stdin(struct relay *r)
{
	static unsigned char bytes[FRAME_CHUNK];
	size_t most = r->credit < sizeof bytes ? r->credit : sizeof bytes;
	ssize_t got = read(0, bytes, most);

	if (got > 0) {
		frame_add(&r->output, FRAME_STDIN, 1, bytes, (uint32_t)got);
		r->credit -= (uint32_t)got;
	} else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
		frame_add(&r->output, FRAME_CLOSE, 1, NULL, 0);
		r->stdin_open = false;
	}
}

static int run(struct relay *r, const char *host)
{
	while (r->status < 0) {
		struct pollfd fds[3] = {
			{.fd = r->fd, .events = POLLIN},
			{.fd = r->output.len ? r->fd : -1, .events = POLLOUT},
			{.fd = r->stdin_open && r->credit ? 0 : -1, .events = POLLIN},
		};

		if (poll(fds, 3, -1) < 0 && errno != EINTR)
			return die("poll", strerror(errno));
		if (fds[1].revents) {
			ssize_t put = send(r->fd, buffer_head(&r->output), r->output.len,
					   MSG_DONTWAIT | MSG_NOSIGNAL);

			if (put > 0)
				buffer_drop(&r->output, (size_t)put);
		}
		if (fds[2].revents)
			take_stdin(r);
		if (fds[0].revents && !receive(r))
			return die(host, "the agent there went away");
	}
	return r->status;
}

int rsh_main(int argc, char **argv)
{
	struct relay r = {.status = -1, .stdin_open = true};
	struct buffer command = {0};
	int i = 1;

	while (i < argc && argv[i][0] == '-') /* ssh's options mean nothing here */
		i += strchr("lpioF", argv[i][1]) && argv[i][1] && !argv[i][2] ? 2 : 1;
	if (i + 1 >= argc)
		return die("usage", "nm-rsh [-OPTION ...] ADDRESS COMMAND [ARGUMENT ...]");
	for (int word = i + 1; word < argc; word++) {
		buffer_add(&command, argv[word], strlen(argv[word]));
		buffer_add(&command, word + 1 < argc ? " " : "", 1);
	}
	signal(SIGPIPE, SIG_IGN);
	r.fd = connect_to(argv[i]);
	if (r.fd < 0)
		return die(argv[i], strerror(errno));
	request(&r, (const char *)buffer_head(&command));
	return run(&r, argv[i]);
}
