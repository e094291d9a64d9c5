// SPDX-License-Identifier: GPL-2.0-or-later
/* What is asked of a policy's file before the kernel sees it; with a real one, spoilt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#undef fail
#include <limits.h>
#include <linux/bpf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ebbd/plane/policy_object.h"

/* Beside this program: BUILD/policies. */
static void object_path(const char *name, char *path, size_t size)
{
	char here[PATH_MAX / 2];
	ssize_t n = readlink("/proc/self/exe", here, sizeof(here) - 1);

	assert_true(n > 0);
	here[n] = '\0';
	*strrchr(here, '/') = '\0';
	snprintf(path, size, "%s/../../policies/%s", here, name);
}

static void read_good(struct policy_object *o)
{
	struct error e = { 0 };
	char path[PATH_MAX];

	object_path("stride.bpf.o", path, sizeof(path));
	assert_int_equal(policy_object_read(path, o, &e), 0);
}

static void ours_are_good(void **unused)
{
	struct policy_object o;

	read_good(&o);
	assert_string_equal(o.info.name, "stride");
	assert_int_equal(o.info.abi, EBB_ABI);
	assert_int_equal(o.info.params, 1);
	assert_string_equal(o.info.param[0].name, "window");
	policy_object_free(&o);
}

/* The object with every @from replaced by @to, as long: names are in BTF as well. */
static void refused(const char *from, const char *to, size_t length, const char *word)
{
	struct ebb_policy_info info;
	struct policy_object o;
	struct error e = { 0 };
	int found = 0;
	char *at;

	read_good(&o);
	while ((at = memmem(o.data, o.size, from, length))) {
		memcpy(at, to, length);
		found++;
	}
	assert_true(found > 0);
	assert_true(policy_object_check("x.bpf.o", o.data, o.size, &info, &e) < 0);
	assert_int_equal(e.exit_status, EXIT_USAGE);
	assert_non_null(strstr(e.text, "x.bpf.o: "));
	assert_non_null(strstr(e.text, word));
	policy_object_free(&o);
}

static void spoilt_ones_are_refused(void **unused)
{
	struct ebb_policy_info *info;
	struct policy_object o;
	struct error e = { 0 };

	refused("\177ELF", "\177ELV", 4, "not an object file");
	refused(".rodata.policy", ".rodata.xolicy", 14, "no policy in it");
	refused("license\0", "xicense\0", 8, "no license");
	refused("GPL", "MIT", 4, "'MIT'");
	refused(".BTF\0", ".XTF\0", 5, "no BTF");
	refused("perf_event\0", "perf_xvent\0", 11, "no program");
	refused("stride\0\0\0\0", "Stride\0\0\0\0", 10, "name");
	refused("stride\0\0\0\0", "st/ide\0\0\0\0", 10, "name");
	refused("stride\0\0\0\0", "\0tride\0\0\0\0", 10, "name");
	refused("window\0\0\0\0", "detect\0\0\0\0", 10, "detect");
	refused("window\0\0\0\0", "slowdown\0\0", 10, "slowdown");

	read_good(&o);
	info = memmem(o.data, o.size, &o.info, 16);
	assert_non_null(info);
	info->abi = EBB_ABI + 1;
	assert_true(policy_object_check("x", o.data, o.size, &o.info, &e) < 0);
	assert_non_null(strstr(e.text, "ABI"));
	info->abi = EBB_ABI;
	info->params = EBB_PARAMS + 1;
	e = (struct error){ 0 };
	assert_true(policy_object_check("x", o.data, o.size, &o.info, &e) < 0);
	assert_non_null(strstr(e.text, "parameters"));
	info->params = 1;
	info->param[0].min = info->param[0].max + 1;
	e = (struct error){ 0 };
	assert_true(policy_object_check("x", o.data, o.size, &o.info, &e) < 0);
	assert_non_null(strstr(e.text, "window"));
	policy_object_free(&o);
}

/* Its first call of bpf_map_lookup_elem() becomes @insn. */
static void endless(struct bpf_insn insn, const char *word)
{
	static const struct bpf_insn call = { .code = BPF_JMP | BPF_CALL,
					      .imm = BPF_FUNC_map_lookup_elem };
	struct ebb_policy_info info;
	struct policy_object o;
	struct error e = { 0 };
	void *at;

	read_good(&o);
	at = memmem(o.data, o.size, &call, sizeof(call));
	assert_non_null(at);
	memcpy(at, &insn, sizeof(insn));
	if (word) {
		assert_true(policy_object_check("x.bpf.o", o.data, o.size, &info, &e) < 0);
		assert_int_equal(e.exit_status, EXIT_REFUSED);
		assert_non_null(strstr(e.text, word));
	} else {
		assert_int_equal(policy_object_check("x.bpf.o", o.data, o.size, &info, &e), 0);
	}
	policy_object_free(&o);
}

/* The verifier walks none of their turns, so what it walked would be no bound. */
static void what_may_go_round_for_ever_is_refused(void **unused)
{
	const struct bpf_insn call = { .code = BPF_JMP | BPF_CALL },
			      may_goto = { .code = BPF_JMP | 0xe0 };
	struct bpf_insn insn = call;

	insn.imm = BPF_FUNC_loop;
	endless(insn, "bpf_loop()");
	insn.imm = BPF_FUNC_for_each_map_elem;
	endless(insn, "bpf_for_each_map_elem()");
	endless(may_goto, "may_goto");
	insn.imm = BPF_FUNC_ktime_get_ns;
	endless(insn, NULL);
	/* A function of the program's own, this far away. */
	insn.imm = BPF_FUNC_loop;
	insn.src_reg = BPF_PSEUDO_CALL;
	endless(insn, NULL);
}

/* Whatever its end, it is judged without reading past it. */
static void truncated_ones_are_refused(void **unused)
{
	struct ebb_policy_info info;
	struct policy_object o;

	read_good(&o);
	for (size_t n = 0; n < o.size; n += n < 256 ? 1 : 509) {
		void *copy = malloc(n ? n : 1);
		struct error e = { 0 };

		memcpy(copy, o.data, n);
		assert_true(policy_object_check("x", copy, n, &info, &e) < 0);
		assert_true(*e.text != '\0');
		free(copy);
	}
	policy_object_free(&o);
}

static void what_is_no_file_is_refused(void **unused)
{
	char fifo[] = "/tmp/ebb-test-fifo.XXXXXX";
	struct policy_object o;
	struct error e = { 0 };

	assert_true(policy_object_read("/nonexistent", &o, &e) < 0);
	e = (struct error){ 0 };
	assert_true(policy_object_read("/tmp", &o, &e) < 0);
	e = (struct error){ 0 };
	assert_true(policy_object_read("/dev/zero", &o, &e) < 0);
	assert_int_equal(e.exit_status, EXIT_USAGE);
	/* It has no writer, and opening it does not block. */
	close(mkstemp(fifo));
	unlink(fifo);
	assert_int_equal(mkfifo(fifo, 0600), 0);
	e = (struct error){ 0 };
	assert_true(policy_object_read(fifo, &o, &e) < 0);
	unlink(fifo);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ours_are_good),
		cmocka_unit_test(spoilt_ones_are_refused),
		cmocka_unit_test(what_may_go_round_for_ever_is_refused),
		cmocka_unit_test(truncated_ones_are_refused),
		cmocka_unit_test(what_is_no_file_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
