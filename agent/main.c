/* nm-agent: options, and the stream it serves on. */
#include "agent.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

static const char usage[] =
	"usage: nm-agent [--root DIR] [--init] [--tty DEVICE | --listen ADDRESS:PORT]\n"
	"       nm-rsh [-OPTION ...] ADDRESS COMMAND [ARGUMENT ...]\n"
	"Run commands for a lab that speaks frames on standard input and output.\n"
	"  --root DIR    chroot there first\n"
	"  --init        mount proc, sysfs, devtmpfs, devpts, tmpfs where missing; bring lo up\n"
	"  --tty DEVICE  serve on a terminal or port, set raw\n"
	"  --listen A:P  serve every connection to this address and port\n"
	"nm-rsh runs a command where an agent listens on port 7077, as ssh would.\n";

static int fail(const char *what)
{
	dprintf(2, "nm-agent: %s: %s\n", what, strerror(errno));
	return 1;
}

static int open_tty(const char *path)
{
	struct termios t;
	int fd = -1;

	for (int tries = 0; tries < 200; tries++) { /* its driver may still be starting: 10 s */
		fd = open(path, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
		if (fd >= 0 || (errno != ENOENT && errno != ENXIO && errno != ENODEV))
			break;
		usleep(50000);
	}
	if (fd >= 0 && tcgetattr(fd, &t) == 0) {
		cfmakeraw(&t);
		t.c_cflag |= CS8 | CREAD | CLOCAL;
		t.c_cc[VMIN] = 1;
		t.c_cc[VTIME] = 0;
		cfsetspeed(&t, B115200);
		tcsetattr(fd, TCSANOW, &t);
		tcflush(fd, TCIFLUSH); /* what was echoed or typed before we came */
	}
	return fd;
}

/* Serve on standard input and output, which jobs must not inherit. */
static void serve_stdio(void)
{
	int in = fcntl(0, F_DUPFD_CLOEXEC, 3), out = fcntl(1, F_DUPFD_CLOEXEC, 3);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null >= 0) {
		dup2(null, 0);
		dup2(null, 1);
	}
	session_serve(in, out, WINDOW_STDIN);
}

static int serve_connections(int listener)
{
	int one = 1;

	signal(SIGCHLD, SIG_IGN); /* sessions are not waited for */
	for (;;) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0) {
			if (errno == EINTR || errno == ECONNABORTED)
				continue;
			return fail("accept");
		}
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGTERM); /* the session then kills its jobs */
			close(listener);
			signal(SIGCHLD, SIG_DFL);
			session_serve(fd, fd, WINDOW_STDIN);
			_exit(0);
		}
		close(fd);
	}
}

static int serve_listen(const char *where)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	char host[64];
	const char *colon = strrchr(where, ':');
	int one = 1, fd;

	if (!colon || (size_t)(colon - where) >= sizeof host) {
		errno = EINVAL;
		return fail(where);
	}
	snprintf(host, sizeof host, "%.*s", (int)(colon - where), where);
	address.sin_port = htons((uint16_t)atoi(colon + 1));
	if (inet_pton(AF_INET, host, &address.sin_addr) != 1) {
		errno = EINVAL;
		return fail(where);
	}
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return fail("socket");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 64))
		return fail(where);
	dprintf(1, "listening\n");
	return serve_connections(fd);
}

struct options {
	const char *root, *tty, *listen;
	bool init;
};

static bool parse(int argc, char **argv, struct options *o)
{
	for (int i = 1; i < argc; i++) {
		const char **value = NULL;

		if (strcmp(argv[i], "--init") == 0)
			o->init = true;
		else if (strcmp(argv[i], "--root") == 0)
			value = &o->root;
		else if (strcmp(argv[i], "--tty") == 0)
			value = &o->tty;
		else if (strcmp(argv[i], "--listen") == 0)
			value = &o->listen;
		else if (getpid() != 1) /* a kernel hands its first process words of its own */
			return false;
		if (value) {
			if (++i == argc)
				return false;
			*value = argv[i];
		}
	}
	return !(o->tty && o->listen);
}

static void default_environment(void)
{
	setenv("PATH", "/opt/nearmetal/bin:/opt/nearmetal/mpi/bin:/usr/local/sbin:"
		       "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 0);
	setenv("HOME", "/root", 0);
	setenv("LC_ALL", "C.UTF-8", 0);
}

/* Jobs get their ends of pipes as 0, 1 and 2, so these must not be free for other uses. */
static void fill_standard_descriptors(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd < 2);
	if (fd > 2)
		close(fd);
}

static int serve(const struct options *o)
{
	int fd;

	if (o->listen)
		return serve_listen(o->listen);
	if (!o->tty) {
		serve_stdio();
		return 0;
	}
	fd = open_tty(o->tty);
	if (fd < 0)
		return fail(o->tty);
	session_serve(fd, fd, WINDOW_STDIN_TTY);
	return 0;
}

int main(int argc, char **argv)
{
	struct options o = {0};
	const char *name = strrchr(argv[0], '/');
	int status;

	if (strcmp(name ? name + 1 : argv[0], "nm-rsh") == 0)
		return rsh_main(argc, argv);
	if (!parse(argc, argv, &o)) {
		dprintf(2, "%s", usage);
		return argc == 2 && strcmp(argv[1], "--help") == 0 ? 0 : 2;
	}
	if (o.root && (chroot(o.root) || chdir("/")))
		return fail(o.root);
	if (o.init)
		init_system();
	fill_standard_descriptors();
	default_environment();
	status = serve(&o);
	if (getpid() == 1 && o.init) { /* a machine without its lab has no reason to stay up */
		sync();
		reboot(RB_POWER_OFF);
	}
	return status;
}
