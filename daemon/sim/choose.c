// SPDX-License-Identifier: GPL-2.0-or-later
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "choose.h"
#include "policies/native.h"

static int set_param(const struct ebb_policy *policy, struct ebb_params *params, const char *word,
		     struct error *e)
{
	const struct ebb_policy_info *info = policy->info;
	size_t n = strcspn(word, "=");
	char *end;
	uint64_t v;

	for (uint32_t i = 0; i < info->params; i++) {
		const struct ebb_param_info *p = &info->param[i];

		if (strlen(p->name) != n || strncmp(p->name, word, n))
			continue;
		v = strtoull(word + n + !!word[n], &end, 10);
		if (word[n] != '=' || end == word + n + 1 || *end)
			return fail_exit(e, EXIT_USAGE, EINVAL,
					 "--policy: '%.64s': not a whole number; give %s=%" PRIu64, word,
					 p->name, (uint64_t)p->initial);
		if (v < p->min || v > p->max)
			return fail_exit(e, EXIT_USAGE, ERANGE,
					 "--policy: '%.64s' is out of range; give %s from %" PRIu64 " to %" PRIu64,
					 word, p->name, (uint64_t)p->min, (uint64_t)p->max);
		params->v[i] = v;
		return 0;
	}
	return fail_exit(e, EXIT_USAGE, EINVAL,
			 "--policy: policy '%s' has no parameter '%.*s'; see \"ebb-sim policies\"",
			 info->name, (int)n, word);
}

/* Loads a user's policy (policies/policy.mk). */
static int load(const char *file, const struct ebb_policy **policy, struct error *e)
{
	const char *base = strrchr(file, '/') + 1, *suffix = strrchr(base, '.');
	char symbol[128];
	void *handle;

	if (!suffix || strcmp(suffix, ".so"))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--policy: %s: not NAME.so; compile the policy natively", file);
	snprintf(symbol, sizeof(symbol), "%.*s_policy", (int)(suffix - base), base);
	handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		return fail_exit(e, EXIT_USAGE, ENOEXEC,
				 "--policy: %s: cannot load: %.200s; recompile it", file,
				 dlerror());
	*policy = dlsym(handle, symbol);
	if (!*policy)
		return fail_exit(e, EXIT_USAGE, ENOEXEC,
				 "--policy: %s: does not export %s; name the file after its policy",
				 file, symbol);
	if ((*policy)->info->abi != EBB_ABI)
		return fail_exit(e, EXIT_USAGE, ENOEXEC,
				 "--policy: %s: built for ABI %u, needs %u; recompile it",
				 file, (*policy)->info->abi, EBB_ABI);
	return 0;
}

int sim_choose_policy(const char *text, const struct ebb_policy **policy,
		      struct ebb_params *params, struct error *e)
{
	char words[4096], *word, *rest = NULL;
	int ret = 0;

	if (snprintf(words, sizeof(words), "%s", text) >= (int)sizeof(words))
		return fail_exit(e, EXIT_USAGE, EINVAL, "--policy: too long; shorten it");
	word = strtok_r(words, ",", &rest);
	if (word && strchr(word, '/'))
		ret = load(word, policy, e);
	else if (!word || !(*policy = ebb_policy_find(word)))
		ret = fail_exit(e, EXIT_USAGE, ENOENT,
				"--policy: '%.64s': no such policy; see \"ebb-sim policies\", or give ./NAME.so",
				word ? word : "");
	if (ret)
		return ret;
	ebb_policy_defaults(*policy, params);
	while (!ret && (word = strtok_r(NULL, ",", &rest)))
		ret = set_param(*policy, params, word, e);
	return ret;
}
