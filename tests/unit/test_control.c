// SPDX-License-Identifier: GPL-2.0-or-later
/* What asks a control socket, and a server that hangs, or has much to tell. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/control/control_server.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define MS 1000000ull
#define CALL_MS 200
#define BACKLOG 16
#define WAITING 64 /* more than it holds */
#define MUCH (3u << 20)

static char dir[] = "/tmp/ebb-test-control-XXXXXX", path[64];

static int setup(void **state)
{
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/x.sock", dir);
	return 0;
}

static int teardown(void **state)
{
	unlink(path);
	return rmdir(dir);
}

static int ask(struct json_object **answer, int timeout_ms, struct error *e)
{
	return control_call(path, control_request("status"), timeout_ms, answer, e);
}

static void nobody_listens(void **state)
{
	struct error e = { 0 };

	assert_int_equal(ask(NULL, CALL_MS, &e), -ENOENT);
	assert_int_equal(e.exit_status, EXIT_NO_DAEMON);
	assert_non_null(strstr(e.text, "cannot connect"));
}

/* Earlier clients that timed out are still in its backlog. */
static void one_that_hangs_is_given_up(void **state)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int listening = control_listen(path, NULL), waiting[WAITING], n = 0;
	struct error e = { 0 };
	uint64_t begun, took;

	assert_true(listening >= 0);
	assert_int_equal(listen(listening, BACKLOG), 0);
	strcpy(sa.sun_path, path);
	for (; n < WAITING; n++) {
		waiting[n] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
		if (connect(waiting[n], (struct sockaddr *)&sa, sizeof(sa)) < 0)
			break;
	}
	assert_true(n < WAITING);
	assert_int_equal(errno, EAGAIN);
	/* Instead of waiting for ever. */
	alarm(120);
	begun = now_ns();
	assert_int_equal(ask(NULL, CALL_MS, &e), -ETIMEDOUT);
	took = now_ns() - begun;
	alarm(0);
	assert_true(took >= CALL_MS / 2 * MS);
	assert_int_equal(e.exit_status, EXIT_NO_DAEMON);
	assert_non_null(strstr(e.text, "no answer"));
	for (; n >= 0; n--)
		close(waiting[n]);
	close(listening);
}

static int tell_much(void *data, const char *verb, struct json_object *request,
		     struct json_object *answer, struct error *e)
{
	char *text = calloc(1, MUCH + 1);

	json_object_object_add(answer, "text", json_object_new_string(memset(text, 'x', MUCH)));
	free(text);
	return 0;
}

/* A server, and the thread that runs its turns. */
struct running {
	int listen_fd;
	struct control_server *server;
	pthread_t thread;
	bool stop;
};

static void *run_turns(void *data)
{
	struct running *r = data;
	struct pollfd p = { .fd = control_server_fd(r->server), .events = POLLIN };

	while (!__atomic_load_n(&r->stop, __ATOMIC_RELAXED))
		if (poll(&p, 1, 20) > 0)
			control_server_turn(r->server);
	return NULL;
}

static void serve(struct running *r, control_handler handler)
{
	*r = (struct running){ .listen_fd = control_listen(path, NULL) };
	assert_true(r->listen_fd >= 0);
	assert_int_equal(control_server_new(&r->server, r->listen_fd, NULL, handler, r, NULL), 0);
	assert_int_equal(pthread_create(&r->thread, NULL, run_turns, r), 0);
}

static void stop(struct running *r)
{
	__atomic_store_n(&r->stop, true, __ATOMIC_RELAXED);
	pthread_join(r->thread, NULL);
	control_server_free(&r->server);
	assert_null(r->server);
	close(r->listen_fd);
}

/* As of a thousand cgroups with their histograms. */
static void a_long_answer_comes_whole(void **state)
{
	struct json_object *answer = NULL;
	struct error e = { 0 };
	struct running r;

	serve(&r, tell_much);
	assert_int_equal(ask(&answer, 10000, &e), 0);
	assert_int_equal(strlen(json_text(answer, "text", "")), MUCH);
	json_object_put(answer);
	stop(&r);
}

static int connect_there(void)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strcpy(sa.sun_path, path);
	assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	return fd;
}

/* Of clients that send nothing, half a request, or do not read their answer. */
static void clients_do_not_wait_for_others(void **state)
{
	static const char half[] = "{\"verb\":", whole[] = "{\"verb\":\"status\"}\n";
	struct json_object *answer = NULL;
	struct error e = { 0 };
	struct running r;
	int fd[9];
	char byte;

	serve(&r, tell_much);
	for (int i = 0; i < 9; i++) {
		const char *text = i % 3 == 0 ? "" : i % 3 == 1 ? half : whole;

		fd[i] = connect_there();
		assert_int_equal(write(fd[i], text, strlen(text)), strlen(text));
	}
	/* All of them together have 9 s. */
	for (int i = 0; i < 3; i++) {
		assert_int_equal(ask(&answer, 5000, &e), 0);
		json_object_put(answer);
	}
	/* In the end they are disconnected. */
	for (int i = 0; i < 9; i += 3)
		assert_int_equal(read(fd[i], &byte, 1), 0);
	for (int i = 0; i < 9; i++)
		close(fd[i]);
	stop(&r);
}

/* Of as many as there are places for, and one more. */
static void too_many_clients_are_refused(void **state)
{
	struct json_object *answer;
	struct error e = { 0 };
	struct running r;
	int fd[64], told = 0;

	serve(&r, tell_much);
	/* On a busy machine, places may be free again before all are taken. */
	for (int tries = 0; !told && tries < 20; tries++) {
		for (int n = 0; n < 64; n++)
			fd[n] = connect_there();
		told = ask(&answer, 10000, &e);
		if (!told)
			json_object_put(answer);
		for (int n = 0; n < 64; n++)
			close(fd[n]);
	}
	assert_int_equal(told, -EBUSY);
	assert_int_equal(e.exit_status, EXIT_REFUSED);
	assert_non_null(strstr(e.text, "close them or try again"));
	/* Once it has seen that they left. */
	for (int tries = 0; told && tries < 1000; tries++)
		told = ask(&answer, 10000, &e);
	assert_int_equal(told, 0);
	json_object_put(answer);
	stop(&r);
}

/* --- what is logged --------------------------------------------------------------- */

static int unchanged(void *data, const char *verb, struct json_object *request,
		     struct json_object *answer, struct error *e)
{
	if (!strcmp(verb, "refused"))
		return fail_exit(e, EXIT_REFUSED, EINVAL, "refused: by the test");
	if (!strcmp(verb, "half"))
		return fail_exit(e, EXIT_FAILED, EIO, "half: %s", json_text(request, "donor", ""));
	if (!strcmp(verb, "checked")) {
		fail_exit(e, EXIT_FAILED, EIO, "checked: by the test");
		return CONTROL_UNCHANGED;
	}
	return strcmp(verb, "repeated") ? 0 : CONTROL_UNCHANGED;
}

static void say(const char *line, const struct control_rules *rules, int listening)
{
	struct control_server *server = NULL;
	int fd = connect_there();
	char answer[256];

	assert_int_equal(write(fd, line, strlen(line)), strlen(line));
	assert_int_equal(control_server_new(&server, listening, rules, unchanged, NULL, NULL), 0);
	control_server_turn(server);
	control_server_free(&server);
	assert_true(read(fd, answer, sizeof(answer)) > 0);
	close(fd);
}

/* The owner's changes, too; a newline of a member must not look like another line. */
static void changes_are_logged(void **state)
{
	static const char *const reads[] = { "status", NULL }, *const admins[] = { "set", NULL };
	const struct control_rules rules = { .read = reads, .admin = admins };
	int listening = control_listen(path, NULL), err = dup(STDERR_FILENO);
	char expected[512], told[4096] = "", padded[1024], *line;
	FILE *log = tmpfile();
	size_t n;

	log_setup("unit", LOG_LVL_INFO);
	dup2(fileno(log), STDERR_FILENO);
	say("{\"verb\":\"status\"}\n", &rules, listening);
	say("{\"verb\":\"refused\"}\n", &rules, listening);
	say("{\"verb\":\"repeated\"}\n", &rules, listening);
	say("{\"verb\":\"checked\"}\n", &rules, listening);
	say("{\"verb\":\"donor.trust\",\"donor\":\"a/b\\nc\"}\n", &rules, listening);
	say("{\"verb\":\"half\",\"donor\":\"\\u001b[m\177\\u009bm\u00e9\"}\n", &rules, listening);
	say("{\"verb\":\"set\",\"policy\":\"leap\"}\n", &rules, listening);
	snprintf(padded, sizeof(padded), "{\"verb\":\"set\",\"x\":\"%0900d\",\"policy\":\"leap\"}\n", 0);
	say(padded, &rules, listening);
	dup2(err, STDERR_FILENO);
	close(err);
	rewind(log);
	n = fread(told, 1, sizeof(told) - 1, log);
	told[n] = '\0';
	snprintf(expected, sizeof(expected),
		 "unit: user %u (process %d): donor.trust {\"donor\":\"a/b\\nc\"}\n"
		 "unit: user %u (process %d): half failed: half: ?[m???m\u00e9 "
		 "{\"donor\":\"\\u001b[m\\u007f\\u009bm\u00e9\"}\n"
		 "unit: user %u (process %d): set {\"policy\":\"leap\"}\n",
		 getuid(), getpid(), getuid(), getpid(), getuid(), getpid());
	assert_memory_equal(told, expected, strlen(expected));
	/* Padding hides nothing. */
	line = told + strlen(expected);
	assert_non_null(strstr(line, " set {\"policy\":\"leap\",\"x\":\"000"));
	assert_non_null(strstr(line, "00 (cut)\n"));
	fclose(log);
	close(listening);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nobody_listens), cmocka_unit_test(one_that_hangs_is_given_up),
		cmocka_unit_test(a_long_answer_comes_whole),
		cmocka_unit_test(clients_do_not_wait_for_others),
		cmocka_unit_test(too_many_clients_are_refused),
		cmocka_unit_test(changes_are_logged),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
