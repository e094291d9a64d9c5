// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <stdio.h>
#include <string.h>

#include "ebbd/plane/policy_object.h"
#include "lib/base/log.h"
#include "policy_replace.h"

static uint32_t name_users(void *data, const struct policy *policy, char *text, size_t size)
{
	const struct attachments *a = data;
	uint32_t found = 0;
	size_t len = 0;

	*text = '\0';
	for (uint32_t i = 0; i < a->n; i++) {
		const struct attachment *t = a->item[i];

		if (t->policy != policy)
			continue;
		if (len < size)
			len += snprintf(text + len, size - len, "%s%s", found ? ", " : "", t->cgroup.path);
		found++;
	}
	return found;
}

/* Lists parameters of @info that @to lacks or whose value in @params it rejects. */
static void name_dropped(const struct ebb_policy_info *info, const struct ebb_params *params,
			 const struct ebb_policy_info *to, char *text, size_t size)
{
	size_t len = 0;

	*text = '\0';
	for (uint32_t i = 0; i < info->params && len < size; i++) {
		const struct ebb_param_info *p = policy_param(to, info->param[i].name);

		if (!p || params->v[i] < p->min || params->v[i] > p->max)
			len += snprintf(text + len, size - len, "%s%s", len ? ", " : "",
					info->param[i].name);
	}
}

static void translate(void *data, const struct policy *policy, const struct ebb_policy_info *to,
		      char *dropped, size_t size)
{
	struct attachments *a = data;

	*dropped = '\0';
	for (uint32_t i = 0; i < a->n; i++) {
		struct attachment *t = a->item[i];
		struct ebb_params params = { { 0 } };

		if (t->policy != policy)
			continue;
		if (!*dropped)
			name_dropped(&policy->info, &t->params, to, dropped, size);
		for (uint32_t k = 0; k < to->params; k++) {
			const struct ebb_param_info *p = &to->param[k];
			const struct ebb_param_info *old = policy_param(&policy->info, p->name);
			uint64_t v = old ? t->params.v[old - policy->info.param] : p->initial;

			params.v[k] = v >= p->min && v <= p->max ? v : p->initial;
		}
		t->params = params;
		if (bpf_map_update_elem(a->plane->params, &t->cgroup.id, &params, BPF_EXIST))
			log_err("%s: parameters: %m", t->cgroup.path);
	}
}

static void lock(void *data)
{
	pthread_mutex_lock(&((struct attachments *)data)->lock);
}

static void unlock(void *data)
{
	pthread_mutex_unlock(&((struct attachments *)data)->lock);
}

static struct policy_users users_of(struct attachments *a)
{
	return (struct policy_users){ a, lock, unlock, name_users, translate };
}

int policy_replace(struct attachments *a, const char *file, struct policy_change *change,
		   struct error *e)
{
	struct policy_users users = users_of(a);

	return policies_load(a->plane, &users, file, change, e);
}

int policy_remove(struct attachments *a, const char *name, struct error *e)
{
	struct policy_users users = users_of(a);

	return policies_unload(a->plane, &users, name, e);
}
