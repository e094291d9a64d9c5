// SPDX-License-Identifier: GPL-2.0-or-later
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>

#include "kernel_accept.h"
#include "lib/base/clock.h"
#include "lib/base/draw.h"

#define MS 1000000ull
/*
 * Without a first frame, which proves the key, a session ends after this time (16
 * connections fit in), or earlier when others want its slot.  Requests that claim a key by its MAC
 * come first: those of strangers, which have none, never end a session of theirs, so any number of
 * strangers at any number of addresses keeps no such borrower out.
 *
 * Borrowers of release 0.1.0 claim nothing.  They compete with strangers: UNPROVEN_MAX sessions at
 * an address, all slots in total.  The victim is sampled at random, so that no number of
 * strangers ends a borrower's session for certain: it survives n of them before its first frame
 * with a probability of (1 - 1/64)^n, 85 % for 10 and 37 % for 64, and the borrower tries again.
 *
 * A replayed request claims nothing while its MAC is among the KERNEL_CLAIMS latest.  An attacker
 * that has recorded more than these on the network competes with borrowers that claim.
 */
#define PROVING_MS 10000
#define UNPROVEN_MAX 8
/* Log lines about unknown peers per second: strangers must not fill the disk. */
#define STRANGERS_TOLD 10
/*
 * Connection requests that the loop has not read; those beyond it fail.  After an outage all
 * borrowers of a rack reconnect at once.  Linux grants up to net.rdma_ucm.max_backlog, 1024.
 */
#define BACKLOG (KERNEL_SESSIONS * WIRE_RDMA_QUEUES)

/* Returns whether one more line about an unknown peer may be logged. */
static bool may_tell(struct kernel_accept *l)
{
	uint64_t now = now_ns();

	if (now - l->told_at > 1000 * MS) {
		l->told_at = now;
		l->told = 0;
	}
	return l->told++ < STRANGERS_TOLD;
}

/* Returns the slot of session @number, else the first free slot, or NULL. */
static struct kernel_session **session_find(struct kernel_accept *l, uint64_t number)
{
	struct kernel_session **free_slot = NULL;

	for (int i = 0; i < KERNEL_SESSIONS; i++) {
		if (l->sessions[i] && l->sessions[i]->number == number)
			return &l->sessions[i];
		if (!l->sessions[i] && !free_slot)
			free_slot = &l->sessions[i];
	}
	return free_slot;
}

static struct kernel_session **session_of(struct kernel_accept *l, const struct rdma_cm_id *id)
{
	for (int i = 0; i < KERNEL_SESSIONS; i++)
		for (uint32_t q = 0; l->sessions[i] && q < WIRE_RDMA_QUEUES; q++)
			if (l->sessions[i]->queue[q].id == id)
				return &l->sessions[i];
	return NULL;
}

/* Frees ended sessions that are closed; returns how many still have queue pairs. */
static uint32_t sweep(struct kernel_accept *l)
{
	struct kernel_session **at = &l->ended, *s;
	uint32_t ending = 0;

	while ((s = *at)) {
		ending += s->state == KERNEL_ENDING;
		if (kernel_session_close(s)) {
			*at = s->next;
			kernel_session_free(s);
		} else {
			at = &s->next;
		}
	}
	return ending;
}

static void push(struct kernel_session **list, struct kernel_session *s)
{
	s->next = *list;
	*list = s;
}

static uint32_t kept_with_key(const struct kernel_accept *l, const char *name)
{
	uint32_t n = 0;

	for (const struct kernel_session *s = l->kept; s; s = s->next)
		n += !strcmp(s->borrower.key, name);
	return n;
}

/* Ends the kept session *@at. */
static void kept_end(struct kernel_accept *l, struct kernel_session **at, const char *why)
{
	struct kernel_session *s = *at;

	*at = s->next;
	donor_say(l->env.log, LOG_LVL_INFO, "borrower %s: %s; %u slabs reclaimed", s->borrower.name,
		  why, kernel_session_end(s));
	push(&l->ended, s);
}

/*
 * Returns whether @s may be kept.  If KERNEL_SESSIONS are, the latest one of the key with most kept
 * sessions ends, unless the key of @s has as many: a key that takes all places loses its own.
 */
static bool may_keep(struct kernel_accept *l, const struct kernel_session *s)
{
	struct kernel_session **victim = NULL;
	uint32_t n = 0, most = 0;

	for (struct kernel_session **at = &l->kept; *at; at = &(*at)->next, n++) {
		uint32_t kept = kept_with_key(l, (*at)->borrower.key);

		if (kept > most)
			victim = at;
		most = kept > most ? kept : most;
	}
	if (n < KERNEL_SESSIONS)
		return true;
	if (most <= kept_with_key(l, s->borrower.key))
		return false;
	kept_end(l, victim, "another key needs its place");
	return true;
}

/* Takes the session out of its slot. */
static struct kernel_session *take(struct kernel_accept *l, struct kernel_session **p)
{
	struct kernel_session *s = *p;
	bool keep;

	*p = NULL;
	if (s->accepted)
		epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, s->channel->fd, NULL);
	/* Its borrower may try again. */
	if (s->resumes) {
		keep = may_keep(l, s->resumes);
		if (!keep)
			kernel_session_end(s->resumes);
		push(keep ? &l->kept : &l->ended, s->resumes);
	}
	s->resumes = NULL;
	return s;
}

static void session_end(struct kernel_accept *l, struct kernel_session **p, const char *why)
{
	bool tells = (*p)->proven || may_tell(l);
	struct kernel_session *s = take(l, p);
	uint32_t slabs = kernel_session_end(s);

	push(&l->ended, s);
	if (tells)
		donor_say(l->env.log, LOG_LVL_INFO, "borrower %s: %s; %u slabs reclaimed",
			  s->borrower.name[0] ? s->borrower.name : "(unknown, RDMA)", why, slabs);
}

/* Ends kept sessions whose grace period is over; returns ns until that of the next is. */
static uint64_t end_kept(struct kernel_accept *l, uint64_t now)
{
	uint64_t wait = UINT64_MAX, keep = l->env.keep;
	uint64_t most = l->ending && keep > KEEP_ENDING_NS ? KEEP_ENDING_NS : keep;
	struct kernel_session **at = &l->kept;

	while (*at) {
		uint64_t until = (*at)->kept_until - keep + most;

		if (now >= until) {
			kept_end(l, at, "its grace period is over");
			continue;
		}
		wait = until - now < wait ? until - now : wait;
		at = &(*at)->next;
	}
	return wait;
}

/* The session's connections failed, because of @why: keeps its loans if it wants that. */
static void session_lost(struct kernel_accept *l, struct kernel_session **p, const char *why)
{
	uint32_t slabs = pool_owned(l->env.pool, &(*p)->borrower);
	struct kernel_session *s;

	if (!(*p)->keeps || !slabs || !may_keep(l, *p)) {
		session_end(l, p, why);
		return;
	}
	s = take(l, p);
	kernel_session_part(s);
	s->kept_until = now_ns() + l->env.keep;
	push(&l->kept, s);
	donor_say(l->env.log, LOG_LVL_INFO, "borrower %s: %s; retaining its %u slabs for %llu s",
		  s->borrower.name, why, slabs, (unsigned long long)(l->env.keep / (1000 * MS)));
}

static struct kernel_accept *accept_of(const struct kernel_session *s)
{
	return (struct kernel_accept *)((char *)s->env - offsetof(struct kernel_accept, env));
}

/* The key identifies the borrower: its number is random, but no secret. */
static bool same_borrower(const struct kernel_session *a, const struct kernel_session *s,
			  uint64_t id)
{
	return a && a != s && a->greeted && a->keeps && a->id == id &&
	       !strcmp(a->borrower.key, s->borrower.key);
}

/* struct kernel_env: finds the session that @s resumes or replaces. */
static struct kernel_session *find(struct kernel_session *s, uint64_t id)
{
	struct kernel_accept *l = accept_of(s);
	struct kernel_session *old;

	for (int i = 0; i < KERNEL_SESSIONS; i++) {
		struct kernel_session *other = l->sessions[i];

		/* An earlier attempt that its borrower has given up. */
		if (other && same_borrower(other->resumes, s, id)) {
			old = other->resumes;
			other->resumes = NULL;
			other->failed = "replaced by a newer connection";
			return old;
		}
		if (!same_borrower(other, s, id))
			continue;
		/* The donor has not noticed yet that its connections failed. */
		old = take(l, &l->sessions[i]);
		kernel_session_part(old);
		old->kept_until = now_ns() + l->env.keep;
		return old;
	}
	for (struct kernel_session **at = &l->kept; *at; at = &(*at)->next) {
		if (!same_borrower(*at, s, id))
			continue;
		old = *at;
		*at = old->next;
		return old;
	}
	return NULL;
}

static void found(struct kernel_session *old)
{
	push(&accept_of(old)->ended, old);
}

static struct kernel_session **oldest_unproven(struct kernel_accept *l)
{
	struct kernel_session **oldest = NULL;

	for (int i = 0; i < KERNEL_SESSIONS; i++) {
		struct kernel_session **p = &l->sessions[i];

		if (*p && !(*p)->proven && (!oldest || (*p)->since < (*oldest)->since))
			oldest = p;
	}
	return oldest;
}

/*
 * Draws an unproven session that @claims a key or does not, of @peer, or of any peer if NULL; in
 * *@count their number.
 */
static struct kernel_session **draw_unproven(struct kernel_accept *l, const char *peer, bool claims,
					     uint32_t *count)
{
	struct kernel_session **drawn = NULL;

	*count = 0;
	for (int i = 0; i < KERNEL_SESSIONS; i++) {
		struct kernel_session **p = &l->sessions[i];

		if (!*p || (*p)->proven || (*p)->claims != claims ||
		    (peer && strcmp((*p)->peer, peer)))
			continue;
		if (!draw_below(&l->seed, ++*count))
			drawn = p;
	}
	return drawn;
}

/* Ends a session in favour of a request of @peer, if that may and has to. */
static void make_place(struct kernel_accept *l, const char *peer, bool claims)
{
	uint32_t strangers, count, used = 0;
	struct kernel_session **p = draw_unproven(l, peer, false, &strangers);

	for (int i = 0; i < KERNEL_SESSIONS; i++)
		used += l->sessions[i] != NULL;
	if (claims || strangers < UNPROVEN_MAX) {
		if (used < KERNEL_SESSIONS)
			return;
		p = draw_unproven(l, NULL, false, &count);
	}
	if (!p && claims)
		p = draw_unproven(l, NULL, true, &count);
	if (p)
		session_end(l, p, "no proof of its key, and others want its place");
}

/* Ends sessions whose time for proof is over; returns ns until the next one ends. */
static uint64_t end_unproven(struct kernel_accept *l, uint64_t now)
{
	struct kernel_session **p;

	while ((p = oldest_unproven(l))) {
		uint64_t end = (*p)->since + PROVING_MS * MS;

		if (now < end)
			return end - now;
		session_end(l, p, "no proof of its key");
	}
	return UINT64_MAX;
}

/* Returns the address of @id's peer, in @text of INET6_ADDRSTRLEN. */
static const char *peer_text(struct rdma_cm_id *id, char *text)
{
	const struct sockaddr *peer = rdma_get_peer_addr(id);
	const void *ip = peer->sa_family == AF_INET6 ?
			 (const void *)&((const struct sockaddr_in6 *)peer)->sin6_addr :
			 &((const struct sockaddr_in *)peer)->sin_addr;

	return inet_ntop(peer->sa_family, ip, text, INET6_ADDRSTRLEN) ?: "?";
}

static void reject(struct kernel_accept *l, struct rdma_cm_id *id, enum wire_refusal why,
		   const char *words)
{
	uint8_t data[WIRE_REFUSAL_SIZE];
	char from[INET6_ADDRSTRLEN];

	if (may_tell(l))
		donor_say(l->env.log, LOG_LVL_WARN, "RDMA connection from %s refused: %s",
			  peer_text(id, from), words);
	wire_build_refusal(data, why);
	rdma_reject(id, data, sizeof(data));
}

/*
 * Parses a request of @length bytes.  Returns WIRE_REFUSED_UNKNOWN if it is valid, else the reason,
 * with @words of @size for the log.
 */
static enum wire_refusal read_request(const struct kernel_accept *l, const uint8_t *data,
				      size_t length, struct kernel_request *q, char *words,
				      size_t size)
{
	struct wire_proof_request proof;
	bool open = !wire_parse_rdma_open(data, length, &q->open);
	int r = wire_parse_proof_request(data, length, &proof);
	char said[2 * WIRE_KEY_NUMBER + 1];

	if (r) {
		snprintf(words, size, open ? "it has no key; make its device with --key" :
			 "malformed, or of another version of ebb");
		return open ? WIRE_REFUSED_NO_KEY : WIRE_REFUSED_VERSION;
	}
	q->open = (struct wire_rdma_open){ proof.queue, proof.queues, proof.session };
	q->key = keyring_find_number(l->keys, proof.key);
	memcpy(q->bytes, data, sizeof(q->bytes));
	memcpy(q->proof, proof.proof, sizeof(q->proof));
	for (uint32_t i = 0; i < WIRE_KEY_NUMBER; i++)
		snprintf(said + 2 * i, 3, "%02x", proof.key[i]);
	snprintf(words, size, "unknown key (%s); add one of \"ebbctl key derive\" to --keys", said);
	return q->key ? WIRE_REFUSED_UNKNOWN : WIRE_REFUSED_OTHER_KEY;
}

/* Returns whether @q, of connection 0, was made with the key, and not seen lately; notes it. */
static bool claims_key(struct kernel_accept *l, const struct kernel_request *q)
{
	const uint8_t *claim = q->proof + WIRE_NONCE;
	struct wire_hmac key;
	uint8_t mac[WIRE_MARK];
	bool good;

	memcpy(key.key, q->key->bytes, sizeof(key.key));
	good = !wire_prove_open(&key, q->bytes, q->borrower, mac) &&
	       wire_same(mac, claim, WIRE_MARK);
	wire_hmac_forget(&key);
	for (uint32_t i = 0; good && i < l->claims && i < KERNEL_CLAIMS; i++)
		good = memcmp(l->claimed[i], claim, WIRE_MARK) != 0;
	if (good)
		memcpy(l->claimed[l->claims++ % KERNEL_CLAIMS], claim, WIRE_MARK);
	return good;
}

/* Connection 0 begins a session; an ended session does not begin again. */
static int begin_session(struct kernel_accept *l, struct rdma_cm_id *id,
			 struct kernel_request *q, struct kernel_session ***p)
{
	char text[INET6_ADDRSTRLEN];
	const char *peer = peer_text(id, text);
	int r;

	if (q->open.queue)
		return -ENOENT;
	q->claims = claims_key(l, q);
	/* Strangers' sessions must not end faster than the pool thread destroys them. */
	if (sweep(l) >= (q->claims ? 2 : 1) * KERNEL_SESSIONS)
		return -EBUSY;
	make_place(l, peer, q->claims);
	*p = session_find(l, q->open.session);
	l->env.pool->refused |= !*p;
	if (!*p)
		return -EBUSY;
	r = kernel_session_new(*p, &l->env, id, q);
	if (!r)
		snprintf((**p)->peer, sizeof((**p)->peer), "%s", peer);
	return r;
}

/* Returns false when the connection is refused. */
static bool connection_request(struct kernel_accept *l, struct rdma_cm_id *id,
			       const struct rdma_conn_param *param, const uint8_t *data,
			       size_t length)
{
	struct kernel_request q = {
		/* The borrower's READs in flight, which this side answers. */
		.reads = param->responder_resources, .borrower = param->qp_num,
	};
	struct kernel_session **p;
	enum wire_refusal why;
	char words[192];
	int r;

	why = read_request(l, data, length, &q, words, sizeof(words));
	if (why) {
		reject(l, id, why, words);
		return false;
	}
	p = session_find(l, q.open.session);
	r = p && *p ? 0 : begin_session(l, id, &q, &p);
	if (r) {
		reject(l, id, r == -EBUSY ? WIRE_REFUSED_FULL :
		       r == -ENOENT ? WIRE_REFUSED_BAD_PROOF : WIRE_REFUSED_FAILED,
		       r == -EBUSY ? "limit of 64 borrowers reached" :
		       r == -ENOENT ? "unknown session" : strerror(-r));
		return false;
	}
	/* A stranger that knows a session's number must not be able to end it. */
	if (!kernel_session_lacks(*p, id, &q)) {
		reject(l, id, WIRE_REFUSED_BAD_PROOF, "it does not belong to the session that it names");
		return false;
	}
	kernel_session_join(*p, id, &q);
	return true;
}

/* Accepts or rejects a connection of @p, whose queue pair the pool thread has made. */
static void accept_one(struct kernel_accept *l, struct kernel_session **p)
{
	struct epoll_event ev = {
		.events = EPOLLIN, .data.u64 = l->first_key + 1 + (uint64_t)(p - l->sessions),
	};
	uint32_t before = (*p)->accepted;
	struct rdma_cm_id *id;
	int r = kernel_session_accept(*p, &id);

	if (r)
		reject(l, id, WIRE_REFUSED_FAILED, strerror(-r));
	else if (!before && epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, (*p)->channel->fd, &ev) < 0)
		r = -errno;
	if (r)
		session_end(l, p, "a connection failed");
}

static const char *event_text(enum rdma_cm_event_type kind)
{
	return kind == RDMA_CM_EVENT_DISCONNECTED ? "disconnected" :
	       kind == RDMA_CM_EVENT_DEVICE_REMOVAL ? "the network device was removed" :
	       kind == RDMA_CM_EVENT_ADDR_CHANGE ? "the network address changed" :
	       rdma_event_str(kind);
}

/* Handles one event only: a call of the connection manager may take a millisecond. */
static void connection_event(struct kernel_accept *l)
{
	uint8_t data[WIRE_PROOF_REQUEST_SIZE] = { 0 };
	struct rdma_cm_event *event;
	struct kernel_session **p;
	struct rdma_conn_param param;
	enum rdma_cm_event_type kind;
	struct rdma_cm_id *id;
	size_t length;

	if (rdma_get_cm_event(l->events, &event))
		return;
	kind = event->event;
	id = event->id;
	param = event->param.conn;
	length = param.private_data_len;
	if (length > sizeof(data))
		length = sizeof(data);
	if (param.private_data)
		memcpy(data, param.private_data, length);
	/* Acknowledge first: rdma_destroy_id() waits for this. */
	rdma_ack_cm_event(event);
	switch (kind) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		if (!connection_request(l, id, &param, data, length))
			rdma_destroy_id(id);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		break;
	default:
		p = session_of(l, id);
		if (p)
			session_lost(l, p, event_text(kind));
		else if (id == l->listener && kind == RDMA_CM_EVENT_DEVICE_REMOVAL)
			donor_say(l->env.log, LOG_LVL_ERR,
				  "rdma-kernel: its network device was removed: no kernel module can connect; restart ebb-donord");
	}
}

static const char *end_text(int error)
{
	return error == -EBADMSG ? "a frame with a wrong message authentication code" :
	       error == -EPROTO ? "a malformed frame" :
	       error == -ETIMEDOUT ? "its machine does not answer" :
	       error == -EIO ? "its RDMA connection failed" : strerror(-error);
}

/*
 * Returns whether @s, which has just proven its key, exceeds that key's connections.  A kept
 * session counts as one.
 */
static bool too_many(const struct kernel_accept *l, const struct kernel_session *s)
{
	uint64_t n = kept_with_key(l, s->borrower.key);

	for (int i = 0; i < KERNEL_SESSIONS; i++)
		if (l->sessions[i] && l->sessions[i]->proven &&
		    !strcmp(l->sessions[i]->borrower.key, s->borrower.key))
			n += l->sessions[i]->queues;
	if (!l->key_connections || n <= l->key_connections)
		return false;
	donor_say(l->env.log, LOG_LVL_WARN, "key %s: more than %llu connections; see --key-connections",
		  s->borrower.key, (unsigned long long)l->key_connections);
	return true;
}

static void session_turn(struct kernel_accept *l, struct kernel_session **p)
{
	uint32_t loans = l->env.pool->generation;
	bool proven = (*p)->proven;
	int r = kernel_session_turn(*p);

	if (l->env.pool->generation != loans)
		l->mapped = (uint32_t)(p - l->sessions);
	if (r == -EBADMSG || r == -EPROTO)
		session_end(l, p, end_text(r));
	else if (r)
		session_lost(l, p, end_text(r));
	else if ((*p)->failed)
		session_lost(l, p, (*p)->failed);
	else if (!proven && (*p)->proven && too_many(l, *p))
		session_end(l, p, "too many connections with its key");
}

void kernel_accept_event(struct kernel_accept *l, uint64_t key)
{
	struct kernel_session **p;

	if (key == l->first_key) {
		connection_event(l);
		return;
	}
	/* An earlier event of this turn may have replaced the session. */
	p = &l->sessions[key - l->first_key - 1];
	if (*p && (*p)->accepted)
		session_turn(l, p);
}

static bool has_work(const struct kernel_session *s)
{
	return s && (s->more || s->held.op || s->failed || s->made || kernel_session_resumable(s));
}

void kernel_accept_turn(struct kernel_accept *l)
{
	/* Round robin: start after the session that got the last slab. */
	uint32_t first = l->mapped + 1;
	bool accepted = false;

	for (uint32_t i = 0; i < KERNEL_SESSIONS; i++) {
		struct kernel_session **p = &l->sessions[(first + i) % KERNEL_SESSIONS];
		/* Whatever the answer to HELLO was: its machine may have failed since. */
		int r = *p && (*p)->proven && l->env.pool->refused ? kernel_session_probe(*p) : 0;

		if (r)
			session_lost(l, p, end_text(r));
		/* Accept one per turn, as for events. */
		if (*p && (*p)->made && !accepted) {
			accept_one(l, p);
			accepted = true;
		}
		if (*p && (*p)->accepted && has_work(*p))
			session_turn(l, p);
	}
	l->env.pool->refused = false;
	sweep(l);
}

uint64_t kernel_accept_wait(struct kernel_accept *l, uint64_t now)
{
	uint64_t wait = end_unproven(l, now), kept = end_kept(l, now);

	wait = kept < wait ? kept : wait;
	for (int i = 0; i < KERNEL_SESSIONS; i++)
		if (has_work(l->sessions[i]))
			return 0;
	return wait;
}

/* Returns whether the keys still have that of @s; logs if not. */
static bool has_key(const struct kernel_accept *l, const struct kernel_session *s)
{
	char identity[KEY_IDENTITY];

	snprintf(identity, sizeof(identity), "%s:%s", s->borrower.key, s->fingerprint);
	if (keyring_find(l->keys, identity, strlen(identity)))
		return true;
	donor_say(l->env.log, LOG_LVL_WARN, "key %s (%s): removed; disconnecting borrower %s",
		  s->borrower.key, s->fingerprint, s->borrower.name);
	return false;
}

void kernel_accept_keys(struct kernel_accept *l)
{
	struct kernel_session **at = &l->kept;

	for (int i = 0; i < KERNEL_SESSIONS; i++) {
		if (l->sessions[i] && !has_key(l, l->sessions[i]))
			session_end(l, &l->sessions[i], "its key was removed");
	}
	while (*at) {
		if (has_key(l, *at))
			at = &(*at)->next;
		else
			kept_end(l, at, "its key was removed");
	}
}

int kernel_accept_open(struct kernel_accept *l, const struct address *a, struct error *e)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = l->first_key };
	struct sockaddr_storage sa = a->sa;

	if (kernel_export_init(&l->export, l->env.pool, l->env.log))
		return fail(e, ENOMEM, "rdma-kernel: out of memory");
	if (getrandom(&l->seed, sizeof(l->seed), 0) != sizeof(l->seed))
		return fail(e, errno, "rdma-kernel: random numbers: %m");
	l->seed |= 1;
	l->env.export = &l->export;
	l->env.find = find;
	l->env.found = found;
	l->events = rdma_create_event_channel();
	/* Do not block on an event that has vanished with its connection. */
	if (!l->events || fcntl(l->events->fd, F_SETFL, O_NONBLOCK) < 0 ||
	    rdma_create_id(l->events, &l->listener, l, RDMA_PS_TCP))
		return fail_exit(e, EXIT_UNSUPPORTED, errno,
				 "rdma-kernel: %m; load rdma_ucm and, without a network card for it, rdma_rxe");
	if (rdma_bind_addr(l->listener, (struct sockaddr *)&sa) ||
	    rdma_listen(l->listener, BACKLOG))
		return fail(e, errno, "rdma-kernel %s: %m; give the address of an RDMA device", a->text);
	if (epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, l->events->fd, &ev) < 0)
		return fail(e, errno, "event loop: %m");
	return 0;
}

void kernel_accept_end(struct kernel_accept *l)
{
	for (int i = 0; i < KERNEL_SESSIONS; i++)
		if (l->sessions[i])
			session_end(l, &l->sessions[i], "the donor stops");
	while (l->kept)
		kept_end(l, &l->kept, "the donor stops");
}

void kernel_accept_close(struct kernel_accept *l)
{
	while (l->ended) {
		struct kernel_session *s = l->ended;

		l->ended = s->next;
		kernel_session_free(s);
	}
	if (l->listener)
		rdma_destroy_id(l->listener);
	if (l->events)
		rdma_destroy_event_channel(l->events);
	kernel_export_free(&l->export);
}
