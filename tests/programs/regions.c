// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * regions TOTAL_MIB HOT_MIB PASS_MS: fills TOTAL_MIB and then walks the first
 * HOT_MIB of it again and again, a pass in about PASS_MS, mostly asleep.  Each
 * second it prints the nanoseconds a page of that second took, sleep left out,
 * until its standard input ends.
 */
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE 4096
#define SLICES 32

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void fill(unsigned char *memory, uint64_t pages)
{
	uint64_t random = 1;

	for (uint64_t i = 0; i < pages * PAGE / 8; i++) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		((uint64_t *)memory)[i] = random;
	}
}

int main(int argc, char **argv)
{
	uint64_t total, hot, at = 0, spent = 0, touched = 0, sum = 0, told, from;
	struct pollfd in = { .fd = 0, .events = POLLIN };
	unsigned char *memory;
	int pass_ms;

	if (argc != 4) {
		fprintf(stderr, "regions: give TOTAL_MIB HOT_MIB PASS_MS\n");
		return 2;
	}
	total = strtoull(argv[1], NULL, 10) << 8;
	hot = strtoull(argv[2], NULL, 10) << 8;
	pass_ms = atoi(argv[3]);
	memory = mmap(NULL, total * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		      0);
	if (memory == MAP_FAILED || !hot || hot > total ||
	    madvise(memory, total * PAGE, MADV_NOHUGEPAGE)) {
		fprintf(stderr, "regions: no such memory\n");
		return 1;
	}
	fill(memory, total);
	printf("filled\n");
	fflush(stdout);
	told = now_ns();
	while (poll(&in, 1, pass_ms / SLICES) == 0) {
		from = now_ns();
		for (uint64_t i = 0; i < hot / SLICES; i++, touched++) {
			sum += memory[at * PAGE]++;
			at = at + 1 == hot ? 0 : at + 1;
		}
		spent += now_ns() - from;
		if (now_ns() - told < 1000000000)
			continue;
		printf("%.1f\n", (double)spent / (double)touched);
		fflush(stdout);
		told = now_ns();
		spent = touched = 0;
	}
	return sum == 1;
}
