// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "lib/base/lock.h"
#include "lib/base/log.h"
#include "registration.h"

struct registration {
	struct etcd *etcd;
	char key[ETCD_KEY_MAX], value[ETCD_VALUE_MAX];
	pthread_t thread;

	/* used by the thread only */
	int64_t lease; /* 0 = none */
	bool complained;

	pthread_mutex_t lock; /* protects the members below */
	pthread_cond_t wake;
	bool wanted, ending;
	enum registration_state state;
	char cause[256];
};

static void set_state(struct registration *r, enum registration_state s, const struct error *e)
{
	HOLD(&r->lock);

	r->state = s;
	snprintf(r->cause, sizeof(r->cause), "%.255s", e ? e->text : "");
}

/*
 * Renews the lease, or takes a lease; puts the key if it is absent: something may delete or
 * overwrite it while the lease lives.  Reads the key first: etcd writes a transaction that might
 * put it, to the disks of all members, and a thousand donors refresh every REGISTRATION_PERIOD_S.
 */
static int refresh(struct registration *r, struct error *e)
{
	bool is_new;
	int s;

	s = r->lease ? etcd_keep_alive(r->etcd, r->lease, e) : 0;
	if (s == -ESTALE) {
		log_info("etcd: lease expired; registering again");
		*e = (struct error){ 0 };
		r->lease = s = 0;
	}
	if (!s)
		s = etcd_find(r->etcd, r->key, r->lease, e);
	if (s != -ENOENT)
		return s;
	is_new = !r->lease;
	s = is_new ? etcd_grant(r->etcd, REGISTRATION_TTL_S, &r->lease, e) : 0;
	if (s)
		return s;
	s = etcd_claim(r->etcd, r->key, r->value, r->lease, e);
	/* The key may exist or not: the next attempt begins with a new lease. */
	if (s && is_new) {
		etcd_revoke(r->etcd, r->lease, NULL);
		r->lease = 0;
	}
	return s;
}

static void tell(struct registration *r, int s, const struct error *e)
{
	if (s && !r->complained)
		log_warn("%s; lending continues", e->text);
	else if (!s && (r->complained || r->state != REGISTRATION_THERE))
		log_info("etcd: registered as %s", r->key);
	r->complained = s != 0;
	set_state(r, s ? REGISTRATION_TRYING : REGISTRATION_THERE, s ? e : NULL);
}

static void leave(struct registration *r)
{
	struct error e = { 0 };

	if (r->lease && etcd_revoke(r->etcd, r->lease, &e))
		log_warn("%s; the registration expires in %d s", e.text, REGISTRATION_TTL_S);
	else if (r->lease)
		log_info("etcd: no longer registered");
	r->lease = 0;
	set_state(r, REGISTRATION_WITHDRAWN, NULL);
}

static void *run(void *data)
{
	struct registration *r = data;
	bool ending = false;

	prctl(PR_SET_NAME, "ebb-etcd");
	while (!ending) {
		struct error e = { 0 };
		bool wanted;

		pthread_mutex_lock(&r->lock);
		wanted = r->wanted && !r->ending;
		pthread_mutex_unlock(&r->lock);
		if (wanted)
			tell(r, refresh(r, &e), &e);
		else
			leave(r);
		pthread_mutex_lock(&r->lock);
		/* A withdrawn registration has been revoked in this round. */
		ending = r->ending && !wanted;
		if (!ending && wanted == (r->wanted && !r->ending))
			thread_wait(&r->wake, &r->lock, REGISTRATION_PERIOD_S * 1000);
		pthread_mutex_unlock(&r->lock);
	}
	return NULL;
}

int registration_start(struct registration **out, const struct etcd_config *config,
		       const struct donor_entry *d, struct error *e)
{
	struct registration *r;
	int s = etcd_config_check(config, e);

	if (s)
		return s;
	r = calloc(1, sizeof(*r));
	if (!r)
		return fail(e, ENOMEM, "etcd: out of memory");
	pthread_mutex_init(&r->lock, NULL);
	thread_cond_init(&r->wake);
	r->state = REGISTRATION_WITHDRAWN;
	/* Both fit: the prefix and the address are bounded. */
	snprintf(r->key, sizeof(r->key), "%s%s", config->prefix, d->address);
	if (!donor_entry_value(d, r->value, sizeof(r->value)))
		s = fail(e, E2BIG, "etcd: %s: too long to register", d->address);
	if (!s)
		s = etcd_open(&r->etcd, config, e);
	if (!s)
		s = thread_start(&r->thread, run, r, e);
	if (s) {
		etcd_close(&r->etcd);
		free(r);
		return s;
	}
	*out = r;
	return 0;
}

static void want(struct registration *r, bool wanted)
{
	HOLD(&r->lock);

	r->wanted = wanted;
	pthread_cond_signal(&r->wake);
}

void registration_withdraw(struct registration *r)
{
	want(r, false);
}

void registration_return(struct registration *r)
{
	want(r, true);
}

enum registration_state registration_state(struct registration *r, char *cause, size_t size)
{
	HOLD(&r->lock);

	snprintf(cause, size, "%s", r->cause);
	return r->state;
}

const char *registration_state_text(enum registration_state s)
{
	static const char *const text[] = {
		[REGISTRATION_TRYING] = "trying",
		[REGISTRATION_THERE] = "registered",
		[REGISTRATION_WITHDRAWN] = "withdrawn",
	};

	return text[s];
}

void registration_stop(struct registration **p)
{
	struct registration *r = *p;

	if (!r)
		return;
	pthread_mutex_lock(&r->lock);
	r->ending = true;
	pthread_cond_signal(&r->wake);
	pthread_mutex_unlock(&r->lock);
	*p = NULL;
	/* First without an interrupt, which would also fail the call that revokes the lease. */
	if (!thread_end(r->thread, REGISTRATION_STOP_MS)) {
		etcd_interrupt(r->etcd);
		if (!thread_end(r->thread, THREAD_END_MS)) {
			log_warn("etcd: a name is still being resolved; the registration expires in %d s",
				 REGISTRATION_TTL_S);
			pthread_detach(r->thread);
			return;
		}
	}
	etcd_close(&r->etcd);
	pthread_cond_destroy(&r->wake);
	pthread_mutex_destroy(&r->lock);
	free(r);
}
