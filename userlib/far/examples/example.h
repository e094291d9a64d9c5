/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* What the examples have in common: errors, opening a pool, and names as text. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <err.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ebbfar.h>

/* An extent of a member. */
struct name {
	uint32_t member;
	struct ebbfar_extent x;
};

/* Ends the program if @r, which a function has returned, is an error. */
static inline void check(ebbfar_t *far, int r, const char *what)
{
	if (r)
		errx(1, "%s: %s; %s", what, strerror(-r), ebbfar_why(far));
}

/* Opens the pool, and creates it if there is none.  $EBB_KEY is a key file for TCP, or not set. */
static inline ebbfar_t *open_pool(const char *donor, const char *pool)
{
	struct ebbfar_options o = { .size = sizeof(o) };
	ebbfar_t *far;

	o.donor = donor;
	o.pool = pool;
	o.key = getenv("EBB_KEY");
	o.flags = EBBFAR_CREATE | EBBFAR_SHARED;
	if (ebbfar_open(&o, &far))
		errx(1, "%s", o.error);
	return far;
}

/* Allocates an extent of @size zeros. */
static inline struct name allocate(ebbfar_t *far, size_t size)
{
	struct name n = { .member = ebbfar_member(far) };
	void *zeros = calloc(1, size);

	if (!zeros)
		err(1, "memory");
	check(far, ebbfar_alloc(far, size, &n.x), "allocation");
	check(far, ebbfar_write(far, &n.x, 0, zeros, size), "write");
	free(zeros);
	return n;
}

/* Writes a word of an extent. */
static inline void set(ebbfar_t *far, const struct name *n, uint64_t at, uint64_t word)
{
	check(far, ebbfar_write(far, &n->x, at, &word, sizeof(word)), "write");
}

static inline void print_name(const struct name *n)
{
	printf("%" PRIu32 ":%" PRIx64 ":%" PRIx64 ":%" PRIx64 "\n", n->member, n->x.place,
	       n->x.size, n->x.generation);
	fflush(stdout);
}

/* Only the form is checked here: the library checks the name. */
static inline struct name parse_name(const char *text)
{
	struct name n;
	char end;

	if (sscanf(text, "%" SCNu32 ":%" SCNx64 ":%" SCNx64 ":%" SCNx64 "%c", &n.member, &n.x.place,
		   &n.x.size, &n.x.generation, &end) != 4)
		errx(2, "%s: not a name; copy the first line of the other process", text);
	return n;
}

/* Returns whether @r says that an extent of another member is freed: that member has exited. */
static inline int is_freed(int r)
{
	return r == -ESTALE || r == -EACCES;
}

/* Reads a line without its end; returns 0 at the end of the input. */
static inline int read_line(char *line, size_t size)
{
	size_t n;

	if (!fgets(line, (int)size, stdin))
		return 0;
	n = strlen(line);
	if (n && line[n - 1] == '\n')
		line[n - 1] = '\0';
	else if (!feof(stdin))
		errx(1, "input: longer than %zu bytes; shorten the line", size - 2);
	return 1;
}

#endif
