// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>

#include "unmapping.h"

int unmappings_init(struct unmappings *u, uint32_t most, struct error *e)
{
	u->list = calloc(most, sizeof(*u->list));
	if (!u->list)
		return fail(e, ENOMEM, "slabs to unmap: out of memory");
	u->most = most;
	return 0;
}

void unmappings_free(struct unmappings *u)
{
	free(u->list);
	*u = (struct unmappings){ 0 };
}

static void unmap(const struct unmapping *one)
{
	one->unmap(&(struct mapping){ .memory = one->memory, .size = one->size });
}

void unmap_later(struct unmappings *u, const struct transport *t, const struct mapping *m)
{
	const struct unmapping one = { t->unmap, m->memory, m->size };

	if (!t->unmap)
		return;
	if (u->count < u->most)
		u->list[u->count++] = one;
	else
		unmap(&one);
}

void unmappings_run(struct unmappings *u, uint32_t n)
{
	for (; n && u->count; n--)
		unmap(&u->list[--u->count]);
}
