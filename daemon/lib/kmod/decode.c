// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/genetlink.h>
#include <string.h>

#include "decode.h"

static uint32_t u32(const struct nlattr *a)
{
	return mnl_attr_validate(a, MNL_TYPE_U32) < 0 ? 0 : mnl_attr_get_u32(a);
}

static uint64_t u64(const struct nlattr *a)
{
	return mnl_attr_validate(a, MNL_TYPE_U64) < 0 ? 0 : mnl_attr_get_u64(a);
}

static uint16_t u16(const struct nlattr *a)
{
	return mnl_attr_validate(a, MNL_TYPE_U16) < 0 ? 0 : mnl_attr_get_u16(a);
}

/* The text may lack its NUL. */
static void text(const struct nlattr *a, char *to, size_t size)
{
	size_t n = mnl_attr_get_payload_len(a);

	n = n < size ? n : size - 1;
	memcpy(to, mnl_attr_get_payload(a), n);
	to[n] = '\0';
}

static void hex(const struct nlattr *a, char *to, size_t size)
{
	const uint8_t *bytes = mnl_attr_get_payload(a);

	if (mnl_attr_get_payload_len(a) != size / 2)
		return;
	for (size_t i = 0; i < size / 2; i++) {
		to[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
		to[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
	}
}

/* Stops at the end of the message; mnl_attr_for_each() goes on to the next multiple of four. */
#define each_attribute(a, h) \
	for ((a) = mnl_nlmsg_get_payload_offset(h, sizeof(struct genlmsghdr)); \
	     mnl_attr_ok(a, (int)((const char *)(h) + (h)->nlmsg_len - (const char *)(a))); \
	     (a) = mnl_attr_next(a))

static bool is(const struct nlmsghdr *h, uint8_t command)
{
	const struct genlmsghdr *g = mnl_nlmsg_get_payload(h);

	return mnl_nlmsg_get_payload_len(h) >= sizeof(*g) && g->cmd == command;
}

static void decode_counts(const struct nlattr *nest, struct kmod_device *d)
{
	const struct nlattr *a;

	mnl_attr_for_each_nested(a, nest) {
		uint16_t type = mnl_attr_get_type(a);

		if (type && type < EBB_SWAP_COUNTS)
			d->count[type] = u64(a);
	}
}

static void decode_session(const struct nlattr *nest, struct kmod_session *s)
{
	const struct nlattr *a;

	mnl_attr_for_each_nested(a, nest) {
		switch (mnl_attr_get_type(a)) {
		case EBB_SWAP_A_SESSION: s->number = u32(a); break;
		case EBB_SWAP_A_STATE: s->state = u32(a); break;
		case EBB_SWAP_A_REASON: text(a, s->reason, sizeof(s->reason)); break;
		case EBB_SWAP_A_ADDRESS: text(a, s->ip, sizeof(s->ip)); break;
		case EBB_SWAP_A_PORT: s->port = u16(a); break;
		case EBB_SWAP_A_DONOR_FREE: s->free = u64(a); break;
		case EBB_SWAP_A_DRAINING: s->draining = true; break;
		case EBB_SWAP_A_BAD_PAGES: s->bad_pages = u32(a); break;
		case EBB_SWAP_A_CLASS: s->class = u32(a); break;
		case EBB_SWAP_A_AWAY: s->away = u32(a); break;
		}
	}
}

/* Decodes a CLASS_INFO or, with a cgroup, a CGROUP_INFO. */
static void decode_class(const struct nlattr *nest, struct kmod_device *d)
{
	uint32_t class = EBB_SWAP_CLASSES, copies = 0, sealed = 0;
	const struct nlattr *a;
	uint64_t cgroup = 0;

	mnl_attr_for_each_nested(a, nest) {
		switch (mnl_attr_get_type(a)) {
		case EBB_SWAP_A_CLASS: class = u32(a); break;
		case EBB_SWAP_A_COPIES: copies = u32(a); break;
		case EBB_SWAP_A_SEAL: sealed = 1; break;
		case EBB_SWAP_A_CGROUP: cgroup = u64(a); break;
		}
	}
	if (class >= EBB_SWAP_CLASSES)
		return;
	if (!cgroup && class) {
		d->copies[class] = copies;
		d->sealed |= sealed << class;
	} else if (cgroup && d->cgroups < EBB_SWAP_CGROUPS) {
		d->cgroup[d->cgroups].id = cgroup;
		d->cgroup[d->cgroups++].class = class;
	}
}

int kmod_decode_device(const struct nlmsghdr *h, struct kmod_device *d)
{
	const struct nlattr *a;
	bool named = false;

	memset(d, 0, sizeof(*d));
	if (!is(h, EBB_SWAP_CMD_STATUS))
		return -EBADMSG;
	each_attribute(a, h) {
		switch (mnl_attr_get_type(a)) {
		case EBB_SWAP_A_DEVICE:
			d->number = u32(a);
			named = true;
			break;
		case EBB_SWAP_A_SIZE: d->size = u64(a); break;
		case EBB_SWAP_A_SLAB_SIZE: d->slab = u64(a); break;
		case EBB_SWAP_A_POOL: d->pool = u64(a); break;
		case EBB_SWAP_A_POOL_USED: d->pool_used = u64(a); break;
		case EBB_SWAP_A_DEADLINE: d->deadline = u32(a); break;
		case EBB_SWAP_A_BACKUP: text(a, d->backup, sizeof(d->backup)); break;
		case EBB_SWAP_A_COPIES: d->copies[0] = u32(a); break;
		case EBB_SWAP_A_KEY_NUMBER: hex(a, d->key, sizeof(d->key)); break;
		case EBB_SWAP_A_SEAL: d->sealed |= 1; break;
		case EBB_SWAP_A_COUNTS: decode_counts(a, d); break;
		case EBB_SWAP_A_SESSION_INFO:
			if (d->sessions < EBB_SWAP_SESSIONS)
				decode_session(a, &d->session[d->sessions++]);
			break;
		case EBB_SWAP_A_CLASS_INFO:
		case EBB_SWAP_A_CGROUP_INFO:
			decode_class(a, d);
			break;
		}
	}
	/* Callers divide by the size of a slab. */
	return named && d->slab && d->size / d->slab <= KMOD_SLABS_MAX ? 0 : -EBADMSG;
}

int kmod_decode_event(const struct nlmsghdr *h, struct kmod_event *event)
{
	const struct nlattr *a;
	bool named = false;

	*event = (struct kmod_event){ .session = KMOD_NO_SESSION, .slab = KMOD_NO_SLAB };
	if (!is(h, EBB_SWAP_CMD_EVENT))
		return -EBADMSG;
	each_attribute(a, h) {
		switch (mnl_attr_get_type(a)) {
		case EBB_SWAP_A_DEVICE:
			event->device = u32(a);
			named = true;
			break;
		case EBB_SWAP_A_EVENT: event->kind = u32(a); break;
		case EBB_SWAP_A_SESSION: event->session = u32(a); break;
		case EBB_SWAP_A_SLAB: event->slab = u32(a); break;
		case EBB_SWAP_A_REASON: text(a, event->reason, sizeof(event->reason)); break;
		}
	}
	return named ? 0 : -EBADMSG;
}

static void decode_group(const struct nlattr *nest, struct kmod_family *f)
{
	char name[GENL_NAMSIZ] = "";
	const struct nlattr *a;
	uint32_t id = 0;

	mnl_attr_for_each_nested(a, nest) {
		if (mnl_attr_get_type(a) == CTRL_ATTR_MCAST_GRP_NAME)
			text(a, name, sizeof(name));
		else if (mnl_attr_get_type(a) == CTRL_ATTR_MCAST_GRP_ID)
			id = u32(a);
	}
	if (!strcmp(name, EBB_SWAP_GROUP))
		f->events = id;
}

int kmod_decode_family(const struct nlmsghdr *h, struct kmod_family *f)
{
	const struct nlattr *a, *group;

	*f = (struct kmod_family){ 0 };
	if (!is(h, CTRL_CMD_NEWFAMILY))
		return -EBADMSG;
	each_attribute(a, h) {
		if (mnl_attr_get_type(a) == CTRL_ATTR_FAMILY_ID)
			f->id = u16(a);
		else if (mnl_attr_get_type(a) == CTRL_ATTR_VERSION)
			f->version = u32(a);
		else if (mnl_attr_get_type(a) == CTRL_ATTR_MCAST_GROUPS)
			mnl_attr_for_each_nested(group, a)
				decode_group(group, f);
	}
	return f->id ? 0 : -EBADMSG;
}

int kmod_decode_number(const struct nlmsghdr *h, uint8_t command, uint16_t attribute,
		       uint32_t *number)
{
	const struct nlattr *a;

	if (!is(h, command))
		return -EBADMSG;
	each_attribute(a, h) {
		if (mnl_attr_get_type(a) == attribute) {
			*number = u32(a);
			return 0;
		}
	}
	return -EBADMSG;
}

int kmod_decode_slabs(const struct nlmsghdr *h, struct ebb_swap_slab *slabs, uint32_t count,
		      uint32_t *known)
{
	const struct nlattr *a, *table = NULL;
	uint32_t first = UINT32_MAX, n;

	if (!is(h, EBB_SWAP_CMD_SLABS))
		return -EBADMSG;
	each_attribute(a, h) {
		if (mnl_attr_get_type(a) == EBB_SWAP_A_SLAB_FIRST)
			first = u32(a);
		else if (mnl_attr_get_type(a) == EBB_SWAP_A_SLAB_TABLE)
			table = a;
	}
	if (!table || first != *known || first > count ||
	    mnl_attr_get_payload_len(table) % sizeof(*slabs))
		return -EBADMSG;
	n = mnl_attr_get_payload_len(table) / sizeof(*slabs);
	if (n > count - first)
		return -EBADMSG;
	/* An attribute is aligned to four bytes only. */
	memcpy(slabs + first, mnl_attr_get_payload(table), n * sizeof(*slabs));
	*known += n;
	return 0;
}

static void decode_text(const void *from, size_t size, struct kmod_end *end)
{
	const struct nlattr *attr;

	mnl_attr_for_each_payload(from, size)
		if (mnl_attr_get_type(attr) == NLMSGERR_ATTR_MSG)
			text(attr, end->text, sizeof(end->text));
}

int kmod_decode_end(const struct nlmsghdr *h, struct kmod_end *end)
{
	size_t size = mnl_nlmsg_get_payload_len(h), skip = sizeof(int);
	const char *payload = mnl_nlmsg_get_payload(h);
	const struct nlmsgerr *error = (const void *)payload;

	*end = (struct kmod_end){ 0 };
	if ((h->nlmsg_type != NLMSG_ERROR && h->nlmsg_type != NLMSG_DONE) || size < sizeof(int))
		return -EBADMSG;
	memcpy(&end->result, payload, sizeof(int));
	/* Callers treat 0 as success and pass other values to strerror(). */
	if (end->result > 0 || end->result < -4095)
		return -EBADMSG;
	if (!(h->nlmsg_flags & NLM_F_ACK_TLVS))
		return 0;
	if (h->nlmsg_type == NLMSG_ERROR) {
		if (size < sizeof(*error))
			return -EBADMSG;
		skip = sizeof(*error);
		/* Without this flag the whole request precedes the attributes. */
		if (!(h->nlmsg_flags & NLM_F_CAPPED)) {
			if (error->msg.nlmsg_len < sizeof(error->msg) ||
			    error->msg.nlmsg_len > size - sizeof(int))
				return 0;
			skip = sizeof(int) + MNL_ALIGN(error->msg.nlmsg_len);
		}
	}
	if (skip < size)
		decode_text(payload + skip, size - skip, end);
	return 0;
}
