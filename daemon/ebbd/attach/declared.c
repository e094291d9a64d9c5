// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <linux/limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "change_rate.h"
#include "declared.h"
#include "ebbd/plane/policy_store.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/host/cgroup_files.h"
#include "lib/host/cgroup_walk.h"
#include "stats.h"

#define AGAIN_MOST 5
#define LATER_MOST 1024
#define LOOKED_MOST 4096 /* cgroups below those of a few events */
/* Below the mount.  Limits of a cgroup are read at each level above, too. */
#define LEVELS 64
#define WATCHED (IN_CREATE | IN_MOVED_TO | IN_ATTRIB | IN_ONLYDIR)

struct watch {
	int wd;
	char *path;
};

struct declared {
	struct attachments *attachments;
	const struct declarations *sections;
	char mount[PATH_MAX];        /* of the memory hierarchy; "" if there is none */
	int inotify;
	struct watch *watch;         /* by wd */
	uint32_t watches, watches_most;
	bool full;                   /* some cgroups could not be watched; logged once */
	uint64_t *left;              /* ids detached by a command */
	uint32_t lefts;
	bool again;                  /* a cgroup was re-created while it was being attached */
	uint32_t agains;             /* successive rounds with .again */
	struct change_rate rate;
	char **later;                /* paths of cgroups that change too often: LATER_MOST */
	uint32_t laters;
	bool all_later;              /* there are more, or events were lost */
	bool overflowed;             /* events were lost */
	uint32_t looked;             /* cgroups walked for the present events */
	bool at_once;                /* the administrator applies the configuration: no limit */
	uint64_t deferred;           /* changes that were */
	uint64_t changes;            /* times that attachments changed */
};

int declared_new(struct declared **out, struct attachments *a,
		 const struct declarations *sections, struct error *e)
{
	const char *mount = cgroup_memory_mount(NULL);
	struct declared *d = calloc(1, sizeof(*d));

	if (!d)
		return fail(e, ENOMEM, "declarations: out of memory");
	d->attachments = a;
	d->sections = sections;
	snprintf(d->mount, sizeof(d->mount), "%s", mount ?: "");
	d->later = calloc(LATER_MOST, sizeof(*d->later));
	d->inotify = d->later ? inotify_init1(IN_NONBLOCK | IN_CLOEXEC) : -1;
	if (d->inotify < 0) {
		free(d->later);
		free(d);
		return fail(e, errno, "inotify: %m; raise fs.inotify.max_user_instances");
	}
	*out = d;
	return 0;
}

void declared_free(struct declared **pd)
{
	struct declared *d = *pd;

	*pd = NULL;
	if (!d)
		return;
	for (uint32_t i = 0; i < d->watches; i++)
		free(d->watch[i].path);
	free(d->watch);
	while (d->laters)
		free(d->later[--d->laters]);
	free(d->later);
	free(d->left);
	close(d->inotify);
	free(d);
}

int declared_fd(const struct declared *d)
{
	return d->inotify;
}

int declared_check(struct attachments *a, const struct declarations *sections, struct error *e)
{
	int r = 0;

	for (uint32_t i = 0; !r && i < sections->n; i++)
		if (!policies_unusable(a->plane, sections->item[i].policy))
			r = declaration_check(&sections->item[i], a, e);
	return r;
}

static const char *rel_of(const struct declared *d, const char *path)
{
	const char *rel = path + strlen(d->mount);

	return *rel ? rel : "/";
}

/*
 * Parses the xattr of @path, which belongs to @user.  Returns 1 if it has none or, after logging,
 * an invalid one.
 */
static int read_xattr(struct declared *d, const char *path, uid_t user, struct declaration *own)
{
	static char text[XATTR_SIZE_MAX + 1]; /* the main thread's */
	ssize_t n = getxattr(path, DECLARATION_XATTR, text, sizeof(text) - 1);
	struct error e = { 0 };

	if (n < 0)
		return 1;
	text[n] = '\0';
	if (declaration_parse(own, text, &e) || declaration_check(own, d->attachments, &e) ||
	    declaration_load(own, d->attachments, &e)) {
		if (change_allowed(&d->rate, user, now_ns()))
			log_event(EVENT_DECLARATION_REFUSED, LOG_LVL_ERR,
				  "%s: %s: %s; correct it with setfattr", path, DECLARATION_XATTR, e.text);
		return 1;
	}
	if (own->in_daemon && change_allowed(&d->rate, user, now_ns()))
		log_warn("%s: %s: run=daemon: no longer supported and ignored: the policy runs in the "
			 "kernel; correct it with setfattr", path, DECLARATION_XATTR);
	return 0;
}

/* Returns the declaration for @path, which may be stored in @own, or NULL. */
static struct declaration *look_up(struct declared *d, const char *path, uid_t user,
				   struct declaration *own)
{
	const char *rel = rel_of(d, path);

	if (!read_xattr(d, path, user, own))
		return own;
	for (uint32_t i = d->sections->n; i-- > 0;)
		if (declaration_matches(&d->sections->item[i], d->mount, rel)) {
			/* The last match decides even if it is inactive. */
			own = &d->sections->item[i];
			return *own->inactive ? NULL : own;
		}
	return NULL;
}

static void publish(struct declared *d)
{
	d->changes++;
	stats_publish(d->attachments);
}

static bool left_alone(const struct declared *d, uint64_t id)
{
	for (uint32_t i = 0; i < d->lefts; i++)
		if (d->left[i] == id)
			return true;
	return false;
}

/* Notes a cgroup that changed too often, for declared_again(). */
static void defer(struct declared *d, const char *path)
{
	char *copy;

	d->deferred++;
	for (uint32_t i = 0; i < d->laters; i++)
		if (!strcmp(d->later[i], path))
			return;
	copy = d->laters < LATER_MOST ? strdup(path) : NULL;
	if (copy)
		d->later[d->laters++] = copy;
	else
		d->all_later = true;
}

/* Attaches or detaches the cgroup at @path as configured; returns whether it changed. */
static bool settle(struct declared *d, const char *path)
{
	_cleanup_free_ struct declaration *own = calloc(1, sizeof(*own));
	struct attachments *a = d->attachments;
	struct declaration *want;
	struct attach_wish wish;
	struct attachment *t;
	struct error e = { 0 };
	struct stat st;
	bool keep, drop;
	int r;

	if (!own || stat(path, &st))
		return false;
	want = look_up(d, path, st.st_uid, own);
	if (want && left_alone(d, st.st_ino))
		return false;
	if (want)
		declaration_wish(want, &wish);
	pthread_mutex_lock(&a->lock);
	t = attachments_find(a, st.st_ino);
	keep = t && (t->by == BY_COMMAND || (want && attachment_is(a, t, &wish)));
	drop = t && !keep && !want;
	pthread_mutex_unlock(&a->lock);
	if (keep || (!want && !drop))
		return false;
	if (!d->at_once && !change_allowed(&d->rate, st.st_uid, now_ns())) {
		defer(d, path);
		return false;
	}
	if (drop) {
		if (!attach_detach(a, path, &e))
			log_info("%s: no longer configured: detached", path);
		return true;
	}
	r = attach(a, path, &wish, &e);
	/* The cgroup may already be removed; its re-creation causes another event. */
	if (r && access(path, F_OK) < 0)
		return false;
	if (r) {
		/*
		 * In cgroup v1 a cgroup is created and removed in one hierarchy after the other:
		 * its twin may be missing, and no event announces it.
		 */
		if (r == -ENOENT && d->agains < AGAIN_MOST)
			d->again = true;
		else
			log_event(EVENT_DECLARATION_REFUSED, LOG_LVL_ERR, "%s: %s", wish.source, e.text);
		return false;
	}
	log_info("%s: attached %s, by %s", path, wish.policy, wish.source);
	return true;
}

/* Returns the first watch that does not precede @wd. */
static uint32_t watch_position(const struct declared *d, int wd)
{
	uint32_t low = 0, high = d->watches;

	while (low < high) {
		uint32_t at = (low + high) / 2;

		if (d->watch[at].wd < wd)
			low = at + 1;
		else
			high = at;
	}
	return low;
}

static bool watch_room(struct declared *d)
{
	uint32_t most = 2 * d->watches_most + 64;
	struct watch *more;

	if (d->watches < d->watches_most)
		return true;
	more = realloc(d->watch, most * sizeof(*more));
	if (!more)
		return false;
	d->watch = more;
	d->watches_most = most;
	return true;
}

static void watch_add(struct declared *d, const char *path)
{
	int wd = inotify_add_watch(d->inotify, path, WATCHED);
	uint32_t at;
	char *copy;

	if (wd < 0) {
		if (errno == ENOSPC && !d->full)
			log_warn("%s: cannot watch more cgroups; ebbd finds new ones below it at the next "
				 "reload; raise fs.inotify.max_user_watches", path);
		d->full |= errno == ENOSPC;
		return;
	}
	copy = strdup(path);
	if (!copy)
		return;
	at = watch_position(d, wd);
	if (at < d->watches && d->watch[at].wd == wd) {
		/* cgroup v1 allows renaming directories. */
		free(d->watch[at].path);
		d->watch[at].path = copy;
		return;
	}
	if (!watch_room(d)) {
		free(copy);
		return;
	}
	memmove(&d->watch[at + 1], &d->watch[at], (d->watches - at) * sizeof(*d->watch));
	d->watch[at] = (struct watch){ wd, copy };
	d->watches++;
}

/* Of cgroups that were removed, or created again, while events were lost. */
static void drop_stale_watches(struct declared *d)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < d->watches; i++)
		if (inotify_add_watch(d->inotify, d->watch[i].path, WATCHED) == d->watch[i].wd)
			d->watch[kept++] = d->watch[i];
		else
			free(d->watch[i].path);
	d->watches = kept;
}

struct settling {
	struct declared *d;
	bool changed;
};

/* Returns how many levels @path is below the mount. */
static int level_of(const struct declared *d, const char *path)
{
	int n = 0;

	for (const char *at = rel_of(d, path); (at = strchr(at, '/')) && at[1]; at++)
		n++;
	return n;
}

/* Watch first, or what is made meanwhile below it would be missed. */
static int settle_one(const char *dir, void *data)
{
	struct settling *s = data;

	if (level_of(s->d, dir) > LEVELS)
		return CGROUP_SKIP;
	s->d->looked++;
	watch_add(s->d, dir);
	s->changed |= settle(s->d, dir);
	return 0;
}

static bool settle_tree(struct declared *d, const char *path)
{
	struct settling s = { .d = d };

	if (cgroup_walk(path, settle_one, &s))
		d->all_later = true;
	return s.changed;
}

/* Loads all policies; one that the kernel rejects does not affect the others. */
static void load_each(struct declared *d)
{
	for (uint32_t i = 0; i < d->sections->n; i++) {
		struct declaration *s = &d->sections->item[i];
		struct error e = { 0 };
		char where[128];

		*s->inactive = '\0';
		if (!declaration_load(s, d->attachments, &e))
			continue;
		snprintf(s->inactive, sizeof(s->inactive), "%s", e.text);
		log_event(EVENT_DECLARATION_REFUSED, LOG_LVL_ERR,
			  "%s: [cgroup \"%s\"] is inactive: %s; configure a policy that this kernel accepts, "
			  "then reload ebbd", declaration_where(s, NULL, where, sizeof(where)), s->glob, e.text);
	}
}

void declared_apply(struct declared *d)
{
	d->lefts = 0;
	load_each(d);
	d->at_once = true;
	if (*d->mount && settle_tree(d, d->mount))
		publish(d);
	d->at_once = false;
}

static struct watch *watch_find(struct declared *d, int wd)
{
	uint32_t at = watch_position(d, wd);

	return at < d->watches && d->watch[at].wd == wd ? &d->watch[at] : NULL;
}

static void watch_drop(struct declared *d, struct watch *w)
{
	free(w->path);
	d->watches--;
	memmove(w, w + 1, (size_t)(&d->watch[d->watches] - w) * sizeof(*w));
}

static bool on_event(struct declared *d, const struct inotify_event *ev)
{
	struct watch *w = watch_find(d, ev->wd);
	char path[PATH_MAX];

	if (ev->mask & IN_Q_OVERFLOW)
		d->overflowed = d->all_later = true;
	if (!w)
		return false;
	if (ev->mask & IN_IGNORED) {
		watch_drop(d, w);
		return false;
	}
	if (!(ev->mask & IN_ISDIR))
		return false;
	/*
	 * Without a name, the event is about the watched directory; its parent's watch reports that
	 * too.
	 */
	if (!ev->len)
		return !strcmp(w->path, d->mount) && settle(d, d->mount);
	if (snprintf(path, sizeof(path), "%s/%s", w->path, ev->name) >= (int)sizeof(path))
		return false;
	if (ev->mask & IN_ATTRIB)
		return settle(d, path);
	/* On v1 a user may rename a tree over and over. */
	if (d->looked > LOOKED_MOST) {
		d->all_later = true;
		return false;
	}
	return settle_tree(d, path);
}

void declared_events(struct declared *d)
{
	char buf[8192] __attribute__((aligned(__alignof__(struct inotify_event))));
	bool changed = false;
	ssize_t n;

	d->looked = 0;
	/* The event loop calls again, between other events: there may be no end of these. */
	n = read(d->inotify, buf, sizeof(buf));
	for (char *at = buf; at < buf + n;) {
		const struct inotify_event *ev = (const void *)at;

		changed |= on_event(d, ev);
		at += sizeof(*ev) + ev->len;
	}
	if (changed)
		publish(d);
}

/* Settles the deferred cgroups; some may be deferred once more, at the end of the list. */
static bool settle_deferred(struct declared *d)
{
	uint32_t n = d->laters;
	bool changed = false;

	for (uint32_t i = 0; i < n; i++) {
		char *path = d->later[0];

		memmove(d->later, d->later + 1, --d->laters * sizeof(*d->later));
		changed |= settle(d, path);
		free(path);
	}
	return changed;
}

void declared_again(struct declared *d)
{
	bool tree = d->again || d->all_later, changed;

	d->agains = d->again ? d->agains + 1 : 0;
	d->again = d->all_later = false;
	if (d->overflowed)
		drop_stale_watches(d);
	d->overflowed = false;
	changed = settle_deferred(d);
	if (tree)
		changed |= settle_tree(d, d->mount);
	if (changed)
		publish(d);
}

uint64_t declared_deferred(const struct declared *d)
{
	return d->deferred;
}

uint64_t declared_changes(const struct declared *d)
{
	return d->changes;
}

bool declared_detached(struct declared *d, uint64_t id, const char *path, char *text, size_t size)
{
	_cleanup_free_ struct declaration *own = calloc(1, sizeof(*own));
	struct declaration *want = own ? look_up(d, path, 0, own) : NULL;
	char where[128];
	uint64_t *more;

	if (!want)
		return false;
	more = realloc(d->left, (d->lefts + 1) * sizeof(*more));
	if (more) {
		d->left = more;
		d->left[d->lefts++] = id;
	}
	snprintf(text, size, "%s attaches %s again at the next reload or start of ebbd",
		 declaration_where(want, NULL, where, sizeof(where)), want->policy);
	return true;
}

void declared_attached(struct declared *d, uint64_t id)
{
	for (uint32_t i = 0; i < d->lefts; i++)
		if (d->left[i] == id)
			d->left[i--] = d->left[--d->lefts];
}
