// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <errno.h>
#include <string.h>

#include "ebbd/attach/policy_replace.h"
#include "ebbd/attach/stats.h"
#include "ebbd/plane/policy_store.h"
#include "lib/base/log.h"
#include "lib/control/control.h"
#include "server_policy.h"

struct json_object *add_array(struct json_object *o, const char *key)
{
	struct json_object *a = json_object_new_array();

	json_object_object_add(o, key, a);
	return a;
}

const char *need_str(struct json_object *request, const char *key, struct error *e)
{
	const char *s = json_text(request, key, NULL);

	if (!s)
		fail_exit(e, EXIT_USAGE, EINVAL, "request: '%s' is missing", key);
	return s;
}

/* The wish in a request; its pointers live as long as the request and @values. */
struct wanted {
	struct attach_wish wish;
	const char *names[DECLARATION_PARAMS];
	uint64_t values[DECLARATION_PARAMS];
};

static int check_place(struct json_object *request, struct error *e)
{
	const char *run = json_text(request, "run", NULL);

	if (run && !strcmp(run, "daemon"))
		log_warn("run=daemon: no longer supported and ignored: the policy runs in the kernel; "
			 "omit it");
	else if (run && strcmp(run, "kernel"))
		return fail_exit(e, EXIT_USAGE, EINVAL, "run: '%.64s' is not kernel", run);
	return 0;
}

static int get_wish(struct json_object *request, struct wanted *w, struct error *e)
{
	struct json_object *params;

	w->wish = (struct attach_wish){ .names = w->names, .values = w->values };
	if (check_place(request, e))
		return -EINVAL;
	if (!json_object_object_get_ex(request, "params", &params))
		return 0;
	if (!json_object_is_type(params, json_type_object))
		return fail_exit(e, EXIT_USAGE, EINVAL, "params: not an object of numbers");
	json_object_object_foreach(params, key, value) {
		int64_t v = json_object_get_int64(value);

		if (w->wish.n == DECLARATION_PARAMS)
			return fail_exit(e, EXIT_USAGE, E2BIG, "params: more than %u", DECLARATION_PARAMS);
		if (!json_object_is_type(value, json_type_int) || v < 0)
			return fail_exit(e, EXIT_USAGE, EINVAL, "%s: not a whole number", key);
		w->names[w->wish.n] = key;
		w->values[w->wish.n++] = (uint64_t)v;
	}
	return 0;
}

static void describe(const struct policy *p, struct json_object *o)
{
	struct json_object *params;

	json_add_text(o, "name", p->name);
	json_add_text(o, "help", p->info.help);
	json_add_text(o, "origin", p->origin == POLICY_BUILTIN ? "ebb" : "loaded");
	json_add_text(o, "file", p->file);
	json_add_bool(o, "kernel", p->object != NULL);
	params = add_array(o, "params");
	for (uint32_t k = 0; k < p->info.params && k < EBB_PARAMS; k++) {
		struct json_object *q = json_object_new_object();

		json_add_text(q, "name", p->info.param[k].name);
		json_add_int(q, "initial", p->info.param[k].initial);
		json_add_int(q, "min", p->info.param[k].min);
		json_add_int(q, "max", p->info.param[k].max);
		json_add_text(q, "help", p->info.param[k].help);
		json_object_array_add(params, q);
	}
}

int policy_list(struct ebbd *d, struct json_object *request, struct json_object *answer,
		struct error *e)
{
	struct json_object *list = add_array(answer, "policies");

	for (uint32_t i = 0; i < d->plane.policies; i++) {
		struct json_object *o;

		if (!*d->plane.policy[i].name)
			continue;
		o = json_object_new_object();
		describe(&d->plane.policy[i], o);
		json_object_array_add(list, o);
	}
	return 0;
}

int policy_load(struct ebbd *d, struct json_object *request, struct json_object *answer,
		struct error *e)
{
	const char *file = need_str(request, "file", e);
	struct policy_change change;
	int r = file ? policy_replace(&d->attachments, file, &change, e) : -EINVAL;

	if (r)
		return r;
	describe(change.policy, answer);
	json_add_text(answer, "done", change.what == POLICY_REPLACED ? "replaced" : "loaded");
	if (*change.dropped)
		json_add_text(answer, "dropped", change.dropped);
	json_add_int(answer, "instructions", change.policy->cost.instructions);
	json_add_int(answer, "call_ns", change.policy->cost.median_ns);
	stats_publish(&d->attachments);
	return 0;
}

/* With a section for a policy that does not exist, ebbd would not start. */
static int check_sections(struct ebbd *d, const char *name, struct error *e)
{
	const struct policy *policy = plane_policy(&d->plane, name, NULL);
	char where[128];

	if (!policy || policy->origin == POLICY_BUILTIN)
		return 0;
	for (uint32_t i = 0; i < d->config.declared.n; i++) {
		const struct declaration *s = &d->config.declared.item[i];

		if (!strcmp(s->policy, name))
			return fail_exit(e, EXIT_REFUSED, EBUSY,
					 "%s: configured for [cgroup \"%.128s\"] at %s; remove that section and reload ebbd first",
					 name, s->glob,
					 declaration_where(s, NULL, where, sizeof(where)));
	}
	return 0;
}

int policy_unload(struct ebbd *d, struct json_object *request, struct json_object *answer,
		  struct error *e)
{
	const char *name = need_str(request, "policy", e);
	int r = name ? check_sections(d, name, e) : -EINVAL;

	return r ? r : policy_remove(&d->attachments, name, e);
}

int policy_attach(struct ebbd *d, struct json_object *request, struct json_object *answer,
		  struct error *e)
{
	const char *cgroup = need_str(request, "cgroup", e), *policy = need_str(request, "policy", e);
	struct cgroup_ref c;
	struct wanted w;
	int r;

	if (!cgroup || !policy)
		return -EINVAL;
	r = get_wish(request, &w, e);
	w.wish.policy = policy;
	if (!r)
		r = attach(&d->attachments, cgroup, &w.wish, e);
	if (r)
		return r;
	if (!cgroup_resolve(cgroup, &c, NULL))
		declared_attached(d->declared, c.id);
	stats_publish(&d->attachments);
	return 0;
}

int policy_set(struct ebbd *d, struct json_object *request, struct json_object *answer,
	       struct error *e)
{
	const char *cgroup = need_str(request, "cgroup", e);
	struct wanted w;
	int r;

	if (!cgroup)
		return -EINVAL;
	r = get_wish(request, &w, e);
	return r ? r : attach_set(&d->attachments, cgroup, &w.wish, e);
}

int policy_detach(struct ebbd *d, struct json_object *request, struct json_object *answer,
		  struct error *e)
{
	const char *cgroup = need_str(request, "cgroup", e);
	struct cgroup_ref c;
	char text[256];
	int r = cgroup ? cgroup_resolve(cgroup, &c, e) : -EINVAL;

	if (!r)
		r = attach_detach(&d->attachments, cgroup, e);
	if (!r && declared_detached(d->declared, c.id, c.path, text, sizeof(text)))
		json_add_text(answer, "declared", text);
	return r;
}

struct json_object *attachment_params(const struct attachment *t)
{
	struct json_object *params = json_object_new_object();

	for (uint32_t k = 0; k < t->policy->info.params && k < EBB_PARAMS; k++)
		json_add_int(params, t->policy->info.param[k].name, t->params.v[k]);
	if (t->slowdown) {
		char text[16];

		snprintf(text, sizeof(text), "%u.%u%%", t->slowdown / 10, t->slowdown % 10);
		json_add_text(params, "slowdown", text);
	}
	if (t->placement != PLACEMENT_DEFAULT)
		json_add_text(params, "placement", placement_name(t->placement));
	if (t->benefit)
		json_add_text(params, "benefit", "on");
	return params;
}

static void add_cost(struct ebbd *d, const struct policy *p, struct json_object *answer)
{
	struct json_object *o = json_object_new_object();

	policies_measure(&d->plane, p);
	json_add_int(o, "verified", p->cost.verified);
	json_add_int(o, "instructions", p->cost.instructions);
	json_add_int(o, "machine_bytes", p->cost.machine_bytes);
	if (p->cost.calls) {
		json_add_int(o, "calls", p->cost.calls);
		json_add_int(o, "median_ns", p->cost.median_ns);
		json_add_int(o, "slowest_ns", p->cost.slowest_ns);
		json_add_int(o, "max_ns", p->cost.max_ns);
	}
	json_object_object_add(answer, "cost", o);
}

/* Programs that the kernel times; policies are included, since tail calls enter them. */
static void add_programs(struct ebbd *d, struct json_object *answer)
{
	static const struct { enum plane_program which; const char *name; } hook[] = {
		{ PLANE_ENTER, "fault_enter" }, { PLANE_MINOR, "fault_minor" },
		{ PLANE_MAJOR, "fault_major" },
	};
	struct json_object *list = add_array(answer, "programs");

	for (size_t i = 0; i < sizeof(hook) / sizeof(hook[0]); i++) {
		struct bpf_prog_info info = { 0 };
		uint32_t size = sizeof(info);
		struct json_object *o;

		if (bpf_obj_get_info_by_fd(bpf_program__fd(plane_program(&d->plane, hook[i].which)),
					   &info, &size))
			continue;
		o = json_object_new_object();
		json_add_text(o, "name", hook[i].name);
		json_add_int(o, "id", info.id);
		json_object_array_add(list, o);
	}
}

static void show_attachment(struct ebbd *d, struct attachment *t, struct json_object *answer)
{
	struct json_object *rows = json_object_new_array();

	stats_json(&d->attachments, t->cgroup.id, rows);
	if (json_object_array_length(rows))
		json_object_object_add(answer, "stats",
				       json_object_get(json_object_array_get_idx(rows, 0)));
	json_object_put(rows);
	json_add_text(answer, "cgroup", t->cgroup.path);
	json_add_text(answer, "run", "kernel");
	json_add_text(answer, "by", t->by == BY_DECLARATION ? t->source : "command");
	json_object_object_add(answer, "values", attachment_params(t));
}

int policy_show(struct ebbd *d, struct json_object *request, struct json_object *answer,
		struct error *e)
{
	const char *what = need_str(request, "what", e);
	struct attachments *a = &d->attachments;
	const struct policy *policy;
	struct attachment *t;
	struct cgroup_ref c;
	struct json_object *list;

	if (!what)
		return -EINVAL;
	policy = plane_policy(&d->plane, what, NULL);
	if (!policy) {
		if (!strchr(what, '/') && cgroup_resolve(what, &c, NULL))
			return fail_exit(e, EXIT_USAGE, ENOENT,
					 "%.128s: neither a policy nor a cgroup; see ebbctl policy list", what);
		if (cgroup_resolve(what, &c, e))
			return -ENOENT;
		/* No lock: only this thread adds and removes attachments. */
		t = attachments_find(a, c.id);
		if (!t)
			return fail(e, ENOENT, "%s: has no policy of its own; see ebbctl status", c.path);
		show_attachment(d, t, answer);
		policy = t->policy;
	}
	describe(policy, answer);
	list = add_array(answer, "cgroups");
	for (uint32_t i = 0; i < a->n; i++)
		if (a->item[i]->policy == policy)
			json_object_array_add(list,
					      json_object_new_string(a->item[i]->cgroup.path));
	add_cost(d, policy, answer);
	add_programs(d, answer);
	return 0;
}
