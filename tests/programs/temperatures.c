// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * temperatures MIB [shared]: three parts of MIB each.  Reads the first all the time; reads the
 * second and the third when a line of standard input says "warm" or "cold", and reports for
 * each line, also "hot", the part's wrong words and the major faults of reading it.
 */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define PAGE 4096
#define MS 20
#define PARTS 3

static const char *const names[PARTS] = { "hot", "warm", "cold" };

static uint64_t faults(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (uint64_t)u.ru_majflt;
}

static uint64_t read_part(const uint64_t *part, size_t bytes)
{
	uint64_t bad = 0;

	for (size_t i = 0; i < bytes / sizeof(*part); i += PAGE / sizeof(*part))
		bad += ((const volatile uint64_t *)part)[i] != (uint64_t)(part + i);
	return bad;
}

int main(int argc, char **argv)
{
	size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 10) << 20 : 0;
	int flags = MAP_ANONYMOUS | (argc > 2 && !strcmp(argv[2], "shared") ? MAP_SHARED : MAP_PRIVATE);
	struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };
	uint64_t *part[PARTS];
	char line[32];

	for (int i = 0; i < PARTS; i++) {
		part[i] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
		if (part[i] == MAP_FAILED)
			return 1;
		madvise(part[i], bytes, MADV_NOHUGEPAGE);
		for (size_t k = 0; k < bytes / sizeof(uint64_t); k += PAGE / sizeof(uint64_t))
			part[i][k] = (uint64_t)(part[i] + k);
	}
	setvbuf(stdin, NULL, _IONBF, 0);
	printf("{\"pid\": %d}\n", getpid());
	for (;;) {
		fflush(stdout);
		read_part(part[0], bytes);
		if (poll(&in, 1, MS) <= 0)
			continue;
		if (!fgets(line, sizeof(line), stdin))
			return 0;
		line[strcspn(line, "\n")] = '\0';
		for (int i = 0; i < PARTS; i++) {
			uint64_t before = faults(), bad;

			if (strcmp(line, names[i]))
				continue;
			bad = read_part(part[i], bytes);
			printf("{\"bad\": %" PRIu64 ", \"faults\": %" PRIu64 "}\n", bad, faults() - before);
		}
	}
}
