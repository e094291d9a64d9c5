// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "adopt.h"
#include "kmoddev.h"
#include "lib/base/cleanup.h"
#include "lib/discovery/donor_list.h"
#include "swaps.h"

static int refuse(const char *name, const char *state, struct error *e)
{
	return fail_exit(e, EXIT_REFUSED, EEXIST,
			 "device %s: exists, but %s; run \"ebbctl device destroy %s\" first",
			 name, state, name);
}

static int check_works(const struct device_record *found, struct error *e)
{
	struct swap_area area;

	/* A server that is briefly unresponsive is alive. */
	if (!found->server_pid && !kmoddev_is(found))
		return refuse(found->name, "its ebb-swapd has exited", e);
	if (!*found->block || swaps_find(found->block, &area))
		return refuse(found->name, "its swap is off", e);
	return 0;
}

static int differs(const char *name, const char *option, const char *has, const char *asked,
		   struct error *e)
{
	return fail_exit(e, EXIT_REFUSED, EEXIST,
			 "device %s: exists with --%s %s, not %s; give that value, or run \"ebbctl device destroy %s\" first",
			 name, option, has, asked, name);
}

static int check_texts(const struct device_record *has, const struct device_record *asked,
		       struct error *e)
{
#define TEXT(option, field) { option, offsetof(struct device_record, field) }
	/* --durability comes first because it may exclude --backup. */
	static const struct { const char *option; size_t offset; } texts[] = {
		TEXT("frontend", frontend), TEXT("durability", durability), TEXT("backup", backup),
		TEXT("scope", scope), TEXT("key", key), TEXT("seal", seal),
		TEXT("connections", connections), TEXT("overcommit", overcommit),
	};
#undef TEXT

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		const char *a = (const char *)has + texts[i].offset;
		const char *b = (const char *)asked + texts[i].offset;

		/* Records of older versions lack the member. */
		if (*a && strcmp(a, b))
			return differs(has->name, texts[i].option, a, b, e);
	}
	return 0;
}

static int check_numbers(const struct device_plan *plan, const struct device_record *has,
			 struct error *e)
{
	const struct { const char *option; uint64_t has, asked; } numbers[] = {
		{ "size", has->size, plan->size },
		{ "slab", has->slab, plan->slab },
		/* Without the option, ebbctl chose the priority. */
		{ "priority", (uint64_t)has->priority,
		  plan->priority ?: (uint64_t)has->priority },
	};

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		char a[24], b[24];

		snprintf(a, sizeof(a), "%llu", (unsigned long long)numbers[i].has);
		snprintf(b, sizeof(b), "%llu", (unsigned long long)numbers[i].asked);
		if (strcmp(a, b))
			return differs(has->name, numbers[i].option, a, b, e);
	}
	return 0;
}

/* Parses the donors of the plan into the form that a record has. */
static int asked_donors(const struct device_plan *plan, struct donor_list *l, struct error *e)
{
	struct device_record d = { .size = 0 };
	int r = 0;

	if (!strcmp(plan->frontend, KMOD_FRONTEND)) {
		r = kmoddev_donors(&plan->donors, &d, e);
		return r ? r : donor_list_parse(l, d.donor, "--donors", e);
	}
	for (int i = 0; !r && i < plan->donors.n; i++)
		r = donor_list_parse(l, plan->donors.v[i], "--donors", e);
	return r;
}

static int check_donors(const struct device_plan *plan, const struct device_record *has,
			struct error *e)
{
	_cleanup_(donor_list_free) struct donor_list asked = { .n = 0 }, used = { .n = 0 };
	bool configured = !strcmp(has->donors_from, DEVICE_DONORS_CONFIGURED);
	char text[sizeof(has->donor)] = "";
	int r;

	if (configured && !plan->donors.n)
		return 0;
	r = asked_donors(plan, &asked, e);
	if (!r)
		r = donor_list_parse(&used, has->donor, has->name, e);
	if (r || (!configured && donor_list_same(&asked, &used)))
		return r;
	for (int i = 0; i < asked.n; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", i ? "," : "",
			 asked.v[i].address);
	return differs(has->name, "donors", configured ? "of ebbd's configuration" : has->donor,
		       *text ? text : "those of ebbd's configuration", e);
}

int device_adopt(const struct device_plan *plan, const struct device_record *found,
		 struct device_record *d, struct error *e)
{
	struct device_record has;
	int r;

	if (device_record_read(found->name, &has, NULL))
		return refuse(found->name, "incomplete", e);
	/* Old records of kernel-module devices have no key. */
	if (kmoddev_is(&has) && !*has.key)
		strcpy(has.key, "none");
	r = check_works(found, e);
	if (!r)
		r = check_numbers(plan, &has, e);
	if (!r)
		r = check_texts(&has, d, e);
	if (!r)
		r = check_donors(plan, &has, e);
	if (!r)
		*d = has;
	return r;
}
