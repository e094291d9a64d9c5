// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/*
 * A key-value store: a server that owns the values, and clients on its own and other machines.
 *
 *	kv serve DONORS HOME POOL PORT	serves at 127.0.0.1:PORT (EBB_KV_HOST: another address);
 *					prints the port, which it chooses if PORT is 0
 *	kv client DONORS HOME POOL HOST:PORT	executes the lines of its input, prints answers:
 *		put KEY TEXT		"ok"
 *		get KEY			the text, or "none"
 *		append KEY TEXT		"ok", "none", or "busy": another client appends
 *		drop KEY		"ok", "none" or "busy"
 *
 * DONORS are addresses separated by commas, in all processes of the same donors in the same order;
 * HOME is the number of this process's own, from 0 on.  EBB_KEY is a key file, or not set.
 *
 * What travels.  The socket carries names alone, 16 bytes each.  A value is written once, by the
 * client that puts it; the server accepts it as its own.  A reader asks the server for the name of
 * a key's value, and reads the value if it has no copy: so a get of a value that has not changed
 * transfers a name, and one that has also the value, once.  An append borrows the value mutably: it
 * moves to the client, which changes it and returns it.
 *
 * Exits.  A client that is killed takes nothing with it: what it had borrowed is as it was before,
 * and what it had offered was accepted, or is not there.  When the server is killed, its values are
 * lost; clients say so.
 */
#include <ctype.h>
#include <err.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ebbdsm.h>

enum { KEY_MOST = 31, TEXT_MOST = 4000, LINE_MOST = 4200, KEYS = 4096, CLIENTS = 64 };

/* An object. */
struct value {
	uint32_t length;
	char text[TEXT_MOST + 1];
};

static ebbdsm_t *dsm;

static _Noreturn void fatal(const char *what, int error)
{
	errx(1, "%s: %s; %s", what, strerror(error), *ebbdsm_why(dsm) ? ebbdsm_why(dsm) : "try again");
}

static void open_space(char *donors, const char *home, const char *pool)
{
	const char *list[EBBDSM_DONORS];
	struct ebbdsm_options o = { .size = sizeof(o) };

	for (char *d = strtok(donors, ","); d && o.donor_count < EBBDSM_DONORS; d = strtok(NULL, ","))
		list[o.donor_count++] = d;
	o.donors = list;
	o.home = (unsigned)atoi(home);
	o.pool = pool;
	o.key = getenv("EBB_KEY");
	if (ebbdsm_open(&o, &dsm))
		errx(1, "%s", o.error);
}

/* Returns a socket at "HOST:PORT", listening or connected. */
static int open_socket(const char *where, int listens)
{
	const struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM };
	char host[256];
	struct addrinfo *a;
	const char *colon = strrchr(where, ':');
	int fd, one = 1;

	if (!colon || (size_t)(colon - where) >= sizeof(host))
		errx(2, "%s: not an address; give HOST:PORT", where);
	snprintf(host, sizeof(host), "%.*s", (int)(colon - where), where);
	if (getaddrinfo(host, colon + 1, &hints, &a))
		errx(1, "%s: unknown address; give HOST:PORT", where);
	fd = socket(a->ai_family, a->ai_socktype, 0);
	if (listens)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (fd < 0 || (listens ? bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, CLIENTS) :
				 connect(fd, a->ai_addr, a->ai_addrlen)))
		err(1, "%s", where);
	freeaddrinfo(a);
	return fd;
}

/* --- the server ------------------------------------------------------------------- */

struct entry {
	char key[KEY_MOST + 1];
	struct ebbdsm_box box;
	int lent;
};

static struct entry entries[KEYS];
static unsigned entry_count;

static struct entry *find(const char *key)
{
	for (unsigned i = 0; i < entry_count; i++)
		if (!strcmp(entries[i].key, key))
			return &entries[i];
	return NULL;
}

/* Gets the value of an append back, if the client has returned it or is dead. */
static int get_back(struct entry *e)
{
	int r = e->lent ? ebbdsm_reclaim(dsm, &e->box) : 0;

	/* The client is dead, and the value is as it was. */
	if (r == -EOWNERDEAD)
		r = 0;
	if (r && r != -EBUSY)
		fatal("reclaim", -r);
	e->lent = r != 0;
	return r;
}

static const char *put(const char *key, const struct ebbdsm_parcel *parcel)
{
	struct entry *e = find(key);
	struct ebbdsm_box box = { 0, 0 };
	int r;

	if (e && get_back(e))
		return "busy";
	if (!e && entry_count == KEYS)
		return "full";
	r = ebbdsm_accept(dsm, parcel, &box);
	if (r == -ESTALE || r == -EOWNERDEAD)
		return "lost";
	if (r)
		fatal("accept", -r);
	if (!e) {
		e = &entries[entry_count++];
		snprintf(e->key, sizeof(e->key), "%s", key);
	} else if (ebbdsm_drop(dsm, &e->box)) {
		fatal("drop", EBUSY);
	}
	ebbdsm_move(&e->box, &box);
	return "ok";
}

static void drop(struct entry *e)
{
	struct entry *last = &entries[--entry_count];

	if (ebbdsm_drop(dsm, &e->box))
		fatal("drop", EBUSY);
	if (e != last) {
		memcpy(e->key, last->key, sizeof(e->key));
		ebbdsm_move(&e->box, &last->box);
		e->lent = last->lent;
	}
	memset(last, 0, sizeof(*last));
}

/* Answers a request: a letter, a key, and the name of a parcel. */
static void answer(const char *request, char *reply, size_t size)
{
	struct ebbdsm_parcel parcel = { 0, 0 };
	char verb, key[KEY_MOST + 1] = "";
	struct entry *e;

	sscanf(request, "%c %31s %" SCNx64 " %" SCNx64, &verb, key, &parcel.at, &parcel.stamp);
	e = find(key);
	if (verb == 'p') {
		snprintf(reply, size, "%s\n", put(key, &parcel));
	} else if (!e) {
		snprintf(reply, size, "none\n");
	} else if (verb == 'g') {
		struct ebbdsm_view v;

		/* While it is lent, readers have the value from before. */
		get_back(e);
		v = ebbdsm_lend(&e->box);
		snprintf(reply, size, "%" PRIx64 " %" PRIx64 "\n", v.at, v.stamp);
	} else if (get_back(e)) {
		snprintf(reply, size, "busy\n");
	} else if (verb == 'd') {
		drop(e);
		snprintf(reply, size, "ok\n");
	} else if (verb == 'a') {
		struct ebbdsm_loan loan;
		int r = ebbdsm_lend_mut(dsm, &e->box, &loan);

		if (r)
			fatal("lend", -r);
		e->lent = 1;
		snprintf(reply, size, "%" PRIx64 " %" PRIx64 "\n", loan.at, loan.stamp);
	} else {
		snprintf(reply, size, "what?\n");
	}
}

/* Answers what a client has sent; returns 0 at its end. */
static int serve_client(int fd)
{
	char request[128], reply[64];
	ssize_t n = recv(fd, request, sizeof(request) - 1, 0);

	if (n <= 0)
		return 0;
	/* A client waits for each answer, and its requests are short. */
	request[n] = '\0';
	answer(request, reply, sizeof(reply));
	return send(fd, reply, strlen(reply), MSG_NOSIGNAL) > 0;
}

static _Noreturn void serve(const char *port)
{
	struct pollfd p[1 + CLIENTS] = { { .events = POLLIN } };
	struct sockaddr_storage bound;
	socklen_t length = sizeof(bound);
	char where[300], name[16];
	const char *host = getenv("EBB_KV_HOST");
	nfds_t n = 1;
	int r;

	snprintf(where, sizeof(where), "%s:%s", host ? host : "127.0.0.1", port);
	p[0].fd = open_socket(where, 1);
	if (getsockname(p[0].fd, (struct sockaddr *)&bound, &length) ||
	    getnameinfo((struct sockaddr *)&bound, length, NULL, 0, name, sizeof(name),
			NI_NUMERICSERV))
		errx(1, "%s: no port", where);
	printf("%s\n", name);
	fflush(stdout);
	for (;;) {
		poll(p, n, 1000);
		r = ebbdsm_settle(dsm);
		if (r)
			fatal("the space", -r);
		for (nfds_t i = 1; i < n; i++)
			if (p[i].revents && !serve_client(p[i].fd)) {
				close(p[i].fd);
				p[i--] = p[--n];
			}
		if (p[0].revents && n <= CLIENTS)
			p[n++] = (struct pollfd){ .fd = accept(p[0].fd, NULL, NULL),
						  .events = POLLIN };
	}
}

/* --- a client --------------------------------------------------------------------- */

/* Sends a request and receives the answer, a line. */
static char *ask(int fd, const char *request)
{
	static char reply[64];
	size_t got = 0;

	if (send(fd, request, strlen(request), MSG_NOSIGNAL) < 0)
		errx(1, "the server has exited; start it again, its values are lost");
	do {
		ssize_t n = recv(fd, reply + got, sizeof(reply) - 1 - got, 0);

		if (n <= 0)
			errx(1, "the server has exited; start it again, its values are lost");
		got += (size_t)n;
	} while (reply[got - 1] != '\n' && got < sizeof(reply) - 1);
	reply[got - 1] = '\0';
	return reply;
}

static void client_put(int fd, const char *key, const char *text)
{
	struct value v = { .length = (uint32_t)strlen(text) };
	struct ebbdsm_box box = { 0, 0 };
	struct ebbdsm_parcel parcel;
	char request[128];
	const char *reply;
	int r;

	memcpy(v.text, text, v.length + 1);
	/* The whole object: appends need the room. */
	r = ebbdsm_new(dsm, &v, sizeof(v), &box);
	if (!r)
		r = ebbdsm_give(dsm, &box, &parcel);
	if (r)
		fatal("put", -r);
	snprintf(request, sizeof(request), "p %s %" PRIx64 " %" PRIx64 "\n", key, parcel.at,
		 parcel.stamp);
	reply = ask(fd, request);
	puts(reply);
	/* Refused: the box is this process's again.  Else ebbdsm_settle() frees its memory. */
	if (strcmp(reply, "ok") && !ebbdsm_reclaim(dsm, &box))
		ebbdsm_drop(dsm, &box);
	ebbdsm_settle(dsm);
}

/* Asks for a name; returns 0 if the answer is none. */
static int ask_name(int fd, char verb, const char *key, uint64_t *at, uint64_t *stamp)
{
	char request[128];
	const char *reply;

	snprintf(request, sizeof(request), "%c %s\n", verb, key);
	reply = ask(fd, request);
	if (sscanf(reply, "%" SCNx64 " %" SCNx64, at, stamp) == 2)
		return 1;
	puts(reply);
	return 0;
}

static void client_get(int fd, const char *key)
{
	struct ebbdsm_view view;

	while (ask_name(fd, 'g', key, &view.at, &view.stamp)) {
		const struct value *v = ebbdsm_borrow_view(dsm, &view, NULL);

		if (v) {
			printf("%.*s\n", (int)v->length, v->text);
			ebbdsm_return_view(dsm, &view, v);
			return;
		}
		/* It has changed since the answer: there is a new name. */
		if (errno != ESTALE)
			fatal("get", errno);
	}
}

static void client_append(int fd, const char *key, const char *text)
{
	struct ebbdsm_loan loan;
	struct value *v;
	size_t more = strlen(text);
	int r;

	if (!ask_name(fd, 'a', key, &loan.at, &loan.stamp))
		return;
	v = ebbdsm_borrow_loan(dsm, &loan, NULL);
	if (!v)
		fatal("append", errno);
	if (more > TEXT_MOST - v->length)
		more = TEXT_MOST - v->length;
	memcpy(v->text + v->length, text, more);
	v->length += (uint32_t)more;
	r = ebbdsm_return_loan(dsm, &loan, v);
	if (r)
		fatal("append", -r);
	puts("ok");
	ebbdsm_settle(dsm);
}

static void client(const char *where)
{
	char line[LINE_MOST], verb[8], key[KEY_MOST + 1], request[128];
	int fd = open_socket(where, 0), at;

	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = '\0';
		at = 0;
		if (sscanf(line, "%7s %31s%n", verb, key, &at) != 2 ||
		    (line[at] && !isspace((unsigned char)line[at])))
			errx(2, "%.40s: no verb and key; use put, get, append or drop, and a key of 1 to %d bytes",
			     line, KEY_MOST);
		at += line[at] != '\0';
		if (strlen(line + at) > TEXT_MOST)
			errx(2, "%s: a text of more than %d bytes; shorten it", key, TEXT_MOST);
		if (!strcmp(verb, "put")) {
			client_put(fd, key, line + at);
		} else if (!strcmp(verb, "get")) {
			client_get(fd, key);
		} else if (!strcmp(verb, "append")) {
			client_append(fd, key, line + at);
		} else if (!strcmp(verb, "drop")) {
			snprintf(request, sizeof(request), "d %s\n", key);
			puts(ask(fd, request));
		} else {
			errx(2, "%s: no such verb; use put, get, append or drop", verb);
		}
		fflush(stdout);
	}
	close(fd);
}

int main(int argc, char **argv)
{
	if (argc != 6 || (strcmp(argv[1], "serve") && strcmp(argv[1], "client")))
		errx(2, "usage: kv serve DONORS HOME POOL PORT | kv client DONORS HOME POOL HOST:PORT");
	open_space(argv[2], argv[3], argv[4]);
	if (!strcmp(argv[1], "serve"))
		serve(argv[5]);
	client(argv[5]);
	ebbdsm_close(dsm);
	return 0;
}
