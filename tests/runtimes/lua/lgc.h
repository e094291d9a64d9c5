/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Lua's objects on a heap of libebbgc.  Replaces Lua's own lgc.h.
 *
 * Roots are what global_State refers to, the main thread's stack, and the threads (fibres) that run
 * or are being used by a function of the API.  Lua keeps what it needs reachable from these at
 * every allocation, as each may collect; only tables' new parts need frames (luaC_frame).
 *
 * Arrays of tables and prototypes are objects of their own, which begin with their length:
 * pointers to the first element are tagged slots that subtract ARRAY_HEADER.  Stacks and
 * CallInfo are leaves.
 */
#ifndef lgc_h
#define lgc_h

#include "lobject.h"
#include "lstate.h"

#define testbits(x, m) ((x) & (m))
#define bitmask(b) (1 << (b))
#define l_setbit(x, b) ((x) |= cast_byte(bitmask(b)))
#define resetbit(x, b) ((x) &= cast_byte(~bitmask(b)))
#define testbit(x, b) testbits(x, bitmask(b))

/* In `marked`: of tables that hold the entries of weak ones, WEAKKEY and WEAKVALUE. */
#define WEAKKEY 1
#define WEAKVALUE 2
#define WEAKBITS (WEAKKEY | WEAKVALUE)
#define FINALIZEDBIT 6	/* has a finalizer */
#define tofinalize(x) testbit((x)->marked, FINALIZEDBIT)
/* In `flags` of tables: has been a metatable. */
#define METABIT (1 << 6)

/* Nothing is white or black: objects survive by reachability at the snapshot. */
#define isdead(g, v) 0

/*
 * Lua's barriers, after a value or an object was stored in p: the nursery must know of it.  What is
 * stored in tables is known already (luaC_newvalue).
 */
LUAI_FUNC void luaC_remember_(lua_State *L, GCObject *p);
#define luaC_barrier(L, p, v) \
	((void)(luaC_marking(L) && iscollectable(v) && (luaC_remember_(L, obj2gco(p)), 0)))
#define luaC_objbarrier(L, p, o) ((void)(luaC_marking(L) && (luaC_remember_(L, obj2gco(p)), 0)))
#define luaC_barrierback(L, p, v) ((void)0)

#define LUAI_GCPAUSE 200
#define LUAI_GCMUL 100
#define LUAI_GCSTEPSIZE 13
#define LUAI_GENMAJORMUL 100
#define LUAI_GENMINORMUL 20
#define getgcparam(p) (4 * (p))
#define setgcparam(p, v) ((p) = (v) / 4)
#define isdecGCmodegen(g) ((g)->gckind == KGC_GEN)

#define GCSTPUSR 1	/* stopped by the user */
#define GCSTPGC 2	/* in a finalizer, or the state is being built */
#define GCSTPCLS 4	/* the state is being closed */
#define gcrunning(g) ((g)->gcstp == 0)

/* Finalizers are ready, or __mode was set in a table that is a metatable. */
#define luaC_condGC(L, pre, pos) \
	do { if (l_unlikely(G(L)->gc.work)) { pre; luaC_step(L); pos; } } while (0)
#define luaC_checkGC(L) luaC_condGC(L, (void)0, (void)0)

#define luaC_ref(o) (ebbgc_ref((const void *)(o)))
#define luaC_mutator(L) (G(L)->gc.mutator)
#define luaC_marking(L) l_unlikely(ebbgc_flags(luaC_mutator(L)) & EBBGC_MARKING)

/* Before v is stored in a slot of an object, an upvalue included. */
LUAI_FUNC void luaC_newvalue_(lua_State *L, const TValue *slot, const TValue *v);
#define luaC_newvalue(L, slot, v) ((void)(luaC_marking(L) && (luaC_newvalue_(L, slot, v), 0)))

/* Before a node is moved, and the old one's value becomes nil. */
LUAI_FUNC void luaC_movenode_(lua_State *L, const Node *to, const Node *from);
#define luaC_movenode(L, to, from) ((void)(luaC_marking(L) && (luaC_movenode_(L, to, from), 0)))

/* Before a key is stored in a node without value. */
LUAI_FUNC void luaC_newkey_(lua_State *L, const Node *n, const TValue *key);
#define luaC_newkey(L, n, key) ((void)(luaC_marking(L) && (luaC_newkey_(L, n, key), 0)))

/* Replaces a dead key of an inner table by an equal one. */
LUAI_FUNC void luaC_rekey(Table *inner, Node *n, const TValue *key);

/* Stores a pointer to an object in an object; v may allocate. */
#define luaC_set(L, p, v) \
	do { \
		__typeof__(p) new_ = (v); \
		ebbgc_replace(luaC_mutator(L), &(p), luaC_ref(p), luaC_ref(new_)); \
		(p) = new_; \
	} while (0)

/* Stores a pointer to the first element of an array in an object; v may allocate. */
#define luaC_arrayref(p) ((p) ? luaC_ref(cast_charp(p) - ARRAY_HEADER) : EBBGC_NULL)
#define luaC_setarray(L, p, v) \
	do { \
		__typeof__(p) new_ = (v); \
		ebbgc_replace(luaC_mutator(L), &(p), luaC_arrayref(p), luaC_arrayref(new_)); \
		(p) = new_; \
	} while (0)

/*
 * A function of the API, or a callback's return to it: from here on it may touch L's stack.  The
 * thread that runs is entered.
 */
#define luaC_lock(L) \
	(G(L)->gc.api.fibre = luaC_ref(L), \
	 l_likely(G(L)->gc.running == (L)) ? (void)0 : \
					     ebbgc_fibre_touch(luaC_mutator(L), luaC_ref(L)))

#define luaC_touch(L, L1) ebbgc_fibre_touch(luaC_mutator(L), luaC_ref(L1))

/* L's code runs until luaC_leave(), or until an error or a yield restores what luaC_saved has. */
struct luaC_entered {
	struct ebbgc_entered entered;
	lua_State *before;
};
LUAI_FUNC void luaC_enter(lua_State *L, struct luaC_entered *e);
LUAI_FUNC void luaC_leave(lua_State *L, struct luaC_entered *e);

struct luaC_saved {
	struct ebbgc_frame *frames;
	struct ebbgc_entered *fibres;
	lua_State *running;
};
#define luaC_save(L, s) \
	((s)->frames = luaC_mutator(L)->frames, (s)->fibres = luaC_mutator(L)->fibres, \
	 (s)->running = G(L)->gc.running)
#define luaC_restore(L, s) \
	(luaC_mutator(L)->frames = (s)->frames, luaC_mutator(L)->fibres = (s)->fibres, \
	 G(L)->gc.running = (s)->running, G(L)->gc.api.fibre = luaC_ref(L))

/* Arrays: all return a pointer to the first of n zeroed elements, or NULL for none. */
LUAI_FUNC void *luaC_newarray_(lua_State *L, int type, size_t n);
#define luaC_newarray(L, type, t, n) (cast(t *, luaC_newarray_(L, type, n)))
LUAI_FUNC void *luaC_growarray_(lua_State *L, void *array, int type, int nelems, int *size,
				int element, int limit, const char *what);
#define luaC_growarray(L, v, type, nelems, size, t, limit, e) \
	luaC_setarray(L, v, cast(t *, luaC_growarray_(L, v, type, nelems, &(size), \
			sizeof(t), luaM_limitN(limit, t), e)))
LUAI_FUNC void *luaC_shrinkarray_(lua_State *L, void *array, int type, int *size, int n,
				  int element);
#define luaC_shrinkarray(L, v, type, size, n, t) \
	luaC_setarray(L, v, cast(t *, luaC_shrinkarray_(L, v, type, &(size), n, sizeof(t))))

/* Returns a stack of n slots, or NULL if there is no memory. */
LUAI_FUNC StkId luaC_trystack(lua_State *L, size_t n);

/* Objects: zeroed but for their tag. */
LUAI_FUNC GCObject *luaC_new(lua_State *L, int type, int tag);
LUAI_FUNC GCObject *luaC_newlen(lua_State *L, int type, int tag, size_t n);

/* The heap of a state: created before it, destroyed with all objects after it. */
LUAI_FUNC int luaC_open(lua_State *L);
LUAI_FUNC void luaC_close(lua_State *L);
LUAI_FUNC lu_mem luaC_bytes(global_State *g);
LUAI_FUNC void luaC_suspend(lua_State *L, int stop);

LUAI_FUNC void luaC_fix(lua_State *L, GCObject *o);
LUAI_FUNC void luaC_freeallobjects(lua_State *L);
LUAI_FUNC void luaC_step(lua_State *L);
LUAI_FUNC void luaC_fullgc(lua_State *L, int isemergency);
LUAI_FUNC void luaC_checkfinalizer(lua_State *L, GCObject *o, Table *mt);

/* Strings: the weak table of short ones. */
LUAI_FUNC TString *luaC_findstring(lua_State *L, const char *str, size_t l, unsigned int h);
LUAI_FUNC void luaC_addstring(lua_State *L, TString *ts, unsigned int h);

/*
 * Weak tables.  A table whose metatable has __mode keeps its entries in `inner`, a table whose
 * parts have weak types, and looks empty itself: accesses that find nothing in a table look there.
 */
/* Makes a table as weak as its metatable says.  May allocate. */
LUAI_FUNC void luaC_checkmode(lua_State *L, Table *t);
/* A key was added to a table that has been a metatable. */
LUAI_FUNC void luaC_metachanged(lua_State *L, const TValue *key);
/* Returns a slot of an inner table, made empty if its value is dead; keeps the value alive. */
LUAI_FUNC const TValue *luaC_weakslot(Table *inner, const TValue *slot);
/* Is the entry still there?  Otherwise makes it empty.  Keeps key and value alive. */
LUAI_FUNC int luaC_weaknode(Table *inner, Node *n);
/* Makes entries empty that are dead. */
LUAI_FUNC void luaC_purge(Table *inner);

#endif
