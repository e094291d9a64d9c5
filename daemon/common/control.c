// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "control.h"

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static int address(const char *path, struct sockaddr_un *sa, struct error *e)
{
	*sa = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (strlen(path) >= sizeof(sa->sun_path))
		return fail(e, ENAMETOOLONG, "%s: too long for a socket; choose a shorter EBB_RUN_DIR",
			    path);
	strcpy(sa->sun_path, path);
	return 0;
}

static int send_line(int fd, struct json_object *o)
{
	const char *text = json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN);
	size_t len = strlen(text), done = 0;

	while (done <= len) {
		/* The terminating newline goes where the NUL is. */
		ssize_t n = done < len ? send(fd, text + done, len - done, MSG_NOSIGNAL)
				       : send(fd, "\n", 1, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		done += n;
	}
	return 0;
}

/* Reads one line into a new string; -ETIMEDOUT, -EMSGSIZE, -ECONNRESET. */
static int read_line(int fd, int timeout_ms, char **line)
{
	_cleanup_free_ char *buf = NULL;
	int64_t deadline = now_ms() + timeout_ms;
	size_t len = 0, size = 0;

	for (;;) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		int64_t left = deadline - now_ms();
		ssize_t n;

		if (left <= 0)
			return -ETIMEDOUT;
		n = poll(&p, 1, (int)left);
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n <= 0)
			continue;
		if (len + 1 >= size) {
			char *bigger;

			size = size ? size * 2 : 4096;
			if (size > CONTROL_MAX_LINE)
				return -EMSGSIZE;
			bigger = realloc(buf, size);
			if (!bigger)
				return -ENOMEM;
			buf = bigger;
		}
		n = recv(fd, buf + len, size - len - 1, MSG_DONTWAIT);
		if (n < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (n <= 0)
			return n ? -errno : -ECONNRESET;
		len += n;
		buf[len] = '\0';
		if (memchr(buf + len - n, '\n', n)) {
			*line = TAKE_PTR(buf);
			return 0;
		}
	}
}

const char *control_str(struct json_object *o, const char *key, const char *fallback)
{
	struct json_object *v;

	return json_object_object_get_ex(o, key, &v) && json_object_is_type(v, json_type_string) ?
	       json_object_get_string(v) : fallback;
}

int64_t control_int(struct json_object *o, const char *key, int64_t fallback)
{
	struct json_object *v;

	return json_object_object_get_ex(o, key, &v) ? json_object_get_int64(v) : fallback;
}

int control_call(const char *path, struct json_object *request, int timeout_ms,
		 struct json_object **answer, struct error *e)
{
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	_cleanup_free_ char *line = NULL;
	struct json_object *o, *ok;
	struct sockaddr_un sa;
	int r;

	if (fd < 0)
		return fail(e, errno, "socket: %m");
	r = address(path, &sa, e);
	if (r)
		return r;
	if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0) {
		if (errno == EACCES || errno == EPERM)
			return fail(e, errno, "%s: permission denied; run as root", path);
		return fail_exit(e, EXIT_NO_DAEMON, errno,
				 "%s: nobody answers (%s); start ebbd: systemctl start ebbd, or ebbctl run --start",
				 path, strerror(errno));
	}
	r = send_line(fd, request);
	if (!r)
		r = read_line(fd, timeout_ms, &line);
	if (r)
		return fail_exit(e, EXIT_NO_DAEMON, r, "%s: no answer (%s); see its log", path,
				 strerror(-r));
	o = json_tokener_parse(line);
	if (!json_object_is_type(o, json_type_object)) {
		json_object_put(o);
		return fail(e, EBADMSG, "%s: the answer is not a JSON object", path);
	}
	if (!json_object_object_get_ex(o, "ok", &ok) || !json_object_get_boolean(ok)) {
		int code = (int)control_int(o, "code", EIO);

		r = fail_exit(e, (int)control_int(o, "exit", EXIT_FAILED), code ? code : EIO, "%s",
			      control_str(o, "error", "unknown error"));
		json_object_put(o);
		return r;
	}
	*answer = o;
	return 0;
}

int control_listen(const char *path, struct error *e)
{
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_un sa;
	mode_t mask;
	int r;

	if (fd < 0)
		return fail(e, errno, "socket: %m");
	r = address(path, &sa, e);
	if (r)
		return r;
	unlink(path);
	mask = umask(0177);
	r = bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 || listen(fd, 16) < 0 ? -errno : 0;
	umask(mask);
	if (r)
		return fail(e, r, "%s: cannot listen: %s", path, strerror(-r));
	return TAKE_FD(fd);
}

void control_serve_one(int fd, control_handler handler, void *data)
{
	_cleanup_close_ int c = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
	struct timeval deadline = { .tv_sec = 1 };
	_cleanup_free_ char *line = NULL;
	struct json_object *request = NULL, *answer;
	struct error e = { 0 };

	if (c < 0 || read_line(c, 1000, &line))
		return;
	/* A client that does not read must not hold the server. */
	setsockopt(c, SOL_SOCKET, SO_SNDTIMEO, &deadline, sizeof(deadline));
	answer = json_object_new_object();
	json_object_object_add(answer, "ok", json_object_new_boolean(1));
	request = json_tokener_parse(line);
	if (!json_object_is_type(request, json_type_object))
		fail_exit(&e, EXIT_USAGE, EBADMSG, "request: not a JSON object");
	else
		handler(data, control_str(request, "verb", ""), request, answer, &e);
	if (e.code) {
		json_object_put(answer);
		answer = json_object_new_object();
		json_object_object_add(answer, "ok", json_object_new_boolean(0));
		json_object_object_add(answer, "error", json_object_new_string(e.text));
		json_object_object_add(answer, "code", json_object_new_int(-e.code));
		json_object_object_add(answer, "exit", json_object_new_int(e.exit_status));
	}
	send_line(c, answer);
	json_object_put(answer);
	json_object_put(request);
}
