// SPDX-License-Identifier: GPL-2.0-or-later
/* The session of a kernel module at its donor, frame by frame, on a device that the test plays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "donord/session/kernel_session.h"
#include "fake_verbs.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { SLAB = 1 << 20, SLABS = 4 };

static struct pool pool;
static struct donor_log donor_log;
static struct eviction eviction;
static struct headroom_follow follow;
static struct kernel_export export;
static struct kernel_env env;
static const struct key keys[] = {
	{ .name = "alice", .fingerprint = "01" }, { .name = "alice", .fingerprint = "02" },
	{ .name = "bob", .fingerprint = "03" },
};

/* What kernel_accept.c does: the session that find() returns; the one that it gets back. */
static struct kernel_session *parted, *taken_back;

static struct kernel_session *find(struct kernel_session *s, uint64_t id)
{
	struct kernel_session *old = parted && parted->id == id ? parted : NULL;

	parted = old ? NULL : parted;
	return old;
}

static void found(struct kernel_session *old)
{
	taken_back = old;
}

/* What the pool thread would do, and the loop. */
static void work(void)
{
	while (pool_work(&pool))
		pool_settle(&pool);
	while (pool_zero_some(&pool, LEND_RENEW))
		;
	pool_turn(&pool, 0);
}

static int with_pool(void **state)
{
	struct error e = { 0 };

	fake_reset();
	donor_log_init(&donor_log);
	if (pool_init(&pool, SLABS * SLAB, SLAB, LEND_PRIVATE, &e) || pool_fill(&pool, SLABS, &e))
		fail_msg("%s", e.text);
	eviction = (struct eviction){ .pool = &pool, .log = &donor_log };
	follow = (struct headroom_follow){ .pool = &pool,
					   .eviction = &eviction,
					   .log = &donor_log };
	env = (struct kernel_env){ .pool = &pool, .eviction = &eviction, .follow = &follow,
				 .log = &donor_log, .export = &export, .keep = 30000000000ull,
				 .find = find, .found = found };
	parted = taken_back = NULL;
	return eviction_init(&eviction) || kernel_export_init(&export, &pool, &donor_log);
}

static int without_pool(void **state)
{
	kernel_export_free(&export);
	eviction_free(&eviction);
	pool_free(&pool);
	assert_int_equal(fake.objects, 0);
	return 0;
}

/* Sends @f and @payload as the borrower of @s; what kernel_session_turn() makes of it. */
static int send_frame(struct kernel_session *s, struct wire_frame f, const void *payload)
{
	uint8_t bytes[WIRE_RDMA_MESSAGE];
	uint32_t n = WIRE_HEADER + f.length;

	wire_build(bytes, &f);
	if (f.length)
		memcpy(bytes + WIRE_HEADER, payload, f.length);
	assert_int_equal(wire_mark(&s->secret, WIRE_AT_DONOR, s->received, bytes, n, bytes + n), 0);
	fake_arrives(s->queue[0].id, bytes, n + WIRE_MARK);
	return kernel_session_turn(s);
}

/* Returns the donor's reply and its payload. */
static struct wire_frame say(struct kernel_session *s, struct wire_frame f, const void *payload,
			     const uint8_t **answer)
{
	struct wire_frame reply;
	const uint8_t *sent;
	uint32_t n;

	assert_int_equal(send_frame(s, f, payload), 0);
	work();
	sent = fake_sent(s->queue[0].id, &n);
	assert_int_equal(wire_parse(sent, n, WIRE_AT_BORROWER, &reply), 1);
	assert_int_equal(reply.op, f.op);
	if (answer)
		*answer = sent + WIRE_HEADER;
	return reply;
}

/* A session whose connections are accepted. */
static struct kernel_session *connect_all(const struct key *key, uint32_t queues)
{
	struct kernel_request q = { .open = { .queues = queues, .session = 1 }, .key = key };
	struct kernel_session *s = NULL;
	struct rdma_cm_id *accepted;

	for (; q.open.queue < queues; q.open.queue++) {
		struct rdma_cm_id *id = fake_id();

		if (!s)
			assert_int_equal(kernel_session_new(&s, &env, id, &q), 0);
		kernel_session_join(s, id, &q);
		assert_int_equal(s->made, 0);
		work();
		assert_int_equal(s->made, 1u << q.open.queue);
		assert_int_equal(kernel_session_accept(s, &accepted), 0);
		assert_ptr_equal(accepted, id);
	}
	return s;
}

static void send_hello(struct kernel_session *s, uint32_t version, uint32_t flags)
{
	struct wire_hello h = { .version = version, .slab_size = SLAB, .name = "kernel",
				.borrower = 1, .flags = flags };
	uint8_t payload[WIRE_HELLO_SIZE];

	wire_build_hello(payload, &h);
	assert_int_equal(send_frame(s, (struct wire_frame){ .op = WIRE_HELLO,
							    .length = sizeof(payload) },
				    payload), 0);
}

/* The reply to HELLO. */
static enum wire_status told(struct kernel_session *s, struct wire_donor *d)
{
	struct wire_frame reply;
	uint32_t n;
	const uint8_t *sent = fake_sent(s->queue[0].id, &n);

	assert_int_equal(wire_parse(sent, n, WIRE_AT_BORROWER, &reply), 1);
	assert_int_equal(reply.op, WIRE_HELLO);
	if (!reply.status)
		assert_int_equal(wire_parse_donor(sent + WIRE_HEADER, reply.length, d), 0);
	return (enum wire_status)reply.status;
}

static struct kernel_session *begin_as(const struct key *key, uint32_t queues, uint32_t version,
				       uint32_t flags, struct wire_donor *d)
{
	struct kernel_session *s = connect_all(key, queues);

	send_hello(s, version, flags);
	assert_int_equal(told(s, d), WIRE_OK);
	return s;
}

static struct kernel_session *begin(const struct key *key, uint32_t queues)
{
	struct wire_donor d;

	return begin_as(key, queues, WIRE_VERSION, 0, &d);
}

static struct wire_frame map(struct kernel_session *s)
{
	uint8_t payload[WIRE_MAP_SIZE];

	wire_build_map(payload, WIRE_CLASS_SWAP);
	return say(s, (struct wire_frame){ .op = WIRE_MAP, .length = sizeof(payload) }, payload,
		   NULL);
}

static enum wire_status unmap(struct kernel_session *s, const struct wire_frame *loan)
{
	return say(s, (struct wire_frame){ .op = WIRE_UNMAP, .slab = loan->slab,
					   .generation = loan->generation }, NULL, NULL).status;
}

static void end(struct kernel_session *s)
{
	if (s->state == KERNEL_OPEN)
		kernel_session_end(s);
	assert_false(kernel_session_close(s));
	work();
	assert_int_equal(s->domain.keys, 0);
	/* All else goes when no key needs it. */
	assert_false(kernel_session_close(s));
	work();
	assert_true(kernel_session_close(s));
	kernel_session_free(s);
}

/* Frees a session that another has resumed, and which has no keys. */
static void end_parted(struct kernel_session *s)
{
	assert_int_equal(s->state, KERNEL_ENDED);
	assert_int_equal(s->domain.keys, 0);
	assert_false(kernel_session_close(s));
	work();
	assert_true(kernel_session_close(s));
	kernel_session_free(s);
}

/* Slabs of the donor's total that the borrower can have, and bytes that are free for it. */
static uint32_t room_of(struct kernel_session *s, uint64_t *free_bytes)
{
	const uint8_t *payload;
	struct wire_frame r = say(s, (struct wire_frame){ .op = WIRE_PING }, NULL, &payload);
	struct wire_donor d;

	assert_int_equal(wire_parse_donor(payload, WIRE_DONOR_SIZE, &d), 0);
	*free_bytes = d.free;
	return (uint32_t)(d.total / SLAB) - r.slab;
}

/* The reply comes when the slab is registered, with its address and key. */
static void a_loan(void **state)
{
	struct kernel_session *s = begin(&keys[0], 2);
	uint8_t payload[WIRE_MAP_SIZE];
	struct wire_rdma_grant g;
	struct wire_frame r;
	uint32_t n, sends;

	wire_build_map(payload, WIRE_CLASS_SWAP);
	sends = fake_sends(s->queue[0].id);
	assert_int_equal(
		send_frame(s, (struct wire_frame){ .op = WIRE_MAP, .length = sizeof(payload) },
			   payload),
		0);
	assert_int_equal(fake_sends(s->queue[0].id), sends);
	assert_true(pool.slabs[0].granting);
	work();
	assert_int_equal(fake_sends(s->queue[0].id), sends + 1);
	assert_int_equal(
		wire_parse(fake_sent(s->queue[0].id, &n), WIRE_HEADER, WIRE_AT_BORROWER, &r), 1);
	assert_int_equal(r.status, WIRE_OK);
	assert_int_equal(n, WIRE_HEADER + WIRE_RDMA_GRANT_SIZE + WIRE_MARK);
	assert_int_equal(wire_parse_rdma_grant(fake_sent(s->queue[0].id, &n) + WIRE_HEADER,
					       WIRE_RDMA_GRANT_SIZE, &g), 0);
	assert_int_equal(g.length, SLAB);
	assert_ptr_equal((void *)(uintptr_t)g.address, pool_memory(&pool, r.slab));
	memset(pool_memory(&pool, r.slab), 0x5a, SLAB);
	/* Until the key is invalid it is not zeroed for others, nor lent. */
	assert_int_equal(
		unmap(s, &(struct wire_frame){ .slab = r.slab, .generation = r.generation + 1 }),
		WIRE_STALE);
	assert_int_equal(
		pool_return(&pool, &s->borrower, (struct wire_loan){ r.slab, r.generation }),
		WIRE_OK);
	assert_int_equal(pool.slabs[r.slab].pins, 1);
	assert_false(pool_zero_some(&pool, LEND_RENEW));
	work();
	assert_int_equal(pool.in[LEND_CLEAN], SLABS);
	assert_int_equal(*pool_memory(&pool, r.slab), 0);
	end(s);
	assert_int_equal(fake.registered, 0);
}

/* Its session ends while the slab is registered: no grant is sent, and the key is deregistered. */
static void a_session_that_ends_first(void **state)
{
	struct kernel_session *s = begin(&keys[0], 1);
	uint8_t payload[WIRE_MAP_SIZE];

	wire_build_map(payload, WIRE_CLASS_SWAP);
	assert_int_equal(
		send_frame(s, (struct wire_frame){ .op = WIRE_MAP, .length = sizeof(payload) },
			   payload),
		0);
	assert_int_equal(kernel_session_end(s), 1);
	assert_int_equal(s->domain.keys, 1);
	end(s);
	assert_int_equal(pool.in[LEND_CLEAN], SLABS);
	assert_int_equal(fake.registered, 0);
}

/* MAPs beyond what a turn does wait, in order, and nothing overtakes them. */
static void a_turn_is_bounded(void **state)
{
	struct kernel_session *s = begin(&keys[0], 1);
	uint8_t payload[WIRE_MAP_SIZE];
	uint32_t sends = fake_sends(s->queue[0].id);

	wire_build_map(payload, WIRE_CLASS_SWAP);
	pool.maps = POOL_MAPS;
	assert_int_equal(
		send_frame(s, (struct wire_frame){ .op = WIRE_MAP, .length = sizeof(payload) },
			   payload),
		0);
	assert_int_equal(s->held.op, WIRE_MAP);
	assert_int_equal(send_frame(s, (struct wire_frame){ .op = WIRE_PING }, NULL), 0);
	work();
	assert_int_equal(fake_sends(s->queue[0].id), sends);
	assert_int_equal(kernel_session_turn(s), 0);
	work();
	assert_int_equal(fake_sends(s->queue[0].id), sends + 2);
	assert_int_equal(pool.in[LEND_LENT], 1);
	end(s);
}

/* Kernel modules report no activity: they are recalled, at random, after all others. */
static void recalled(void **state)
{
	struct headroom_rule rule = headroom_rule_default(64ull << 30, SLAB);
	struct kernel_session *s = begin(&keys[0], 1);
	struct wire_frame loans[SLABS], f;
	uint32_t n;

	for (int i = 0; i < SLABS; i++)
		loans[i] = map(s);
	eviction_start(&eviction, &rule, 1, 1);
	assert_int_equal(eviction.want, 0);
	eviction_turn(&eviction, 2);
	assert_int_equal(eviction.counts.asked, 1);
	assert_int_equal(
		wire_parse(fake_sent(s->queue[0].id, &n), WIRE_HEADER, WIRE_AT_BORROWER, &f), 1);
	assert_int_equal(f.op, WIRE_EVICT);
	assert_int_equal(f.generation, loans[f.slab].generation);
	f.direction = WIRE_REPLY;
	assert_int_equal(send_frame(s, f, NULL), 0);
	assert_int_equal(eviction_expected(&eviction), 1);
	/* A module loses its whole session with one revoked slab, so none is revoked. */
	eviction.options.revoke = 1;
	eviction_second(&eviction, 3600000000000ull, 1, SLABS);
	assert_int_equal(eviction.counts.revoked, 0);
	assert_int_equal(unmap(s, &loans[f.slab]), WIRE_OK);
	assert_int_equal(eviction.counts.returned, 1);
	end(s);
}

/*
 * A module may handle an EVICT before the reply to the MAP that is before it: "no such slab" does
 * not end the loan, which the module is about to use.
 */
static void recalled_before_the_grant_is_taken_in(void **state)
{
	struct headroom_rule rule = headroom_rule_default(64ull << 30, SLAB);
	struct kernel_session *s = begin(&keys[0], 1);
	struct wire_frame loan = map(s), f;
	uint32_t n;

	for (int i = 0; i < 2; i++) {
		eviction_start(&eviction, &rule, 1, 1);
		eviction_turn(&eviction, 2);
		assert_int_equal(eviction.counts.asked, 1);
		assert_int_equal(wire_parse(fake_sent(s->queue[0].id, &n), WIRE_HEADER,
					    WIRE_AT_BORROWER, &f), 1);
		assert_int_equal(f.slab, loan.slab);
		f.direction = WIRE_REPLY;
		f.status = i ? WIRE_STALE : WIRE_NO_SLAB;
		assert_int_equal(send_frame(s, f, NULL), 0);
		work();
		assert_int_equal(pool.in[LEND_LENT], 1);
		assert_int_equal(eviction.counts.refused, 1);
		assert_int_equal(eviction.counts.returned, 0);
		eviction_forget(&eviction, &s->borrower);
		eviction.counts = (typeof(eviction.counts)){ 0 };
		pool.slabs[loan.slab].asked = LEND_NOT_ASKED;
	}
	assert_int_equal(unmap(s, &loan), WIRE_OK);
	end(s);
}

/* The quota is of all sessions with keys of one name. */
static void a_quota(void **state)
{
	struct kernel_session *a, *a2, *b;
	struct wire_frame loan;
	uint64_t left;

	env.quota = 2 * SLAB + SLAB / 2;
	a = begin(&keys[0], 2);
	a2 = begin(&keys[1], 1);
	b = begin(&keys[2], 1);
	assert_int_equal(room_of(a, &left), 2);
	assert_int_equal(left, 2 * SLAB);
	loan = map(a);
	assert_int_equal(loan.status, WIRE_OK);
	assert_int_equal(room_of(a2, &left), 1);
	assert_int_equal(left, SLAB);
	assert_int_equal(map(a2).status, WIRE_OK);
	assert_int_equal(map(a).status, WIRE_OVER_QUOTA);
	assert_int_equal(map(a2).status, WIRE_OVER_QUOTA);
	assert_int_equal(room_of(a, &left), 0);
	assert_int_equal(left, 0);
	assert_int_equal(map(b).status, WIRE_OK);
	assert_int_equal(room_of(b, &left), 1);
	assert_int_equal(unmap(a, &loan), WIRE_OK);
	assert_int_equal(map(a2).status, WIRE_OK);
	end(a);
	end(a2);
	end(b);
	assert_int_equal(fake.registered, 0);
}

/* A session that ended can use its slabs until their keys are invalid: they count until then. */
static void a_quota_of_ended_sessions(void **state)
{
	struct kernel_session *a, *a2, *b;

	env.quota = 2 * SLAB;
	a = begin(&keys[0], 1);
	a2 = begin(&keys[1], 1);
	b = begin(&keys[2], 1);
	for (int i = 0; i < 2; i++)
		assert_int_equal(map(a).status, WIRE_OK);
	assert_int_equal(kernel_session_end(a), 2);
	assert_int_equal(pool_quota_left(&pool, &a2->borrower), 0);
	assert_int_equal(pool_quota_left(&pool, &b->borrower), 2);
	end(a);
	assert_int_equal(pool_quota_left(&pool, &a2->borrower), 2);
	end(a2);
	end(b);
}

/* The device fails to invalidate a key: its borrower may still reach the slab. */
static void a_key_that_stays(void **state)
{
	struct kernel_session *a = begin(&keys[0], 1), *b;
	struct wire_frame loan = map(a), other;
	uint64_t left;

	map(a);
	fake.dereg_error = EIO;
	assert_int_equal(unmap(a, &loan), WIRE_OK);
	/* The session is to end; what else it had is lent again, that slab is not. */
	assert_non_null(a->failed);
	kernel_session_end(a);
	work();
	assert_int_equal(a->domain.keys, 1);
	b = begin(&keys[2], 1);
	assert_int_equal(room_of(b, &left), SLABS - 1);
	assert_int_equal(left, (SLABS - 1) * SLAB);
	for (int i = 0; i < SLABS - 1; i++) {
		other = map(b);
		assert_int_equal(other.status, WIRE_OK);
		assert_int_not_equal(other.slab, loan.slab);
	}
	assert_int_equal(map(b).status, WIRE_NO_SPACE);
	/*
	 * Nor is it returned to the machine and allocated again, which would hand its memory to
	 * others.
	 */
	end(b);
	pool_shrink(&pool, SLABS);
	work();
	assert_int_equal(pool.in[LEND_WITHDRAWN], 1);
	assert_int_equal(pool.in[LEND_ABSENT], SLABS - 1);
	/* The session stays with its key until the donor ends. */
	assert_false(kernel_session_close(a));
	kernel_session_free(a);
	fake_free(fake.stays);
}

/* The grant behind the last message. */
static struct wire_rdma_grant granted_to(struct kernel_session *s)
{
	struct wire_rdma_grant g;
	uint32_t n;
	const uint8_t *sent = fake_sent(s->queue[0].id, &n);

	assert_int_equal(n, WIRE_HEADER + WIRE_RDMA_GRANT_SIZE + WIRE_MARK);
	assert_int_equal(wire_parse_rdma_grant(sent + WIRE_HEADER, WIRE_RDMA_GRANT_SIZE, &g), 0);
	return g;
}

static enum wire_status remap(struct kernel_session *s, const struct wire_frame *loan)
{
	return say(s, (struct wire_frame){ .op = WIRE_REMAP, .slab = loan->slab,
					   .generation = loan->generation }, NULL, NULL).status;
}

/* Only a session that requests it, in version 4, at a donor with a grace period. */
static void who_is_kept(void **state)
{
	struct wire_donor d;
	struct kernel_session *s = begin_as(&keys[0], 1, WIRE_VERSION, WIRE_KEEP, &d);

	assert_true(s->keeps);
	assert_int_equal(d.grace, 30000);
	end(s);
	s = begin_as(&keys[0], 1, WIRE_VERSION, 0, &d);
	assert_false(s->keeps);
	assert_int_equal(d.grace, 0);
	end(s);
	s = begin_as(&keys[0], 1, WIRE_VERSION_OLDEST, WIRE_KEEP, &d);
	assert_false(s->keeps);
	end(s);
	env.keep = 0;
	s = begin_as(&keys[0], 1, WIRE_VERSION, WIRE_KEEP, &d);
	assert_false(s->keeps);
	assert_int_equal(d.grace, 0);
	assert_int_equal(say(s, (struct wire_frame){ .op = WIRE_BYE }, NULL, NULL).status, WIRE_OK);
	end(s);
}

/*
 * Nothing of the old queue pairs can land when HELLO is answered: they are destroyed.  Pages stay;
 * their keys change, and the old domain goes with the last of its keys.
 */
static void resumed(void **state)
{
	struct kernel_session *a, *b = connect_all(&keys[0], 2);
	struct wire_rdma_grant before, after;
	struct wire_frame kept, left;
	struct wire_donor d;

	a = begin_as(&keys[0], 2, WIRE_VERSION, WIRE_KEEP, &d);
	kept = map(a);
	before = granted_to(a);
	left = map(a);
	memset(pool_memory(&pool, kept.slab), 0x5a, SLAB);
	assert_int_equal(kernel_session_part(a), 2);
	parted = a;
	send_hello(b, WIRE_VERSION, WIRE_KEEP | WIRE_RESUME);
	assert_ptr_equal(b->resumes, a);
	assert_int_equal(fake_sends(b->queue[0].id), 0);
	assert_int_equal(kernel_session_turn(b), 0);
	assert_int_equal(fake_sends(b->queue[0].id), 0);
	work();
	assert_true(kernel_session_resumable(b));
	assert_int_equal(kernel_session_turn(b), 0);
	assert_int_equal(told(b, &d), WIRE_OK);
	assert_int_equal(d.grace, 30000);
	assert_ptr_equal(taken_back, a);
	assert_int_equal(a->domain.keys, 2);
	assert_int_equal(remap(b, &(struct wire_frame){ .slab = kept.slab,
							.generation = kept.generation + 1 }),
			 WIRE_STALE);
	assert_int_equal(remap(b, &kept), WIRE_OK);
	after = granted_to(b);
	assert_int_equal(after.address, before.address);
	assert_int_not_equal(after.key, before.key);
	assert_int_equal(a->domain.keys, 1);
	assert_int_equal(b->domain.keys, 1);
	assert_int_equal(say(b, (struct wire_frame){ .op = WIRE_RELEASE }, NULL, NULL).status,
			 WIRE_OK);
	assert_int_equal(a->domain.keys, 0);
	assert_int_equal(pool.in[LEND_LENT], 1);
	assert_int_equal(unmap(b, &left), WIRE_NO_SLAB);
	for (int i = 0; i < SLAB; i++)
		assert_int_equal(pool_memory(&pool, kept.slab)[i], 0x5a);
	end_parted(a);
	assert_int_equal(unmap(b, &kept), WIRE_OK);
	end(b);
	assert_int_equal(fake.registered, 0);
}

/* A slab that cannot be registered again keeps its key, pages and loan for the next attempt. */
static void not_registered_again(void **state)
{
	struct kernel_session *a, *b = connect_all(&keys[0], 1);
	struct wire_frame kept, left;
	struct wire_donor d;

	a = begin_as(&keys[0], 1, WIRE_VERSION, WIRE_KEEP, &d);
	kept = map(a);
	left = map(a);
	memset(pool_memory(&pool, kept.slab), 0x5a, SLAB);
	assert_int_equal(kernel_session_part(a), 2);
	parted = a;
	send_hello(b, WIRE_VERSION, WIRE_KEEP | WIRE_RESUME);
	work();
	assert_int_equal(kernel_session_turn(b), 0);
	assert_int_equal(told(b, &d), WIRE_OK);
	for (int i = 0; i < 2; i++) {
		fake.reg_error = ENOMEM;
		assert_int_equal(remap(b, &kept), WIRE_NO_SPACE);
		assert_int_equal(pool.in[LEND_LENT], 2);
		assert_int_equal(a->domain.keys, 2);
		assert_int_equal(b->domain.keys, 0);
	}
	/* The old key can be invalidated. */
	fake.reg_error = ENOMEM;
	assert_int_equal(remap(b, &left), WIRE_NO_SPACE);
	assert_int_equal(unmap(b, &left), WIRE_OK);
	assert_int_equal(a->domain.keys, 1);
	assert_int_equal(remap(b, &kept), WIRE_OK);
	for (int i = 0; i < SLAB; i++)
		assert_int_equal(pool_memory(&pool, kept.slab)[i], 0x5a);
	end_parted(a);
	assert_int_equal(b->domain.keys, 1);
	assert_int_equal(unmap(b, &kept), WIRE_OK);
	end(b);
	assert_int_equal(fake.registered, 0);
}

/* The reply to a MAP does not reach a borrower that is away: it claims no such loan. */
static void parted_while_a_slab_is_registered(void **state)
{
	struct kernel_session *a, *b = connect_all(&keys[0], 1);
	uint8_t payload[WIRE_MAP_SIZE];
	struct wire_donor d;

	a = begin_as(&keys[0], 1, WIRE_VERSION, WIRE_KEEP, &d);
	wire_build_map(payload, WIRE_CLASS_SWAP);
	assert_int_equal(send_frame(a, (struct wire_frame){ .op = WIRE_MAP,
							    .length = sizeof(payload) },
				    payload), 0);
	assert_int_equal(kernel_session_part(a), 1);
	parted = a;
	send_hello(b, WIRE_VERSION, WIRE_KEEP | WIRE_RESUME);
	work();
	assert_int_equal(kernel_session_turn(b), 0);
	assert_int_equal(told(b, &d), WIRE_OK);
	assert_int_equal(say(b, (struct wire_frame){ .op = WIRE_RELEASE }, NULL, NULL).status,
			 WIRE_OK);
	assert_int_equal(pool.in[LEND_LENT], 0);
	end_parted(a);
	end(b);
	assert_int_equal(fake.registered, 0);
}

/* A donor that has restarted, or whose grace period is over. */
static void nothing_to_resume(void **state)
{
	struct kernel_session *s = connect_all(&keys[0], 1);
	struct wire_donor d;

	send_hello(s, WIRE_VERSION, WIRE_KEEP | WIRE_RESUME);
	assert_int_equal(told(s, &d), WIRE_NO_SESSION);
	assert_false(s->greeted);
	/* The same connection may begin a session. */
	send_hello(s, WIRE_VERSION, WIRE_KEEP);
	assert_int_equal(told(s, &d), WIRE_OK);
	end(s);
}

/* A slab confirmed twice would have two keys in one domain. */
static void confirmed_twice(void **state)
{
	struct kernel_session *a, *b = connect_all(&keys[0], 1);
	struct wire_frame loan;
	struct wire_donor d;

	a = begin_as(&keys[0], 1, WIRE_VERSION, WIRE_KEEP, &d);
	loan = map(a);
	kernel_session_part(a);
	parted = a;
	send_hello(b, WIRE_VERSION, WIRE_RESUME);
	work();
	assert_int_equal(kernel_session_turn(b), 0);
	assert_int_equal(remap(b, &loan), WIRE_OK);
	assert_int_equal(remap(b, &loan), WIRE_STALE);
	work();
	assert_int_equal(pool.in[LEND_LENT], 0);
	end_parted(a);
	end(b);
	assert_int_equal(fake.registered, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_loan, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(a_session_that_ends_first, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(a_turn_is_bounded, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(recalled, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(recalled_before_the_grant_is_taken_in, with_pool,
						without_pool),
		cmocka_unit_test_setup_teardown(a_quota, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(a_quota_of_ended_sessions, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(a_key_that_stays, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(who_is_kept, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(resumed, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(not_registered_again, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(parted_while_a_slab_is_registered, with_pool,
						without_pool),
		cmocka_unit_test_setup_teardown(nothing_to_resume, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(confirmed_twice, with_pool, without_pool),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
