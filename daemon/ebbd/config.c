// SPDX-License-Identifier: GPL-2.0-or-later
#include <dirent.h>
#include <errno.h>
#include <ini.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config.h"
#include "config_donors.h"
#include "ebbd/plane/plane.h"
#include "ebbd/plane/policy_object.h"
#include "lib/base/log.h"
#include "lib/base/paths.h"
#include "lib/base/size.h"

enum key_type { KEY_COUNT, KEY_DURATION, KEY_HOOKS, KEY_COLLAPSE };

/* Words for the values from 0 on. */
static const char *const words[][3] = {
	[KEY_HOOKS] = { "auto", "fentry", "tracepoints" },
	[KEY_COLLAPSE] = { "off", "auto" },
};

/* Every key: parsing, the message about a bad value and ebb.conf(5) follow it. */
static const struct key {
	const char *section, *name;
	enum key_type type;
	size_t offset;
	uint64_t min, max;
} keys[] = {
	{ "epochs", "percent", KEY_COUNT, offsetof(struct config, epoch_percent), 1, 100 },
	{ "bpf", "hooks", KEY_HOOKS, offsetof(struct config, hooks), HOOKS_AUTO, HOOKS_TRACEPOINTS },
	{ "prefetch", "batch", KEY_COUNT, offsetof(struct config, executor.batch), 1, 64 },
	{ "prefetch", "headroom", KEY_COUNT, offsetof(struct config, executor.headroom), 2, 1024 },
	{ "prefetch", "inflight", KEY_COUNT, offsetof(struct config, executor.inflight), 16, 65536 },
	{ "prefetch", "beside", KEY_COUNT, offsetof(struct config, executor.beside), 1, 65536 },
	{ "prefetch", "stale", KEY_DURATION, offsetof(struct config, executor.stale_ns),
	  1000000, 60000000000 },
	{ "prefetch", "expire", KEY_DURATION, offsetof(struct config, executor.expire_ns),
	  100000000, 3600000000000 },
	{ "prefetch", "collapse", KEY_COLLAPSE, offsetof(struct config, executor.collapse),
	  COLLAPSE_NEVER, COLLAPSE_AUTO },
};

/* Keys of former releases: accepted for one release, without effect. */
static const struct removed_key {
	const char *section, *name, *instead;
} removed_keys[] = {
	{ "prefetch", "workers", "one thread prefetches" },
	{ "prefetch", "map_ahead", "prefetched pages stay in the swap cache" },
};

struct reader {
	struct config *config;
	const char *file;
	FILE *stream;
	int line;
	struct declaration *declaration; /* of the present section, or NULL */
	struct error *e;
};

void config_defaults(struct config *c)
{
	*c = (struct config){
		.epoch_percent = 10,
		.executor = {
			.batch = 64,
			/* Prefetched pages must not evict the working set. */
			.headroom = 8,
			.inflight = 128,
			/*
			 * A device serves a miss in some 90 us and reads a page of a sequence in 5:
			 * behind 8 of them a miss takes 1.4 times as long.
			 */
			.beside = 8,
			.stale_ns = 50000000,
			.expire_ns = 10000000000,
		},
	};
	donors_config_defaults(&c->donors);
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
	if (k->type == KEY_HOOKS || k->type == KEY_COLLAPSE) {
		char all[64];
		int len = 0;

		for (n = k->min; n <= k->max && strcmp(value, words[k->type][n]); n++)
			len += snprintf(all + len, sizeof(all) - len, "%s%s", len ? ", " : "",
					words[k->type][n]);
		if (n > k->max)
			return fail_exit(r->e, EXIT_USAGE, EINVAL, "%s:%d: %s: '%s' is none of %s",
					 r->file, r->line, k->name, value, all);
		*(uint32_t *)field = (uint32_t)n;
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
	struct error inner = { 0 };

	if (r->e->code)
		return 0;
	if (r->declaration) {
		if (declaration_key(r->declaration, name, value, r->line, &inner))
			fail_exit(r->e, EXIT_USAGE, EINVAL, "%s:%d: %s", r->file, r->line, inner.text);
		return !r->e->code;
	}
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (!strcmp(section, keys[i].section) && !strcmp(name, keys[i].name))
			return set(r, &keys[i], value) == 0;
	for (const struct removed_key *k = removed_keys;
	     k < removed_keys + sizeof(removed_keys) / sizeof(removed_keys[0]); k++)
		if (!strcmp(section, k->section) && !strcmp(name, k->name)) {
			log_warn("%s:%d: %s: no longer supported and ignored: %s; remove the line",
				 r->file, r->line, name, k->instead);
			return 1;
		}
	if (!strcmp(section, "donors")) {
		int s = config_donors_key(&r->config->donors, name, value, &inner);

		if (s != -ENOENT) {
			if (s)
				fail_exit(r->e, EXIT_USAGE, EINVAL, "%s:%d: %s", r->file, r->line,
					  inner.text);
			return !s;
		}
	}
	fail_exit(r->e, EXIT_USAGE, EINVAL, "%s:%d: unknown key '%s' in [%s]; see ebb.conf(5)",
		  r->file, r->line, name, section);
	return 0;
}

/* A section without a policy would have no effect. */
static void end_section(struct reader *r)
{
	const struct declaration *d = r->declaration;

	if (d && !*d->policy)
		fail_exit(r->e, EXIT_USAGE, EINVAL, "%s:%d: [cgroup \"%s\"] has no policy; add policy = NAME",
			  r->file, d->line, d->glob);
	r->declaration = NULL;
}

static int bad_section(struct reader *r, const char *cause)
{
	return fail_exit(r->e, EXIT_USAGE, EINVAL, "%s:%d: %s; write [cgroup \"/path/glob\"]", r->file,
			 r->line, cause);
}

/* Checks that only a comment follows the "]" of a section: the INI library ignores the rest. */
static int check_rest(struct reader *r, const char *rest)
{
	rest += strspn(rest, " \t\r\n");
	return !*rest || *rest == '#' || *rest == ';' ? 0 :
	       fail_exit(r->e, EXIT_USAGE, EINVAL,
			 "%s:%d: '%.*s' follows the section; write it on a line of its own", r->file,
			 r->line, (int)strcspn(rest, "\r\n"), rest);
}

/* Checks a section other than [cgroup]: without keys, on_key() does not see it. */
static int check_section(struct reader *r, const char *text)
{
	const char *name = text + 1;
	int n = (int)strcspn(name, "]\r\n");
	bool known = n == 6 && !strncmp(name, "donors", n);

	if (name[n] != ']')
		return fail_exit(r->e, EXIT_USAGE, EINVAL, "%s:%d: '%.*s': no ] after the section's name; add it",
				 r->file, r->line, n + 1, text);
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		known |= strlen(keys[i].section) == (size_t)n && !strncmp(name, keys[i].section, n);
	return known ? check_rest(r, name + n + 1) :
	       fail_exit(r->e, EXIT_USAGE, EINVAL, "%s:%d: unknown section [%.*s]; see ebb.conf(5)",
			 r->file, r->line, n, name);
}

/* Returns whether each bracket of @glob is closed; fnmatch(3) takes others for letters. */
static bool is_closed(const char *glob)
{
	for (; *glob; glob++) {
		if (*glob == '\\' && glob[1]) {
			glob++;
		} else if (*glob == '[') {
			glob += 1 + (glob[1] == '!' || glob[1] == '^');
			glob = strchr(*glob == ']' ? glob + 1 : glob, ']');
			if (!glob)
				return false;
		}
	}
	return true;
}

/* @text follows "[cgroup". */
static int begin_declaration(struct reader *r, const char *text)
{
	struct config *c = r->config;
	struct declaration *more, *d;
	const char *from, *to;

	from = strchr(text, '"');
	to = from ? strstr(from + 1, "\"]") : NULL;
	if (!to || strspn(text, " \t") != (size_t)(from - text))
		return bad_section(r, "the cgroup's path is not between quotes");
	if (from[1] != '/' || to - from - 1 >= PATH_MAX)
		return bad_section(r, "the cgroup's path does not begin with /");
	if (check_rest(r, to + 2))
		return -EINVAL;
	if (c->declared.n == CONFIG_DECLARATIONS)
		return fail_exit(r->e, EXIT_USAGE, E2BIG, "%s:%d: more than %d [cgroup] sections; use a glob",
				 r->file, r->line, CONFIG_DECLARATIONS);
	more = realloc(c->declared.item, (c->declared.n + 1) * sizeof(*more));
	if (!more)
		return fail(r->e, ENOMEM, "%s:%d: out of memory", r->file, r->line);
	c->declared.item = more;
	d = &more[c->declared.n++];
	memset(d, 0, sizeof(*d));
	snprintf(d->glob, sizeof(d->glob), "%.*s", (int)(to - from - 1), from + 1);
	/* A path ends without a slash, but for the root's. */
	if (d->glob[1] && d->glob[strlen(d->glob) - 1] == '/')
		d->glob[strlen(d->glob) - 1] = '\0';
	snprintf(d->file, sizeof(d->file), "%s", r->file);
	d->line = r->line;
	r->declaration = d;
	return is_closed(d->glob) ? 0 : bad_section(r, "a [ of the glob has no ]");
}

/*
 * The INI library truncates section names at 50 characters and splits long lines: parses sections
 * with a path here, and rejects long lines.
 */
static char *next_line(char *text, int size, void *data)
{
	struct reader *r = data;
	const char *section = text;
	size_t n;

	r->line++;
	if (r->e->code)
		return NULL;
	if (!fgets(text, size, r->stream)) {
		if (ferror(r->stream))
			fail_exit(r->e, EXIT_USAGE, errno, "%s: cannot read: %s; give a file", r->file,
				  strerror(errno));
		return NULL;
	}
	/* The library would take an indented line for a continuation of the previous value. */
	n = strspn(text, " \t");
	memmove(text, text + n, strlen(text + n) + 1);
	n = strlen(text);
	if (n && text[n - 1] != '\n' && !feof(r->stream)) {
		char rest[256];

		while (fgets(rest, sizeof(rest), r->stream) && !strchr(rest, '\n'))
			;
		if (*text != '#')
			fail_exit(r->e, EXIT_USAGE, E2BIG, "%s:%d: longer than %d characters; shorten it",
				  r->file, r->line, size - 2);
	}
	if (*section != '[')
		return text;
	end_section(r);
	if (!strncmp(section, "[cgroup", 7)) {
		text[strcspn(text, "\r\n")] = '\0';
		for (n = strlen(text); n && (text[n - 1] == ' ' || text[n - 1] == '\t'); n--)
			text[n - 1] = '\0';
		if (!begin_declaration(r, section + 7))
			strcpy(text, "[cgroup]\n");
	} else {
		check_section(r, section);
	}
	return text;
}

static int load_file(struct config *c, const char *file, struct error *e)
{
	struct error own = { 0 };
	struct reader r = { .config = c, .file = file, .stream = fopen(file, "re"), .e = e ?: &own };
	int line;

	if (!r.stream)
		return errno == ENOENT ? -ENOENT :
		       fail_exit(e, EXIT_USAGE, errno, "%s: cannot read: %s; give a readable file", file,
				 strerror(errno));
	line = ini_parse_stream(next_line, &r, on_key, &r);
	end_section(&r);
	fclose(r.stream);
	if (line && !r.e->code)
		return fail_exit(r.e, EXIT_USAGE, EINVAL,
				 "%s:%d: neither a [section] nor key = value", file, line);
	return r.e->code ? -EINVAL : 0;
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

static int load(struct config *c, const char *file, struct error *e)
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

int config_load(struct config *c, const char *file, struct error *e)
{
	int r = load(c, file, e);

	/* Some errors show only when all files are read. */
	return r ? r : donors_config_check(&c->donors, e);
}

void config_free(struct config *c)
{
	donors_config_free(&c->donors);
	free(c->declared.item);
	c->declared.item = NULL;
	c->declared.n = 0;
}

/* Reads the description of policy @name in @dir.  -ENOENT: no file.  Rejects NAME.so of 0.1.0. */
static int find_policy(const char *dir, const char *name, struct ebb_policy_info *info,
		       struct error *e)
{
	static const char *const kinds[] = { "bpf.o", "so" };
	struct policy_object o = { 0 };
	char path[PATH_MAX];
	int r = -ENOENT;

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]) && r == -ENOENT; i++) {
		*e = (struct error){ 0 };
		snprintf(path, sizeof(path), "%s/%s.%s", dir, name, kinds[i]);
		r = policy_object_read(path, &o, e);
	}
	if (!r)
		*info = o.info;
	policy_object_free(&o);
	return r;
}

static int check_params(const struct declaration *d, const struct ebb_policy_info *info,
			struct error *e)
{
	char where[128];

	for (uint32_t i = 0; i < d->n; i++) {
		const struct ebb_param_info *p = policy_param(info, d->name[i]);

		declaration_where(d, d->name[i], where, sizeof(where));
		if (!p && !attach_has(d->name[i]))
			return fail_exit(e, EXIT_USAGE, EINVAL,
					 "%s: %s: policy '%s' has no such parameter; see ebbctl policy list",
					 where, d->name[i], d->policy);
		if (p && (d->value[i] < p->min || d->value[i] > p->max))
			return fail_exit(
				e, EXIT_USAGE, ERANGE,
				"%s: %s: %llu is out of range; policy '%s' takes %llu to %llu",
				where, d->name[i], (unsigned long long)d->value[i], d->policy,
				(unsigned long long)p->min, (unsigned long long)p->max);
	}
	return 0;
}

int config_check_policies(const struct config *c, const char *policy_dir, struct error *e)
{
	for (uint32_t i = 0; i < c->declared.n; i++) {
		const struct declaration *d = &c->declared.item[i];
		struct ebb_policy_info info;
		struct error inner;
		char where[128];
		int r = find_policy(policy_dir, d->policy, &info, &inner);

		if (r == -ENOENT)
			r = find_policy(ebb_loaded_policy_dir(), d->policy, &info, &inner);
		declaration_where(d, NULL, where, sizeof(where));
		if (r == -ENOENT)
			return fail_exit(e, EXIT_USAGE, ENOENT,
					 "%s: policy: %s: no such policy; see ebbctl policy list",
					 where, d->policy);
		r = r ? fail_exit(e, EXIT_USAGE, r, "%s: policy: %.360s", where, inner.text) :
			check_params(d, &info, e);
		if (r)
			return r;
	}
	return 0;
}
