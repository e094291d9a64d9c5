// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <ebb/page.h>
#include "bpf/zswap.skel.h"
#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "lib/base/log.h"
#include "zswap.h"

#define BITS_MIN (1ULL << 20) /* 4 GiB of swap, 128 KiB */
#define BITS_MAX (1ULL << 27) /* 512 GiB of swap, 16 MiB */

struct zswap {
	struct plane *plane;
	struct zswap_bpf *bpf; /* NULL = not attached */
	struct zswap_slots slots;
	enum zswap_state state;
};

static bool enabled(void)
{
	char text[8];

	return file_read("/sys/module/zswap/parameters/enabled", text, sizeof(text)) > 0 &&
	       *text == 'Y';
}

/* Returns whether zswap, which may be disabled, still holds pages. */
static bool holds_pages(void)
{
	char text[4096], *at;

	if (file_read("/proc/meminfo", text, sizeof(text)) <= 0)
		return false;
	at = strstr(text, "Zswapped:");
	return at && strtoull(at + strlen("Zswapped:"), NULL, 10);
}

/* Returns the number of slots of all swap; 0 = none is on. */
static uint64_t swap_slots(void)
{
	_cleanup_file_ FILE *f = fopen("/proc/swaps", "re");
	unsigned long long kib;
	uint64_t slots = 0;
	char line[512];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "%*s %*s %llu", &kib) == 1)
			slots += kib >> (EBB_PAGE_SHIFT - 10);
	return slots;
}

/* Twice the slots: areas, whose bits overlap, seldom meet. */
static uint64_t bits_for(uint64_t slots)
{
	uint64_t bits = BITS_MIN;

	while (bits < 2 * slots && bits < BITS_MAX)
		bits *= 2;
	return bits;
}

static void detach(struct zswap *z)
{
	if (z->slots.held)
		munmap((void *)z->slots.held, (z->slots.mask + 1) / 8);
	z->slots = (struct zswap_slots){ 0 };
	zswap_bpf__destroy(z->bpf);
	z->bpf = NULL;
}

/* Attaches the programs, of those that count hits only @hits (NULL: none). */
static int attach_with(struct zswap *z, uint64_t bits, const char *hits)
{
	struct bpf_program *p;
	const char *name;
	void *held;
	int r;

	z->bpf = zswap_bpf__open();
	if (!z->bpf)
		return -errno;
	bpf_object__for_each_program(p, z->bpf->obj) {
		name = bpf_program__name(p);
		if (!strncmp(name, "zswap_in", strlen("zswap_in")))
			bpf_program__set_autoload(p, hits && !strcmp(name, hits));
	}
	z->bpf->rodata->slot_mask = bits - 1;
	r = bpf_map__set_max_entries(z->bpf->maps.zswap_held, (uint32_t)(bits / 64));
	if (!r)
		r = plane_share_maps(z->plane, z->bpf->obj);
	if (!r)
		r = zswap_bpf__load(z->bpf);
	if (!r)
		r = zswap_bpf__attach(z->bpf);
	if (r)
		return r;
	held = mmap(NULL, bits / 8, PROT_READ, MAP_SHARED, bpf_map__fd(z->bpf->maps.zswap_held), 0);
	if (held == MAP_FAILED)
		return -errno;
	z->slots = (struct zswap_slots){ held, bits - 1 };
	return 0;
}

static enum zswap_state attach(struct zswap *z, uint64_t bits)
{
	static const char *const hits[] = { "zswap_in", "zswap_in_frontswap", "zswap_in_event", NULL };
	int r = 0;

	for (size_t i = 0; i < sizeof(hits) / sizeof(hits[0]); i++) {
		r = attach_with(z, bits, hits[i]);
		if (!r) {
			log_info("zswap: in use; pages that it holds are not prefetched; hits: %s",
				 hits[i] ?: "not counted, the kernel has no hook");
			return hits[i] ? ZSWAP_ON : ZSWAP_NO_HITS;
		}
		detach(z);
	}
	log_warn("zswap: bpf/zswap: rejected by the kernel: %s; pages that it holds are prefetched too",
		 strerror(-r));
	return ZSWAP_REFUSED;
}

enum zswap_state zswap_watch(struct zswap *z)
{
	uint64_t bits, slots;

	if (!enabled() && !(z->bpf && holds_pages())) {
		if (z->bpf)
			log_info("zswap: not in use");
		detach(z);
		return z->state = ZSWAP_OFF;
	}
	slots = swap_slots();
	bits = bits_for(slots);
	/* Without swap there is nothing to know; more swap needs more bits. */
	if (!slots || z->state == ZSWAP_REFUSED || (z->bpf && bits <= z->slots.mask + 1))
		return z->state;
	detach(z);
	return z->state = attach(z, bits);
}

const struct zswap_slots *zswap_slots(const struct zswap *z)
{
	return &z->slots;
}

const char *zswap_state_name(enum zswap_state s)
{
	static const char *const name[] = { "off", "on", "on, hits unknown", "refused" };

	return name[s];
}

struct zswap *zswap_new(struct plane *plane)
{
	struct zswap *z = calloc(1, sizeof(*z));

	if (z)
		z->plane = plane;
	return z;
}

void zswap_free(struct zswap **pz)
{
	if (!*pz)
		return;
	detach(*pz);
	free(*pz);
	*pz = NULL;
}
