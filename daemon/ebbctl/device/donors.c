// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "donors.h"
#include "ebbctl/call.h"
#include "lib/base/cleanup.h"
#include "lib/control/control.h"
#include "lib/wire/address.h"

#define DONOR_MS 3000

/* Checks that the donor accepts connections; ebb-swapd reports other errors. */
static int check_donor(const char *device, const char *text, struct error *e)
{
	struct pollfd p = { .events = POLLOUT };
	_cleanup_close_ int fd = -1;
	struct address a;
	socklen_t len = sizeof(int);
	int r, cause = 0;

	r = address_parse(text, "--donors", &a, e);
	if (r)
		return r;
	fd = p.fd = address_connect(&a);
	if (fd < 0)
		cause = -fd;
	else if (poll(&p, 1, DONOR_MS) <= 0)
		cause = ETIMEDOUT;
	else
		getsockopt(fd, SOL_SOCKET, SO_ERROR, &cause, &len);
	return cause ? fail(e, cause,
			    "device %s: donor %s: cannot connect: %s; start ebb-donord there, or name other --donors",
			    device, text, strerror(cause)) : 0;
}

static int from_command(const struct option_list *given, struct donor_list *l,
			struct device_record *d, struct error *e)
{
	int r = 0;

	for (int i = 0; !r && i < given->n; i++)
		r = donor_list_parse(l, given->v[i], "--donors", e);
	if (!r && !l->n)
		r = fail_exit(e, EXIT_USAGE, EINVAL, "--donors: empty; give HOST:PORT,...");
	if (!r && l->n > DEVICE_DONORS)
		r = fail_exit(e, EXIT_USAGE, E2BIG,
			      "--donors: too many; give at most %d", DEVICE_DONORS);
	if (!r && device_replicas(d->durability) > l->n)
		r = fail_exit(e, EXIT_USAGE, EINVAL,
			      "device %s: %s needs more than %d donor%s; name more with --donors",
			      d->name, d->durability, l->n, l->n == 1 ? "" : "s");
	for (int i = 0; !r && i < l->n; i++)
		r = check_donor(d->name, l->v[i].address, e);
	strcpy(d->donors_from, "command");
	return r;
}

/* Chooses donors for @d from those that ebbd knows. */
static int ask_daemon(struct donor_list *l, const struct device_record *d, struct error *e)
{
	_cleanup_json_ struct json_object *answer = NULL, *chosen = NULL;
	struct donor_list all = { .n = 0 };
	struct error inner = { 0 };
	struct json_object *rows;
	const char *cause;
	char borrower[192];
	int r = daemon_call(control_request("donors"), &answer, &inner);

	/* ebb-device@.service tries again unless the status is EXIT_USAGE or EXIT_REFUSED. */
	if (r)
		return fail_exit(e, EXIT_NO_DAEMON, r,
				 "device %s: no donors given and cannot connect to ebbd; give --donors HOST:PORT,... or start ebbd",
				 d->name);
	rows = json_member(answer, "donors");
	for (size_t i = 0; !r && rows && i < json_object_array_length(rows); i++) {
		struct json_object *row = json_object_array_get_idx(rows, i);

		r = donor_list_add(&all, json_text(row, "address", ""), "ebbd", e);
		if (!r)
			all.v[all.n - 1].slab = (uint64_t)json_int(row, "slab", 0);
	}
	donor_list_borrower(d->name, borrower, sizeof(borrower));
	chosen = r ? NULL : donor_list_choose(&all, borrower, d->slab, DEVICE_DONORS);
	if (chosen && all.n && !json_object_array_length(chosen))
		r = fail_exit(e, EXIT_USAGE, EINVAL,
			      "device %s: none of the %d donors known to ebbd has slabs as large; give a smaller --slab",
			      d->name, all.n);
	for (size_t i = 0; chosen && i < json_object_array_length(chosen); i++)
		donor_list_add(l, json_object_get_string(json_object_array_get_idx(chosen, i)), "ebbd",
			       NULL);
	donor_list_free(&all);
	if (r || l->n)
		return r;
	cause = json_text(answer, "error", NULL);
	/* etcd may not have answered yet, or donors may not have registered. */
	return fail_exit(e, strcmp(json_text(answer, "source", "none"), "none") ? EXIT_FAILED : EXIT_USAGE,
			 ENODEV,
			 "device %s: no donors given and ebbd knows none%s%s; give --donors HOST:PORT,... or see [donors] in ebb.conf(5)",
			 d->name, cause ? ": " : "", cause ?: "");
}

static int from_daemon(struct donor_list *l, struct device_record *d, struct error *e)
{
	struct error last = { 0 };
	int r = ask_daemon(l, d, e), all = l->n, kept = 0, needed = device_replicas(d->durability);

	/* ebb-swapd starts with reachable donors; ebbd adds the others later. */
	for (int i = 0; !r && i < all; i++) {
		struct error one = { 0 };

		if (!check_donor(d->name, l->v[i].address, &one))
			l->v[kept++] = l->v[i];
		else
			last = one;
	}
	l->n = r ? l->n : kept;
	if (!r && !kept)
		r = fail(e, last.code, "%s (none of %d donors is reachable)", last.text, all);
	else if (!r && kept < needed)
		r = fail(e, EHOSTUNREACH,
			 "device %s: %s needs %d donors, and %d of the %d known to ebbd can be reached; start ebb-donord on more machines, or choose another --durability",
			 d->name, d->durability, needed, kept, all);
	strcpy(d->donors_from, DEVICE_DONORS_CONFIGURED);
	return r;
}

int device_replicas(const char *durability)
{
	return !strncmp(durability, "replicas=", 9) ? atoi(durability + 9) : 0;
}

int device_donors(const struct option_list *given, struct donor_list *l, struct device_record *d,
		  struct error *e)
{
	size_t len = 0;
	int r = given->n ? from_command(given, l, d, e) : from_daemon(l, d, e);

	for (int i = 0; !r && i < l->n && len < sizeof(d->donor); i++)
		len += snprintf(d->donor + len, sizeof(d->donor) - len, "%s%s", i ? "," : "",
				l->v[i].address);
	return r;
}
