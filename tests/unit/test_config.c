// SPDX-License-Identifier: GPL-2.0-or-later
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config_text.h"
#include "ebbd/plane/plane.h"

static void every_key(void **unused)
{
	struct config c;
	struct error e;

	assert_int_equal(load(&c, "# a comment\n[epochs]\npercent = 25\n[bpf]\nhooks = tracepoints\n[prefetch]\nbatch = 32\n"
				  "headroom=4\nbeside = 8\nstale = 10ms\nexpire = 1m\ncollapse = auto\n", &e), 0);
	assert_int_equal(c.epoch_percent, 25);
	assert_int_equal(c.hooks, HOOKS_TRACEPOINTS);
	assert_int_equal(c.executor.batch, 32);
	assert_int_equal(c.executor.headroom, 4);
	assert_int_equal(c.executor.beside, 8);
	assert_int_equal(c.executor.stale_ns, 10000000);
	assert_int_equal(c.executor.expire_ns, 60000000000);
	assert_int_equal(c.executor.collapse, COLLAPSE_AUTO);
}

static void the_shipped_file_says_the_defaults(void **unused)
{
	struct config shipped, built;
	char text[4096] = "", line[256];
	FILE *f = fopen("packaging/ebb.conf", "r");
	struct error e;

	assert_non_null(f);
	/* A default is a commented key; every other comment starts with a blank. */
	while (fgets(line, sizeof(line), f))
		strcat(text, line[0] == '#' && line[1] != ' ' ? line + 1 : line);
	fclose(f);
	assert_int_equal(load(&shipped, text, &e), 0);
	config_defaults(&built);
	assert_int_equal(shipped.epoch_percent, built.epoch_percent);
	assert_int_equal(shipped.hooks, built.hooks);
	assert_int_equal(shipped.executor.batch, built.executor.batch);
	assert_int_equal(shipped.executor.headroom, built.executor.headroom);
	assert_int_equal(shipped.executor.beside, built.executor.beside);
	assert_int_equal(shipped.executor.stale_ns, built.executor.stale_ns);
	assert_int_equal(shipped.executor.expire_ns, built.executor.expire_ns);
	assert_int_equal(built.executor.collapse, COLLAPSE_NEVER);
	assert_int_equal(shipped.executor.collapse, built.executor.collapse);
}

static void removed_keys_warn_and_do_nothing(void **unused)
{
	char path[] = "/tmp/ebb-test-log.XXXXXX", said[1024] = "";
	int fd = mkstemp(path), kept = dup(STDERR_FILENO);
	struct config c, built;
	struct error e;

	assert_true(fd >= 0 && kept >= 0);
	unlink(path);
	dup2(fd, STDERR_FILENO);
	assert_int_equal(load(&c, "[prefetch]\nmap_ahead = on\nbatch = 32\nworkers = 3\n", &e), 0);
	dup2(kept, STDERR_FILENO);
	assert_true(pread(fd, said, sizeof(said) - 1, 0) > 0);
	assert_non_null(strstr(said, ":2: map_ahead: no longer supported and ignored: "));
	assert_non_null(strstr(said, ":4: workers: no longer supported and ignored: "));
	config_defaults(&built);
	built.executor.batch = 32;
	assert_memory_equal(&c, &built, sizeof(c));
	close(fd);
	close(kept);
}

static void errors_name_file_and_line(void **unused)
{
	static const struct refused_text bad[] = {
		{ "[prefetch]\nbatch = 32\nspeed = 9\n", ":3:", "speed" },
		{ "[nosuch]\nbatch = 32\n", ":1:", "unknown section [nosuch]" },
		{ "[prefetch]\n[foo]\n", ":2:", "unknown section [foo]" },
		{ "[ prefetch ]\n", ":1:", "unknown section [ prefetch ]" },
		{ "[]\n", ":1:", "unknown section []" },
		{ "[prefetch] batch = 1\n", ":1:", "'batch = 1' follows the section" },
		{ "[prefetch]\nbatch = many\n", ":2:", "many" },
		{ "[prefetch]\nbatch = 65\n", ":2:", "64" },
		{ "[prefetch]\nbatch = -1\n", ":2:", "-1" },
		{ "[prefetch]\nbatch =\n", ":2:", "batch" },
		{ "[prefetch]\nstale = 5 apples\n", ":2:", "apples" },
		{ "[prefetch]\n\nexpire = 1ms\n", ":3:", "expire" },
		{ "[epochs]\npercent = 0\n", ":2:", "percent" },
		{ "[prefetch]\ncollapse = on\n", ":2:", "'on' is none of off, auto" },
		{ "[bpf]\nhooks = kprobes\n", ":2:", "none of auto, fentry, tracepoints" },
		{ "[donors]\nlist = a:1, a:1\n", ":2:", "twice" },
		{ "[donors]\nlist = a:1\nlist = b, a:1\n", ":3:", "a:1 given twice" },
		{ "[donors]\nlist = a:x\n", ":2:", "a:x" },
		{ "[donors]\netcd = http://10.0.0.1:2379\n", ":2:", "loopback" },
		{ "[donors]\netcd = redis://127.0.0.1\n", ":2:", "HTTPS" },
		{ "[donors]\netcds = https://a\n", ":2:", "etcds" },
		{ "[prefetch\nbatch = 1\n", ":1:", "'[prefetch': no ]" },
		{ "no section or value\n", ":1:", "" },
	};

	assert_refused(bad, sizeof(bad) / sizeof(bad[0]));
}

static void donors_by_hand(void **unused)
{
	struct config c;
	struct error e;

	/* A list continues in the next line, and an empty value resets it. */
	assert_int_equal(load(&c, "[donors]\nlist = x:1\nlist =\nlist = a:1, b\nlist = c:3\n", &e), 0);
	assert_int_equal(c.donors.list.n, 3);
	assert_string_equal(c.donors.list.v[1].address, "b:7070");
	assert_int_equal(c.donors.etcd.endpoints, 0);
	config_free(&c);
}

static void donors_of_etcd(void **unused)
{
	struct config c;
	struct error e;

	assert_int_equal(load(&c, "[donors]\netcd = https://a:1, https://b:1/\netcd = http://127.0.0.1:2\n"
				  "prefix = /x/\netcd_ca = /dev/../etc/passwd\n", &e), 0);
	assert_int_equal(c.donors.etcd.endpoints, 3);
	assert_string_equal(c.donors.etcd.endpoint[1], "https://b:1");
	assert_string_equal(c.donors.etcd.prefix, "/x/");
	config_free(&c);
}

static void donors_that_contradict(void **unused)
{
	static const struct { const char *text, *word; } bad[] = {
		{ "list = a:1\netcd = https://a:1\n", "drop one" },
		{ "etcd = https://a:1\nprefix = x\n", "prefix" },
		{ "etcd = https://a:1\netcd_ca = /nonexistent\n", "/nonexistent" },
		{ "etcd = https://a:1\netcd_cert = /etc/passwd\n", "key" },
		{ "etcd = https://a:1\netcd_cert = /etc/passwd\netcd_key = /etc/passwd\n", "chmod 600" },
		{ "etcd = https://a:1\netcd_user = u\n", "password file" },
		{ "etcd = https://a:1\netcd_user = u\netcd_password_file = /etc/passwd\n", "chmod 600" },
		{ "etcd = https://a:1\netcd_ca = /etc\n", "not a file" },
		{ "etcd_ca = /etc/passwd\n", "without etcd" },
	};
	struct config c;
	struct error e;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		char text[256];

		snprintf(text, sizeof(text), "[donors]\n%s", bad[i].text);
		assert_true(load(&c, text, &e) < 0);
		assert_int_equal(e.exit_status, EXIT_USAGE);
		assert_non_null(strstr(e.text, bad[i].word));
		config_free(&c);
	}
}

static void a_named_file_must_be_one(void **unused)
{
	static const struct { const char *file, *word; } bad[] = {
		{ "/nonexistent/ebb.conf", "no such file" }, { "/tmp", "Is a directory" },
		{ "/etc/passwd/x", "Not a directory" },
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct error e = { 0 };
		struct config c;

		config_defaults(&c);
		assert_true(config_load(&c, bad[i].file, &e) < 0);
		assert_int_equal(e.exit_status, EXIT_USAGE);
		assert_non_null(strstr(e.text, bad[i].file));
		assert_non_null(strstr(e.text, bad[i].word));
	}
}

static void a_section_may_have_a_comment(void **unused)
{
	struct config c;
	struct error e;

	assert_int_equal(load(&c, "[prefetch]  # x\nbatch = 1\n[epochs] ; y\n[cgroup \"/a\"] # z\n"
				  "policy = leap\n", &e), 0);
	assert_int_equal(c.executor.batch, 1);
	assert_int_equal(c.declared.n, 1);
	config_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_key),
		cmocka_unit_test(the_shipped_file_says_the_defaults),
		cmocka_unit_test(removed_keys_warn_and_do_nothing),
		cmocka_unit_test(errors_name_file_and_line),
		cmocka_unit_test(donors_by_hand),
		cmocka_unit_test(donors_of_etcd),
		cmocka_unit_test(donors_that_contradict),
		cmocka_unit_test(a_named_file_must_be_one),
		cmocka_unit_test(a_section_may_have_a_comment),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
