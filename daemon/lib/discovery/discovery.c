// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "discovery.h"
#include "lib/base/clock.h"
#include "lib/base/json.h"
#include "lib/base/lock.h"
#include "lib/base/log.h"
#include "lib/base/paths.h"
#include "lib/control/control.h"
#include "lib/control/device.h"
#include "lib/wire/address.h"
#include "thread.h"

#define TELL_MS 2000
/* Rounds after which devices get the list again. */
#define TELL_AGAIN 5
/* Rounds after which an unreachable device is logged again; a multiple of TELL_AGAIN. */
#define COMPLAIN_AGAIN 300
/* Time for resolving names in a round; the name in progress may exceed it. */
#define LOOK_UP_NS 1000000000ull
#define NAMELESS_LOGGED 8

struct discovery {
	pthread_t thread;

	/* used by the thread only */
	struct donors_config config;
	struct etcd *etcd;     /* or NULL */
	int64_t count, revision; /* as of the last complete read */
	uint32_t rounds;
	bool untold;           /* devices have not heard of the last change */
	bool complained, complained_device;
	bool failed_device;    /* a device failed in this round */
	bool crowded;          /* etcd has more keys than ETCD_PAIRS_MAX */
	bool frozen;           /* donor_list_frozen() at the last complete read */
	bool adopt;            /* the next complete read replaces the list, unless it is empty */
	int bad;               /* invalid entries in etcd */
	int nameless;          /* new donors whose host does not resolve (yet) */
	int look_up;           /* index of the first one in the next round */

	pthread_mutex_t lock;  /* protects the members below; only the thread changes list */
	pthread_cond_t wake;
	struct donor_list list;
	char error[256];
	struct donors_config *next; /* configuration to switch to, or NULL */
	struct etcd *next_etcd;
	bool refresh, ending;
};

void donors_config_defaults(struct donors_config *c)
{
	*c = (struct donors_config){ .grace_ms = DISCOVERY_GRACE_MS };
	etcd_config_defaults(&c->etcd);
}

void donors_config_free(struct donors_config *c)
{
	donor_list_free(&c->list);
}

int donors_config_check(const struct donors_config *c, struct error *e)
{
	if (c->etcd.endpoints && c->list.n)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "[donors]: both a list and etcd given; drop one");
	if (!c->etcd.endpoints && (*c->etcd.ca || *c->etcd.cert || *c->etcd.user))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "[donors]: certificates or a user without etcd; add etcd = https://HOST:2379");
	return c->etcd.endpoints ? etcd_config_check(&c->etcd, e) : 0;
}

/* Sets *@news if etcd has, or may have, changed since it was last read. */
static int look_for_news(struct discovery *d, bool *news, struct error *e)
{
	struct etcd_pairs p = { .n = 0 };
	int r;

	/* Only a change in etcd ends the freeze; a missing donor's time ends without one. */
	*news = !d->revision || d->nameless ||
		(donor_list_missing(&d->list) && !donor_list_frozen(&d->list));
	if (*news)
		return 0;
	r = etcd_changed(d->etcd, d->config.etcd.prefix, d->revision, &p, e);
	if (r)
		return r;
	/*
	 * Also a change to an invalid pair, or it would be reported for ever.  An older revision
	 * means another store.
	 */
	*news = p.found || p.count != d->count || p.revision < d->revision;
	etcd_pairs_free(&p);
	return 0;
}

static bool is_numeric(const char *address)
{
	return *address == '[' || strspn(address, "0123456789.:") == strlen(address);
}

/* Returns whether @address resolves.  Does not resolve names after @until. */
static bool has_address(struct discovery *d, const char *address, uint64_t until, bool quiet)
{
	struct error e = { 0 };
	struct address a;

	/*
	 * A donor that has an address is not resolved again: it must not lose its place
	 * while names cannot be resolved.
	 */
	if (donor_list_find(&d->list, address))
		return true;
	if (now_ns() >= until && !is_numeric(address))
		return false;
	if (!address_parse(address, "etcd", &a, &e))
		return true;
	if (!quiet)
		log_warn("%s; donor skipped until then", e.text);
	return false;
}

/*
 * Removes donors whose name does not resolve: a device takes a list as a whole, so one of them
 * would keep out the others.  Bounds the time of slow names: a round resolves for LOOK_UP_NS, and
 * the next one continues behind it.
 */
static void leave_out_nameless(struct discovery *d, struct donor_list *fresh)
{
	uint64_t until = now_ns() + LOOK_UP_NS;
	int kept = 0, nameless = 0, n = fresh->n, first = n ? d->look_up % n : 0;
	bool late = false;

	for (int i = 0; i < n; i++) {
		struct donor_entry *donor = &fresh->v[(first + i) % n];

		if (!has_address(d, donor->address, until,
				 d->nameless || nameless >= NAMELESS_LOGGED)) {
			donor->address[0] = '\0';
			nameless++;
		}
		if (!late && now_ns() >= until) {
			d->look_up = first + i + 1;
			late = true;
		}
	}
	for (int i = 0; i < n; i++)
		if (*fresh->v[i].address)
			fresh->v[kept++] = fresh->v[i];
	fresh->n = kept;
	d->nameless = nameless;
}

static void take_list(struct discovery *d, struct donor_list *fresh)
{
	/*
	 * Only the first read, even if etcd is empty: a later one may have a part of the donors, as
	 * they register again.
	 */
	bool adopt = d->adopt && fresh->n;
	HOLD(&d->lock);

	d->adopt = false;
	if (adopt) {
		d->untold |= !donor_list_same(&d->list, fresh);
		donor_list_free(&d->list);
		d->list = *fresh;
	} else {
		d->untold |= donor_list_merge(&d->list, fresh, now_ns(),
					      d->config.grace_ms * 1000000ull);
	}
}

static void tell_frozen(struct discovery *d)
{
	bool frozen = donor_list_frozen(&d->list);

	if (frozen && !d->frozen)
		log_event(EVENT_DONORS_FROZEN, LOG_LVL_ERR,
			  "etcd: %d of %d donors are missing; keeping them listed; check etcd, or run \"systemctl reload ebbd\" if they left for good",
			  donor_list_missing(&d->list), d->list.n);
	else if (!frozen && d->frozen)
		log_info("etcd: %d of %d donors are missing; the list follows etcd again",
			 donor_list_missing(&d->list), d->list.n);
	d->frozen = frozen;
}

static int read_all(struct discovery *d, struct error *e)
{
	struct donor_list fresh;
	struct etcd_pairs p = { .n = 0 };
	int bad, r = etcd_range(d->etcd, d->config.etcd.prefix, &p, e);

	if (r)
		return r;
	r = donor_list_from_pairs(&fresh, &p, d->config.etcd.prefix, &bad);
	d->count = p.count;
	d->revision = p.revision;
	bad += p.found - p.n;
	if (p.count > ETCD_PAIRS_MAX && !d->crowded)
		log_warn("etcd: %lld keys below %s, only the first %d are used; use several prefixes",
			 (long long)p.count, d->config.etcd.prefix, ETCD_PAIRS_MAX);
	d->crowded = p.count > ETCD_PAIRS_MAX;
	etcd_pairs_free(&p);
	if (r)
		return fail(e, r, "etcd: out of memory");
	if (bad && bad != d->bad)
		log_warn("etcd: %d keys below %s are not donors, skipped; remove them", bad,
			 d->config.etcd.prefix);
	d->bad = bad;
	leave_out_nameless(d, &fresh);
	take_list(d, &fresh);
	tell_frozen(d);
	return 0;
}

static void ask_etcd(struct discovery *d)
{
	struct error e = { 0 };
	bool news = false;
	int r = look_for_news(d, &news, &e);

	if (!r && news)
		r = read_all(d, &e);
	if (r && r != -ECANCELED && !d->complained)
		log_event(EVENT_ETCD_LOST, LOG_LVL_WARN, "%s; keeping the %d known donors", e.text, d->list.n);
	else if (!r && d->complained)
		log_info("etcd: answers again");
	d->complained = r != 0;
	pthread_mutex_lock(&d->lock);
	snprintf(d->error, sizeof(d->error), "%.255s", r ? e.text : "");
	pthread_mutex_unlock(&d->lock);
}

static int tell_device(const struct device_record *r, void *data)
{
	struct json_object *request, *list, *answer = NULL;
	struct discovery *d = data;
	struct error e = { 0 };
	char borrower[192];

	if (strcmp(r->donors_from, DEVICE_DONORS_CONFIGURED))
		return 0;
	donor_list_borrower(r->name, borrower, sizeof(borrower));
	list = donor_list_choose(&d->list, borrower, r->slab, DEVICE_DONORS);
	request = control_request("donors.set");
	json_object_object_add(request, "donors", list);
	/* Only a configured list says that the others are to be drained. */
	json_add_bool(request, "keep", !d->config.list.n);
	/* Never send an empty list: a device keeps its donors then. */
	if (!list || !json_object_array_length(list)) {
		json_object_put(request);
		fail(&e, ENOENT, "none of %d donors has slabs as large; re-create it with a smaller --slab",
		     d->list.n);
	} else if (!control_call(ebb_device_socket(r->name), request, TELL_MS, &answer, &e)) {
		json_object_put(answer);
	}
	if (e.code && !d->complained_device)
		log_warn("device %s: cannot update its donors: %s", r->name, e.text);
	d->failed_device |= e.code != 0;
	return 0;
}

static void tell_devices(struct discovery *d)
{
	bool again = d->rounds % TELL_AGAIN == 0;

	if (!d->list.n || (!d->untold && !again))
		return;
	if (d->untold)
		log_info("donors: %d known; updating devices", d->list.n);
	d->untold = false;
	d->complained_device &= d->rounds % COMPLAIN_AGAIN != 0;
	d->failed_device = false;
	device_record_each(tell_device, d);
	d->complained_device |= d->failed_device;
}

/* Switches to the configuration that discovery_configure() left. */
static void reconfigure(struct discovery *d)
{
	struct donor_list list = { .n = 0 };

	donors_config_free(&d->config);
	d->config = *d->next;
	free(d->next);
	d->next = NULL;
	etcd_close(&d->etcd);
	d->etcd = d->next_etcd;
	d->next_etcd = NULL;
	d->count = d->revision = 0;
	d->complained = d->frozen = false;
	d->adopt = d->etcd != NULL;
	d->error[0] = '\0';
	if (d->etcd || !d->config.list.n) /* keep known donors until etcd reports */
		return;
	if (!donor_list_copy(&list, &d->config.list)) {
		d->untold = !donor_list_same(&d->list, &list);
		donor_list_free(&d->list);
		d->list = list;
	}
}

static void *run(void *data)
{
	struct discovery *d = data;

	prctl(PR_SET_NAME, "ebb-discovery");
	pthread_mutex_lock(&d->lock);
	while (!d->ending) {
		if (d->next)
			reconfigure(d);
		d->untold |= d->refresh;
		d->refresh = false;
		pthread_mutex_unlock(&d->lock);
		if (d->etcd)
			ask_etcd(d);
		tell_devices(d);
		d->rounds++;
		pthread_mutex_lock(&d->lock);
		if (!d->ending && !d->refresh && !d->next)
			thread_wait(&d->wake, &d->lock, DISCOVERY_PERIOD_MS);
	}
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

int discovery_configure(struct discovery *d, struct donors_config *c, struct error *e)
{
	struct donors_config *next = malloc(sizeof(*next));
	struct etcd *etcd = NULL;
	int r = next ? 0 : fail(e, ENOMEM, "donors: out of memory");

	if (!r && c->etcd.endpoints)
		r = etcd_open(&etcd, &c->etcd, e);
	if (r) {
		free(next);
		return r;
	}
	*next = *c;
	c->list = (struct donor_list){ .n = 0 };
	pthread_mutex_lock(&d->lock);
	if (d->next)
		donors_config_free(d->next);
	free(d->next);
	etcd_close(&d->next_etcd);
	d->next = next;
	d->next_etcd = etcd;
	pthread_cond_signal(&d->wake);
	pthread_mutex_unlock(&d->lock);
	return 0;
}

int discovery_start(struct discovery **out, struct donors_config *c, struct error *e)
{
	struct discovery *d = calloc(1, sizeof(*d));
	int r;

	if (!d)
		return fail(e, ENOMEM, "donors: out of memory");
	pthread_mutex_init(&d->lock, NULL);
	thread_cond_init(&d->wake);
	r = discovery_configure(d, c, e);
	if (!r) {
		/* Here, so that the list is known on return. */
		reconfigure(d);
		r = thread_start(&d->thread, run, d, e);
	}
	if (r) {
		etcd_close(&d->etcd);
		donors_config_free(&d->config);
		donor_list_free(&d->list);
		free(d);
		return r;
	}
	*out = d;
	return 0;
}

void discovery_refresh(struct discovery *d)
{
	HOLD(&d->lock);

	d->refresh = true;
	pthread_cond_signal(&d->wake);
}

static bool is_frozen(const struct discovery *d)
{
	return d->etcd && donor_list_frozen(&d->list);
}

struct json_object *discovery_summary(struct discovery *d)
{
	struct json_object *o = json_object_new_object();
	HOLD(&d->lock);

	json_add_int(o, "known", d->list.n);
	json_add_int(o, "missing", donor_list_missing(&d->list));
	json_add_bool(o, "frozen", is_frozen(d));
	return o;
}

struct json_object *discovery_json(struct discovery *d)
{
	struct json_object *o = json_object_new_object(), *rows = json_object_new_array();

	pthread_mutex_lock(&d->lock);
	json_add_text(o, "source", d->etcd ? "etcd" : d->config.list.n ? "list" : "none");
	json_object_object_add(o, "error", *d->error ? json_object_new_string(d->error) : NULL);
	json_add_bool(o, "frozen", is_frozen(d));
	json_object_object_add(o, "donors", rows);
	for (int i = 0; i < d->list.n; i++) {
		const struct donor_entry *n = &d->list.v[i];
		struct json_object *row = json_object_new_object();

		json_add_text(row, "address", n->address);
		json_add_int(row, "slab", n->slab);
		json_add_int(row, "total", n->total);
		json_add_bool(row, "missing", n->missed != 0);
		json_object_array_add(rows, row);
	}
	pthread_mutex_unlock(&d->lock);
	return o;
}

void discovery_stop(struct discovery **p)
{
	struct discovery *d = *p;

	if (!d)
		return;
	pthread_mutex_lock(&d->lock);
	d->ending = true;
	if (d->etcd)
		etcd_interrupt(d->etcd);
	pthread_cond_signal(&d->wake);
	pthread_mutex_unlock(&d->lock);
	*p = NULL;
	/* A thread that resolves a name cannot be interrupted; it keeps what it uses. */
	if (!thread_end(d->thread, DISCOVERY_STOP_MS)) {
		pthread_detach(d->thread);
		return;
	}
	etcd_close(&d->etcd);
	etcd_close(&d->next_etcd);
	if (d->next)
		donors_config_free(d->next);
	free(d->next);
	donors_config_free(&d->config);
	donor_list_free(&d->list);
	pthread_cond_destroy(&d->wake);
	pthread_mutex_destroy(&d->lock);
	free(d);
}
