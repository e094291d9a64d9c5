// SPDX-License-Identifier: GPL-2.0-or-later
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "rate.h"

#define SECOND 1000000000ull

bool rate_same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
	if (a->ss_family != b->ss_family)
		return false;
	if (a->ss_family == AF_INET)
		return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
		       ((const struct sockaddr_in *)b)->sin_addr.s_addr;
	return a->ss_family == AF_INET6 &&
	       IN6_ARE_ADDR_EQUAL(&((const struct sockaddr_in6 *)a)->sin6_addr,
				  &((const struct sockaddr_in6 *)b)->sin6_addr);
}

static bool is_it(const struct payer *p, const char *key, const struct sockaddr_storage *peer)
{
	if (*key || *p->key)
		return !strcmp(p->key, key);
	return p->peer.ss_family && rate_same_host(&p->peer, peer);
}

struct payer *payer_find(struct payer *payers, uint32_t n, const char *key,
			 const struct sockaddr_storage *peer, uint64_t now)
{
	struct payer *found = NULL;

	for (uint32_t i = 0; i < n; i++) {
		struct payer *p = &payers[i];

		if (is_it(p, key, peer))
			return p;
		/* One that has left keeps what it owes while there is room. */
		if (!p->users && (!found || p->busy_until < found->busy_until))
			found = p;
	}
	*found = (struct payer){ .peer = *peer, .busy_until = now };
	snprintf(found->key, sizeof(found->key), "%s", key);
	return found;
}

uint64_t payer_wait(const struct payer *p, uint64_t rate, uint64_t now)
{
	return rate && p->busy_until > now + RATE_BURST_NS ? p->busy_until - now - RATE_BURST_NS :
							     0;
}

static void end_wait(struct payer *p, uint64_t now)
{
	if (p->waits_since)
		p->waited += now - p->waits_since;
	p->waits_since = 0;
}

void payer_hold(struct payer *p, uint64_t now)
{
	if (!p->waits_since)
		p->waits_since = now;
}

void payer_charge(struct payer *p, uint64_t rate, uint64_t bytes, uint64_t now)
{
	end_wait(p, now);
	if (!rate)
		return;
	if (p->busy_until < now)
		p->busy_until = now;
	p->busy_until += bytes * SECOND / rate;
}

void payer_leave(struct payer *p, uint64_t now)
{
	p->users--;
	/* Its request may be the one that waits; others are held again. */
	end_wait(p, now);
}

const char *payer_text(const struct payer *p, char *buf, size_t size)
{
	const struct sockaddr_in *v4 = (const void *)&p->peer;
	const struct sockaddr_in6 *v6 = (const void *)&p->peer;
	char host[INET6_ADDRSTRLEN] = "unix";

	if (p->peer.ss_family == AF_INET)
		inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host));
	else if (p->peer.ss_family == AF_INET6)
		inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host));
	snprintf(buf, size, "%s", *p->key ? p->key : host);
	return buf;
}

uint64_t payer_waited(const struct payer *p, uint64_t now)
{
	return p->waited + (p->waits_since ? now - p->waits_since : 0);
}
