// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "member.h"

#define TIMEOUT_MS 10000u
/* A larger options.size is a mistake, such as one that was not set. */
#define OPTIONS_MOST 4096u
/* Without the fields after the text. */
#define OPTIONS_LEAST offsetof(struct ebbfar_options, resume_ms)

int member_check(const ebbfar_t *far)
{
	return *far->alive ? 0 : -ECHILD;
}

uint32_t ebbfar_member(const ebbfar_t *far)
{
	return far->member;
}

int ebbfar_maps(const ebbfar_t *far)
{
	return far->maps;
}

const char *ebbfar_why(const ebbfar_t *far)
{
	return __atomic_load_n(&far->client.lost, __ATOMIC_ACQUIRE) ? far->client.why : "";
}

/* --- arenas ----------------------------------------------------------------------- */

/* Accesses to a memfd that shrinks would raise SIGBUS. */
static bool is_arena(const ebbfar_t *far, int fd)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	return seals >= 0 && seals & F_SEAL_SHRINK && fstat(fd, &st) == 0 &&
	       (uint64_t)st.st_size >= far->sections * EBB_FAR_SECTION;
}

/* The handle fails for good. */
static int broke_protocol(ebbfar_t *far)
{
	far->client.connector->cut(&far->client, -EPROTO);
	return -EPROTO;
}

static int map_arena(ebbfar_t *far, uint32_t arena, int fd)
{
	size_t size = far->sections * EBB_FAR_SECTION;
	void *memory;

	if (fd == -EMFILE)
		return fd;
	if (fd < 0 || !is_arena(far, fd))
		return broke_protocol(far);
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	/* With mlockall(2), EAGAIN says that RLIMIT_MEMLOCK is used up. */
	if (memory == MAP_FAILED)
		return errno == EAGAIN ? -ENOMEM : -errno;
	/* The donor waits for the exit of this process alone before it frees the extents. */
	if (madvise(memory, size, MADV_DONTFORK) < 0) {
		munmap(memory, size);
		return -errno;
	}
	madvise(memory, size, MADV_DONTDUMP);
	__atomic_store_n(&far->memory[arena], memory, __ATOMIC_RELEASE);
	return 0;
}

/* Asks for arena @arena, which is added if it is the next one. */
static int ask_for_arena(ebbfar_t *far, uint32_t arena)
{
	_cleanup_close_ int fd = -1;
	int r = client_push(&far->client,
			    (struct wire_frame){ .op = WIRE_FAR_ARENA, .slab = arena }, NULL,
			    (struct client_reply){ .fd = far->maps ? &fd : NULL });

	if (!r)
		r = client_settle(&far->client);
	return r || !far->maps ? r : map_arena(far, arena, fd);
}

int member_grow(ebbfar_t *far)
{
	int r = far->arenas < MEMBER_ARENAS ? ask_for_arena(far, far->arenas) : -ENOSPC;

	far->arenas += !r;
	return r;
}

/* Learns how many arenas the pool has. */
static int refresh(ebbfar_t *far)
{
	uint8_t list[WIRE_FAR_POOLS * WIRE_FAR_LISTED_SIZE];
	struct wire_far_listed l;
	uint32_t length = 0;
	int r = client_push(&far->client, (struct wire_frame){ .op = WIRE_FAR_LIST }, NULL,
			    (struct client_reply){ .length = sizeof(list), .to = list, .any = true,
						   .got = &length });

	if (!r)
		r = client_settle(&far->client);
	for (uint32_t i = 0; !r && i < length / WIRE_FAR_LISTED_SIZE; i++) {
		if (wire_parse_far_listed(list + i * WIRE_FAR_LISTED_SIZE, WIRE_FAR_LISTED_SIZE,
					  &l))
			return broke_protocol(far);
		if (l.identity == far->identity && l.arenas > far->arenas)
			far->arenas = l.arenas < MEMBER_ARENAS ? l.arenas : MEMBER_ARENAS;
	}
	return r;
}

int member_reach(ebbfar_t *far, uint32_t arena)
{
	int r = 0;

	if (arena >= far->arenas)
		r = refresh(far);
	if (r || arena >= far->arenas)
		return r ?: -EINVAL;
	return far->maps && !far->memory[arena] ? ask_for_arena(far, arena) : 0;
}

/* --- opening ---------------------------------------------------------------------- */

static int say(struct ebbfar_options *o, const struct error *e)
{
	/* A smaller struct has no room for the text. */
	if (o->size >= OPTIONS_LEAST)
		snprintf(o->error, sizeof(o->error), "%s", e->text);
	return e->code;
}

/* Returns the text for a refusal, or for the errno of a connection. */
static const char *why(const struct client *c, int r)
{
	return c->status ? wire_status_text(c->status) : strerror(-r);
}

/* Asks for @verb on the pool; *@opened is the reply. */
static int ask_pool(struct client *c, const struct ebbfar_options *o, enum wire_far_verb verb,
		    struct wire_far_opened *opened)
{
	struct wire_far_pool p = { .verb = verb };
	uint8_t payload[WIRE_FAR_POOL_SIZE], reply[WIRE_FAR_OPENED_SIZE];
	int r;

	if (verb == WIRE_FAR_CREATE && o->flags & EBBFAR_SHARED)
		p.flags = WIRE_FAR_SHARED;
	strncpy(p.name, o->pool, sizeof(p.name) - 1);
	wire_build_far_pool(payload, &p);
	r = client_push(c, (struct wire_frame){ .op = WIRE_FAR_POOL, .length = sizeof(payload) },
			payload, (struct client_reply){ .length = sizeof(reply), .to = reply });
	if (!r)
		r = client_settle(c);
	return r ?: wire_parse_far_opened(reply, sizeof(reply), opened);
}

static int check_options(const struct ebbfar_options *o, struct error *e)
{
	char name[WIRE_FAR_NAME] = { 0 };

	if (o->size < OPTIONS_LEAST || o->size > OPTIONS_MOST)
		return fail(e, EINVAL,
			    "options: size %zu; set it to sizeof(struct ebbfar_options)", o->size);
	if (!member_knows(o, o->size, sizeof(*o)))
		return fail(e, EINVAL,
			    "options: the program sets a field that this libebbfar lacks; update libebbfar");
	if (!o->donor || !o->pool)
		return fail(e, EINVAL, "options: %s is NULL; set it", o->donor ? "pool" : "donor");
	if (o->flags & ~(EBBFAR_CREATE | EBBFAR_SHARED | EBBFAR_NO_RESUME | EBBFAR_JOBS))
		return fail(e, EINVAL,
			    "options: flags 0x%x: not known to this libebbfar; update libebbfar",
			    o->flags);
	if ((o->flags & (EBBFAR_CREATE | EBBFAR_SHARED)) == EBBFAR_SHARED)
		return fail(e, EINVAL,
			    "options: EBBFAR_SHARED alone: it says how to create a pool; add EBBFAR_CREATE, or leave it out");
	strncpy(name, o->pool, sizeof(name) - 1);
	if (strlen(o->pool) >= sizeof(name) || !wire_far_is_name(name))
		return fail(e, EINVAL,
			    "pool %.64s: not a name; use 1 to %u printable characters without blanks",
			    o->pool, WIRE_FAR_NAME - 1);
	return 0;
}

static int connect_donor(struct client *c, const struct ebbfar_options *o, bool keeps,
			 struct error *e)
{
	uint32_t timeout = o->timeout_ms < INT_MAX ? o->timeout_ms : INT_MAX;
	int r = check_options(o, e);

	if (r)
		return r;
	return (o->flags & EBBFAR_JOBS ? client_open_for_jobs : client_open)(
		c, o->donor, o->key, timeout ?: TIMEOUT_MS, keeps, e);
}

/* Numbers that the rest relies on. */
static bool is_sane(const struct wire_far_opened *o)
{
	return o->member && o->member <= EBB_FAR_MEMBERS && o->sections &&
	       o->sections <= EBB_FAR_ARENA_SECTIONS && o->arenas <= MEMBER_ARENAS;
}

static uint32_t patience_of(const struct ebbfar_options *o)
{
	return o->size >= sizeof(*o) ? o->resume_ms : 0;
}

static int join(ebbfar_t *far, const struct ebbfar_options *o, struct error *e)
{
	struct client *c = &far->client;
	struct wire_far_opened opened;
	int r = o->flags & EBBFAR_CREATE ? ask_pool(c, o, WIRE_FAR_CREATE, &opened) : 0;

	if (r == -ENOSPC)
		return fail(e, r,
			    "pool %s: cannot create: the donor has no place for one more: a key has up to %u pools; destroy one with ebbfar_destroy()",
			    o->pool, WIRE_FAR_POOLS);
	if (r && r != -EEXIST)
		return fail(e, r, "pool %s: cannot create: %s; see the donor's log", o->pool, why(c, r));
	r = ask_pool(c, o, WIRE_FAR_OPEN, &opened);
	if (r == -ESRCH)
		return fail(e, EUSERS, "pool %s: it has %u members; close one", o->pool,
			    EBB_FAR_MEMBERS);
	if (r == -ENOENT)
		return fail(e, r,
			    "pool %s: no such pool of this key; check the name and the key, or pass EBBFAR_CREATE",
			    o->pool);
	if (!r && !is_sane(&opened))
		r = -EPROTO;
	if (r)
		return fail(e, r, "pool %s: cannot open: %s; see the donor's log", o->pool, why(c, r));
	if (o->flags & EBBFAR_CREATE && !(o->flags & EBBFAR_SHARED) != !opened.flags) {
		client_bye(c);
		return fail(e, EEXIST, "pool %s: it exists and is %s; open it without EBBFAR_CREATE",
			    o->pool, opened.flags ? "shared" : "not shared");
	}
	strcpy(far->name, o->pool);
	far->maps = c->local;
	far->identity = opened.identity;
	far->member = opened.member;
	far->sections = opened.sections;
	far->table = ebb_far_table(opened.sections);
	far->arenas = opened.arenas;
	client_resumes(c, patience_of(o));
	return 0;
}

/* A page of ones that is a page of zeros after fork(2). */
static int mark_process(ebbfar_t *far)
{
	uint32_t *page = mmap(NULL, EBB_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			      -1, 0);

	if (page == MAP_FAILED)
		return -errno;
	far->alive = page;
	if (madvise(page, EBB_PAGE, MADV_WIPEONFORK) < 0)
		return -errno;
	*page = 1;
	return 0;
}

static void discard(ebbfar_t *far)
{
	for (uint32_t i = 0; i < MEMBER_ARENAS; i++)
		if (far->memory[i])
			munmap(far->memory[i], far->sections * EBB_FAR_SECTION);
	if (far->alive)
		munmap((void *)far->alive, EBB_PAGE);
	small_end(&far->small);
	pthread_mutex_destroy(&far->lock);
	free(far);
}

int ebbfar_open(struct ebbfar_options *o, ebbfar_t **out)
{
	struct error e = { 0 };
	ebbfar_t *far = calloc(1, sizeof(*far));

	if (!far) {
		fail(&e, ENOMEM, "out of memory");
		return say(o, &e);
	}
	pthread_mutex_init(&far->lock, NULL);
	if (mark_process(far))
		fail(&e, errno, "memory: %m; try again");
	else if (getrandom(&far->seed, sizeof(far->seed), 0) != sizeof(far->seed))
		fail(&e, errno, "getrandom: %m");
	else if (!connect_donor(&far->client, o, !(o->flags & EBBFAR_NO_RESUME), &e) &&
		 join(far, o, &e))
		client_close(&far->client);
	if (e.code) {
		discard(far);
		return say(o, &e);
	}
	*out = far;
	return 0;
}

void ebbfar_close(ebbfar_t *far)
{
	if (!far)
		return;
	/* BYE says that nothing is mapped any more. */
	for (uint32_t i = 0; i < MEMBER_ARENAS; i++) {
		if (far->memory[i] && *far->alive)
			munmap(far->memory[i], far->sections * EBB_FAR_SECTION);
		far->memory[i] = NULL;
	}
	/* The connection is that of the parent, too. */
	if (*far->alive)
		client_bye(&far->client);
	client_close(&far->client);
	discard(far);
}

int ebbfar_destroy(struct ebbfar_options *o)
{
	struct wire_far_opened opened;
	struct error e = { 0 };
	struct client c;
	int r;

	if (connect_donor(&c, o, false, &e))
		return say(o, &e);
	r = ask_pool(&c, o, WIRE_FAR_DESTROY, &opened);
	if (r == -EBUSY)
		fail(&e, r,
		     "pool %s: cannot destroy: it has members; close them, and end processes that have mapped it",
		     o->pool);
	else if (r)
		fail(&e, r, "pool %s: cannot destroy: %s; see the donor's log", o->pool, why(&c, r));
	client_close(&c);
	return e.code ? say(o, &e) : 0;
}
