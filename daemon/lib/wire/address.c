// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "address.h"
#include "local.h"
#include "tcp.h"

#define RDMA "rdma:"

static bool is_rdma(const char *text)
{
	return !strncmp(text, RDMA, strlen(RDMA));
}

const char *address_place(const char *text)
{
	return is_rdma(text) ? text + strlen(RDMA) : text;
}

bool address_is_local(const struct address *a)
{
	return a->sa.ss_family == AF_UNIX;
}

bool address_is_rdma(const struct address *a)
{
	return is_rdma(a->text);
}

bool address_same(const struct address *a, const struct address *b)
{
	return a->len == b->len && !memcmp(&a->sa, &b->sa, a->len);
}

static int too_long(const char *text, const char *what, struct error *e)
{
	return fail_exit(e, EXIT_USAGE, ENAMETOOLONG, "%s: \"%.64s\": too long; give a shorter address", what, text);
}

bool address_is_any(const char *text)
{
	return !strncmp(text, "0.0.0.0:", 8) || !strncmp(text, "[::]:", 5);
}

int address_parse(const char *text, const char *what, struct address *a, struct error *e)
{
	int r;

	if (local_is(text))
		return local_parse(text, what, a, e);
	if (is_rdma(text) && strlen(text) >= sizeof(a->text))
		return too_long(text, what, e);
	r = tcp_parse(address_place(text), what, a, e);
	if (!r)
		strcpy(a->text, text);
	return r;
}

int address_resolve(const char *text, struct address *found, int most)
{
	if (!local_is(text))
		return tcp_resolve(address_place(text), found, most);
	return local_parse(text, "donor", found, NULL) ? -EINVAL : 1;
}

bool address_is_name(const char *text)
{
	return !local_is(text) && tcp_is_name(address_place(text));
}

int address_check(const char *text, const char *what, char *to, size_t size, struct error *e)
{
	struct address a;
	int r;

	if (is_rdma(text)) {
		if (size <= strlen(RDMA))
			return too_long(text, what, e);
		strcpy(to, RDMA);
		return tcp_check(text + strlen(RDMA), what, to + strlen(RDMA), size - strlen(RDMA),
				 e);
	}
	if (!local_is(text))
		return tcp_check(text, what, to, size, e);
	r = local_parse(text, what, &a, e);
	if (!r && snprintf(to, size, "%s", text) >= (int)size)
		r = too_long(text, what, e);
	return r;
}

int address_listen(struct address *a, enum address_reach reach, struct error *e)
{
	return address_is_local(a) ? local_listen(a, e) : tcp_listen(a, reach, e);
}

int address_connect(const struct address *a)
{
	return address_is_local(a) ? local_connect(a) : tcp_connect(a);
}
