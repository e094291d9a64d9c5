/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* What a Lua state knows of its heap of libebbgc: a member of global_State. */
#ifndef lebbgc_h
#define lebbgc_h

#include "ebbgc.h"

/* Bytes before the first element of an array: its length. */
#define ARRAY_HEADER sizeof(uint64_t)

/* Types of objects; arrays and nodes by how weak their entries are. */
enum {
	HEAP_STRING, HEAP_UDATA0, HEAP_UDATA, HEAP_TABLE, HEAP_LCLOSURE, HEAP_CCLOSURE, HEAP_UPVAL,
	HEAP_PROTO, HEAP_THREAD, HEAP_CALLINFO,
	HEAP_BYTES,		/* arrays without references: element of 1, 4, 8 and 16 bytes */
	HEAP_WORDS, HEAP_LONGS, HEAP_STACK,
	HEAP_VALUES,		/* TValue */
	HEAP_REFS,		/* pointers to objects */
	HEAP_NAMES,		/* 16 bytes that begin with a pointer to a string */
	HEAP_NODES,		/* parts of tables; next three: by WEAKKEY, WEAKVALUE */
	HEAP_NODES_K, HEAP_NODES_V, HEAP_NODES_KV,
	HEAP_VALUES_V,		/* weak values */
	HEAP_STRINGS,		/* weak pointers to strings */
	HEAP_TYPES
};

struct luaC_heap {
	ebbgc_heap_t *heap;
	ebbgc_mutator_t *mutator;
	struct ebbgc_entered api;	/* the thread that a function of the API works on */
	struct lua_State *running;	/* the thread whose code runs, and which is entered */
	struct lua_State *finalizing;	/* the thread that finalizers run on */
	volatile int work;		/* for luaC_step(); also set by the collector's thread */
	int modes;			/* __mode was set in a metatable */
	int suspended;
	unsigned long allocations;	/* LUAI_GCSTRESS */
	size_t c_bytes;			/* allocated by frealloc */
	uint64_t base;		/* allocated_bytes less live bytes when the last cycle ended */
	/* Short strings: open addressing; hashes[i] is 0 if nothing was ever in strings[i]. */
	ebbgc_ref_t strings;
	unsigned int *hashes;
	size_t string_slots, string_used;
	ebbgc_type_t types[HEAP_TYPES];
	struct ebbgc_site sites[HEAP_TYPES];	/* of those without a length */
	struct ebbgc_length_site length_sites[HEAP_TYPES];	/* of the others */
};

#endif
