/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the measured programs share: clock, random numbers, options, the mark. */
#ifndef EBB_TESTS_WALK_H
#define EBB_TESTS_WALK_H

#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096

/* An odd multiplier (2^64 / golden ratio): no two numbers share a product. */
#define MIX 0x9e3779b97f4a7c15ULL

static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

/* xorshift64* (Vigna 2016); @state is never 0. */
static inline uint64_t next_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dULL;
}

/* The number in @text, at most @max, or exit status 2 with a word about @option. */
static inline uint64_t number(const char *program, const char *option, const char *text,
			      uint64_t max)
{
	char *end;
	uint64_t n = strtoull(text, &end, 10);

	if (*end || end == text || n > max) {
		fprintf(stderr, "%s: %s %s: not a number up to %" PRIu64 "\n", program, option,
			text, max);
		exit(2);
	}
	return n;
}

/*
 * Between what is not measured and what is: lets the reader of the FIFO @path
 * take counters, and goes on when a line comes back through it.  NULL: goes on.
 */
static inline void walk_mark(const char *path)
{
	static const char said[] = "measuring\n";
	char line[16];
	int fd;

	if (!path)
		return;
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, said, sizeof(said) - 1) < 0) {
		fprintf(stderr, "--mark %s: %m\n", path);
		exit(3);
	}
	close(fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || read(fd, line, sizeof(line)) < 0) {
		fprintf(stderr, "--mark %s: %m\n", path);
		exit(3);
	}
	close(fd);
}

#endif
