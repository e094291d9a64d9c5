// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "check.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names whose sums are remembered; a newer one replaces an older one. */
#define SUMS 16384u

struct borrow {
	struct borrow *next;
	enum check_kind kind;
	uint64_t at, stamp; /* of the name that was borrowed */
	const void *content, *caller;
	size_t size;
};

struct sum {
	uint64_t at, stamp, sum;
};

struct check {
	int aborts;
	struct borrow *borrows;
	/* The last return of each pointer, to say of a second one where the first was. */
	struct {
		const void *content, *caller;
	} returned[64];
	struct sum sums[SUMS];
};

static const char *const kinds[] = {
	[CHECK_SHARED] = "a shared borrow",
	[CHECK_MUTABLE] = "a mutable borrow",
	[CHECK_VIEW] = "the borrow of a view",
	[CHECK_LOAN] = "the borrow of a loan",
};

int check_new(struct check **check)
{
	const char *wanted = secure_getenv("EBBDSM_CHECK");
	struct check *c;

	*check = NULL;
	if (!wanted || !*wanted || !strcmp(wanted, "0"))
		return 0;
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->aborts = strcmp(wanted, "report") != 0;
	*check = c;
	return 0;
}

/* --- reports ---------------------------------------------------------------------- */

struct place {
	char text[256];
};

/* Where in the program's files @address is: FILE+OFFSET, as addr2line (1) wants it. */
static struct place place_of(const void *address)
{
	struct place p;
	Dl_info info;

	if (!address)
		snprintf(p.text, sizeof(p.text), "a place that is not recorded any more");
	else if (dladdr(address, &info) && info.dli_fname)
		snprintf(p.text, sizeof(p.text), "%.200s+0x%tx", info.dli_fname,
			 (const char *)address - (const char *)info.dli_fbase);
	else
		snprintf(p.text, sizeof(p.text), "%p", address);
	return p;
}

__attribute__((format(printf, 2, 3)))
static void report(struct check *c, const char *fmt, ...)
{
	char text[1024];
	va_list list;

	va_start(list, fmt);
	vsnprintf(text, sizeof(text), fmt, list);
	va_end(list);
	fprintf(stderr, "libebbdsm: %s\n", text);
	if (c->aborts)
		abort();
}

void check_free(struct check *c)
{
	int aborts;

	if (!c)
		return;
	/* All of them, then the abort. */
	aborts = c->aborts && c->borrows;
	c->aborts = 0;
	while (c->borrows) {
		struct borrow *b = c->borrows;

		c->borrows = b->next;
		report(c, "%s of %" PRIx64 " %" PRIx64 ": not returned before ebbdsm_close(); return it.  Borrowed at %s",
		       kinds[b->kind], b->at, b->stamp, place_of(b->caller).text);
		free(b);
	}
	free(c);
	if (aborts)
		abort();
}

/* --- values ----------------------------------------------------------------------- */

static uint64_t sum_of(const void *content, size_t size)
{
	const uint8_t *bytes = content;
	uint64_t sum = size * 0x9e3779b97f4a7c15ull;

	for (; size >= 8; bytes += 8, size -= 8) {
		uint64_t word;

		memcpy(&word, bytes, 8);
		sum = (sum ^ word) * 0xd6e8feb86659fd93ull;
		sum ^= sum >> 32;
	}
	for (; size; bytes++, size--)
		sum = (sum ^ *bytes) * 0x100000001b3ull;
	return sum;
}

void check_value(struct check *c, uint64_t at, uint64_t stamp, const void *content, size_t size)
{
	uint64_t sum;
	struct sum *s;

	if (!c)
		return;
	sum = sum_of(content, size);
	s = &c->sums[((at ^ stamp << 7) * 0x9e3779b97f4a7c15ull >> 32) % SUMS];
	if (s->at == at && s->stamp == stamp && s->sum != sum)
		report(c, "value %" PRIx64 " %" PRIx64 ": changed without a mutable borrow; look for stores after ebbdsm_return_mut() and by pointers of shared borrows",
		       at, stamp);
	*s = (struct sum){ at, stamp, sum };
}

void check_torn(struct check *c, uint64_t at, uint64_t stamp, const void *first,
		const void *second, size_t size)
{
	if (c && memcmp(first, second, size))
		report(c, "value %" PRIx64 " %" PRIx64 ": torn read: two reads differ; look for stores of its owner after ebbdsm_return_mut()",
		       at, stamp);
}

/* --- borrows ---------------------------------------------------------------------- */

void check_borrow(struct check *c, enum check_kind kind, uint64_t at, uint64_t stamp,
		  const void *content, size_t size, const void *caller)
{
	struct borrow *b = c ? malloc(sizeof(*b)) : NULL;

	if (!b)
		return;
	*b = (struct borrow){ c->borrows, kind, at, stamp, content, caller, size };
	c->borrows = b;
	/* What is borrowed mutably is changed from now on. */
	if (kind == CHECK_SHARED || kind == CHECK_VIEW)
		check_value(c, at, stamp, content, size);
}

static size_t slot_of(const struct check *c, const void *content)
{
	return (uintptr_t)content / 16 % (sizeof(c->returned) / sizeof(*c->returned));
}

/* Says what is wrong with a return that ends no borrow. */
static void explain(struct check *c, enum check_kind kind, const void *content, const void *caller)
{
	const struct borrow *b = c->borrows;
	size_t i = slot_of(c, content);

	while (b && b->content != content)
		b = b->next;
	if (b && b->kind != kind)
		report(c, "%p: returned as %s at %s; return it as %s.  Borrowed at %s", content,
		       kinds[kind], place_of(caller).text, kinds[b->kind],
		       place_of(b->caller).text);
	else if (b)
		report(c, "%p: returned at %s by another name; return it by %" PRIx64 " %" PRIx64 ".  Borrowed at %s",
		       content, place_of(caller).text, b->at, b->stamp, place_of(b->caller).text);
	else if (content && c->returned[i].content == content)
		report(c, "%p: returned twice; return it once.  First at %s, then at %s", content,
		       place_of(c->returned[i].caller).text, place_of(caller).text);
	else
		report(c, "%p: returned at %s, but not borrowed; return the pointer of the borrow",
		       content, place_of(caller).text);
}

void check_return(struct check *c, enum check_kind kind, uint64_t at, uint64_t stamp,
		  const void *content, const void *caller)
{
	struct borrow **p, *b;

	if (!c)
		return;
	p = &c->borrows;
	while ((b = *p) && (b->kind != kind || b->content != content || b->at != at ||
			    b->stamp != stamp))
		p = &b->next;
	if (!b) {
		explain(c, kind, content, caller);
		return;
	}
	*p = b->next;
	if (kind == CHECK_SHARED || kind == CHECK_VIEW)
		check_value(c, at, stamp, content, b->size);
	c->returned[slot_of(c, content)].content = content;
	c->returned[slot_of(c, content)].caller = caller;
	free(b);
}

void check_stale(struct check *c, uint64_t at, uint64_t stamp, const void *caller)
{
	if (!c)
		return;
	if (!at && !stamp)
		report(c, "box: zero, since it was moved, dropped or given; use its present owner.  Used at %s",
		       place_of(caller).text);
	else
		report(c, "box %" PRIx64 " %" PRIx64 ": not one of this process, or a copy of one that has changed; move boxes by ebbdsm_move().  Used at %s",
		       at, stamp, place_of(caller).text);
}
