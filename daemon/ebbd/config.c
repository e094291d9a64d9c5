// SPDX-License-Identifier: GPL-2.0-or-later
#include <dirent.h>
#include <errno.h>
#include <ini.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/paths.h"
#include "common/size.h"
#include "ebbd/config.h"

enum key_type { KEY_COUNT, KEY_DURATION };

/* Every key: parsing, the message about a bad value and ebb.conf(5) follow it. */
static const struct key {
	const char *section, *name;
	enum key_type type;
	size_t offset;
	uint64_t min, max;
} keys[] = {
	{ "epochs", "percent", KEY_COUNT, offsetof(struct config, epoch_percent), 1, 100 },
	{ "prefetch", "batch", KEY_COUNT, offsetof(struct config, executor.batch), 1, 64 },
	{ "prefetch", "headroom", KEY_COUNT, offsetof(struct config, executor.headroom), 2, 1024 },
	{ "prefetch", "stale", KEY_DURATION, offsetof(struct config, executor.stale_ns),
	  1000000, 60000000000 },
	{ "prefetch", "expire", KEY_DURATION, offsetof(struct config, executor.expire_ns),
	  100000000, 3600000000000 },
};

struct reader {
	struct config *config;
	const char *file;
	int line;
	struct error *e;
};

void config_defaults(struct config *c)
{
	*c = (struct config){
		.epoch_percent = 10,
		.executor = {
			.batch = 64,
			/* Early pages must not push out what the program works on. */
			.headroom = 8,
			.stale_ns = 50000000,
			.expire_ns = 10000000000,
		},
	};
}

static int set(struct reader *r, const struct key *k, const char *value)
{
	void *field = (char *)r->config + k->offset;
	struct error inner = { 0 };
	unsigned long long n;
	char *end;

	if (k->type == KEY_DURATION) {
		uint64_t ns;

		if (duration_parse(value, k->name, &ns, &inner))
			return fail_exit(r->e, EXIT_USAGE, EINVAL, "%s:%d: %s", r->file, r->line,
					 inner.text);
		if (ns < k->min || ns > k->max)
			return fail_exit(r->e, EXIT_USAGE, ERANGE,
					 "%s:%d: %s: '%s' is out of range; from %llu to %llu ms",
					 r->file, r->line, k->name, value,
					 (unsigned long long)k->min / 1000000,
					 (unsigned long long)k->max / 1000000);
		*(uint64_t *)field = ns;
		return 0;
	}
	errno = 0;
	n = strtoull(value, &end, 10);
	if (errno || *end || end == value || *value == '-' || n < k->min || n > k->max)
		return fail_exit(r->e, EXIT_USAGE, EINVAL,
				 "%s:%d: %s: '%s' is not a whole number from %llu to %llu",
				 r->file, r->line, k->name, value, (unsigned long long)k->min,
				 (unsigned long long)k->max);
	*(uint32_t *)field = (uint32_t)n;
	return 0;
}

static int on_key(void *data, const char *section, const char *name, const char *value)
{
	struct reader *r = data;

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (!strcmp(section, keys[i].section) && !strcmp(name, keys[i].name))
			return set(r, &keys[i], value) == 0;
	fail_exit(r->e, EXIT_USAGE, EINVAL, "%s:%d: unknown key '%s' in [%s]; see ebb.conf(5)",
		  r->file, r->line, name, section);
	return 0;
}

static char *next_line(char *text, int size, void *stream)
{
	struct { struct reader *r; FILE *f; } *s = stream;

	s->r->line++;
	return fgets(text, size, s->f);
}

static int load_file(struct config *c, const char *file, struct error *e)
{
	struct reader r = { .config = c, .file = file, .e = e };
	struct { struct reader *r; FILE *f; } stream = { &r, fopen(file, "re") };
	int line;

	if (!stream.f)
		return -errno;
	line = ini_parse_stream(next_line, &stream, on_key, &r);
	fclose(stream.f);
	if (line && (!e || !e->code))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "%s:%d: neither a [section] nor key = value", file, line);
	return line ? -EINVAL : 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_conf(const struct dirent *d)
{
	size_t n = strlen(d->d_name);

	return n > 5 && d->d_name[0] != '.' && !strcmp(d->d_name + n - 5, ".conf");
}

int config_load(struct config *c, const char *file, struct error *e)
{
	struct dirent **drop = NULL;
	char path[PATH_MAX];
	int n, r;

	if (file) {
		r = load_file(c, file, e);
		return r == -ENOENT ? fail_exit(e, EXIT_USAGE, ENOENT, "%s: no such file", file) : r;
	}
	r = load_file(c, EBB_CONF, e);
	if (r == -ENOENT)
		r = 0;
	n = r ? 0 : scandir(EBB_CONF_DIR, &drop, is_conf, by_name);
	for (int i = 0; i < n; i++) {
		snprintf(path, sizeof(path), "%s/%s", EBB_CONF_DIR, drop[i]->d_name);
		if (!r)
			r = load_file(c, path, e);
		free(drop[i]);
	}
	free(drop);
	return r;
}
