// SPDX-License-Identifier: GPL-2.0-or-later
#include <string.h>
#include <sys/eventfd.h>

#include "lib/base/log.h"
#include "table.h"

/* 2 s: longer than a BPF program takes from the mark in maps/active to the counter. */
#define BUSY_TICKS 20

/* The path of the root, "/", is the beginning of all others. */
static const char *path_of(const char *rel)
{
	return rel[1] ? rel : "";
}

static int rank(char c)
{
	return c == '/' ? 1 : (unsigned char)c + 1;
}

/* Orders paths so that a directory is followed by all paths below it. */
static int compare(const char *a, size_t length, const char *b)
{
	for (size_t i = 0; i < length; i++)
		if (a[i] != b[i])
			return b[i] ? rank(a[i]) - rank(b[i]) : 1;
	return b[length] ? -1 : 0;
}

/* Returns the index of the first item that does not precede the path of @length bytes. */
static uint32_t position(const struct attachments *a, const char *path, size_t length)
{
	uint32_t low = 0, high = a->n;

	while (low < high) {
		uint32_t at = (low + high) / 2;

		if (compare(path, length, path_of(a->item[at]->cgroup.rel)) > 0)
			low = at + 1;
		else
			high = at;
	}
	return low;
}

static struct attachment *at_path(const struct attachments *a, const char *path, size_t length)
{
	uint32_t at = position(a, path, length);

	return at < a->n && !compare(path, length, path_of(a->item[at]->cgroup.rel)) ? a->item[at] :
										      NULL;
}

static struct attachment *outermost(const struct attachments *a, struct attachment *t)
{
	const char *path = path_of(t->cgroup.rel);
	struct attachment *found;

	for (size_t i = 0; path[i]; i++) {
		found = path[i] == '/' ? at_path(a, path, i) : NULL;
		if (found)
			return found;
	}
	return t;
}

struct attached_range attachments_below(const struct attachments *a, const char *rel)
{
	const char *path = path_of(rel);
	size_t length = strlen(path);
	struct attached_range r = { .first = position(a, path, length) };

	for (r.end = r.first; r.end < a->n; r.end++) {
		const char *other = path_of(a->item[r.end]->cgroup.rel);

		if (strncmp(path, other, length) || (other[length] && other[length] != '/'))
			break;
	}
	return r;
}

static void find_roots(struct attachments *a, const char *rel)
{
	struct attached_range r = attachments_below(a, rel);

	for (uint32_t i = r.first; i < r.end; i++)
		a->item[i]->root = outermost(a, a->item[i]);
}

static struct attachment_list *bucket_of(const struct attachments *a, uint64_t owner)
{
	return (struct attachment_list *)&a->bucket[ebb_active_bit(owner)];
}

void attachments_insert(struct attachments *a, struct attachment *t)
{
	const char *path = path_of(t->cgroup.rel);
	uint32_t at = position(a, path, strlen(path));

	memmove(&a->item[at + 1], &a->item[at], (a->n - at) * sizeof(a->item[0]));
	a->item[at] = t;
	a->n++;
	LIST_INSERT_HEAD(bucket_of(a, t->cgroup.id), t, bucket);
	t->root = outermost(a, t);
	/* Below a root nothing changes. */
	if (t->root == t)
		find_roots(a, t->cgroup.rel);
}

void attachments_remove(struct attachments *a, struct attachment *t)
{
	const char *path = path_of(t->cgroup.rel);
	uint32_t at = position(a, path, strlen(path));

	/* A cgroup that was re-created has the path of the removed one for a while. */
	while (a->item[at] != t)
		at++;
	a->n--;
	memmove(&a->item[at], &a->item[at + 1], (a->n - at) * sizeof(a->item[0]));
	LIST_REMOVE(t, bucket);
	if (t->busy_ticks)
		LIST_REMOVE(t, busy);
	if (t->is_changed)
		LIST_REMOVE(t, changed);
	t->busy_ticks = 0;
	t->is_changed = false;
	if (t->root == t)
		find_roots(a, t->cgroup.rel);
}

struct attachment *attachments_find(const struct attachments *a, uint64_t owner)
{
	struct attachment *t;

	LIST_FOREACH(t, bucket_of(a, owner), bucket)
		if (t->cgroup.id == owner)
			return t;
	return NULL;
}

bool attachment_wants_placing(const struct attachment *t)
{
	return t->placement == PLACEMENT_TOGETHER ||
	       (t->placement == PLACEMENT_AUTO && t->busy_ticks);
}

void attachments_wake_placing(struct attachments *a)
{
	if (a->placed >= 0 && eventfd_write(a->placed, 1))
		log_err("placement: cannot wake its thread: %m");
}

void attachment_wake(struct attachments *a, struct attachment *t)
{
	if (!t->busy_ticks)
		LIST_INSERT_HEAD(&a->busy, t, busy);
	t->busy_ticks = BUSY_TICKS;
	if (!t->placing && attachment_wants_placing(t))
		attachments_wake_placing(a);
}

void attachment_change(struct attachments *a, struct attachment *t)
{
	if (!t->is_changed)
		LIST_INSERT_HEAD(&a->changed, t, changed);
	t->is_changed = true;
}
