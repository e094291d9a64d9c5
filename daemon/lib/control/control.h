/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The control socket: one JSON object per line in each direction, over a Unix stream
 * socket.  Every user may connect; peer.h defines what each may request.
 *
 *   -> {"verb":"policy.attach","cgroup":"/sys/fs/cgroup/x","policy":"leap"}
 *   <- {"ok":true, ...}
 *   <- {"ok":false,"error":"THING: CAUSE; REMEDY","code":22,"exit":2}
 *
 * ebbd answers on ebb_control_socket(), ebb-swapd on ebb_device_socket(),
 * ebb-donord on ebb_donor_socket().
 */
#ifndef EBB_CONTROL_H
#define EBB_CONTROL_H

#include "lib/base/error.h"
#include "lib/base/json.h"
#include "peer.h"

#define CONTROL_MAX_LINE (1 << 20)
/* Statistics of EBB_MAX_CGROUPS cgroups need more than twice CONTROL_MAX_LINE. */
#define CONTROL_MAX_ANSWER (16 << 20)

/* Returns {"verb": @verb}; the caller owns it. */
struct json_object *control_request(const char *verb);

/*
 * Sends @request, which it frees, to the socket at @path; connecting, sending and the answer may
 * take @timeout_ms each.  The caller owns *@answer (json_object_put()), which lacks "ok".  Fails
 * with EXIT_NO_DAEMON when no server listens, and with the server's text, code and exit status
 * when it answers "ok":false.
 */
int control_call(const char *path, struct json_object *request, int timeout_ms,
		 struct json_object **answer, struct error *e);

/* Returns the answer of the server at @path to @verb, which the caller owns, or NULL. */
struct json_object *control_ask(const char *path, const char *verb, int timeout_ms);

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

/*
 * Creates the listening socket at @path (mode 0666), replacing a stale one.
 * Returns its descriptor or -errno.
 */
int control_listen(const char *path, struct error *e);

/*
 * Accepts one connection from the listening @fd, reads one request, calls
 * @handler if @rules (NULL: owner only) allow the verb, writes the answer and closes.
 * Each direction takes at most CONTROL_OWNER_MS, or CONTROL_OTHERS_MS for users other
 * than the owner; the request of a user without any right is not read.
 */
#define CONTROL_OWNER_MS 1000
#define CONTROL_OTHERS_MS 500
void control_serve_one(int fd, const struct control_rules *rules, control_handler handler,
		       void *data);

#endif
