// SPDX-License-Identifier: GPL-2.0-or-later
#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/bytes.h"
#include "lib/base/clock.h"
#include "pools.h"

/* Longest silence of a donor. */
#define TIMEOUT_MS 5000
#define DESTROY_NS 3000000000ull
#define RETRY_NS 20000000
/* Sections per round trip that reads slot words. */
#define BATCH 32u

/* --- connection ------------------------------------------------------------------- */

static int silent(const char *address, struct error *e)
{
	return fail(e, ETIMEDOUT,
		    "donor %s: no reply in %d s; check that its ebb-donord runs and that its machine is reachable",
		    address, TIMEOUT_MS / 1000);
}

/* Says in words of this program why the handshake failed with @r and @inner. */
static int cannot_open(const struct far_donor *d, int r, const struct error *inner,
		       struct error *e)
{
	int status = inner->exit_status;

	if (r == -ETIMEDOUT)
		return silent(d->address, e);
	if (r == -EPROTO)
		return fail(e, EPROTO,
			    "donor %s: its reply is not of ebb's protocol; check that an ebb-donord listens there",
			    d->address);
	if (r == -EPROTONOSUPPORT || r == -EOPNOTSUPP)
		status = EXIT_UNSUPPORTED;
	return fail_exit(e, status, r, "%s", inner->text);
}

int far_donor_open(struct far_donor *d, const char *address, const char *key, struct error *e)
{
	struct error inner = { 0 };
	int r;

	*d = (struct far_donor){ .address = address, .key = key };
	r = client_open(&d->client, address, key, TIMEOUT_MS, false, &inner);
	if (r)
		return cannot_open(d, r, &inner, e);
	d->arena = d->client.told.slab_size;
	return 0;
}

void far_donor_close(struct far_donor *d)
{
	client_close(&d->client);
}

/* Describes a failure with @r of a request. */
static int failed(const struct far_donor *d, int r, struct error *e)
{
	uint16_t status = d->client.status;

	if (r == -ETIMEDOUT)
		return silent(d->address, e);
	if (r == -ESHUTDOWN)
		return fail(e, r, "donor %s: it closed the connection; see its log", d->address);
	return fail(e, r, "donor %s: it refused: %s; see its log", d->address,
		    status ? wire_status_text(status) : strerror(-r));
}

static int no_pool(const struct far_donor *d, const char *name, struct error *e)
{
	return fail_exit(e, EXIT_USAGE, ENOENT,
			 "pool %s: no such pool of this key at donor %s; see \"ebbctl far list\"",
			 name, d->address);
}

/* --- pools ------------------------------------------------------------------------ */

static int check_name(const char *name, struct error *e)
{
	char padded[WIRE_FAR_NAME] = { 0 };

	if (strlen(name) < sizeof(padded))
		memcpy(padded, name, strlen(name));
	return wire_far_is_name(padded) ? 0 :
	       fail_exit(e, EXIT_USAGE, EINVAL,
			 "pool %.64s: not a name; use 1 to %u printable ASCII characters without blanks",
			 name, WIRE_FAR_NAME - 1);
}

/* Asks for @verb; *@opened is the reply. */
static int ask(struct far_donor *d, enum wire_far_verb verb, const char *name, uint32_t flags,
	       struct wire_far_opened *opened)
{
	struct wire_far_pool p = { .verb = verb, .flags = flags };
	uint8_t payload[WIRE_FAR_POOL_SIZE], reply[WIRE_FAR_OPENED_SIZE];
	int r;

	strncpy(p.name, name, sizeof(p.name) - 1);
	wire_build_far_pool(payload, &p);
	r = client_push(&d->client,
			(struct wire_frame){ .op = WIRE_FAR_POOL, .length = sizeof(payload) },
			payload, (struct client_reply){ .length = sizeof(reply), .to = reply });
	if (!r)
		r = client_settle(&d->client);
	return r ?: wire_parse_far_opened(reply, sizeof(reply), opened);
}

int far_pool_create(struct far_donor *d, const char *name, uint32_t flags, struct error *e)
{
	struct wire_far_opened opened;
	int r = check_name(name, e);

	if (r)
		return r;
	r = ask(d, WIRE_FAR_CREATE, name, flags, &opened);
	if (r == -EEXIST)
		return fail_exit(e, EXIT_REFUSED, r,
				 "pool %s: it exists at donor %s; choose another name, or \"ebbctl far destroy\" it",
				 name, d->address);
	if (r == -ENOSPC)
		return fail_exit(e, EXIT_REFUSED, r,
				 "pool %s: donor %s has no place for one more: a key has up to %u pools; \"ebbctl far destroy\" one",
				 name, d->address, WIRE_FAR_POOLS);
	return r ? failed(d, r, e) : 0;
}

int far_pool_list(struct far_donor *d, struct wire_far_listed list[static WIRE_FAR_POOLS],
		  uint32_t *n, struct error *e)
{
	uint8_t reply[WIRE_FAR_POOLS * WIRE_FAR_LISTED_SIZE];
	uint32_t length = 0;
	int r = client_push(&d->client, (struct wire_frame){ .op = WIRE_FAR_LIST }, NULL,
			    (struct client_reply){ .length = sizeof(reply), .to = reply,
						   .any = true, .got = &length });

	if (!r)
		r = client_settle(&d->client);
	for (uint32_t i = 0; !r && i < length / WIRE_FAR_LISTED_SIZE; i++)
		r = wire_parse_far_listed(reply + i * WIRE_FAR_LISTED_SIZE, WIRE_FAR_LISTED_SIZE,
					  &list[i]);
	if (r)
		return failed(d, r, e);
	*n = length / WIRE_FAR_LISTED_SIZE;
	return 0;
}

int far_pool_find(struct far_donor *d, const char *name, struct wire_far_listed *l,
		  struct error *e)
{
	struct wire_far_listed list[WIRE_FAR_POOLS];
	uint32_t n = 0;
	int r = check_name(name, e) ?: far_pool_list(d, list, &n, e);

	if (r)
		return r;
	for (uint32_t i = 0; i < n; i++)
		if (!strcmp(list[i].name, name)) {
			*l = list[i];
			return 0;
		}
	return no_pool(d, name, e);
}

/* --- contents --------------------------------------------------------------------- */

static int join(struct far_donor *d, const char *name, struct wire_far_opened *opened,
		struct error *e)
{
	int r = ask(d, WIRE_FAR_OPEN, name, 0, opened);

	if (r == -ESRCH)
		return fail_exit(e, EXIT_REFUSED, r,
				 "pool %s: it has %u members, and ebbctl would be one more; end one",
				 name, EBB_FAR_MEMBERS);
	if (r == -ENOENT)
		return no_pool(d, name, e);
	if (!r && (!opened->member || opened->member > EBB_FAR_MEMBERS || !opened->sections ||
		   opened->sections > EBB_FAR_ARENA_SECTIONS))
		r = -EPROTO;
	return r ? failed(d, r, e) : 0;
}

static int push_read(struct far_donor *d, uint32_t arena, uint64_t at, uint32_t words, void *to)
{
	return client_push(&d->client,
			   (struct wire_frame){ .op = WIRE_FAR_READ, .slab = arena,
						.offset = (uint32_t)at, .length = 8 * words },
			   NULL, (struct client_reply){ .length = 8 * words, .to = to,
							.words = true });
}

/* Memory of READs. */
struct table {
	uint64_t sections[EBB_FAR_ARENA_SECTIONS];
	uint64_t slots[BATCH][EBB_FAR_SLOTS];
	uint8_t records[EBB_FAR_MEMBERS][sizeof(struct ebb_far_member)];
};

static int read_states(struct far_donor *d, struct table *t, struct far_contents *c)
{
	int r = client_push(&d->client,
			    (struct wire_frame){ .op = WIRE_FAR_READ, .offset = EBB_FAR_MEMBERS_AT,
						 .length = sizeof(t->records) },
			    NULL, (struct client_reply){ .length = sizeof(t->records),
							 .to = t->records });

	if (!r)
		r = client_settle(&d->client);
	for (uint32_t i = 0; i < EBB_FAR_MEMBERS && !r; i++)
		c->state[i + 1] = (uint8_t)get32(t->records[i]);
	return r;
}

static int read_arena(struct far_donor *d, uint32_t arena, uint32_t sections, struct table *t,
		      struct far_contents *c)
{
	int r = push_read(d, arena, ebb_far_section_at(0), sections, t->sections);

	if (!r)
		r = client_settle(&d->client);
	for (uint32_t first = 0; first < sections && !r; first += BATCH) {
		uint32_t end = first + BATCH < sections ? first + BATCH : sections;

		for (uint32_t i = first; i < end && !r; i++) {
			uint32_t words = far_count_slots(t->sections[i]);

			if (words)
				r = push_read(d, arena, ebb_far_slot_at(sections, i, 0), words,
					      t->slots[i - first]);
		}
		if (!r)
			r = client_settle(&d->client);
		for (uint32_t i = first; i < end && !r; i++)
			far_count_section(c->members, t->sections[i], t->slots[i - first]);
	}
	return r;
}

int far_pool_read(struct far_donor *d, const char *name, struct far_contents *c, struct error *e)
{
	struct wire_far_opened opened;
	struct table *t;
	int r = join(d, name, &opened, e);

	if (r)
		return r;
	t = malloc(sizeof(*t));
	if (!t)
		return fail(e, ENOMEM, "out of memory");
	*c = (struct far_contents){ .self = opened.member };
	if (opened.arenas)
		r = read_states(d, t, c);
	for (uint32_t i = 0; i < opened.arenas && !r; i++)
		r = read_arena(d, i, opened.sections, t, c);
	free(t);
	if (r)
		return failed(d, r, e);
	client_bye(&d->client);
	return 0;
}

/* --- desks ------------------------------------------------------------------------ */

static void make_printable(char *text)
{
	for (; *text; text++)
		if (*text < ' ' || *text > '~')
			*text = '?';
}

/* Bytes of a desk are words and texts, little-endian: as this machine's, or in its order. */
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "desks are read as they are");

/* Reads the desks at @places, which are not 0, by member; keeps those that are valid. */
static int read_desks(struct far_donor *d, const uint64_t *places, struct far_desks *out)
{
	uint32_t found = out->n;
	int r = 0;

	for (uint32_t i = 0; i < found && !r; i++) {
		r = client_push(&d->client,
				(struct wire_frame){ .op = WIRE_FAR_READ,
						     .slab = (uint32_t)(places[i] >> 32),
						     .offset = (uint32_t)places[i],
						     .length = DESK_SHOWN },
				NULL, (struct client_reply){ .length = DESK_SHOWN,
							     .to = &out->desks[i].desk });
		if (!r && (i % BATCH == BATCH - 1 || i == found - 1))
			r = client_settle(&d->client);
	}
	out->n = 0;
	for (uint32_t i = 0; i < found && !r; i++) {
		struct far_desk *f = &out->desks[out->n];

		/* One that is being made or freed has no desk. */
		if (!desk_is_valid(&out->desks[i].desk, places[i]))
			continue;
		*f = out->desks[i];
		make_printable(f->desk.host);
		make_printable(f->desk.build);
		out->n++;
	}
	return r;
}

/* Reads the records of members.  Returns 0 or -errno, and stores the places of their desks. */
static int find_desks(struct far_donor *d, uint64_t *places, struct far_desks *out)
{
	struct ebb_far_member records[EBB_FAR_MEMBERS];
	int r = client_push(&d->client,
			    (struct wire_frame){ .op = WIRE_FAR_READ, .offset = EBB_FAR_MEMBERS_AT,
						 .length = sizeof(records) },
			    NULL, (struct client_reply){ .length = sizeof(records),
							 .to = records });

	if (!r)
		r = client_settle(&d->client);
	for (uint32_t i = 0; i < EBB_FAR_MEMBERS && !r; i++) {
		uint32_t state = le32toh(records[i].state);
		uint64_t place = desk_place(le64toh(records[i].published));

		if (!place || (state != EBB_FAR_LIVE && state != EBB_FAR_AWAY))
			continue;
		places[out->n] = place;
		out->desks[out->n++].member = i + 1;
	}
	return r;
}

int far_pool_desks(struct far_donor *d, const char *name, struct far_desks *out, struct error *e)
{
	uint64_t places[EBB_FAR_MEMBERS];
	struct wire_far_opened opened;
	int r = check_name(name, e) ?: join(d, name, &opened, e);

	if (r)
		return r;
	memset(out, 0, sizeof(*out));
	out->total = d->client.told.total;
	out->free = d->client.told.free;
	out->pool = (uint64_t)opened.arenas * d->arena;
	if (opened.arenas)
		r = find_desks(d, places, out);
	if (!r && out->n)
		r = read_desks(d, places, out);
	if (r)
		return failed(d, r, e);
	client_bye(&d->client);
	return 0;
}

/* --- destroying ------------------------------------------------------------------- */

/* Has the donor end all members but this one, whichever numbers they have. */
static int end_members(struct far_donor *d, const char *name, struct error *e)
{
	uint8_t payload[BATCH][WIRE_FAR_MEMBER_SIZE];
	struct wire_far_opened opened;
	int r = join(d, name, &opened, e);

	if (r)
		return r;
	for (uint32_t first = 1; first <= EBB_FAR_MEMBERS && !r; first += BATCH) {
		for (uint32_t i = 0; i < BATCH && !r; i++) {
			wire_build_far_word(payload[i], &(struct wire_far_word){ first + i, 0 });
			if (first + i != opened.member)
				r = client_push(&d->client,
						(struct wire_frame){ .op = WIRE_FAR_DEAD,
								     .length = sizeof(payload[i]) },
						payload[i], (struct client_reply){ 0 });
		}
		if (!r)
			r = client_settle(&d->client);
		/* Most numbers are no member's. */
		if (r == -ESRCH)
			r = 0;
	}
	if (r)
		return failed(d, r, e);
	client_bye(&d->client);
	return 0;
}

static int in_use(const char *name, const struct wire_far_listed *l, enum far_force force,
		  struct error *e)
{
	if (!l->live && !l->away)
		return fail_exit(e, EXIT_REFUSED, EBUSY,
				 "pool %s: processes of %u members that have ended still map its memory; end these processes, which the donor's log names",
				 name, l->dead);
	if (force == FAR_END_MEMBERS)
		return fail_exit(e, EXIT_REFUSED, EBUSY,
				 "pool %s: programs open it again faster than their members end; stop them first",
				 name);
	return fail_exit(e, EXIT_REFUSED, EBUSY,
			 "pool %s: it has %u members; end their programs, or pass --force to end them and lose their extents",
			 name, l->live + l->away);
}

/* Returns 0, -EAGAIN if members are being recovered, or -errno with a text. */
static int try_destroy(struct far_donor *d, const char *name, enum far_force force,
		       uint32_t *ended, struct wire_far_listed *l, struct error *e)
{
	struct wire_far_opened opened;
	int r = ask(d, WIRE_FAR_DESTROY, name, 0, &opened);

	if (r == -ENOENT)
		return no_pool(d, name, e);
	if (r != -EBUSY)
		return r ? failed(d, r, e) : 0;
	r = far_pool_find(d, name, l, e);
	if (r)
		return r;
	if (!l->live && !l->away)
		return -EAGAIN;
	if (force == FAR_UNUSED_ONLY)
		return in_use(name, l, force, e);
	*ended += l->live + l->away;
	return end_members(d, name, e) ?: -EAGAIN;
}

int far_pool_destroy(const char *address, const char *key, const char *name, enum far_force force,
		     uint32_t *ended, struct error *e)
{
	const struct timespec pause = { 0, RETRY_NS };
	uint64_t end = now_ns() + DESTROY_NS;
	struct wire_far_listed l = { 0 };
	int r = check_name(name, e);

	while (!r) {
		struct far_donor d;

		r = far_donor_open(&d, address, key, e);
		if (r)
			return r;
		r = try_destroy(&d, name, force, ended, &l, e);
		far_donor_close(&d);
		if (r != -EAGAIN)
			return r;
		if (now_ns() > end)
			return in_use(name, &l, force, e);
		nanosleep(&pause, NULL);
		r = 0;
	}
	return r;
}
