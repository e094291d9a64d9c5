// SPDX-License-Identifier: GPL-2.0-only
#include <linux/bitmap.h>
#include <linux/blk-cgroup.h>
#include <linux/cgroup.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "class.h"
#include "seal.h"

struct ebb_rule {
	u64 cgroup;
	u32 class;
};

/* Immutable: RCU readers see one version or the next. */
struct ebb_rules {
	struct rcu_head rcu;
	u32 count;
	struct ebb_rule rule[];
};

static const struct ebb_rule *find(const struct ebb_rules *rules, u64 cgroup)
{
	for (u32 i = 0; rules && i < rules->count; i++)
		if (rules->rule[i].cgroup == cgroup)
			return &rules->rule[i];
	return NULL;
}

u32 ebb_class_of_request(const struct ebb_device *d, const struct request *rq)
{
	const struct ebb_rule *rule = NULL;
	u32 class = 0;

	if (likely(!rcu_access_pointer(d->rules)))
		return 0;
#ifdef CONFIG_BLK_CGROUP
	rcu_read_lock();
	/* The cgroup's own rule, or that of its nearest ancestor with one. */
	for (const struct cgroup_subsys_state *css = bio_blkcg_css(rq->bio); css && !rule;
	     css = css->parent)
		rule = find(rcu_dereference(d->rules), cgroup_id(css->cgroup));
	if (rule)
		class = rule->class;
	rcu_read_unlock();
#endif
	return class;
}

static size_t map_words(const struct ebb_device *d)
{
	return BITS_TO_LONGS(d->pages);
}

u32 ebb_class_of_pages(const struct ebb_device *d, u64 page, u32 *run)
{
	const unsigned long *map = READ_ONCE(d->class_bits);
	u64 end = page + *run;
	u32 class = 0;

	for (u32 i = 0; map && i < EBB_CLASS_BITS; i++, map += map_words(d)) {
		if (test_bit(page, map)) {
			class |= BIT(i);
			end = find_next_zero_bit(map, end, page);
		} else {
			end = find_next_bit(map, end, page);
		}
	}
	*run = end - page;
	return class;
}

void ebb_class_set(struct ebb_device *d, u64 page, u32 count, u32 class)
{
	unsigned long *map = READ_ONCE(d->class_bits);

	for (u32 i = 0; map && i < EBB_CLASS_BITS; i++, map += map_words(d)) {
		if (class & BIT(i))
			bitmap_set(map, page, count);
		else
			bitmap_clear(map, page, count);
	}
}

unsigned long ebb_class_word(const struct ebb_device *d, size_t word, u32 class)
{
	const unsigned long *map = READ_ONCE(d->class_bits);
	unsigned long is = ~0ul;

	for (u32 i = 0; map && i < EBB_CLASS_BITS; i++, map += map_words(d))
		is &= class & BIT(i) ? map[word] : ~map[word];
	return is;
}

int ebb_class_create(struct ebb_device *d, u32 class, u32 copies, enum ebb_class_kind kind,
	       const char **why)
{
	struct ebb_hold *holds = d->holds[class];
	unsigned long *bits = d->class_bits;
	bool sealed = d->sealed & BIT(class);

	*why = "seal: an existing class cannot change it";
	if (holds && sealed != (kind == CLASS_SEALED))
		return -EEXIST;
	if (kind == CLASS_SEALED) {
		int r = ebb_seal_init(d, why);

		if (r)
			return r;
	}
	*why = "class: out of memory";
	if (!bits) {
		bits = kvcalloc(EBB_CLASS_BITS * map_words(d), sizeof(long), GFP_KERNEL);
		if (!bits)
			return -ENOMEM;
		/* Published zeroed: readers see all pages in class 0. */
		smp_store_release(&d->class_bits, bits);
	}
	if (!holds)
		holds = kvcalloc(d->slab_count, sizeof(*holds), GFP_KERNEL);
	if (!holds)
		return -ENOMEM;
	if (kind == CLASS_SEALED)
		WRITE_ONCE(d->sealed, d->sealed | BIT(class));
	/* Written only under device->control. */
	for (u32 i = 0; i < d->slab_count; i++)
		WRITE_ONCE(holds[i].copies, copies);
	smp_store_release(&d->holds[class], holds);
	d->class_copies[class] = copies;
	return 0;
}

/* Returns a copy of @rules without that for @cgroup, with space for one more; NULL = no memory. */
static struct ebb_rules *copy_without(const struct ebb_rules *rules, u64 cgroup)
{
	u32 count = rules ? rules->count : 0;
	struct ebb_rules *new = kzalloc(struct_size(new, rule, count + 1), GFP_KERNEL);

	for (u32 i = 0; new &&i < count; i++)
		if (rules->rule[i].cgroup != cgroup)
			new->rule[new->count++] = rules->rule[i];
	return new;
}

static struct ebb_rules *rules_of(const struct ebb_device *d)
{
	/* device->control is held by the command. */
	return rcu_dereference_protected(d->rules, true);
}

int ebb_class_assign(struct ebb_device *d, u64 cgroup, u32 class)
{
	struct ebb_rules *old = rules_of(d), *new;

	if (!find(old, cgroup) && class == EBB_NO_CLASS)
		return -ENOENT;
	if (!find(old, cgroup) && old && old->count == EBB_SWAP_CGROUPS)
		return -ENOSPC;
	new = copy_without(old, cgroup);
	if (!new)
		return -ENOMEM;
	if (class != EBB_NO_CLASS)
		new->rule[new->count++] = (struct ebb_rule){ .cgroup = cgroup, .class = class };
	if (!new->count) {
		kfree(new);
		new = NULL;
	}
	rcu_assign_pointer(d->rules, new);
	if (old)
		kfree_rcu(old, rcu);
	return 0;
}

bool ebb_class_assigned(const struct ebb_device *d, u32 i, u64 *cgroup, u32 *class)
{
	const struct ebb_rules *rules;
	bool found;

	rcu_read_lock();
	rules = rcu_dereference(d->rules);
	found = rules && i < rules->count;
	if (found) {
		*cgroup = rules->rule[i].cgroup;
		*class = rules->rule[i].class;
	}
	rcu_read_unlock();
	return found;
}

void ebb_class_free(struct ebb_device *d)
{
	kfree(rules_of(d));
	kvfree(d->class_bits);
	for (u32 class = 1; class < EBB_SWAP_CLASSES; class++)
		kvfree(d->holds[class]);
}
