// SPDX-License-Identifier: GPL-2.0-or-later
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/service.h"

#include <cmocka.h>

struct options {
	struct service service;
	bool flag;
};

static const struct option_spec specs[] = {
	{ "flag", 0, OPTION_FLAG, offsetof(struct options, flag), NULL, "a flag", 0, 0 },
	SERVICE_OPTIONS(options, service),
	OPTIONS_END
};

static const struct command command = { .help = "A service", .options = specs };

static void options(void **state)
{
	static const struct {
		const char *word;
		bool goes_on;
		int status;
	} tried[] = {
		{ "--flag", true, EXIT_OK },        { "--ready-fd=7", true, EXIT_OK },
		{ "--help", false, EXIT_OK },       { "--version", false, EXIT_OK },
		{ "--nothing", false, EXIT_USAGE }, { "word", false, EXIT_USAGE },
	};

	for (size_t i = 0; i < sizeof(tried) / sizeof(tried[0]); i++) {
		char program[] = "it", word[32];
		char *argv[] = { program, strcpy(word, tried[i].word), NULL };
		struct options o = { .flag = false };
		int status = -1;

		assert_int_equal(service_options(&command, "it", 2, argv, &o, &o.service, &status),
				 tried[i].goes_on);
		assert_int_equal(status, tried[i].status);
		assert_int_equal(o.flag, !strcmp(tried[i].word, "--flag"));
		assert_int_equal(o.service.ready_fd, strcmp(tried[i].word, "--ready-fd=7") ? 0 : 7);
	}
}

/* The exit status of a program whose service, in the background, calls @serve. */
static int status_of(void (*serve)(struct service *s))
{
	struct service s = { .ready_fd = 0 };
	int status;
	pid_t pid = fork();

	if (!pid) {
		if (service_daemonise(&s, NULL))
			_exit(EXIT_USAGE);
		serve(&s);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void refuses(struct service *s) { _exit(EXIT_REFUSED); }
static void dies(struct service *s) { abort(); }

static int told[2], ended[2];

/* Is ready, and ends only after its parent has. */
static void serves(struct service *s)
{
	char c;

	close(told[0]);
	close(ended[1]);
	s->ready_fd = (uint64_t)told[1];
	service_ready(s, NULL);
	_exit(read(ended[0], &c, 1) < 0);
}

static void background(void **state)
{
	char word[16];

	assert_int_equal(status_of(refuses), EXIT_REFUSED);
	assert_int_equal(status_of(dies), EXIT_FAILED);
	assert_int_equal(pipe(told), 0);
	assert_int_equal(pipe(ended), 0);
	assert_int_equal(status_of(serves), EXIT_OK);
	close(told[1]);
	assert_int_equal(read(told[0], word, sizeof(word)), 6);
	assert_memory_equal(word, "READY\n", 6);
	/* The service closes the descriptor, though it still runs. */
	assert_int_equal(read(told[0], word, sizeof(word)), 0);
	close(ended[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(options),
		cmocka_unit_test(background),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
