/* The agent as a system's first process: what a Linux userland expects to find mounted. */
#include "agent.h"

#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static bool is_mount_point(const char *path)
{
	struct stat here, above;
	char parent[64];

	snprintf(parent, sizeof parent, "%s/..", path);
	return stat(path, &here) == 0 && stat(parent, &above) == 0 && here.st_dev != above.st_dev;
}

static void mount_missing(const char *type, const char *path, unsigned long flags,
			  const char *options)
{
	mkdir(path, 0755); /* fails on a read-only root, where it must exist */
	if (is_mount_point(path))
		return;
	if (mount(type, path, type, flags, options) && errno != EBUSY)
		dprintf(2, "nm-agent: mount %s on %s: %s\n", type, path, strerror(errno));
}

/* /dev of a kernel without devtmpfs. */
static void make_devices(void)
{
	static const struct {
		const char *path;
		unsigned major, minor;
	} devices[] = {
		{"/dev/null", 1, 3}, {"/dev/zero", 1, 5}, {"/dev/full", 1, 7},
		{"/dev/random", 1, 8}, {"/dev/urandom", 1, 9}, {"/dev/tty", 5, 0},
	};

	for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
		mknod(devices[i].path, S_IFCHR | 0666,
		      makedev(devices[i].major, devices[i].minor));
		chmod(devices[i].path, 0666);
	}
}

static void link_missing(const char *target, const char *path)
{
	if (symlink(target, path) && errno != EEXIST)
		dprintf(2, "nm-agent: link %s: %s\n", path, strerror(errno));
}

static void loopback_up(void)
{
	struct ifreq request = {.ifr_name = "lo"};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return;
	if (ioctl(fd, SIOCGIFFLAGS, &request) == 0 && !(request.ifr_flags & IFF_UP)) {
		request.ifr_flags |= IFF_UP | IFF_RUNNING;
		if (ioctl(fd, SIOCSIFFLAGS, &request))
			dprintf(2, "nm-agent: lo up: %s\n", strerror(errno));
	}
	close(fd);
}

void init_system(void)
{
	mount_missing("proc", "/proc", MS_NOSUID | MS_NOEXEC | MS_NODEV, NULL);
	mount_missing("sysfs", "/sys", MS_NOSUID | MS_NOEXEC | MS_NODEV, NULL);
	mount_missing("devtmpfs", "/dev", MS_NOSUID, "mode=0755");
	if (!is_mount_point("/dev"))
		mount_missing("tmpfs", "/dev", MS_NOSUID, "mode=0755");
	make_devices();
	mkdir("/dev/pts", 0755);
	mkdir("/dev/shm", 01777);
	mount_missing("devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC,
		      "newinstance,ptmxmode=0666,mode=0620");
	mount_missing("tmpfs", "/dev/shm", MS_NOSUID | MS_NODEV, "mode=1777");
	mount_missing("tmpfs", "/run", MS_NOSUID | MS_NODEV, "mode=0755");
	mount_missing("tmpfs", "/tmp", MS_NOSUID | MS_NODEV, "mode=1777");
	link_missing("/proc/self/fd", "/dev/fd");
	link_missing("/proc/self/fd/0", "/dev/stdin");
	link_missing("/proc/self/fd/1", "/dev/stdout");
	link_missing("/proc/self/fd/2", "/dev/stderr");
	if (access("/dev/ptmx", F_OK))
		link_missing("pts/ptmx", "/dev/ptmx");
	loopback_up();
}
