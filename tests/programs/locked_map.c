// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * locked_map DIR MIB: fills MIB of memory and scans it until it is killed, a page after the other.
 * Each line of input is a command, and is repeated when it is done:
 *
 * lock    A thread maps a file below DIR, which a FUSE server of this program serves, and stays in
 *         mmap(2), with the process's mmap_lock, as the kernel waits for a page of the file that
 *         the server never sends.
 * unlock  The server is killed.
 *
 * The server dies after SERVER_S in any case: while it lives, this program cannot end, as that
 * waits for the mmap_lock.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096u
#define SERVER_S 600

static char file[4096];
static int asked[2];         /* a pipe: the server was asked for the page */
static pid_t server;

static void answer(int fd, uint64_t unique, int error, const void *data, size_t size)
{
	struct fuse_out_header out = { .len = (uint32_t)(sizeof(out) + size), .error = error,
				       .unique = unique };
	struct iovec iov[2] = { { &out, sizeof(out) }, { (void *)data, size } };

	if (writev(fd, iov, size ? 2 : 1) < 0)
		perror("locked_map: writev");
}

static struct fuse_attr attributes(uint64_t ino)
{
	return (struct fuse_attr){
		.ino = ino,
		.size = ino == FUSE_ROOT_ID ? 0 : PAGE,
		.mode = ino == FUSE_ROOT_ID ? S_IFDIR | 0700 : S_IFREG | 0600,
		.nlink = 1,
		.blksize = PAGE,
	};
}

/* The second open() gets a file whose mmap() drops what the page cache has of it. */
static void serve(int fd)
{
	static _Alignas(8) char request[1 << 20];
	const struct fuse_in_header *in = (void *)request;
	struct fuse_open_out opened = { 0 };

	while (read(fd, request, sizeof(request)) >= 0 || errno == EINTR || errno == ENOENT) {
		struct fuse_attr_out attr = { .attr_valid = 60, .attr = attributes(in->nodeid) };
		struct fuse_entry_out entry = { .nodeid = 2, .entry_valid = 60, .attr_valid = 60,
						.attr = attributes(2) };
		struct fuse_init_out init = { .major = FUSE_KERNEL_VERSION,
					      .minor = FUSE_KERNEL_MINOR_VERSION,
					      .max_write = PAGE };

		switch (in->opcode) {
		case FUSE_INIT:
			answer(fd, in->unique, 0, &init, sizeof(init));
			break;
		case FUSE_LOOKUP:
			answer(fd, in->unique, 0, &entry, sizeof(entry));
			break;
		case FUSE_GETATTR:
			answer(fd, in->unique, 0, &attr, sizeof(attr));
			break;
		case FUSE_OPEN:
			answer(fd, in->unique, 0, &opened, sizeof(opened));
			opened.open_flags = FOPEN_DIRECT_IO | FOPEN_KEEP_CACHE;
			break;
		case FUSE_READ:
			if (write(asked[1], "", 1) < 0)
				perror("locked_map: pipe");
			break;
		case FUSE_FORGET:
		case FUSE_BATCH_FORGET:
			break;
		default:
			answer(fd, in->unique, -ENOSYS, NULL, 0);
		}
	}
	_exit(0);
}

static void *reader(void *data)
{
	int fd = open(file, O_RDONLY | O_CLOEXEC);
	char byte;

	if (read(fd, &byte, 1) >= 0)
		fputs("locked_map: the file could be read\n", stderr);
	close(fd);
	return NULL;
}

static void *mapper(void *data)
{
	int fd = open(file, O_RDONLY | O_CLOEXEC);
	void *at = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);

	if (at != MAP_FAILED)
		munmap(at, PAGE);
	close(fd);
	return NULL;
}

static void *commands(void *data)
{
	pthread_t thread[2];
	char line[16];

	while (fgets(line, sizeof(line), stdin)) {
		if (!strcmp(line, "lock\n")) {
			if (pthread_create(&thread[0], NULL, reader, NULL) ||
			    read(asked[0], line + 8, 1) != 1 ||
			    pthread_create(&thread[1], NULL, mapper, NULL))
				exit(1);
			usleep(200000);
		} else {
			kill(server, SIGKILL);
			pthread_join(thread[0], NULL);
			pthread_join(thread[1], NULL);
		}
		fputs(line, stdout);
	}
	return NULL;
}

static int start_server(const char *dir)
{
	int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	char options[80];

	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", fd);
	snprintf(file, sizeof(file), "%s/file", dir);
	if (fd < 0 || pipe(asked) || mount("locked_map", dir, "fuse", MS_NOSUID | MS_NODEV, options))
		return -1;
	server = fork();
	if (!server) {
		alarm(SERVER_S);
		serve(fd);
	}
	close(fd);
	return server;
}

int main(int argc, char **argv)
{
	volatile unsigned char *memory;
	unsigned int sum = 0;
	pthread_t thread;
	size_t size;

	if (argc != 3) {
		fputs("usage: locked_map DIR MIB\n", stderr);
		return 2;
	}
	setlinebuf(stdout);
	size = strtoull(argv[2], NULL, 10) << 20;
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED || madvise((void *)memory, size, MADV_NOHUGEPAGE) ||
	    start_server(argv[1]) < 0) {
		perror("locked_map");
		return 1;
	}
	/* Or the pages are stored as a word each. */
	for (size_t i = 0; i < size; i += 8)
		*(volatile uint64_t *)(memory + i) = i * 0x9e3779b97f4a7c15;
	if (pthread_create(&thread, NULL, commands, NULL))
		return 1;
	puts("filled");
	for (;;)
		for (size_t i = 0; i < size; i += PAGE)
			sum += memory[i];
}
