// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <string.h>

#include "lib/base/bytes.h"
#include "wire_far.h"

/* Names go to logs: printable ASCII, terminated, then zeros. */
bool wire_far_is_name(const char *name)
{
	size_t n = strnlen(name, WIRE_FAR_NAME);

	if (!n || n == WIRE_FAR_NAME)
		return false;
	for (size_t i = 0; i < WIRE_FAR_NAME; i++)
		if (i < n ? name[i] <= ' ' || name[i] > '~' : name[i])
			return false;
	return true;
}

/* POOL request: 0 verb, 4 flags, 8 domain, 12 reserved, 16 name. */
void wire_build_far_pool(uint8_t buf[static WIRE_FAR_POOL_SIZE], const struct wire_far_pool *p)
{
	memset(buf, 0, WIRE_FAR_POOL_SIZE);
	put32(buf, p->verb);
	put32(buf + 4, p->flags);
	put32(buf + 8, p->domain);
	memcpy(buf + 16, p->name, strnlen(p->name, WIRE_FAR_NAME - 1));
}

int wire_parse_far_pool(const void *buf, size_t len, struct wire_far_pool *p)
{
	const uint8_t *b = buf;
	struct wire_far_pool q;

	if (len != WIRE_FAR_POOL_SIZE || get32(b + 12))
		return -EPROTO;
	q = (struct wire_far_pool){ .verb = get32(b), .flags = get32(b + 4),
				    .domain = get32(b + 8) };
	memcpy(q.name, b + 16, sizeof(q.name));
	if (q.verb < WIRE_FAR_CREATE || q.verb > WIRE_FAR_DESTROY || !wire_far_is_name(q.name) ||
	    q.flags & ~(q.verb == WIRE_FAR_CREATE ? WIRE_FAR_SHARED : 0u))
		return -EPROTO;
	*p = q;
	return 0;
}

/* Reply to POOL: 0 identity, 8 member, 12 incarnation, 16 flags, 20 arenas, 24 sections. */
void wire_build_far_opened(uint8_t buf[static WIRE_FAR_OPENED_SIZE],
			   const struct wire_far_opened *o)
{
	put64(buf, o->identity);
	put32(buf + 8, o->member);
	put32(buf + 12, o->incarnation);
	put32(buf + 16, o->flags);
	put32(buf + 20, o->arenas);
	put32(buf + 24, o->sections);
	put32(buf + 28, 0);
}

int wire_parse_far_opened(const void *buf, size_t len, struct wire_far_opened *o)
{
	const uint8_t *b = buf;

	if (len != WIRE_FAR_OPENED_SIZE || get32(b + 28) || get32(b + 16) & ~WIRE_FAR_SHARED)
		return -EPROTO;
	*o = (struct wire_far_opened){
		.identity = get64(b), .member = get32(b + 8), .incarnation = get32(b + 12),
		.flags = get32(b + 16), .arenas = get32(b + 20), .sections = get32(b + 24),
	};
	return 0;
}

/* Reply to LIST, each: 0 name, 32 identity, 40 arenas, 44 flags, 48 live, 52 away, 56 dead. */
void wire_build_far_listed(uint8_t buf[static WIRE_FAR_LISTED_SIZE],
			   const struct wire_far_listed *l)
{
	memset(buf, 0, WIRE_FAR_LISTED_SIZE);
	memcpy(buf, l->name, strnlen(l->name, WIRE_FAR_NAME - 1));
	put64(buf + 32, l->identity);
	put32(buf + 40, l->arenas);
	put32(buf + 44, l->flags);
	put32(buf + 48, l->live);
	put32(buf + 52, l->away);
	put32(buf + 56, l->dead);
}

int wire_parse_far_listed(const void *buf, size_t len, struct wire_far_listed *l)
{
	const uint8_t *b = buf;
	struct wire_far_listed q;

	if (len != WIRE_FAR_LISTED_SIZE || get32(b + 60) || get32(b + 44) & ~WIRE_FAR_SHARED)
		return -EPROTO;
	q = (struct wire_far_listed){
		.identity = get64(b + 32), .arenas = get32(b + 40), .flags = get32(b + 44),
		.live = get32(b + 48), .away = get32(b + 52), .dead = get32(b + 56),
	};
	memcpy(q.name, b, sizeof(q.name));
	if (!wire_far_is_name(q.name))
		return -EPROTO;
	*l = q;
	return 0;
}

/* NOTIFY, NOTIFIED, DEAD: 0 member, 4 reserved, 8 word. */
void wire_build_far_word(uint8_t buf[static WIRE_FAR_MEMBER_SIZE], const struct wire_far_word *w)
{
	put32(buf, w->member);
	put32(buf + 4, 0);
	put64(buf + 8, w->word);
}

int wire_parse_far_word(const void *buf, size_t len, struct wire_far_word *w)
{
	const uint8_t *b = buf;

	if (len != WIRE_FAR_MEMBER_SIZE || get32(b + 4))
		return -EPROTO;
	*w = (struct wire_far_word){ .member = get32(b), .word = get64(b + 8) };
	return 0;
}

/* CAS request, each: 0 place, 8 expected word, 16 desired word. */
void wire_put_far_swap(uint8_t *buf, uint32_t i, const struct wire_far_swap *s)
{
	buf += i * WIRE_FAR_SWAP_SIZE;
	put64(buf, s->at);
	put64(buf + 8, s->expect);
	put64(buf + 16, s->desired);
}

struct wire_far_swap wire_get_far_swap(const uint8_t *buf, uint32_t i)
{
	buf += i * WIRE_FAR_SWAP_SIZE;
	return (struct wire_far_swap){ get64(buf), get64(buf + 8), get64(buf + 16) };
}
