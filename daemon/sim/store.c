// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>

#include "store.h"

static uint32_t bytes_take(struct store *s, uint32_t node, uint32_t cpu, uint32_t pages,
			   uint32_t *at)
{
	*at = 0;
	s->lent += pages;
	s->live += pages;
	return pages;
}

static void bytes_put(struct store *s, uint32_t node, uint32_t at, uint32_t pages)
{
	s->lent -= pages;
	s->live -= pages;
}

static uint32_t shares_take(struct store *s, uint32_t node, uint32_t cpu, uint32_t pages,
			    uint32_t *at)
{
	*at = 0;
	s->live += pages;
	return pages;
}

static void shares_put(struct store *s, uint32_t node, uint32_t at, uint32_t pages)
{
	s->live -= pages;
}

static void bytes_free(struct store *s)
{
	free(s);
}

int store_bytes_new(struct store **out, bool shares)
{
	static const struct store_ops pool_ops = { bytes_take, bytes_put, NULL, bytes_free };
	static const struct store_ops share_ops = { shares_take, shares_put, NULL, bytes_free };
	struct store *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->ops = shares ? &share_ops : &pool_ops;
	s->lent = shares ? STORE_PAGES : 0;
	*out = s;
	return 0;
}

void store_free(struct store **s)
{
	if (*s)
		(*s)->ops->free(*s);
	*s = NULL;
}
