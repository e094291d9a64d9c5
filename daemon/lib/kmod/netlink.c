// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <libmnl/libmnl.h>
#include <linux/genetlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "lib/base/cleanup.h"
#include "netlink.h"

#define REMEDY_LOAD "run \"modprobe ebb_swap\" (package ebb-swap-dkms)"
/* Size of a recv(); the kernel makes parts of a dump as large as the largest recv() so far. */
#define RECEIVE (64 << 10)
#define SEND 1024
#define NONE 0xffffffffu
/* s: more than a command takes that waits for a donor with the longest deadline, ten minutes. */
#define ANSWER_S 900

struct kmod_link {
	struct mnl_socket *socket;
	struct kmod_family family;
	uint32_t sequence;
	char receive[RECEIVE] __attribute__((aligned(8)));
	char send[SEND] __attribute__((aligned(8)));
};

/* Called for each message of an answer until it returns -errno. */
typedef int (*message)(const struct nlmsghdr *h, void *data);

static struct nlmsghdr *begin(struct kmod_link *l, uint16_t family, uint8_t command)
{
	struct nlmsghdr *h = mnl_nlmsg_put_header(l->send);
	struct genlmsghdr *g;

	h->nlmsg_type = family;
	h->nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
	h->nlmsg_seq = ++l->sequence;
	g = mnl_nlmsg_put_extra_header(h, sizeof(*g));
	g->cmd = command;
	g->version = EBB_SWAP_VERSION;
	return h;
}

/*
 * Reads one datagram: 1 at the end of the answer, which is in @end, else 0.  *@bad gets the first
 * error of @each: a dump must be read to its end before the next one.
 */
static int take(struct kmod_link *l, int n, message each, void *data, struct kmod_end *end,
		int *bad)
{
	const struct nlmsghdr *h = (const void *)l->receive;

	for (; mnl_nlmsg_ok(h, n); h = mnl_nlmsg_next(h, &n)) {
		if (h->nlmsg_seq != l->sequence)
			continue;
		if (h->nlmsg_type == NLMSG_ERROR || h->nlmsg_type == NLMSG_DONE)
			return kmod_decode_end(h, end) ?: 1;
		if (!*bad && each && h->nlmsg_type >= NLMSG_MIN_TYPE)
			*bad = each(h, data);
	}
	return 0;
}

/* Sends @h and reads the answer; returns the kernel's error. */
static int transact(struct kmod_link *l, struct nlmsghdr *h, message each, void *data,
		    struct kmod_end *end)
{
	int r = 0, bad = 0;
	ssize_t n;

	*end = (struct kmod_end){ 0 };
	if (mnl_socket_sendto(l->socket, h, h->nlmsg_len) < 0)
		return -errno;
	while (!r) {
		n = mnl_socket_recvfrom(l->socket, l->receive, sizeof(l->receive));
		if (n < 0 && errno == EINTR)
			continue;
		r = n < 0 ? (errno == EAGAIN ? -ETIMEDOUT : -errno) :
			    take(l, (int)n, each, data, end, &bad);
	}
	return r < 0 ? r : end->result ?: bad;
}

/* As transact(), for a command about a device. */
static int call(struct kmod_link *l, struct nlmsghdr *h, uint32_t device, message each, void *data,
		struct error *e)
{
	struct kmod_end end;
	int r = transact(l, h, each, data, &end);

	if (!r)
		return 0;
	/* Errors for a command or attribute that an older family lacks. */
	if (l->family.version < EBB_SWAP_VERSION &&
	    (*end.text ? r == -EINVAL && strcasestr(end.text, "attribute") : r == -EOPNOTSUPP))
		return fail_exit(e, EXIT_UNSUPPORTED, r,
				 "/dev/ebb%u: the loaded kernel module has version %u, which does not support this, not %u; destroy its devices, then rmmod ebb_swap; modprobe ebb_swap",
				 device, l->family.version, EBB_SWAP_VERSION);
	if (r == -EPERM && !*end.text)
		return fail_exit(e, EXIT_REFUSED, r,
				 "/dev/ebb%u: the kernel module refuses: needs CAP_SYS_ADMIN; run as root",
				 device);
	return fail_exit(e, r == -EPERM ? EXIT_REFUSED : EXIT_FAILED, r, "/dev/ebb%u: %s", device,
			 *end.text ? end.text : strerror(-r));
}

static int on_family(const struct nlmsghdr *h, void *data)
{
	return kmod_decode_family(h, data);
}

static int find_family(struct kmod_link *l, struct error *e)
{
	struct nlmsghdr *h = begin(l, GENL_ID_CTRL, CTRL_CMD_GETFAMILY);
	struct kmod_end end;
	int r;

	mnl_attr_put_strz(h, CTRL_ATTR_FAMILY_NAME, EBB_SWAP_FAMILY);
	r = transact(l, h, on_family, &l->family, &end);
	if (r == -ENOENT)
		return fail_exit(e, EXIT_UNSUPPORTED, r,
				 "ebb_swap: the kernel module is not loaded; " REMEDY_LOAD);
	return r ? fail(e, r, "ebb_swap: %s; " REMEDY_LOAD, strerror(-r)) : 0;
}

void kmod_limit(struct kmod_link *l, uint32_t ms)
{
	struct timeval limit = { .tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000 };

	setsockopt(kmod_fd(l), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
}

static int link_open(struct kmod_link *l, struct error *e)
{
	int on = 1;

	l->socket = mnl_socket_open2(NETLINK_GENERIC, SOCK_CLOEXEC);
	if (!l->socket)
		return fail(e, errno, "netlink: cannot open: %s; ebb_swap is controlled by netlink",
			    strerror(errno));
	/* The text of an error: many refusals have equal errnos. */
	mnl_socket_setsockopt(l->socket, NETLINK_EXT_ACK, &on, sizeof(on));
	mnl_socket_setsockopt(l->socket, NETLINK_CAP_ACK, &on, sizeof(on));
	kmod_limit(l, ANSWER_S * 1000);
	if (mnl_socket_bind(l->socket, 0, MNL_SOCKET_AUTOPID) < 0)
		return fail(e, errno, "netlink: cannot bind: %s", strerror(errno));
	return find_family(l, e);
}

void kmod_close(struct kmod_link **l)
{
	if (*l && (*l)->socket)
		mnl_socket_close((*l)->socket);
	free(*l);
	*l = NULL;
}

int kmod_open(struct kmod_link **out, struct error *e)
{
	struct kmod_link *l = calloc(1, sizeof(*l));
	int r = l ? link_open(l, e) : fail(e, ENOMEM, "ebb_swap: out of memory");

	if (r)
		kmod_close(&l);
	else
		*out = l;
	return r;
}

int kmod_fd(const struct kmod_link *l)
{
	return mnl_socket_get_fd(l->socket);
}

int kmod_listen(struct kmod_link *l, struct error *e)
{
	uint32_t group = l->family.events;

	if (!group ||
	    mnl_socket_setsockopt(l->socket, NETLINK_ADD_MEMBERSHIP, &group, sizeof(group)) < 0)
		return fail(e, group ? errno : ENOENT,
			    "ebb_swap: cannot subscribe to its events: %s; run as root",
			    strerror(group ? errno : ENOENT));
	return 0;
}

int kmod_event(struct kmod_link *l, struct kmod_event *event)
{
	for (;;) {
		ssize_t n = recv(kmod_fd(l), l->receive, sizeof(l->receive), MSG_DONTWAIT);
		const struct nlmsghdr *h = (const void *)l->receive;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN ? 0 : -errno;
		/* The kernel sends one event per datagram. */
		if (mnl_nlmsg_ok(h, (int)n) && h->nlmsg_type == l->family.id &&
		    !kmod_decode_event(h, event))
			return 1;
	}
}

static struct nlmsghdr *begin_for(struct kmod_link *l, uint8_t command, uint32_t device)
{
	struct nlmsghdr *h = begin(l, l->family.id, command);

	mnl_attr_put_u32(h, EBB_SWAP_A_DEVICE, device);
	return h;
}

/* Omits the attribute if the value is NONE. */
static void put_u32(struct nlmsghdr *h, uint16_t attribute, uint32_t value)
{
	if (value != NONE)
		mnl_attr_put_u32(h, attribute, value);
}

static void put_key(struct nlmsghdr *h, const uint8_t *key, const uint8_t *number)
{
	mnl_attr_put(h, EBB_SWAP_A_KEY, EBB_SWAP_KEY, key);
	mnl_attr_put(h, EBB_SWAP_A_KEY_NUMBER, EBB_SWAP_KEY_NUMBER, number);
}

int kmod_create(struct kmod_link *l, const struct kmod_settings *s, struct error *e)
{
	struct nlmsghdr *h = begin_for(l, EBB_SWAP_CMD_CREATE, s->device);
	_cleanup_close_ int backup = -1;
	int r;

	if (s->backup && strlen(s->backup) >= EBB_SWAP_PATH)
		return fail_exit(e, EXIT_USAGE, ENAMETOOLONG, "backup %.64s...: path too long; give a shorter one",
				 s->backup);
	/* Open until the answer, so that the module's own open never has to load a driver. */
	backup = s->backup ? open(s->backup, O_RDONLY | O_CLOEXEC) : -1;
	if (s->backup && backup < 0)
		return fail(e, errno, "backup %s: cannot open: %s", s->backup, strerror(errno));
	mnl_attr_put_u64(h, EBB_SWAP_A_SIZE, s->size);
	mnl_attr_put_u64(h, EBB_SWAP_A_SLAB_SIZE, s->slab);
	if (s->backup)
		mnl_attr_put_strz(h, EBB_SWAP_A_BACKUP, s->backup);
	put_u32(h, EBB_SWAP_A_COPIES, s->copies ?: NONE);
	put_key(h, s->key, s->key_number);
	if (s->seal)
		mnl_attr_put(h, EBB_SWAP_A_SEAL, 0, NULL);
	r = call(l, h, s->device, NULL, NULL, e);
	explicit_bzero(l->send, sizeof(l->send));
	return r;
}

int kmod_destroy(struct kmod_link *l, uint32_t device, struct error *e)
{
	return call(l, begin_for(l, EBB_SWAP_CMD_DESTROY, device), device, NULL, NULL, e);
}

static int on_session(const struct nlmsghdr *h, void *data)
{
	return kmod_decode_number(h, EBB_SWAP_CMD_CONNECT, EBB_SWAP_A_SESSION, data);
}

int kmod_connect(struct kmod_link *l, uint32_t device, uint32_t class,
		 const struct kmod_peer *peer, uint32_t *session, struct error *e)
{
	struct nlmsghdr *h = begin_for(l, EBB_SWAP_CMD_CONNECT, device);
	int r;

	put_u32(h, EBB_SWAP_A_CLASS, class);
	mnl_attr_put_strz(h, EBB_SWAP_A_ADDRESS, peer->ip);
	mnl_attr_put_u16(h, EBB_SWAP_A_PORT, peer->port);
	if (peer->key && l->family.version >= 3)
		put_key(h, peer->key, peer->key_number);
	r = call(l, h, device, on_session, session, e);
	explicit_bzero(l->send, sizeof(l->send));
	return r;
}

int kmod_disconnect(struct kmod_link *l, uint32_t device, uint32_t session, struct error *e)
{
	struct nlmsghdr *h = begin_for(l, EBB_SWAP_CMD_DISCONNECT, device);

	put_u32(h, EBB_SWAP_A_SESSION, session);
	return call(l, h, device, NULL, NULL, e);
}

int kmod_map(struct kmod_link *l, uint32_t device, uint32_t slab, uint32_t session,
	     struct error *e)
{
	struct nlmsghdr *h = begin_for(l, EBB_SWAP_CMD_MAP, device);

	put_u32(h, EBB_SWAP_A_SLAB, slab);
	put_u32(h, EBB_SWAP_A_SESSION, session);
	return call(l, h, device, NULL, NULL, e);
}

int kmod_migrate(struct kmod_link *l, uint32_t device, uint32_t class, uint32_t slab,
		 uint32_t from, uint32_t session, struct error *e)
{
	struct nlmsghdr *h = begin_for(l, EBB_SWAP_CMD_MIGRATE, device);

	put_u32(h, EBB_SWAP_A_SLAB, slab);
	put_u32(h, EBB_SWAP_A_CLASS, class);
	put_u32(h, EBB_SWAP_A_SESSION, session);
	put_u32(h, EBB_SWAP_A_FROM, from);
	return call(l, h, device, NULL, NULL, e);
}

int kmod_class(struct kmod_link *l, uint32_t device, uint32_t class, uint32_t copies,
	       enum kmod_seal seal, struct error *e)
{
	struct nlmsghdr *h = begin_for(l, EBB_SWAP_CMD_CLASS, device);

	put_u32(h, EBB_SWAP_A_CLASS, class);
	put_u32(h, EBB_SWAP_A_COPIES, copies);
	if (seal == KMOD_SEALED)
		mnl_attr_put(h, EBB_SWAP_A_SEAL, 0, NULL);
	return call(l, h, device, NULL, NULL, e);
}

int kmod_assign(struct kmod_link *l, uint32_t device, uint64_t cgroup, uint32_t class,
		struct error *e)
{
	struct nlmsghdr *h = begin_for(l, EBB_SWAP_CMD_ASSIGN, device);

	mnl_attr_put_u64(h, EBB_SWAP_A_CGROUP, cgroup);
	put_u32(h, EBB_SWAP_A_CLASS, class);
	return call(l, h, device, NULL, NULL, e);
}

int kmod_drain(struct kmod_link *l, uint32_t device, uint32_t session, uint32_t target,
	       struct error *e)
{
	struct nlmsghdr *h = begin_for(l, EBB_SWAP_CMD_DRAIN, device);
	int r;

	put_u32(h, EBB_SWAP_A_SESSION, session);
	put_u32(h, EBB_SWAP_A_TARGET, l->family.version < 2 ? target : NONE);
	r = call(l, h, device, NULL, NULL, e);
	/* Version 1 has excluded the session even when a slab cannot move. */
	return l->family.version < 2 && (r == -ENOSPC || r == -EBUSY || r == -EEXIST) ? 0 : r;
}

int kmod_trust(struct kmod_link *l, uint32_t device, uint32_t session, struct error *e)
{
	struct nlmsghdr *h = begin_for(l, EBB_SWAP_CMD_TRUST, device);

	put_u32(h, EBB_SWAP_A_SESSION, session);
	return call(l, h, device, NULL, NULL, e);
}

struct wanted {
	uint32_t number;
	bool found;
	struct kmod_device *out, *scratch;
};

static int on_device(const struct nlmsghdr *h, void *data)
{
	struct wanted *w = data;
	int r = kmod_decode_device(h, w->scratch);

	if (!r && w->scratch->number == w->number) {
		*w->out = *w->scratch;
		w->found = true;
	}
	return r;
}

int kmod_status(struct kmod_link *l, uint32_t device, struct kmod_device *out, struct error *e)
{
	_cleanup_free_ struct kmod_device *scratch = calloc(1, sizeof(*scratch));
	struct wanted w = { .number = device, .out = out, .scratch = scratch };
	struct nlmsghdr *h = begin(l, l->family.id, EBB_SWAP_CMD_STATUS);
	int r;

	if (!scratch)
		return fail(e, ENOMEM, "/dev/ebb%u: out of memory", device);
	h->nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
	r = call(l, h, device, on_device, &w, e);
	if (!r && !w.found)
		r = fail(e, ENODEV, "/dev/ebb%u: the kernel module has no such device", device);
	return r;
}

struct table {
	struct ebb_swap_slab *slabs;
	uint32_t count, known;
};

static int on_slabs(const struct nlmsghdr *h, void *data)
{
	struct table *t = data;

	return kmod_decode_slabs(h, t->slabs, t->count, &t->known);
}

int kmod_slabs(struct kmod_link *l, const struct kmod_device *device, uint32_t class,
	       struct ebb_swap_slab **out, uint32_t *count, struct error *e)
{
	struct table t = { .count = (uint32_t)(device->size / device->slab) };
	struct nlmsghdr *h = begin_for(l, EBB_SWAP_CMD_SLABS, device->number);
	int r;

	t.slabs = calloc(t.count ?: 1, sizeof(*t.slabs));
	if (!t.slabs)
		return fail(e, ENOMEM, "/dev/ebb%u: out of memory", device->number);
	put_u32(h, EBB_SWAP_A_CLASS, class);
	h->nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
	r = call(l, h, device->number, on_slabs, &t, e);
	if (!r && t.known != t.count)
		r = fail(e, EBADMSG, "/dev/ebb%u: %u of %u slabs were reported", device->number, t.known,
			 t.count);
	if (r) {
		free(t.slabs);
		return r;
	}
	*out = t.slabs;
	*count = t.count;
	return 0;
}
