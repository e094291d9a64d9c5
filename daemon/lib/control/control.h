/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The control socket: one JSON object per line in each direction, over a Unix stream
 * socket.  Every user may connect; peer.h defines what each may request.  This is the client's
 * side; control_server.h is the server's.
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

struct sockaddr_un;

/* Sets *@sa to the socket at @path; -ENAMETOOLONG. */
int control_address(const char *path, struct sockaddr_un *sa, struct error *e);

#endif
