// SPDX-License-Identifier: GPL-2.0-or-later
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#include "kernel_accept.h"
#include "kernel_session.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"

#define SESSIONS_MAX 64
#define MS 1000000ull
/* What was refused, or promised and has not come, is asked for again. */
#define ASK_AGAIN_MS 1000
/*
 * An unproven session may stay so long, beside so few others, the first of which ends when
 * there would be more.  Sixteen connections are to be made in that time.
 */
#define PROVING_MS 10000
#define UNPROVEN_MAX 8
/* Lines about strangers: they must not fill the disk. */
#define STRANGERS_TOLD 10

struct rdma_lender {
	struct rdma_pool pool;
	struct rdma_event_channel *events;
	struct rdma_cm_id *listener;
	int wake; /* eventfd: look at stopping, the keys, what the pool is to have */
	bool stopping;
	pthread_t thread;
	bool running;
	struct rdma_session *sessions;
	uint32_t session_count;
	uint64_t asked_at; /* ns: when all was last asked back */
	uint64_t key_connections; /* most with keys of one name; 0 = no limit */
	struct keyring keys;
	pthread_mutex_t lock; /* of what other threads have to say: */
	struct keyring next_keys;
	bool rekey;
	uint64_t told_at;  /* ns: ... and from then on so many lines about strangers: */
	uint32_t told;
};

/* Whether one more line about who is not known may be written. */
static bool may_tell(struct rdma_lender *l)
{
	uint64_t now = now_ns();

	if (now - l->told_at > 1000 * MS) {
		l->told_at = now;
		l->told = 0;
	}
	return l->told++ < STRANGERS_TOLD;
}

static struct rdma_session **session_find(struct rdma_lender *l, uint64_t number)
{
	struct rdma_session **p = &l->sessions;

	while (*p && (*p)->number != number)
		p = &(*p)->next;
	return p;
}

static struct rdma_session **session_of(struct rdma_lender *l, const struct rdma_cm_id *id)
{
	struct rdma_session **p;

	for (p = &l->sessions; *p; p = &(*p)->next)
		for (uint32_t i = 0; i < WIRE_RDMA_QUEUES; i++)
			if ((*p)->id[i] == id)
				return p;
	return p;
}

static void session_end(struct rdma_lender *l, struct rdma_session **p, const char *why)
{
	struct rdma_session *s = *p;

	*p = s->next;
	l->session_count--;
	if (s->proven || may_tell(l))
		log_info("rdma: %s: %s; %u slabs come back", s->name[0] ? s->name : "a borrower", why,
			 s->lent);
	rdma_session_free(s);
}

/* The first of those that have proven nothing, and how many there are. */
static struct rdma_session **first_unproven(struct rdma_lender *l, uint32_t *count)
{
	struct rdma_session **first = NULL;

	*count = 0;
	for (struct rdma_session **p = &l->sessions; *p; p = &(*p)->next) {
		if ((*p)->proven)
			continue;
		first = first ? first : p;
		++*count;
	}
	return first;
}

static void make_place(struct rdma_lender *l)
{
	uint32_t count;
	struct rdma_session **p = first_unproven(l, &count);

	if (p && (count >= UNPROVEN_MAX || l->session_count == SESSIONS_MAX))
		session_end(l, p, "no proof of its key, and others want its place");
}

/* ms until the next one has to go; those whose time is up do. */
static int end_unproven(struct rdma_lender *l)
{
	struct rdma_session **p;
	uint64_t now = now_ns();
	uint32_t count;

	while ((p = first_unproven(l, &count))) {
		uint64_t end = (*p)->since + PROVING_MS * MS;

		if (now < end)
			return (int)((end - now) / MS + 1);
		session_end(l, p, "no proof of its key");
	}
	return -1;
}

static void refuse(struct rdma_lender *l, struct rdma_cm_id *id, enum wire_refusal why,
		   const char *words)
{
	const struct sockaddr *peer = rdma_get_peer_addr(id);
	const void *ip = peer->sa_family == AF_INET6 ?
			 (const void *)&((const struct sockaddr_in6 *)peer)->sin6_addr :
			 &((const struct sockaddr_in *)peer)->sin_addr;
	char from[INET6_ADDRSTRLEN] = "?";
	uint8_t data[WIRE_REFUSAL_SIZE];

	inet_ntop(peer->sa_family, ip, from, sizeof(from));
	if (may_tell(l))
		log_warn("rdma: a connection from %s is refused: %s", from, words);
	wire_build_refusal(data, why);
	rdma_reject(id, data, sizeof(data));
	rdma_destroy_id(id);
}

/*
 * What a request says, of @length bytes; WIRE_REFUSED_UNKNOWN: nothing is wrong with it.
 * Else the donor's log gets @words, of @size.
 */
static enum wire_refusal read_request(const struct rdma_lender *l, const uint8_t *data,
				      size_t length, struct rdma_request *q, char *words, size_t size)
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
	q->key = keyring_find_number(&l->keys, proof.key);
	memcpy(q->bytes, data, sizeof(q->bytes));
	memcpy(q->proof, proof.proof, sizeof(q->proof));
	for (uint32_t i = 0; i < WIRE_KEY_NUMBER; i++)
		snprintf(said + 2 * i, 3, "%02x", proof.key[i]);
	snprintf(words, size, "unknown key (%s); add the borrower's key file to --keys", said);
	return q->key ? WIRE_REFUSED_UNKNOWN : WIRE_REFUSED_OTHER_KEY;
}

/* Connection 0 comes first; a session that ended is not begun again. */
static int begin_session(struct rdma_lender *l, struct rdma_cm_id *id,
			 const struct rdma_request *q, struct rdma_session ***p)
{
	int r;

	if (q->open.queue)
		return -ENOENT;
	make_place(l);
	l->pool.refused |= l->session_count == SESSIONS_MAX;
	if (l->session_count == SESSIONS_MAX)
		return -EBUSY;
	/* Its place may be another one by now. */
	*p = session_find(l, q->open.session);
	r = rdma_session_new(*p, &l->pool, id, q);
	l->session_count += !r;
	return r;
}

static void connection_request(struct rdma_lender *l, struct rdma_cm_id *id,
			       const struct rdma_conn_param *param, const uint8_t *data,
			       size_t length)
{
	struct rdma_request q = {
		/* Of us: what the borrower says that it will have under way. */
		.reads = param->responder_resources, .borrower = param->qp_num,
	};
	struct ibv_device_attr attr;
	struct rdma_session **p;
	enum wire_refusal why;
	char words[192];
	int r;

	why = read_request(l, data, length, &q, words, sizeof(words));
	if (why) {
		refuse(l, id, why, words);
		return;
	}
	if (ibv_query_device(id->verbs, &attr)) {
		refuse(l, id, WIRE_REFUSED_FAILED, strerror(EIO));
		return;
	}
	if (q.reads > attr.max_qp_rd_atom)
		q.reads = (uint8_t)attr.max_qp_rd_atom;
	p = session_find(l, q.open.session);
	r = *p ? 0 : begin_session(l, id, &q, &p);
	if (r) {
		refuse(l, id, r == -EBUSY ? WIRE_REFUSED_FULL :
		       r == -ENOENT ? WIRE_REFUSED_BAD_PROOF : WIRE_REFUSED_FAILED,
		       r == -EBUSY ? "64 borrow already" :
		       r == -ENOENT ? "its session is not there" : strerror(-r));
		return;
	}
	/* Whoever knows a session's number must not be able to end it. */
	if (!rdma_session_lacks(*p, id, &q)) {
		refuse(l, id, WIRE_REFUSED_BAD_PROOF, "it is not of the session that it says");
		return;
	}
	r = rdma_session_join(*p, id, &q);
	if (r) {
		session_end(l, p, "a connection failed");
		refuse(l, id, WIRE_REFUSED_FAILED, strerror(-r));
	}
}

static void connection_event(struct rdma_lender *l)
{
	uint8_t data[WIRE_PROOF_REQUEST_SIZE] = { 0 };
	struct rdma_cm_event *event;
	struct rdma_session **p;
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
	/* Before anything of it is destroyed, which waits for this. */
	rdma_ack_cm_event(event);
	switch (kind) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		connection_request(l, id, &param, data, length);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		break;
	default:
		p = session_of(l, id);
		if (*p)
			session_end(l, p, rdma_event_str(kind));
	}
}

static const char *end_text(int error)
{
	return error == -EBADMSG ? "a frame that is not its own" :
	       error == -EUSERS ? "too many connections with its key" : strerror(-error);
}

/* Does @what with each session, and ends those where it fails. */
static void for_each(struct rdma_lender *l, int (*what)(struct rdma_session *))
{
	struct rdma_session **p = &l->sessions;

	while (*p) {
		int r = what(*p);

		if (r)
			session_end(l, p, end_text(r));
		else
			p = &(*p)->next;
	}
}

/* Asks for what was not asked for yet, and from time to time for all of it. */
static void ask_back(struct rdma_lender *l)
{
	uint64_t now = now_ns();

	if (now - l->asked_at > ASK_AGAIN_MS * MS) {
		l->asked_at = now;
		for (struct rdma_session *s = l->sessions; s; s = s->next)
			rdma_session_ask_again(s);
	}
	for_each(l, rdma_session_ask);
}

/* Ends a session that has just proven its key if the key has too many connections with it. */
static int check_proven(const struct rdma_lender *l, const struct rdma_session *s)
{
	if (!s->proven || !l->key_connections ||
	    rdma_session_connections(l->sessions, s) <= l->key_connections)
		return 0;
	log_warn("rdma: key %s: more than %llu connections; see --key-connections", s->key,
		 (unsigned long long)l->key_connections);
	return -EUSERS;
}

/* New keys, if there are some: who came with one that is gone is hung up on. */
static void take_keys(struct rdma_lender *l)
{
	struct rdma_session **p = &l->sessions;
	bool taken;

	pthread_mutex_lock(&l->lock);
	taken = l->rekey;
	if (taken) {
		keyring_free(&l->keys);
		l->keys = l->next_keys;
		l->next_keys = (struct keyring){ 0 };
		l->rekey = false;
	}
	pthread_mutex_unlock(&l->lock);
	while (taken && *p) {
		const struct rdma_session *s = *p;
		char identity[KEY_IDENTITY];

		snprintf(identity, sizeof(identity), "%s:%s", s->key, s->fingerprint);
		if (keyring_find(&l->keys, identity, strlen(identity))) {
			p = &(*p)->next;
			continue;
		}
		log_warn("rdma: key %s (%s) is gone: who came with it is hung up on", s->key,
			 s->fingerprint);
		session_end(l, p, "its key was taken away");
	}
}

static void *lend(void *argument)
{
	struct rdma_lender *l = argument;
	struct pollfd fds[2 + SESSIONS_MAX];
	bool more = false;

	for (;;) {
		struct rdma_session **p;
		eventfd_t count;
		nfds_t n = 2;
		int wait = end_unproven(l);

		fds[0] = (struct pollfd){ .fd = l->wake, .events = POLLIN };
		fds[1] = (struct pollfd){ .fd = l->events->fd, .events = POLLIN };
		for (p = &l->sessions; *p; p = &(*p)->next)
			fds[n++] = (struct pollfd){ .fd = (*p)->channel->fd, .events = POLLIN };
		if (l->pool.wanted && (wait < 0 || wait > ASK_AGAIN_MS))
			wait = ASK_AGAIN_MS;
		if (more)
			wait = 0;
		if (poll(fds, n, wait) < 0 && errno != EINTR)
			break;
		if (fds[0].revents && eventfd_read(l->wake, &count))
			break;
		if (__atomic_load_n(&l->stopping, __ATOMIC_ACQUIRE))
			break;
		/* Turns first: they match the list that was polled. */
		p = &l->sessions;
		for (nfds_t i = 2; i < n; i++) {
			bool proven = (*p)->proven;
			int r = fds[i].revents ? rdma_session_turn(*p) : 0;

			if (!r && !proven)
				r = check_proven(l, *p);
			if (r)
				session_end(l, p, end_text(r));
			else
				p = &(*p)->next;
		}
		take_keys(l);
		if (fds[1].revents)
			connection_event(l);
		if (l->pool.refused)
			for_each(l, rdma_session_probe);
		l->pool.refused = false;
		more = rdma_pool_turn(&l->pool, now_ns());
		if (l->pool.wanted)
			ask_back(l);
	}
	while (l->sessions)
		session_end(l, &l->sessions, "the donor stops");
	return NULL;
}

int rdma_lender_start(struct rdma_lender **out, struct address *place,
		      const struct rdma_lender_options *o, struct error *e)
{
	struct rdma_lender *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return fail(e, ENOMEM, "rdma: out of memory");
	l->key_connections = o->key_connections;
	pthread_mutex_init(&l->lock, NULL);
	l->wake = eventfd(0, EFD_CLOEXEC);
	l->events = rdma_create_event_channel();
	/* An event goes with its connection, which may end between poll() and who takes it. */
	if (!l->events || fcntl(l->events->fd, F_SETFL, O_NONBLOCK) < 0 ||
	    rdma_create_id(l->events, &l->listener, l, RDMA_PS_TCP))
		r = fail_exit(e, EXIT_UNSUPPORTED, errno,
			      "rdma: %m; load rdma_ucm and, without a network card for it, rdma_rxe");
	else if (rdma_bind_addr(l->listener, (struct sockaddr *)&place->sa) ||
		 rdma_listen(l->listener, 16))
		r = fail(e, errno, "rdma %s: %m; give the address of an RDMA device", place->text);
	else
		r = rdma_pool_init(&l->pool, o->memory, o->slab_size, e);
	if (!r) {
		l->pool.quota = o->quota;
		r = -pthread_create(&l->thread, NULL, lend, l);
		if (r)
			fail(e, r, "rdma: no thread: %s", strerror(-r));
	}
	l->running = !r;
	if (r)
		rdma_lender_stop(&l);
	*out = l;
	return r;
}

int rdma_lender_keys(void *data, const struct keyring *keys)
{
	struct rdma_lender *l = data;
	struct keyring copy;
	int r = keyring_copy(&copy, keys);

	if (r)
		return r;
	pthread_mutex_lock(&l->lock);
	keyring_free(&l->next_keys);
	l->next_keys = copy;
	l->rekey = true;
	pthread_mutex_unlock(&l->lock);
	return eventfd_write(l->wake, 1) ? -errno : 0;
}

void rdma_lender_follow(struct rdma_lender *l, uint32_t most, bool drain)
{
	rdma_pool_limit(&l->pool, most);
	rdma_pool_drain(&l->pool, drain);
	if (eventfd_write(l->wake, 1))
		log_warn("rdma: cannot be told how much to lend: %m");
}

struct rdma_lent rdma_lender_lent(const struct rdma_lender *l)
{
	return (struct rdma_lent){ l->pool.count, rdma_pool_present(&l->pool),
				   rdma_pool_lent(&l->pool) };
}

uint32_t rdma_lender_drain(struct rdma_lender *l, uint64_t timeout_ns)
{
	const struct timespec tenth = { .tv_nsec = 100 * MS };
	uint64_t end;
	uint32_t lent;
	sigset_t pending;

	if (!l)
		return 0;
	lent = rdma_pool_lent(&l->pool);
	if (lent && timeout_ns) {
		log_info("rdma: %u slabs are asked back", lent);
		/* The unit's time may be used up by those that --memory lent. */
		sd_notifyf(0, "EXTEND_TIMEOUT_USEC=%llu",
			   (unsigned long long)(timeout_ns / 1000 + 30000000));
	}
	end = now_ns() + timeout_ns;
	rdma_lender_follow(l, rdma_pool_present(&l->pool), true);
	while ((lent = rdma_pool_lent(&l->pool)) && now_ns() < end) {
		sigpending(&pending);
		if (sigismember(&pending, SIGTERM) || sigismember(&pending, SIGINT))
			break;
		nanosleep(&tenth, NULL);
	}
	return lent;
}

void rdma_lender_stop(struct rdma_lender **lp)
{
	struct rdma_lender *l = *lp;

	*lp = NULL;
	if (!l)
		return;
	if (l->running) {
		__atomic_store_n(&l->stopping, true, __ATOMIC_RELEASE);
		if (eventfd_write(l->wake, 1))
			log_warn("rdma: cannot be stopped: %m");
		pthread_join(l->thread, NULL);
	}
	if (l->listener)
		rdma_destroy_id(l->listener);
	if (l->events)
		rdma_destroy_event_channel(l->events);
	rdma_pool_free(&l->pool);
	keyring_free(&l->keys);
	keyring_free(&l->next_keys);
	pthread_mutex_destroy(&l->lock);
	close(l->wake);
	free(l);
}
