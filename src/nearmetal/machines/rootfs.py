"""The file systems that every root of ours has, besides the userland itself."""

# Shell, run with the new root as working folder, in a mount namespace of its own.
MOUNTS = """\
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --bind /dev dev
mount -t tmpfs -o mode=1777,nosuid,nodev shm dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts dev/pts
mount -t tmpfs -o mode=1777,nosuid,nodev tmp tmp
mount -t tmpfs -o mode=755,nosuid,nodev run run
"""
