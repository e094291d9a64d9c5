// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include "control_server.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/text.h"
#include "line.h"

#define CLIENTS 64
/* Connections of users other than the owner; the owner has the rest. */
#define OTHERS 32
/* Connections accepted in a turn. */
#define ACCEPTS 64
/* Pause after a connection that could not be accepted, for lack of descriptors or memory. */
#define PAUSE_MS 100

/* Keys of the epoll set, behind those of clients. */
enum { KEY_LISTEN = CLIENTS, KEY_TIMER, KEYS };

enum client_state {
	CLIENT_NONE,
	CLIENT_READS,    /* its request has not arrived whole */
	CLIENT_READY,    /* its request waits to be handled */
	CLIENT_ANSWERED, /* it has not taken its answer whole */
};

struct client {
	enum client_state state;
	int fd;
	bool watched;       /* in the epoll set */
	struct peer_info peer;
	struct line request;
	struct json_object *answer; /* owned; .text is its */
	const char *text;
	size_t length, sent; /* bytes of .text */
	int64_t deadline;   /* ms: end of the present state, except CLIENT_READY */
	uint64_t number;    /* sequence of requests */
};

struct control_server {
	int listen_fd, epoll_fd, timer_fd;
	const struct control_rules *rules;
	control_handler handler;
	void *data;
	const struct peer_info *served; /* the handler's client, while it runs */
	uint64_t requests;
	int64_t resume_at;  /* ms: end of a pause in accepting; 0 = none */
	struct client client[CLIENTS];
};

int control_listen(const char *path, struct error *e)
{
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_un sa;
	mode_t mask;
	int r;

	if (fd < 0)
		return fail(e, errno, "socket: %m");
	r = control_address(path, &sa, e);
	if (r)
		return r;
	unlink(path);
	mask = umask(0111);
	r = bind(fd, (struct sockaddr *)&sa, sizeof(sa));
	r = r < 0 || listen(fd, SOMAXCONN) < 0 ? -errno : 0;
	umask(mask);
	if (r)
		return fail(e, r, "%s: cannot listen: %s", path, strerror(-r));
	return TAKE_FD(fd);
}

/* --- requests --------------------------------------------------------------------------- */

static bool is_listed(const char *const *verbs, const char *verb)
{
	for (; verbs && *verbs; verbs++)
		if (!strcmp(*verbs, verb))
			return true;
	return false;
}

static int not_a_member(const struct peer_info *p, const struct peer_group *g, const char *what,
			struct error *e)
{
	if (g->gid == PEER_NO_GROUP)
		return fail_exit(e, EXIT_REFUSED, EACCES,
				 "%s: user %u has no access: group %s does not exist; run \"groupadd --system %s\" as root and restart the daemon",
				 what, (unsigned int)p->uid, g->name, g->name);
	return fail_exit(e, EXIT_REFUSED, EACCES,
			 "%s: user %u is not in group %s; run \"usermod -aG %s USER\" as root and log in again",
			 what, (unsigned int)p->uid, g->name, g->name);
}

/* Checks that @p may request @verb, or any verb when NULL. */
static int check(const struct control_rules *rules, const struct peer_info *p, const char *verb,
		 struct error *e)
{
	bool read = verb && rules && is_listed(rules->read, verb);
	bool admin = verb && rules && is_listed(rules->admin, verb);

	if (p->level == PEER_OWNER)
		return 0;
	if (!rules || (verb && !read && !admin))
		return fail_exit(e, EXIT_REFUSED, EACCES, "%.64s: permitted to root only; use sudo",
				 verb ?: "control socket");
	if (p->level == PEER_STRANGER)
		return not_a_member(p, &rules->groups.readers, "control socket", e);
	if (admin && p->level < PEER_ADMIN)
		return not_a_member(p, &rules->groups.admins, verb, e);
	return 0;
}

static struct json_object *refusal(const struct error *e)
{
	struct json_object *o = json_object_new_object();

	json_add_bool(o, "ok", 0);
	json_add_text(o, "error", e->text);
	json_add_int(o, "code", -e->code);
	json_add_int(o, "exit", e->exit_status);
	return o;
}

/* Bytes of an error and a request in the log. */
#define LOGGED_MAX 800

/*
 * Logs JSON, in which a newline is "\n", so that text in a request cannot forge log lines.
 * Only the verbs that the catalog entry describes become events.
 */
static void log_change(const struct peer_info *p, const char *verb, struct json_object *request,
		       bool is_policy, const struct error *e)
{
	/* Acted-on members come first, so that unused ones cannot push them out of the line. */
	static const char *const subjects[] = { "cgroup", "policy", "donor", "slab", "to", "file",
						"pid", "end" };
	struct json_object *ordered = json_object_new_object(), *value;
	_cleanup_free_ char *text = NULL;
	int most = LOGGED_MAX - (int)strlen(e->text);
	size_t n = 0;
	FILE *f = open_memstream(&text, &n);

	if (!f)
		return;
	json_object_object_del(request, "verb");
	for (size_t i = 0; i < sizeof(subjects) / sizeof(subjects[0]); i++)
		if (json_object_object_get_ex(request, subjects[i], &value)) {
			json_object_object_add(ordered, subjects[i], json_object_get(value));
			json_object_object_del(request, subjects[i]);
		}
	json_object_object_foreach(request, name, other)
		json_object_object_add(ordered, name, json_object_get(other));
	output_json(f, ordered, JSON_C_TO_STRING_PLAIN);
	fclose(f);
	text[n - 1] = '\0'; /* a newline */
	log_event(is_policy ? EVENT_POLICY_CHANGED : EVENT_NONE, LOG_LVL_INFO,
		  "user %u (process %d): %.64s%s%s %.*s%s", (unsigned int)p->uid, (int)p->pid, verb,
		  e->code ? " failed: " : "", e->text, most, text, strlen(text) > (size_t)most ? " (cut)" : "");
	json_object_put(ordered);
}

static void answer_request(const struct control_rules *rules, const struct peer_info *p,
			   struct json_object *request, control_handler handler, void *data,
			   struct json_object *answer, struct error *e)
{
	char verb[64];

	if (!json_object_is_type(request, json_type_object)) {
		fail_exit(e, EXIT_USAGE, EBADMSG, "request: not a JSON object");
		return;
	}
	snprintf(verb, sizeof(verb), "%s", json_text(request, "verb", ""));
	if (check(rules, p, verb, e))
		return;
	if (handler(data, verb, request, answer, e) != CONTROL_UNCHANGED &&
	    (!e->code || e->exit_status == EXIT_FAILED) && !(rules && is_listed(rules->read, verb)))
		log_change(p, verb, request, rules && is_listed(rules->admin, verb), e);
}

/* --- clients ------------------------------------------------------------------------ */

static bool is_owner(const struct client *c)
{
	return c->peer.level == PEER_OWNER;
}

static int64_t patience(const struct client *c)
{
	return now_ms() + (is_owner(c) ? CONTROL_OWNER_MS : CONTROL_OTHERS_MS);
}

static void drop(struct client *c)
{
	close(c->fd); /* leaves the epoll set */
	line_free(&c->request);
	json_object_put(c->answer);
	*c = (struct client){ .state = CLIENT_NONE, .fd = -1 };
}

/* Waits for one event of @events, after which the client is not watched until the next call. */
static void watch(struct control_server *s, struct client *c, uint32_t events)
{
	struct epoll_event ev = { .events = events | EPOLLONESHOT,
				  .data.u64 = (uint64_t)(c - s->client) };

	if (epoll_ctl(s->epoll_fd, c->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd, &ev) < 0)
		drop(c);
	else
		c->watched = true;
}

static void receive(struct control_server *s, struct client *c)
{
	int r = line_receive(c->fd, is_owner(c) ? CONTROL_MAX_LINE : CONTROL_OTHERS_LINE,
			     &c->request);

	if (r < 0) {
		drop(c);
	} else if (r) {
		c->state = CLIENT_READY;
		c->number = s->requests++;
	} else {
		watch(s, c, EPOLLIN);
	}
}

static void send_answer(struct control_server *s, struct client *c)
{
	if (line_send(c->fd, c->text, c->length, &c->sent))
		drop(c);
	else
		watch(s, c, EPOLLOUT);
}

static void serve(struct control_server *s, struct client *c)
{
	struct json_object *request = json_tokener_parse(c->request.text);
	struct error e = { 0 };

	c->answer = json_object_new_object();
	json_add_bool(c->answer, "ok", 1);
	s->served = &c->peer;
	answer_request(s->rules, &c->peer, request, s->handler, s->data, c->answer, &e);
	s->served = NULL;
	json_object_put(request);
	if (e.code) {
		json_object_put(c->answer);
		c->answer = refusal(&e);
	}
	c->text = json_object_to_json_string_length(c->answer, JSON_C_TO_STRING_PLAIN, &c->length);
	c->state = CLIENT_ANSWERED;
	c->deadline = patience(c);
	send_answer(s, c);
}

/* Returns whether another client of @c's user has not taken its answer. */
static bool has_answer(const struct control_server *s, const struct client *c)
{
	for (int i = 0; i < CLIENTS; i++)
		if (s->client[i].state == CLIENT_ANSWERED &&
		    s->client[i].peer.uid == c->peer.uid)
			return true;
	return false;
}

/* Returns the client that has waited longest, of the owner or of others, or NULL. */
static struct client *next_ready(struct control_server *s, bool owner)
{
	struct client *next = NULL;

	for (int i = 0; i < CLIENTS; i++) {
		struct client *c = &s->client[i];

		if (c->state == CLIENT_READY && is_owner(c) == owner &&
		    (owner || !has_answer(s, c)) && (!next || c->number < next->number))
			next = c;
	}
	return next;
}

/* --- new clients ------------------------------------------------------------------------ */

/* Best effort: the text is shorter than a socket's buffer. */
static void send_away(int fd, const struct error *e)
{
	struct json_object *o = refusal(e);
	size_t length, sent = 0;
	const char *text = json_object_to_json_string_length(o, JSON_C_TO_STRING_PLAIN, &length);

	line_send(fd, text, length, &sent);
	json_object_put(o);
}

/* Returns a place for a client of @p, or NULL and the reason. */
static struct client *find_place(struct control_server *s, const struct peer_info *p,
				 struct error *e)
{
	bool owner = p->level == PEER_OWNER;
	int of_user = 0, alike = 0;
	struct client *found = NULL;

	for (int i = 0; i < CLIENTS; i++) {
		struct client *c = &s->client[i];

		if (c->state == CLIENT_NONE) {
			found = c;
			continue;
		}
		alike += is_owner(c) == owner;
		of_user += c->peer.uid == p->uid;
	}
	if (found && alike < (owner ? CLIENTS - OTHERS : OTHERS) &&
	    (owner || of_user < CONTROL_USER_CLIENTS))
		return found;
	fail_exit(e, EXIT_REFUSED, EBUSY,
		  "control socket: user %u has %d connections of %d open; close them or try again",
		  (unsigned int)p->uid, of_user, alike);
	return NULL;
}

static void adopt(struct control_server *s, int fd)
{
	_cleanup_close_ int owned = fd;
	struct error e = { 0 };
	struct peer_info p;
	struct client *c;

	if (peer_read(fd, s->rules ? &s->rules->groups : NULL, &p))
		return;
	c = check(s->rules, &p, NULL, &e) ? NULL : find_place(s, &p, &e);
	if (!c) {
		send_away(fd, &e);
		return;
	}
	*c = (struct client){ .state = CLIENT_READS, .fd = TAKE_FD(owned), .peer = p };
	c->deadline = patience(c);
	receive(s, c);
}

static void listen_again(struct control_server *s, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.u64 = KEY_LISTEN };

	epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, s->listen_fd, &ev);
	s->resume_at = events ? 0 : now_ms() + PAUSE_MS;
}

static void accept_some(struct control_server *s)
{
	for (int n = 0; n < ACCEPTS; n++) {
		int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC);

		if (fd >= 0)
			adopt(s, fd);
		else if (errno == EAGAIN)
			return;
		else if (errno != ECONNABORTED && errno != EINTR) {
			/* It would wake the server all the time. */
			listen_again(s, 0);
			return;
		}
	}
}

/* --- turns ------------------------------------------------------------------------------ */

static void client_event(struct control_server *s, struct client *c)
{
	if (c->state == CLIENT_READS)
		receive(s, c);
	else if (c->state == CLIENT_ANSWERED)
		send_answer(s, c);
}

static bool is_waited_for(const struct client *c)
{
	return c->state == CLIENT_READS || c->state == CLIENT_ANSWERED;
}

static void end_pauses(struct control_server *s)
{
	int64_t now = now_ms();

	for (int i = 0; i < CLIENTS; i++)
		if (is_waited_for(&s->client[i]) && s->client[i].deadline <= now)
			drop(&s->client[i]);
	if (s->resume_at && s->resume_at <= now)
		listen_again(s, EPOLLIN);
}

/* Makes the descriptor readable at the next deadline, or at once while requests are left. */
static void set_timer(struct control_server *s)
{
	int64_t next = s->resume_at ?: INT64_MAX;
	struct itimerspec t = { .it_value.tv_nsec = 0 };

	for (int i = 0; i < CLIENTS; i++)
		if (is_waited_for(&s->client[i]) && s->client[i].deadline < next)
			next = s->client[i].deadline;
	if (next_ready(s, false))
		t.it_value.tv_nsec = 1;
	else if (next != INT64_MAX)
		t.it_value = (struct timespec){ next / 1000, next % 1000 * 1000000 };
	timerfd_settime(s->timer_fd, TFD_TIMER_ABSTIME, &t, NULL);
}

void control_server_turn(struct control_server *s)
{
	struct epoll_event ev[KEYS];
	int n = epoll_wait(s->epoll_fd, ev, KEYS, 0);
	bool arrived = false;
	struct client *c;
	uint64_t ignored;

	for (int i = 0; i < n; i++) {
		if (ev[i].data.u64 == KEY_LISTEN)
			arrived = true;
		else if (ev[i].data.u64 != KEY_TIMER)
			client_event(s, &s->client[ev[i].data.u64]);
		else if (read(s->timer_fd, &ignored, sizeof(ignored)) < 0)
			continue;
	}
	end_pauses(s);
	/* After those that have left. */
	if (arrived)
		accept_some(s);
	while ((c = next_ready(s, true)))
		serve(s, c);
	c = next_ready(s, false);
	if (c)
		serve(s, c);
	set_timer(s);
}

const struct peer_info *control_server_peer(const struct control_server *s)
{
	return s->served;
}

int control_server_fd(const struct control_server *s)
{
	return s ? s->epoll_fd : -1;
}

static int add(struct control_server *s, int fd, uint64_t key)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = key };

	return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &ev);
}

int control_server_new(struct control_server **out, int fd, const struct control_rules *rules,
		       control_handler handler, void *data, struct error *e)
{
	struct control_server *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return fail(e, ENOMEM, "control socket: out of memory");
	s->listen_fd = fd;
	s->rules = rules;
	s->handler = handler;
	s->data = data;
	s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	s->timer_fd = timerfd_create(CLOCK_INTERVALS, TFD_CLOEXEC | TFD_NONBLOCK);
	if (s->epoll_fd < 0 || s->timer_fd < 0 || add(s, fd, KEY_LISTEN) < 0 ||
	    add(s, s->timer_fd, KEY_TIMER) < 0) {
		r = fail(e, errno, "control socket: %m");
		control_server_free(&s);
		return r;
	}
	*out = s;
	return 0;
}

void control_server_free(struct control_server **p)
{
	struct control_server *s = *p;

	*p = NULL;
	if (!s)
		return;
	for (int i = 0; i < CLIENTS; i++)
		if (s->client[i].state != CLIENT_NONE)
			drop(&s->client[i]);
	close_fdp(&s->epoll_fd);
	close_fdp(&s->timer_fd);
	free(s);
}
