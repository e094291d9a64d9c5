// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "control.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "line.h"

int control_address(const char *path, struct sockaddr_un *sa, struct error *e)
{
	*sa = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (strlen(path) >= sizeof(sa->sun_path))
		return fail(e, ENAMETOOLONG, "%s: too long for a socket; choose a shorter EBB_RUN_DIR",
			    path);
	strcpy(sa->sun_path, path);
	return 0;
}

/* Waits for @events until @deadline; 0, -ETIMEDOUT or -errno. */
static int wait_for(int fd, short events, int64_t deadline)
{
	struct pollfd p = { .fd = fd, .events = events };

	for (;;) {
		int64_t left = deadline - now_ms();
		int n = left > 0 ? poll(&p, 1, (int)left) : 0;

		if (n > 0)
			return 0;
		if (!n)
			return -ETIMEDOUT;
		if (errno != EINTR)
			return -errno;
	}
}

/* Sends the whole line within @timeout_ms. */
static int send_line(int fd, struct json_object *o, int timeout_ms)
{
	const char *text = json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN);
	int64_t deadline = now_ms() + timeout_ms;
	size_t sent = 0;
	int r;

	while (!(r = line_send(fd, text, strlen(text), &sent))) {
		r = wait_for(fd, POLLOUT, deadline);
		if (r)
			break;
	}
	return r > 0 ? 0 : r;
}

/* Reads one line within @timeout_ms; -ETIMEDOUT, or an error of line_receive(). */
static int read_line(int fd, int timeout_ms, struct line *l)
{
	int64_t deadline = now_ms() + timeout_ms;
	int r;

	while (!(r = line_receive(fd, CONTROL_MAX_ANSWER, l))) {
		r = wait_for(fd, POLLIN, deadline);
		if (r)
			break;
	}
	return r > 0 ? 0 : r;
}

/*
 * Connects within a deadline: connections that clients gave up stay in the backlog of a
 * hung server, and once that is full connect(2) waits without limit.
 */
static int connect_within(int fd, const struct sockaddr_un *sa, int timeout_ms)
{
	const struct timeval most = { timeout_ms / 1000, timeout_ms % 1000 * 1000 };
	int64_t deadline = now_ms() + timeout_ms;
	int r;

	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof(most));
	do
		r = connect(fd, (const struct sockaddr *)sa, sizeof(*sa)) < 0 ? -errno : 0;
	while (r == -EINTR && now_ms() < deadline);
	return r == -EAGAIN ? -ETIMEDOUT : r;
}

struct json_object *control_request(const char *verb)
{
	struct json_object *o = json_object_new_object();

	json_add_text(o, "verb", verb);
	return o;
}

int control_call(const char *path, struct json_object *request, int timeout_ms,
		 struct json_object **answer, struct error *e)
{
	_cleanup_json_ struct json_object *sent = request;
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	_cleanup_(line_free) struct line line = { 0 };
	struct json_object *o, *ok;
	struct sockaddr_un sa;
	int r;

	if (fd < 0)
		return fail(e, errno, "socket: %m");
	r = control_address(path, &sa, e);
	if (r)
		return r;
	r = connect_within(fd, &sa, timeout_ms);
	if (r == -EACCES || r == -EPERM)
		return fail_exit(e, EXIT_REFUSED, r, "%s: permission denied; use sudo", path);
	if (r && r != -ETIMEDOUT)
		return fail_exit(e, EXIT_NO_DAEMON, r,
				 "%s: cannot connect: %s; run \"systemctl start ebbd\" or \"ebbctl run --start\"",
				 path, strerror(-r));
	if (!r)
		r = send_line(fd, sent, timeout_ms);
	/* The server refuses a client without the right before it reads the request. */
	if (!r || r == -EPIPE || r == -ECONNRESET)
		r = read_line(fd, timeout_ms, &line);
	if (r)
		return fail_exit(e, EXIT_NO_DAEMON, r, "%s: no answer: %s; see its log", path,
				 strerror(-r));
	o = json_tokener_parse(line.text);
	if (!json_object_is_type(o, json_type_object)) {
		json_object_put(o);
		return fail(e, EBADMSG, "%s: the answer is not a JSON object", path);
	}
	if (!json_object_object_get_ex(o, "ok", &ok) || !json_object_get_boolean(ok)) {
		int code = (int)json_int(o, "code", EIO);

		r = fail_exit(e, (int)json_int(o, "exit", EXIT_FAILED), code ? code : EIO, "%s",
			      json_text(o, "error", "unknown error"));
		json_object_put(o);
		return r;
	}
	json_object_object_del(o, "ok");
	*answer = o;
	return 0;
}

struct json_object *control_ask(const char *path, const char *verb, int timeout_ms)
{
	struct json_object *answer;

	return control_call(path, control_request(verb), timeout_ms, &answer, NULL) ? NULL : answer;
}
