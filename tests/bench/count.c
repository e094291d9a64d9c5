// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * count [PID]: counts system calls by process, or only those of process PID, softirqs, interrupts
 * and runs of BPF programs for as long as it runs.  Says "ready", then answers each line of stdin with a line of JSON, and exits at the
 * end of stdin.  Nothing of it outlives the process: no pin, and no sysctl changes.
 */
#include <errno.h>
#include <inttypes.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "count.h"
#include "bench/count.skel.h"

#define PROGRAMS_MAX 32

static const char *const kinds[COUNT_KINDS] = {
	"HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER",
	"RCU", "call", "call single", "reschedule", "irq work", "local timer", "device",
};

struct counter {
	struct count_bpf *bpf;
	__u32 own[PROGRAMS_MAX];
	int n_own;
	int cpus;
	const char *missing[PROGRAMS_MAX];
	int n_missing;
};

/* Attaches what this kernel has; only system calls must be there. */
static int attach(struct counter *c)
{
	struct bpf_program *program;

	bpf_object__for_each_program(program, c->bpf->obj) {
		struct bpf_prog_info info = { 0 };
		__u32 size = sizeof(info);

		if (!bpf_obj_get_info_by_fd(bpf_program__fd(program), &info, &size) &&
		    c->n_own < PROGRAMS_MAX)
			c->own[c->n_own++] = info.id;
		/* The link ends with the process. */
		if (bpf_program__attach(program))
			continue;
		if (program == c->bpf->progs.count_call)
			return -errno;
		if (c->n_missing < PROGRAMS_MAX)
			c->missing[c->n_missing++] = bpf_program__name(program);
	}
	return 0;
}

static void print_calls(const struct counter *c)
{
	int map = bpf_map__fd(c->bpf->maps.calls);
	struct count_key key, *from = NULL;
	struct count_calls of;
	const char *comma = "";

	printf("\"calls\":[");
	for (; !bpf_map_get_next_key(map, from, &key); from = &key) {
		if (bpf_map_lookup_elem(map, &key, &of))
			continue;
		printf("%s[%u,%d,%llu,%llu]", comma, key.pid, key.call, of.calls, of.returned);
		comma = ",";
	}
	printf("],\"lost\":%llu", c->bpf->bss->lost);
}

static int print_times(const struct counter *c)
{
	struct count_time *each = calloc(c->cpus, sizeof(*each));

	if (!each)
		return -ENOMEM;
	printf(",\"times\":{");
	for (__u32 kind = 0; kind < COUNT_KINDS; kind++) {
		struct count_time sum = { 0 };

		if (bpf_map_lookup_elem(bpf_map__fd(c->bpf->maps.times), &kind, each))
			memset(each, 0, c->cpus * sizeof(*each));
		for (int i = 0; i < c->cpus; i++) {
			sum.n += each[i].n;
			sum.ns += each[i].ns;
			sum.idle_ns += each[i].idle_ns;
		}
		printf("%s\"%s\":[%llu,%llu,%llu]", kind ? "," : "", kinds[kind], sum.n, sum.ns,
		       sum.idle_ns);
	}
	printf("}");
	free(each);
	return 0;
}

static bool is_own(const struct counter *c, __u32 id)
{
	for (int i = 0; i < c->n_own; i++)
		if (c->own[i] == id)
			return true;
	return false;
}

static void print_programs(const struct counter *c)
{
	const char *comma = "";
	__u32 id = 0;

	printf(",\"bpf\":[");
	while (!bpf_prog_get_next_id(id, &id)) {
		struct bpf_prog_info info = { 0 };
		__u32 size = sizeof(info);
		int fd = is_own(c, id) ? -1 : bpf_prog_get_fd_by_id(id);

		if (fd < 0)
			continue;
		if (!bpf_obj_get_info_by_fd(fd, &info, &size)) {
			printf("%s[%u,\"%s\",%llu,%llu]", comma, id, info.name, info.run_time_ns,
			       info.run_cnt);
			comma = ",";
		}
		close(fd);
	}
	printf("]");
}

static int answer(const struct counter *c)
{
	int r;

	printf("{");
	print_calls(c);
	r = print_times(c);
	if (r)
		return r;
	print_programs(c);
	printf(",\"missing\":[");
	for (int i = 0; i < c->n_missing; i++)
		printf("%s\"%s\"", i ? "," : "", c->missing[i]);
	printf("]}\n");
	return fflush(stdout) ? -errno : 0;
}

static int quiet(enum libbpf_print_level level, const char *format, va_list arguments)
{
	return 0;
}

int main(int argc, char **argv)
{
	struct counter c = { .cpus = libbpf_num_possible_cpus() };
	char line[64];
	int r;

	libbpf_set_print(quiet);
	c.bpf = count_bpf__open();
	if (c.bpf && argc > 1)
		c.bpf->rodata->only = (__u32)strtoul(argv[1], NULL, 10);
	if (!c.bpf || count_bpf__load(c.bpf)) {
		fprintf(stderr, "count: cannot load the BPF programs: %m; run as root\n");
		return 1;
	}
	r = attach(&c);
	if (r) {
		fprintf(stderr, "count: raw_tp/sys_exit: %s\n", strerror(-r));
		return 1;
	}
	/* The kernel times BPF programs while this descriptor is open. */
	if (bpf_enable_stats(BPF_STATS_RUN_TIME) < 0) {
		fprintf(stderr, "count: BPF_ENABLE_STATS: %m\n");
		return 1;
	}
	printf("ready\n");
	fflush(stdout);
	while (!r && fgets(line, sizeof(line), stdin))
		r = answer(&c);
	return r ? 1 : 0;
}
