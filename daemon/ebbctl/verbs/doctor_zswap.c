// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor_check.h"
#include "lib/base/files.h"
#include "lib/base/size.h"

#define ZSWAP "/sys/module/zswap/parameters/"
#define JUDGED (16ULL << 20) /* bytes of pages from which the ratio is judged */
#define PAYS 1.5             /* ratio from which memory compresses */

/* Reads a setting into @buf; returns whether this kernel has it. */
static bool read_setting(const char *path, char *buf, size_t size)
{
	bool there = file_read(path, buf, size) > 0;

	buf[strcspn(buf, "\n")] = '\0';
	return there;
}

/* Returns the bytes in line @key of /proc/meminfo, or 0. */
static uint64_t meminfo(const char *key)
{
	char text[4096], *at;

	if (file_read("/proc/meminfo", text, sizeof(text)) <= 0)
		return 0;
	at = strstr(text, key);
	return at ? strtoull(at + strlen(key), NULL, 10) << 10 : 0;
}

/* Judges zswap, which is on, by what its pool holds. */
static void ratio(struct doctor *d)
{
	uint64_t held = meminfo("\nZswapped:"), pool = meminfo("\nZswap:");
	char of[16], in[16];
	double by = pool ? (double)held / (double)pool : 0;

	size_format(held, of, sizeof(of));
	size_format(pool, in, sizeof(in));
	if (held < JUDGED || !pool)
		doctor_add(d, HAVE, "zswap", NULL, "on; holds %s, too little to judge", of);
	else if (by < PAYS)
		doctor_add(d, DEGRADED, "zswap",
			   "echo N > " ZSWAP "enabled: memory hardly compresses, and donors hold it at no cost here",
			   "on; %s in %s, %.1f : 1", of, in, by);
	else
		doctor_add(d, HAVE, "zswap", NULL, "on; %s in %s, %.1f : 1", of, in, by);
}

static void compressor(struct doctor *d)
{
	static const char *const slow[] = { "deflate", "842", "lz4hc" };
	char is[32];
	bool bad = false;

	if (!read_setting(ZSWAP "compressor", is, sizeof(is)))
		return;
	for (size_t i = 0; i < sizeof(slow) / sizeof(slow[0]); i++)
		bad |= !strcmp(is, slow[i]);
	doctor_add(d, bad ? NOTE : HAVE, "zswap compressor",
		   bad ? "echo lz4, lzo-rle or zstd > " ZSWAP "compressor: faster" : NULL, "%s", is);
}

/* zbud and z3fold keep at most two or three pages in one, however well they compress. */
static void pool(struct doctor *d)
{
	char is[32];
	bool bad;

	if (!read_setting(ZSWAP "zpool", is, sizeof(is)))
		return;
	bad = !strcmp(is, "zbud") || !strcmp(is, "z3fold");
	doctor_add(d, bad ? NOTE : HAVE, "zswap pool",
		   bad ? "echo zsmalloc > " ZSWAP "zpool: holds more pages in the same memory" : NULL,
		   "%s", is);
}

static void shrinker(struct doctor *d)
{
	char is[8];
	bool off;

	if (!read_setting(ZSWAP "shrinker_enabled", is, sizeof(is))) {
		doctor_add(d, NOTE, "zswap shrinker",
			   "Linux 6.8 or later: cold pages reach donors before the pool is full",
			   "not in this kernel");
		return;
	}
	off = *is != 'Y';
	doctor_add(d, off ? DEGRADED : HAVE, "zswap shrinker",
		   off ? "echo Y > " ZSWAP "shrinker_enabled: cold pages reach donors before the pool is full" :
			 NULL, "%s", off ? "off" : "on");
}

void doctor_zswap(struct doctor *d)
{
	char on[8];

	if (!read_setting(ZSWAP "enabled", on, sizeof(on))) {
		doctor_add(d, NOTE, "zswap",
			   "a kernel with CONFIG_ZSWAP keeps pages that compress in memory",
			   "not in this kernel");
		return;
	}
	if (*on != 'Y') {
		doctor_add(d, NOTE, "zswap",
			   "echo Y > " ZSWAP "enabled if memory compresses: donors then hold the rest",
			   "off");
		return;
	}
	ratio(d);
	compressor(d);
	pool(d);
	shrinker(d);
}
