/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The control socket: one JSON object a line each way, over a Unix stream
 * socket.  Anybody may connect; who may ask for what is in peer.h.
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
/* Statistics of EBB_MAX_CGROUPS cgroups take more than two of those. */
#define CONTROL_MAX_ANSWER (16 << 20)

/*
 * Sends @request to the socket at @path and waits up to @timeout_ms to be let in, to be
 * heard and for the answer, each.  On success *@answer is the caller's
 * (json_object_put()).  Fails with EXIT_NO_DAEMON when nobody listens and, when the peer
 * answered "ok":false, with the peer's text, code and exit status.
 */
int control_call(const char *path, struct json_object *request, int timeout_ms,
		 struct json_object **answer, struct error *e);

/*
 * A handler fills @answer (already {"ok":true}) or returns an error, which is
 * sent instead.  @data is the server's.  Every verb outside control_rules.read that succeeds
 * is logged with the user and the process, unless the handler returns CONTROL_UNCHANGED:
 * a daemon repeated what holds already.
 */
#define CONTROL_UNCHANGED 1
typedef int (*control_handler)(void *data, const char *verb, struct json_object *request,
			       struct json_object *answer, struct error *e);

/* What others than the owner may ask for. */
struct control_rules {
	struct peer_groups groups;
	const char *const *read;  /* verbs of PEER_READER and above, NULL at the end */
	const char *const *admin; /* verbs that PEER_ADMIN has besides; NULL at the end */
};

/*
 * Creates the listening socket at @path (mode 0666, a stale one is replaced)
 * and returns its fd, or -errno.
 */
int control_listen(const char *path, struct error *e);

/*
 * Accepts one connection from the listening @fd, reads one request, calls
 * @handler if @rules (NULL: only the owner) allow the verb, writes the answer
 * and closes.  Takes at most CONTROL_OWNER_MS for each way, CONTROL_OTHERS_MS
 * with others than the owner, and nothing for who may not ask at all.
 */
#define CONTROL_OWNER_MS 1000
#define CONTROL_OTHERS_MS 500
void control_serve_one(int fd, const struct control_rules *rules, control_handler handler,
		       void *data);

#endif
