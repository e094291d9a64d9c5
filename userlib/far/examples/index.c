// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/*
 * A shared index, which one process builds and updates, and others read at the same time.
 *
 *	index write DONOR POOL		prints the index's name; stores each line "KEY TEXT" of its
 *					input, and then prints the key
 *	index read DONOR POOL NAME	for each line "KEY" prints the key and its text, if any
 *
 * Keys are numbers from 1 on, texts have up to 47 bytes.  The index is an extent, a hash table with
 * linear probing.
 *
 * Consistency.  Only aligned words of 8 bytes are read and written at once.  Each entry has such a
 * word, its version, which is odd while the entry is being changed (a sequence lock).  A reader
 * reads the version, the entry and the version again; if both are the same even number, the entry
 * did not change meanwhile.
 *
 * Exits.  The index belongs to the writer.  When the writer exits or is killed, also in the middle
 * of a change, the donor frees the extent (over TCP after its grace period), and other members may
 * get the memory.  So a reader checks the name after each read: what it returns was in the index.
 * A reader that is killed leaves nothing behind: it does not change the index.  When the donor
 * exits, the index is lost, and mapped memory does not tell: only calls that use the connection do.
 */
#include "example.h"

#define ENTRIES 16384u /* a power of two */

struct entry {
	uint64_t version, key; /* key 0: unused */
	char text[48];
};

struct index {
	ebbfar_t *far;
	struct name name;
};

static uint64_t place_of(uint64_t n)
{
	return n * sizeof(struct entry);
}

/* Reads entry @n as it was at one moment. */
static int read_entry(const struct index *ix, uint64_t n, struct entry *e)
{
	const struct ebbfar_extent *x = &ix->name.x;
	uint64_t before, after;
	int r;

	do {
		r = ebbfar_read(ix->far, x, place_of(n), &before, sizeof(before));
		if (!r)
			r = ebbfar_read(ix->far, x, place_of(n), e, sizeof(*e));
		if (!r)
			r = ebbfar_read(ix->far, x, place_of(n), &after, sizeof(after));
		if (!r)
			r = ebbfar_check(ix->far, ix->name.member, x);
	} while (!r && (before != after || before % 2));
	return r;
}

/*
 * Finds @key: *@n is its entry, or the unused one where it would be.  -ENOSPC: it is not there, and
 * no entry is unused.
 */
static int find(const struct index *ix, uint64_t key, uint64_t *n, struct entry *e)
{
	*n = (key * 0x9e3779b97f4a7c15u >> 32) % ENTRIES;
	for (uint32_t i = 0; i < ENTRIES; i++) {
		int r = read_entry(ix, *n, e);

		if (r || e->key == key || !e->key)
			return r;
		*n = (*n + 1) % ENTRIES;
	}
	return -ENOSPC;
}

static int store(const struct index *ix, uint64_t key, const char *text)
{
	const struct ebbfar_extent *x = &ix->name.x;
	struct entry e;
	uint64_t n, was;
	int r;

	/* With more than one writer, the first to make the version odd changes the entry. */
	do {
		r = find(ix, key, &n, &e);
		if (!r)
			r = ebbfar_cas(ix->far, x, place_of(n), e.version, e.version + 1, &was);
	} while (!r && was != e.version);
	if (r)
		return r;
	e.version += 2;
	e.key = key;
	snprintf(e.text, sizeof(e.text), "%s", text);
	r = ebbfar_write(ix->far, x, place_of(n) + sizeof(e.version), &e.key,
			 sizeof(e) - sizeof(e.version));
	/* Writes are in order: a reader that sees this version sees the new entry. */
	return r ? r : ebbfar_write(ix->far, x, place_of(n), &e.version, sizeof(e.version));
}

/* Ends the program if the donor has exited or has fenced this member. */
static void check_donor(ebbfar_t *far)
{
	uint32_t member;
	uint64_t word;
	int r = ebbfar_wait(far, 0, &member, &word);

	if (r != -EAGAIN)
		check(far, r, "donor");
}

/* Returns the key of a line, and sets *@text to what follows. */
static uint64_t key_of(const char *line, char **text)
{
	uint64_t key = strtoull(line, text, 10);

	if (!key)
		errx(2, "%s: no key; use a number from 1 on", line);
	*text += **text == ' ';
	return key;
}

static int write_index(const char *donor, const char *pool)
{
	struct index ix = { .far = open_pool(donor, pool) };
	char line[128], *text;

	ix.name = allocate(ix.far, ENTRIES * sizeof(struct entry));
	print_name(&ix.name);
	while (read_line(line, sizeof(line))) {
		uint64_t key = key_of(line, &text);

		if (strlen(text) >= sizeof(((struct entry *)0)->text))
			errx(2, "%s: longer than 47 bytes; shorten the text", text);
		check(ix.far, store(&ix, key, text), "store");
		check_donor(ix.far);
		printf("%" PRIu64 "\n", key);
		fflush(stdout);
	}
	ebbfar_close(ix.far);
	return 0;
}

static int read_index(const char *donor, const char *pool, const char *name)
{
	struct index ix = { .far = open_pool(donor, pool), .name = parse_name(name) };
	char line[128], *text;

	while (read_line(line, sizeof(line))) {
		uint64_t n, key = key_of(line, &text);
		struct entry e;
		int r = find(&ix, key, &n, &e);

		if (is_freed(r))
			errx(1, "%s: the writer has exited; start it, and use its new name", name);
		if (r != -ENOSPC)
			check(ix.far, r, "read");
		check_donor(ix.far);
		if (!r && e.key)
			printf("%" PRIu64 " %s\n", key, e.text);
		else
			printf("%" PRIu64 "\n", key);
		fflush(stdout);
	}
	ebbfar_close(ix.far);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "write"))
		return write_index(argv[2], argv[3]);
	if (argc == 5 && !strcmp(argv[1], "read"))
		return read_index(argv[2], argv[3], argv[4]);
	errx(2, "usage: index write DONOR POOL | index read DONOR POOL NAME");
}
