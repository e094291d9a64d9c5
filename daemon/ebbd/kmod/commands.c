// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/control/control.h"
#include "report.h"

/* ns of migrations before the answer. */
#define BUDGET 500000000ull

struct asked {
	struct kmod_link *link;
	struct kmod_view *view;
	const char *name;
	struct json_object *request, *answer;
};

static struct kmod_session *live_session(struct kmod_view *v, int donor)
{
	for (uint32_t i = 0; i < v->now.sessions; i++)
		if (v->now.session[i].state == EBB_SWAP_LIVE &&
		    kmod_donor_is(&v->donor[donor], &v->now.session[i]))
			return &v->now.session[i];
	return NULL;
}

/* Finds the donor that the request names as @key. */
static int named_donor(const struct asked *a, const char *key, int *donor, struct error *e)
{
	const char *text = json_text(a->request, key, "");
	struct kmod_donor wanted;
	int r = kmod_donor_parse(text, "donor", &wanted, e);

	if (r)
		return r;
	for (*donor = 0; *donor < a->view->donors; (*donor)++)
		if (!strcmp(a->view->donor[*donor].text, wanted.text))
			break;
	return *donor < a->view->donors ? 0 :
	       fail_exit(e, EXIT_USAGE, ENOENT, "donor %s: not a donor of device %s; see ebbctl device list",
			 text, a->name);
}

/* Finds the donor that the request names as @key, and its live session. */
static int named(const struct asked *a, const char *key, int *donor, struct kmod_session **session,
		 struct error *e)
{
	int r = named_donor(a, key, donor, e);

	if (r)
		return r;
	*session = live_session(a->view, *donor);
	return *session ? 0 : fail(e, ENOTCONN, "donor %s: not connected; see ebbctl donor list",
				   a->view->donor[*donor].text);
}

static int status(const struct asked *a, struct error *e)
{
	int r = kmod_look(a->link, a->view, e);

	if (!r)
		kmod_report_status(a->view, a->name, a->answer);
	return r;
}

static int stats(const struct asked *a, struct error *e)
{
	int r = kmod_look(a->link, a->view, e);

	if (!r)
		kmod_report_stats(a->view, a->answer);
	return r;
}

static int slab_list(const struct asked *a, struct error *e)
{
	_cleanup_free_ struct ebb_swap_slab *before = TAKE_PTR(a->view->slabs);
	int64_t from = json_int(a->request, "from", 0);
	uint32_t count = a->view->slab_count;
	uint64_t looked = a->view->looked;
	int r = kmod_look(a->link, a->view, e);

	if (!r)
		kmod_report_slabs(a->view, a->name, count == a->view->slab_count ? before : NULL,
				  (double)(a->view->looked - looked) / KMOD_SECOND,
				  from > 0 && from < UINT32_MAX ? (uint32_t)from : 0, a->answer);
	return r;
}

static int migrate(const struct asked *a, struct error *e)
{
	int64_t slab = json_int(a->request, "slab", -1);
	const struct ebb_swap_slab *its;
	struct kmod_session *to = NULL;
	struct kmod_plan plan;
	uint32_t session;
	int donor, r = kmod_look(a->link, a->view, e);

	if (r)
		return r;
	if (slab < 0 || slab >= a->view->slab_count)
		return fail_exit(e, EXIT_USAGE, EINVAL, "slab %lld: device %s has 0 to %u",
				 (long long)slab, a->name, a->view->slab_count - 1);
	its = &a->view->slabs[slab];
	if (json_text(a->request, "to", NULL)) {
		r = named(a, "to", &donor, &to, e);
		if (r)
			return r;
		session = to->number;
	} else {
		plan = kmod_view_plan(a->view);
		session = kmod_plan_choose(&plan, its, its->session);
		if (session == KMOD_NO_SESSION)
			return fail_exit(e, EXIT_REFUSED, ENOSPC,
					 "slab %lld: no other donor of device %s has free capacity", (long long)slab,
					 a->name);
	}
	/* As ebb-swapd: of two replicas the first leaves. */
	return kmod_migrate(a->link, a->view->device, a->view->class, (uint32_t)slab, its->session,
			    session, e);
}

/* Returns a session other than @but that takes slabs, or KMOD_NO_SESSION. */
static uint32_t another(const struct kmod_view *v, uint32_t but)
{
	for (uint32_t i = 0; i < v->now.sessions; i++)
		if (v->now.session[i].number != but && v->now.session[i].state == EBB_SWAP_LIVE &&
		    !kmod_session_leaving(&v->now.session[i]))
			return v->now.session[i].number;
	return KMOD_NO_SESSION;
}

static int drain(const struct asked *a, struct error *e)
{
	struct kmod_session *session = NULL;
	struct kmod_round round = { 0 };
	uint32_t target;
	int donor, r = kmod_look(a->link, a->view, e);

	if (!r)
		r = named(a, "donor", &donor, &session, e);
	if (r)
		return r;
	kmod_report_drain_estimate(a->view, donor, a->answer);
	target = another(a->view, session->number);
	if (target == KMOD_NO_SESSION && !*a->view->now.backup)
		return fail_exit(e, EXIT_REFUSED, ENOSPC,
				 "donor %s: device %s has no other donor and no backup to migrate to; start another ebb-donord",
				 a->view->donor[donor].text, a->name);
	/*
	 * Places before DRAIN: version 1 of the module moves all remaining slabs to one donor.
	 * Later rounds migrate slabs that cannot move yet.
	 */
	session->draining = true;
	kmod_place(a->link, a->view, BUDGET, &round);
	return kmod_drain(a->link, a->view->device, session->number, target, e);
}

/* A drained session stays excluded: reconnect. */
static int undrain(const struct asked *a, struct error *e)
{
	struct kmod_session *session = NULL;
	int donor, r = kmod_look(a->link, a->view, e);

	if (!r)
		r = named(a, "donor", &donor, &session, e);
	if (r || !session->draining)
		return r;
	for (uint32_t i = 0; i < a->view->slab_count; i++)
		if (kmod_slab_is_at(&a->view->slabs[i], session->number))
			return fail_exit(e, EXIT_REFUSED, EBUSY,
					 "donor %s: still has slabs of device %s; wait until ebbctl donor list shows none",
					 a->view->donor[donor].text, a->name);
	a->view->patience[donor].connect_at = 0;
	return kmod_disconnect(a->link, a->view->device, session->number, e);
}

/* Ends the quarantine for all classes; connects the donor again if its session has ended. */
static int trust(const struct asked *a, struct error *e)
{
	int donor, r = kmod_look(a->link, a->view, e);
	bool found = false;

	if (!r)
		r = named_donor(a, "donor", &donor, e);
	for (uint32_t i = 0; !r && i < a->view->all; i++) {
		const struct kmod_session *s = &a->view->now.session[i];

		if (!s->bad_pages || !kmod_donor_is(&a->view->donor[donor], s))
			continue;
		found = true;
		r = kmod_trust(a->link, a->view->device, s->number, e);
	}
	if (r)
		return r;
	if (!found)
		return fail_exit(e, EXIT_REFUSED, EINVAL, "donor %s: not quarantined; nothing to do",
				 a->view->donor[donor].text);
	a->view->patience[donor].connect_at = 0;
	return 0;
}

int kmod_command(struct kmod_link *l, struct kmod_view *v, const char *name, const char *verb,
	       struct json_object *request, struct json_object *answer, struct error *e)
{
	static const struct {
		const char *verb;
		int (*run)(const struct asked *a, struct error *e);
	} verbs[] = {
		{ "status", status },
		{ "stats", stats },
		{ "slab.list", slab_list },
		{ "slab.migrate", migrate },
		{ "donor.drain", drain },
		{ "donor.undrain", undrain },
		{ "donor.trust", trust },
	};
	const struct asked a = { l, v, name, request, answer };

	for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
		if (!strcmp(verb, verbs[i].verb))
			return verbs[i].run(&a, e);
	return fail_exit(e, EXIT_USAGE, EOPNOTSUPP,
			 "%s: device %s is served by the kernel module, which supports only status, stats, slab.list, slab.migrate, donor.drain, donor.undrain and donor.trust",
			 verb, name);
}
