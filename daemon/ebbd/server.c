// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "devices.h"
#include "ebbd.h"
#include "ebbd/attach/detect.h"
#include "ebbd/attach/stats.h"
#include "ebbd/prefetch/zswap.h"
#include "lib/base/clock.h"
#include "lib/control/control.h"
#include "lib/control/device.h"
#include "server.h"
#include "server_policy.h"
#include "share.h"

static int add_device(const struct device_record *r, void *devices)
{
	struct json_object *o = json_object_new_object();

	json_add_text(o, "name", r->name);
	json_add_text(o, "block", r->block);
	json_add_int(o, "size", r->size);
	json_object_array_add(devices, o);
	return 0;
}

struct pace_list {
	struct json_object *array;
	const struct executor *executor;
};

static int add_pace(const struct device_record *r, void *data)
{
	struct pace_list *list = data;
	struct device_view v = executor_pace(list->executor, r->major << 20 | r->minor);
	struct json_object *o = json_object_new_object();

	json_add_text(o, "device", r->name);
	json_object_object_add(o, "limit", v.limit == UINT32_MAX ? NULL :
			       json_object_new_int64(v.limit));
	json_add_int(o, "miss_ns", (int64_t)v.miss_ns);
	json_add_int(o, "idle_miss_ns", (int64_t)v.idle_miss_ns);
	json_object_array_add(list->array, o);
	return 0;
}

static int status(struct ebbd *d, struct json_object *request, struct json_object *answer,
		  struct error *e)
{
	struct json_object *list, *o;
	struct attachments *a = &d->attachments;
	struct executor_stats x;
	struct ebb_counters c;

	json_add_text(answer, "version", EBB_VERSION);
	json_add_int(answer, "abi", EBB_ABI);
	json_add_int(answer, "pid", getpid());
	json_add_text(answer, "hooks", plane_hooks(&d->plane));
	o = json_object_new_object();
	json_add_text(o, "state", plane_self_test(&d->plane));
	json_add_text(o, "found", d->plane.misread);
	json_object_object_add(answer, "self_test", o);
	json_add_int(answer, "uptime_s", (now_ns() - d->started_ns) / 1000000000);
	list = add_array(answer, "attachments");
	pthread_mutex_lock(&a->lock);
	for (uint32_t i = 0; i < a->n; i++) {
		const struct attachment *t = a->item[i];

		o = json_object_new_object();
		json_add_text(o, "cgroup", t->cgroup.path);
		json_add_text(o, "policy", t->policy->name);
		json_object_object_add(o, "params", attachment_params(t));
		json_add_text(o, "run", "kernel");
		json_add_text(o, "by", t->by == BY_DECLARATION ? t->source : "command");
		json_object_object_add(o, "detect",
				       json_object_new_boolean(attachment_detecting(t)));
		json_add_bool(o, "scoped", *t->cgroup.twin != 0);
		plane_counters(&d->plane, t->cgroup.id, &c);
		json_add_int(o, "outstanding", budget_outstanding(t->budget, &c));
		json_object_object_add(o, "placement", placement_json(t));
		json_object_object_add(o, "benefit", benefit_json(t));
		json_object_object_add(o, "sources", sources_json(a, t));
		collapse_json(t, o);
		if (t->slowdown)
			json_object_object_add(o, "offload", offload_json(t));
		json_object_array_add(list, o);
	}
	pthread_mutex_unlock(&a->lock);
	o = json_object_new_object();
	json_add_int(o, "attachments_refused", (int64_t)a->refused);
	json_add_int(o, "changes_deferred", (int64_t)declared_deferred(d->declared));
	json_object_object_add(answer, "users", o);
	list = add_array(answer, "inactive");
	for (uint32_t i = 0; i < d->config.declared.n; i++) {
		struct declaration *s = &d->config.declared.item[i];
		char where[128];

		if (!*s->inactive)
			continue;
		o = json_object_new_object();
		json_add_text(o, "cgroup", s->glob);
		json_add_text(o, "policy", s->policy);
		json_add_text(o, "by", declaration_where(s, NULL, where, sizeof(where)));
		json_add_text(o, "reason", s->inactive);
		json_object_array_add(list, o);
	}
	device_record_each(add_device, add_array(answer, "devices"));
	device_record_each(add_pace, &(struct pace_list){ add_array(answer, "pacing"),
							  d->executor });
	executor_read_stats(d->executor, &x);
	o = json_object_new_object();
	json_add_numbers(o, (struct json_number[]){
		{ "requests", x.requests }, { "stale", x.stale }, { "unknown", x.unknown },
		{ "full", x.full }, { "throttled", x.throttled }, { "calls", x.calls },
		{ "pages", x.pages }, { "shared", x.shared },
		{ "not_memory", x.not_memory }, { "not_swapped", x.not_swapped },
		{ "held_back", x.held_back }, { "zswapped", x.zswapped },
		{ "repeated", x.repeated },
		{ "failed", x.failed }, { "cold_pages", x.cold_pages },
		{ "paged_out", x.paged_out }, { "collapsed", x.collapsed },
		{ "collapse_ns", x.collapse_ns }, { "call_ns", x.call_ns }, { "waits", x.waits },
		{ "paced", x.paced },
		{ NULL }
	});
	json_object_object_add(answer, "executor", o);
	json_add_text(answer, "zswap", zswap_state_name(x.zswap));
	json_object_object_add(answer, "donors", discovery_summary(d->discovery));
	return policy_list(d, request, answer, e);
}

static int stats(struct ebbd *d, struct json_object *request, struct json_object *answer,
		 struct error *e)
{
	const char *cgroup = json_text(request, "cgroup", NULL);
	struct json_object *rows = add_array(answer, "cgroups");
	struct cgroup_ref c = { .id = 0 };

	if (cgroup && cgroup_resolve(cgroup, &c, e))
		return -ENOENT;
	stats_json(&d->attachments, c.id, rows);
	if (cgroup && json_object_array_length(rows) == 0)
		return fail(e, ENOENT, "%s: has no policy of its own; see ebbctl status", c.path);
	return 0;
}

static int record_start(struct ebbd *d, struct json_object *request, struct json_object *answer,
			struct error *e)
{
	const char *cgroup = need_str(request, "cgroup", e), *file = need_str(request, "file", e);

	int64_t watch_ns = json_int(request, "watch_ns", 0);

	return cgroup && file ?
		       recording_start(d->recordings, cgroup, file, (uint64_t)watch_ns, e) :
		       -EINVAL;
}

static int record_stop(struct ebbd *d, struct json_object *request, struct json_object *answer,
		       struct error *e)
{
	const char *cgroup = need_str(request, "cgroup", e);

	struct recording_end end;
	int r = cgroup ? recording_stop(d->recordings, cgroup, &end, e) : -EINVAL;

	if (!r) {
		json_add_int(answer, "records", end.records);
		json_add_int(answer, "lost", end.lost);
	}
	return r;
}

static int record_check(struct ebbd *d, struct json_object *request, struct json_object *answer,
			struct error *e)
{
	const char *cgroup = need_str(request, "cgroup", e);

	if (!cgroup)
		return -EINVAL;
	recording_check(d->recordings, cgroup, e);
	return CONTROL_UNCHANGED;
}

static int device_refresh(struct ebbd *d, struct json_object *request, struct json_object *answer,
			  struct error *e)
{
	devices_refresh(d);
	return 0;
}

static int donors(struct ebbd *d, struct json_object *request, struct json_object *answer,
		  struct error *e)
{
	struct json_object *known = discovery_json(d->discovery);

	json_object_object_foreach(known, key, value)
		json_object_object_add(answer, key, json_object_get(value));
	json_object_put(known);
	return 0;
}

static const char *const read_verbs[] = {
	"status", "stats", "policy.list", "policy.show", "donors", NULL,
};

/* Excludes policy.load and policy.unload: policies are code that runs as root. */
static const char *const admin_verbs[] = {
	"policy.attach", "policy.set", "policy.detach", NULL,
};

void server_rules(struct control_rules *rules)
{
	*rules = (struct control_rules){ .read = read_verbs, .admin = admin_verbs };
	peer_groups_find(&rules->groups);
}

int server_handle(void *data, const char *verb, struct json_object *request,
		  struct json_object *answer, struct error *e)
{
	static const struct {
		const char *verb;
		int (*run)(struct ebbd *d, struct json_object *request, struct json_object *answer,
			   struct error *e);
	} verbs[] = {
		{ "status", status },
		{ "stats", stats },
		{ "policy.list", policy_list },
		{ "policy.attach", policy_attach },
		{ "policy.set", policy_set },
		{ "policy.detach", policy_detach },
		{ "policy.load", policy_load },
		{ "policy.unload", policy_unload },
		{ "policy.show", policy_show },
		{ "record.start", record_start },
		{ "record.stop", record_stop },
		{ "record.check", record_check },
		{ "device.refresh", device_refresh },
		{ "donors", donors },
		{ "epoch.share", epoch_share },
	};

	for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
		if (!strcmp(verb, verbs[i].verb))
			return verbs[i].run(data, request, answer, e);
	return fail_exit(e, EXIT_USAGE, ENOSYS, "request: no such verb '%s'", verb);
}
