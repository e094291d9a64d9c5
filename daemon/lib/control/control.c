// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "control.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/text.h"

static int address(const char *path, struct sockaddr_un *sa, struct error *e)
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

/* Sends the whole line within @timeout_ms; a slow reader cannot block the caller. */
static int send_line(int fd, struct json_object *o, int timeout_ms)
{
	const char *text = json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN);
	int64_t deadline = now_ms() + timeout_ms;
	size_t len = strlen(text), done = 0;
	int r = 0;

	while (!r && done <= len) {
		/* The terminating newline goes where the NUL is. */
		ssize_t n = done < len ?
			    send(fd, text + done, len - done, MSG_NOSIGNAL | MSG_DONTWAIT) :
			    send(fd, "\n", 1, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n > 0)
			done += (size_t)n;
		else if (errno == EAGAIN || errno == EWOULDBLOCK)
			r = wait_for(fd, POLLOUT, deadline);
		else if (errno != EINTR)
			r = -errno;
	}
	return r;
}

/* Reads one line of up to @most bytes into a new string; -ETIMEDOUT, -EMSGSIZE, -ECONNRESET. */
static int read_line(int fd, int timeout_ms, size_t most, char **line)
{
	_cleanup_free_ char *buf = NULL;
	int64_t deadline = now_ms() + timeout_ms;
	size_t len = 0, size = 0;

	for (;;) {
		ssize_t n;
		int r = wait_for(fd, POLLIN, deadline);

		if (r)
			return r;
		if (len + 1 >= size) {
			char *bigger;

			size = size ? size * 2 : 4096;
			if (size > most)
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
	_cleanup_free_ char *line = NULL;
	struct json_object *o, *ok;
	struct sockaddr_un sa;
	int r;

	if (fd < 0)
		return fail(e, errno, "socket: %m");
	r = address(path, &sa, e);
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
		r = read_line(fd, timeout_ms, CONTROL_MAX_ANSWER, &line);
	if (r)
		return fail_exit(e, EXIT_NO_DAEMON, r, "%s: no answer: %s; see its log", path,
				 strerror(-r));
	o = json_tokener_parse(line);
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
	mask = umask(0111);
	r = bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 || listen(fd, 16) < 0 ? -errno : 0;
	umask(mask);
	if (r)
		return fail(e, r, "%s: cannot listen: %s", path, strerror(-r));
	return TAKE_FD(fd);
}

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

static void refuse(struct json_object **answer, const struct error *e)
{
	json_object_put(*answer);
	*answer = json_object_new_object();
	json_add_bool(*answer, "ok", 0);
	json_add_text(*answer, "error", e->text);
	json_add_int(*answer, "code", -e->code);
	json_add_int(*answer, "exit", e->exit_status);
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

void control_serve_one(int fd, const struct control_rules *rules, control_handler handler,
		       void *data)
{
	_cleanup_close_ int c = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
	_cleanup_free_ char *line = NULL;
	struct json_object *request = NULL, *answer;
	struct error e = { 0 };
	struct peer_info p;
	int ms;

	if (c < 0 || peer_read(c, rules ? &rules->groups : NULL, &p))
		return;
	ms = p.level == PEER_OWNER ? CONTROL_OWNER_MS : CONTROL_OTHERS_MS;
	if (!check(rules, &p, NULL, &e) && read_line(c, ms, CONTROL_MAX_LINE, &line))
		return;
	answer = json_object_new_object();
	json_add_bool(answer, "ok", 1);
	if (line) {
		request = json_tokener_parse(line);
		answer_request(rules, &p, request, handler, data, answer, &e);
	}
	if (e.code)
		refuse(&answer, &e);
	send_line(c, answer, ms);
	json_object_put(answer);
	json_object_put(request);
}
