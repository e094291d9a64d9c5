// SPDX-License-Identifier: GPL-2.0-or-later
/* What asks a control socket, and a server that hangs, or has much to tell. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
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
#include "lib/control/control.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define MS 1000000ull
#define CALL_MS 200
#define WAITING 64 /* more than a backlog holds */
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
	strcpy(sa.sun_path, path);
	for (; n < WAITING; n++) {
		waiting[n] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
		if (connect(waiting[n], (struct sockaddr *)&sa, sizeof(sa)) < 0)
			break;
	}
	assert_true(n < WAITING);
	assert_int_equal(errno, EAGAIN);
	/* Instead of waiting for ever. */
	alarm(20);
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

static void *serve(void *data)
{
	struct { int fd; } *server = data;

	/* Its descriptor does not block. */
	for (int i = 0; i < 1000; i++) {
		control_serve_one(server->fd, NULL, tell_much, NULL);
		usleep(1000);
	}
	return NULL;
}

/* As of a thousand cgroups with their histograms. */
static void a_long_answer_comes_whole(void **state)
{
	struct { int fd; } server = { control_listen(path, NULL) };
	struct json_object *answer = NULL;
	struct error e = { 0 };
	pthread_t thread;

	assert_true(server.fd >= 0);
	assert_int_equal(pthread_create(&thread, NULL, serve, &server), 0);
	assert_int_equal(ask(&answer, 10000, &e), 0);
	assert_int_equal(strlen(json_text(answer, "text", "")), MUCH);
	json_object_put(answer);
	pthread_join(thread, NULL);
	close(server.fd);
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
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	char answer[256];

	strcpy(sa.sun_path, path);
	assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	assert_int_equal(write(fd, line, strlen(line)), strlen(line));
	control_serve_one(listening, rules, unchanged, NULL);
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
		cmocka_unit_test(changes_are_logged),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
