/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The server's side of a control socket (control.h).  It never waits for a client, and the owner
 * comes first: complete requests of the owner are handled before those of others, of which it
 * handles one a turn, and none of a user that has not taken its last answer.  Users other than the
 * owner have CONTROL_USER_CLIENTS connections each, and part of all.
 */
#ifndef EBB_CONTROL_SERVER_H
#define EBB_CONTROL_SERVER_H

#include "control.h"

/*
 * A handler fills @answer (already {"ok":true}) or returns an error, which is
 * sent instead.  @data is the server's.  Every verb outside control_rules.read is logged with
 * the user and the process, except failures other than EXIT_FAILED, which change nothing, and
 * when the handler returns CONTROL_UNCHANGED: a daemon repeated what holds already.
 */
#define CONTROL_UNCHANGED 1
typedef int (*control_handler)(void *data, const char *verb, struct json_object *request,
			       struct json_object *answer, struct error *e);

/* Verbs that users other than the owner may request. */
struct control_rules {
	struct peer_groups groups;
	const char *const *read;  /* verbs of PEER_READER and above, ends with NULL */
	const char *const *admin; /* additional verbs of PEER_ADMIN, ends with NULL */
};

#define CONTROL_USER_CLIENTS 8
/* Limits of a request, of users other than the owner; CONTROL_MAX_LINE for the owner. */
#define CONTROL_OTHERS_LINE (64 << 10)
/* Time for the request, and for taking the answer. */
#define CONTROL_OWNER_MS 1000
#define CONTROL_OTHERS_MS 500

/*
 * Creates the listening socket at @path (mode 0666), replacing a stale one.
 * Returns its descriptor or -errno.
 */
int control_listen(const char *path, struct error *e);

struct control_server;

/*
 * Serves the listening @fd, which stays the caller's, with @handler if @rules (NULL: owner only)
 * allow the verb.  A connection has one request.  A user without any right is refused before its
 * request is read.  @rules and @data must outlive the server.
 */
int control_server_new(struct control_server **out, int fd, const struct control_rules *rules,
		       control_handler handler, void *data, struct error *e);
void control_server_free(struct control_server **p);

/*
 * For a handler: returns the client whose request it handles, until it returns; else NULL.  The
 * kernel states the client's process id, as this server's PID namespace numbers it; 0 for a
 * process outside that.
 */
const struct peer_info *control_server_peer(const struct control_server *s);

/* Returns a descriptor for poll(2), readable when control_server_turn() has work; -1 for NULL. */
int control_server_fd(const struct control_server *s);
void control_server_turn(struct control_server *s);

#endif
