// SPDX-License-Identifier: GPL-2.0-or-later
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "donor_address.h"
#include "lib/wire/address.h"

#define RDMA "rdma:"

static void name(struct kmod_donor *d)
{
	snprintf(d->text, sizeof(d->text), strchr(d->ip, ':') ? RDMA "[%s]:%u" : RDMA "%s:%u", d->ip,
		 d->port);
}

int kmod_donor_parse(const char *text, const char *what, struct kmod_donor *d, struct error *e)
{
	char ip[NI_MAXHOST], port[NI_MAXSERV];
	struct address a;
	int r;

	if (strncmp(text, RDMA, strlen(RDMA)))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "%s: \"%.64s\": the kernel module uses RDMA only; write rdma:HOST[:PORT], or use another --frontend",
				 what, text);
	r = address_parse(text + strlen(RDMA), what, &a, e);
	if (r)
		return r;
	if (address_is_local(&a) ||
	    getnameinfo((struct sockaddr *)&a.sa, a.len, ip, sizeof(ip), port, sizeof(port),
			NI_NUMERICHOST | NI_NUMERICSERV) || strlen(ip) >= sizeof(d->ip) ||
	    strchr(ip, '%') || !atoi(port))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "%s: \"%.64s\": not an RDMA address; write rdma:HOST[:PORT]",
				 what, text);
	*d = (struct kmod_donor){ .port = (uint16_t)atoi(port) };
	memcpy(d->ip, ip, strlen(ip));
	name(d);
	return 0;
}

int kmod_donor_check(const char *text, const char *what, char *to, size_t size, struct error *e)
{
	size_t skip = strlen(RDMA);

	if (strncmp(text, RDMA, skip) || size <= skip)
		return address_check(text, what, to, size, e);
	strcpy(to, RDMA);
	return address_check(text + skip, what, to + skip, size - skip, e);
}

int kmod_donors_of(const char *list, struct kmod_donor *donors)
{
	int n = 0;

	while (*list && n < DEVICE_DONORS) {
		size_t len = strcspn(list, ",");
		char one[128];

		snprintf(one, sizeof(one), "%.*s", (int)len, list);
		if (!kmod_donor_parse(one, "donor", &donors[n], NULL))
			n++;
		list += len + (list[len] == ',');
	}
	return n;
}

void kmod_donor_of(const struct kmod_session *s, struct kmod_donor *d)
{
	*d = (struct kmod_donor){ .port = s->port };
	memcpy(d->ip, s->ip, sizeof(d->ip));
	name(d);
}

/* Compares addresses, because an IPv6 address has several texts. */
static bool same_ip(const char *a, const char *b)
{
	unsigned char x[sizeof(struct in6_addr)], y[sizeof(x)];

	if (inet_pton(AF_INET, a, x) == 1)
		return inet_pton(AF_INET, b, y) == 1 && !memcmp(x, y, sizeof(struct in_addr));
	return inet_pton(AF_INET6, a, x) == 1 && inet_pton(AF_INET6, b, y) == 1 &&
	       !memcmp(x, y, sizeof(x));
}

bool kmod_donor_is(const struct kmod_donor *d, const struct kmod_session *s)
{
	return d->port == s->port && same_ip(d->ip, s->ip);
}

int kmod_donor_find(const struct kmod_donor *donors, int n, const struct kmod_session *s)
{
	for (int i = 0; i < n; i++)
		if (kmod_donor_is(&donors[i], s))
			return i;
	return -1;
}
