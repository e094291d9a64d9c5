// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * `make fuzz-protocol`, `make fuzz-kmod`: bytes for tests/fuzz/protocol.c, with FUZZ_SECURE for
 * secure.c, with FUZZ_FAR for far.c, with FUZZ_JOBS for jobs.c, with FUZZ_KMOD for kmod.c; from
 * what is covered with libFuzzer, from a counter without it.
 *
 *	fuzz_protocol SECONDS [FIRST]
 *	fuzz_protocol --write NUMBER FILE    what the counter makes of NUMBER
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "far.h"
#include "jobs.h"
#include "kmod.h"
#include "secure.h"

#ifdef FUZZ_KMOD
#define fuzz_protocol fuzz_kmod
#define fuzz_protocol_bytes fuzz_kmod_bytes
#define fuzz_protocol_set_up(e) ((void)(e), 0)
#define fuzz_protocol_tear_down() ((void)0)
#endif
#ifdef FUZZ_FAR
#define fuzz_protocol fuzz_far
#define fuzz_protocol_bytes fuzz_far_bytes
#define fuzz_protocol_set_up fuzz_far_set_up
#define fuzz_protocol_tear_down fuzz_far_tear_down
#endif
#ifdef FUZZ_JOBS
#define fuzz_protocol fuzz_jobs
#define fuzz_protocol_bytes fuzz_jobs_bytes
#define fuzz_protocol_set_up fuzz_jobs_set_up
#define fuzz_protocol_tear_down fuzz_jobs_tear_down
#endif
#ifdef FUZZ_SECURE
#define fuzz_protocol fuzz_secure
#define fuzz_protocol_bytes fuzz_secure_bytes
#define fuzz_protocol_set_up fuzz_secure_set_up
#define fuzz_protocol_tear_down fuzz_secure_tear_down
#endif

#define MOST (64u << 10)

static void run(const uint8_t *data, size_t size, uint64_t seed)
{
	struct fuzz_protocol_result r;

	fuzz_protocol(data, size, &r);
	if (*r.wrong) {
		fprintf(stderr, "%s (number %llu, %zu bytes)\n", r.wrong,
			(unsigned long long)seed, size);
		abort();
	}
}

static void set_up(void)
{
	struct error e = { 0 };

	if (fuzz_protocol_set_up(&e)) {
		fprintf(stderr, "%s\n", e.text);
		exit(1);
	}
}

#ifdef FUZZ_BY_COVERAGE

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	set_up();
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	run(data, size, 0);
	return 0;
}

#else

static size_t size_of(uint64_t seed)
{
	/* Mostly short: a mistake ends the stream. */
	return 1 + seed * 977 % (seed % 16 ? 2048 : MOST);
}

static int write_one(uint64_t seed, const char *path)
{
	static uint8_t data[MOST];
	FILE *f = fopen(path, "wb");
	size_t size = size_of(seed);

	set_up();
	fuzz_protocol_bytes(seed, data, size);
	if (!f || fwrite(data, size, 1, f) != 1 || fclose(f)) {
		perror(path);
		return 1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 60);
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1, first = seed;
	static uint8_t data[MOST];

	if (argc == 4 && !strcmp(argv[1], "--write"))
		return write_one(seed, argv[3]);
	set_up();
	do {
		size_t size = size_of(seed);

		fuzz_protocol_bytes(seed, data, size);
		run(data, size, seed++);
	} while (time(NULL) < end);
	printf("numbers %llu to %llu: nothing wrong\n", (unsigned long long)first,
	       (unsigned long long)seed - 1);
	fuzz_protocol_tear_down();
	return 0;
}

#endif
