// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * One measurement of far memory for `make bench-far` (far.py), printed as a line of JSON:
 *
 *   far_speed loop DONOR|malloc LOOP processes|threads WORKERS SECONDS
 *   far_speed exchange tcp|unix threads|epoll WORKERS OUT IN CPU|any SECONDS
 *   far_speed access DONOR|memory read|write SIZE SECONDS
 *   far_speed allocate DONOR SECONDS    counts round trips: only over TCP
 *   far_speed fill DONOR EXTENTS        likewise
 *   far_speed hold DONOR EXTENTS        until its standard input ends
 */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "far_speed.h"
#include "lib/wire/wire.h"

enum { LEAST = 4096, MOST = 65536 };
/* Extents of `allocate` at a time: half of a section, so that none is formatted meanwhile. */
enum { SOME = 256 };
/* Accesses between two looks at the clock. */
enum { ACCESSES = 16 };
enum { TIMEOUT_MS = 60000 };

void give_up(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	fputs("far_speed: ", stderr);
	vfprintf(stderr, fmt, args);
	fputc('\n', stderr);
	va_end(args);
	_exit(1);
}

double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* --- round trips ------------------------------------------------------------------ */

/*
 * What the library has sent and received: a round trip begins when it sends after it received.  A
 * hint that is sent alone begins none: no call waits for its reply.
 */
static struct count {
	uint64_t trips, hints, sent, received;
	bool sends; /* the last call sent, other than a hint */
} count;

static bool is_hint(const struct msghdr *m, ssize_t n)
{
	struct wire_frame f;

	return m->msg_iovlen && wire_parse(m->msg_iov->iov_base, m->msg_iov->iov_len,
					   WIRE_AT_FAR_DONOR, &f) > 0 &&
	       f.op == WIRE_FAR_WRITE && f.length <= 8 && n == WIRE_HEADER + (ssize_t)f.length;
}

/* The library's calls come here: the program's symbols precede those of libc. */
ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	ssize_t n = syscall(SYS_sendmsg, fd, m, flags);

	if (n <= 0)
		return n;
	count.sent += (uint64_t)n;
	if (is_hint(m, n)) {
		count.hints++;
		return n;
	}
	count.trips += !count.sends;
	count.sends = true;
	return n;
}

ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
	ssize_t n = syscall(SYS_recvmsg, fd, m, flags);

	if (n > 0) {
		count.received += (uint64_t)n;
		count.sends = false;
	}
	return n;
}

static void add_count(struct count *sum, const struct count *before)
{
	sum->trips += count.trips - before->trips;
	sum->hints += count.hints - before->hints;
	sum->sent += count.sent - before->sent;
	sum->received += count.received - before->received;
}

/* --- the pool --------------------------------------------------------------------- */

ebbfar_t *open_pool(const char *donor)
{
	struct ebbfar_options o = {
		.size = sizeof(o), .donor = donor, .pool = "bench", .timeout_ms = TIMEOUT_MS,
		.flags = EBBFAR_CREATE | EBBFAR_NO_RESUME,
	};
	ebbfar_t *far;

	if (ebbfar_open(&o, &far))
		give_up("%s", o.error);
	return far;
}

static void check(const char *what, int r)
{
	if (r)
		give_up("%s: %s", what, strerror(-r));
}

static struct ebbfar_extent *allocate_all(ebbfar_t *far, uint32_t n)
{
	struct ebbfar_extent *x = calloc(n ?: 1, sizeof(*x));

	for (uint32_t i = 0; i < n; i++)
		check("allocation", ebbfar_alloc(far, LEAST, &x[i]));
	return x;
}

/* --- measurements ----------------------------------------------------------------- */

static void tell(const struct timing *t)
{
	printf("{\"done\": %llu, \"seconds\": %.6f}\n", (unsigned long long)t->done, t->seconds);
}

static void tell_trips(uint64_t done, double seconds, const struct count *c)
{
	printf("{\"done\": %llu, \"seconds\": %.6f, \"trips\": %llu, \"hints\": %llu, "
	       "\"sent\": %llu, \"received\": %llu}\n", (unsigned long long)done, seconds,
	       (unsigned long long)c->trips, (unsigned long long)c->hints,
	       (unsigned long long)c->sent, (unsigned long long)c->received);
}

static void fill_pattern(uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)(i * 131 + (i >> 8));
}

static uint8_t *make_buffer(size_t n)
{
	uint8_t *p = aligned_alloc(LEAST, (n + LEAST - 1) / LEAST * LEAST);

	if (!p)
		give_up("out of memory");
	memset(p, 0, n);
	return p;
}

/* Copies in this process, as the bound of mapped memory. */
static void copy(uint8_t *to, const uint8_t *from, size_t n)
{
	memcpy(to, from, n);
	/* Keeps the compiler from dropping the unread result. */
	__asm__ volatile("" : : "r"(to) : "memory");
}

static void measure_access(const char *donor, const char *op, uint32_t size, double seconds)
{
	bool reads = !strcmp(op, "read"), bare = !strcmp(donor, "memory");
	uint8_t *mine = make_buffer(size), *pattern = make_buffer(size);
	uint8_t *memory = make_buffer(size);
	ebbfar_t *far = bare ? NULL : open_pool(donor);
	struct count before, sum = { 0 };
	struct timing t = { 0 };
	struct ebbfar_extent x;
	double since;

	fill_pattern(pattern, size);
	if (!bare) {
		check("allocation", ebbfar_alloc(far, size > LEAST ? size : LEAST, &x));
		check("write", ebbfar_write(far, &x, 0, pattern, size));
	}
	memcpy(memory, pattern, size);
	before = count;
	since = now_s();
	do {
		for (int i = 0; i < ACCESSES; i++) {
			if (bare)
				copy(reads ? mine : memory, reads ? memory : pattern, size);
			else if (reads)
				check("read", ebbfar_read(far, &x, 0, mine, size));
			else
				check("write", ebbfar_write(far, &x, 0, pattern, size));
		}
		t.done += ACCESSES;
		t.seconds = now_s() - since;
	} while (t.seconds < seconds);
	add_count(&sum, &before);
	if (!bare && !reads)
		check("read", ebbfar_read(far, &x, 0, mine, size));
	if ((!bare || reads) && memcmp(mine, pattern, size))
		give_up("%s of %u bytes: the bytes are wrong", op, size);
	tell_trips(t.done, t.seconds, &sum);
	ebbfar_close(far);
	free(mine);
	free(pattern);
	free(memory);
}

/* Frees are not part of it. */
static void measure_allocate(const char *donor, double seconds)
{
	struct ebbfar_extent x[SOME];
	ebbfar_t *far = open_pool(donor);
	struct count sum = { 0 };
	struct timing t = { 0 };

	/* The first turn opens a section. */
	for (uint32_t turn = 0; t.seconds < seconds; turn++) {
		struct count before = count;
		double since = now_s();

		for (uint32_t i = 0; i < SOME; i++)
			check("allocation", ebbfar_alloc(far, LEAST, &x[i]));
		if (turn) {
			t.seconds += now_s() - since;
			t.done += SOME;
			add_count(&sum, &before);
		}
		for (uint32_t i = 0; i < SOME; i++)
			check("free", ebbfar_free(far, &x[i]));
	}
	tell_trips(t.done, t.seconds, &sum);
	ebbfar_close(far);
}

/* With all that opening sections and adding arenas takes. */
static void measure_fill(const char *donor, uint32_t n)
{
	ebbfar_t *far = open_pool(donor);
	struct count before = count, sum = { 0 };
	double since = now_s();

	free(allocate_all(far, n));
	add_count(&sum, &before);
	tell_trips(n, now_s() - since, &sum);
	ebbfar_close(far);
}

static void hold(const char *donor, uint32_t n)
{
	ebbfar_t *far = open_pool(donor);
	char ignored;

	free(allocate_all(far, n));
	printf("{\"member\": %u}\n", ebbfar_member(far));
	fflush(stdout);
	while (read(STDIN_FILENO, &ignored, 1) > 0)
		;
	ebbfar_close(far);
}

/* --- command line ----------------------------------------------------------------- */

static uint32_t number(const char *text, uint32_t least, uint32_t most)
{
	char *end;
	unsigned long n = strtoul(text, &end, 10);

	if (*end || end == text || n < least || n > most)
		give_up("%s: not a number from %u to %u", text, least, most);
	return (uint32_t)n;
}

static double duration(const char *text)
{
	char *end;
	double s = strtod(text, &end);

	if (*end || !(s > 0))
		give_up("%s: not a number of seconds", text);
	return s;
}

static enum kind kind_of(const char *text)
{
	return strcmp(text, "threads") ? PROCESSES : THREADS;
}

int main(int argc, char **argv)
{
	const char *job = argc > 1 ? argv[1] : "";
	struct timing t;

	if (!strcmp(job, "loop") && argc == 7) {
		t = measure_loop(argv[2], argv[3], kind_of(argv[4]),
				 number(argv[5], 1, WORKERS_MOST), duration(argv[6]));
		tell(&t);
	} else if (!strcmp(job, "exchange") && argc == 9) {
		t = measure_exchange(argv[2], argv[3], number(argv[4], 1, WORKERS_MOST),
				     number(argv[5], 1, 1 << 24), number(argv[6], 1, 1 << 24),
				     strcmp(argv[7], "any") ? (int)number(argv[7], 0, 1023) : -1,
				     duration(argv[8]));
		tell(&t);
	} else if (!strcmp(job, "access") && argc == 6) {
		measure_access(argv[2], argv[3], number(argv[4], 1, MOST), duration(argv[5]));
	} else if (!strcmp(job, "allocate") && argc == 4) {
		measure_allocate(argv[2], duration(argv[3]));
	} else if (!strcmp(job, "fill") && argc == 4) {
		measure_fill(argv[2], number(argv[3], 1, 1 << 24));
	} else if (!strcmp(job, "hold") && argc == 4) {
		hold(argv[2], number(argv[3], 1, 1 << 24));
	} else {
		give_up("%s: no such measurement; see the head of far_speed.c", job);
	}
	return 0;
}
