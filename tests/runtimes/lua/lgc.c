/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Lua on libebbgc: types, roots, finalizers, strings and weak tables.  Replaces Lua's lgc.c. */
#define lgc_c
#define LUA_CORE

#include "lprefix.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lua.h"

#include "ldebug.h"
#include "ldo.h"
#include "lfunc.h"
#include "lgc.h"
#include "lmem.h"
#include "lobject.h"
#include "lstate.h"
#include "lstring.h"
#include "ltable.h"
#include "ltm.h"

#define KEY_TAG ((int)offsetof(Node, u.key_tt) - (int)offsetof(Node, u.key_val))

/* --- reading what the program may be changing -------------------------------------------- */

static ebbgc_ref_t load(const Value *v)
{
	return (ebbgc_ref_t){ __atomic_load_n((const uint64_t *)v, __ATOMIC_ACQUIRE) };
}

static lu_byte tag_of(const lu_byte *tt)
{
	return __atomic_load_n(tt, __ATOMIC_ACQUIRE);
}

static int is_string(lu_byte tag)
{
	return (tag & (BIT_ISCOLLECTABLE | 0x0f)) == (BIT_ISCOLLECTABLE | LUA_TSTRING);
}

static ebbgc_ref_t *slot_of(Value *v)
{
	return (ebbgc_ref_t *)v;
}

/* --- edges ------------------------------------------------------------------------------- */

static void edge_value(struct ebbgc_edges *e, TValue *o)
{
	lu_byte tag = tag_of(&o->tt_);

	if (tag & BIT_ISCOLLECTABLE)
		e->strong(e, slot_of(&o->value_), load(&o->value_));
}

static void edge_weak(struct ebbgc_edges *e, Value *v, lu_byte tag, enum ebbgc_clear when)
{
	if (tag & BIT_ISCOLLECTABLE)
		e->weak(e, slot_of(v), load(v), when);
}

/* Strings are never weak. */
static void edge_weak_value(struct ebbgc_edges *e, Value *v, lu_byte tag)
{
	if (is_string(tag))
		e->strong(e, slot_of(v), load(v));
	else
		edge_weak(e, v, tag, EBBGC_CLEAR_FIRST);
}

struct array {
	uint64_t n;
	char elements[];
};

/* An entry whose value is weak: a string that is its key lives as long as the value. */
static void edges_weak_value(struct ebbgc_edges *e, Node *n, lu_byte key, lu_byte value, int mode)
{
	if (is_string(key) && (value & BIT_ISCOLLECTABLE) && !is_string(value)) {
		e->ephemeron(e, slot_of(&n->u.value_), load(&n->u.value_),
			     slot_of(&n->u.key_val), load(&n->u.key_val), EBBGC_CLEAR_FIRST);
		return;
	}
	if (mode == WEAKBITS && !is_string(key))
		edge_weak(e, &n->u.key_val, key, EBBGC_CLEAR_LAST);
	else if (key & BIT_ISCOLLECTABLE)
		e->strong(e, slot_of(&n->u.key_val), load(&n->u.key_val));
	edge_weak_value(e, &n->u.value_, value);
}

/*
 * Values are cleared before finalizers run, keys after them.  Nothing needs the key of an entry
 * without value.
 */
static void edges_nodes(struct array *array, struct ebbgc_edges *e, int mode)
{
	Node *nodes = (Node *)array->elements;

	for (uint64_t i = 0; i < array->n; i++) {
		Node *n = &nodes[i];
		lu_byte key = tag_of(&n->u.key_tt), value = tag_of(&n->u.tt_);

		if (novariant(value) == LUA_TNIL) {
			edge_weak(e, &n->u.key_val, key, EBBGC_CLEAR_LAST);
		} else if (mode & WEAKVALUE) {
			edges_weak_value(e, n, key, value, mode);
		} else if (!(key & BIT_ISCOLLECTABLE) || is_string(key)) {
			if (key & BIT_ISCOLLECTABLE)
				e->strong(e, slot_of(&n->u.key_val), load(&n->u.key_val));
			edge_value(e, &n->i_val);
		} else {
			e->ephemeron(e, slot_of(&n->u.key_val), load(&n->u.key_val),
				     slot_of(&n->u.value_),
				     value & BIT_ISCOLLECTABLE ? load(&n->u.value_) : EBBGC_NULL,
				     EBBGC_CLEAR_LAST);
		}
	}
}

static void edges_nodes_k(void *object, struct ebbgc_edges *e)
{
	edges_nodes(object, e, WEAKKEY);
}

static void edges_nodes_v(void *object, struct ebbgc_edges *e)
{
	edges_nodes(object, e, WEAKVALUE);
}

static void edges_nodes_kv(void *object, struct ebbgc_edges *e)
{
	edges_nodes(object, e, WEAKBITS);
}

static void edges_values_v(void *object, struct ebbgc_edges *e)
{
	struct array *array = object;
	TValue *values = (TValue *)array->elements;

	for (uint64_t i = 0; i < array->n; i++)
		edge_weak_value(e, &values[i].value_, tag_of(&values[i].tt_));
}

static void edges_udata(void *object, struct ebbgc_edges *e)
{
	Udata *u = object;

	e->strong(e, NULL, (ebbgc_ref_t){ (uint64_t)(uintptr_t)__atomic_load_n(&u->metatable,
									 __ATOMIC_ACQUIRE) });
	for (int i = 0; i < u->nuvalue; i++)
		edge_value(e, &u->uv[i].uv);
}

/* No thread runs L, or the world is stopped. */
static void edges_thread(void *object, struct ebbgc_edges *e)
{
	lua_State *L = object;
	StkId o = L->stack;

	if (!o)
		return;	/* not built yet */
	e->strong(e, NULL, luaC_ref((char *)o - ARRAY_HEADER));
	for (; o < L->top; o++)
		edge_value(e, s2v(o));
	/* What a dead part of the stack refers to may be freed. */
	for (; o < L->stack_last + EXTRA_STACK; o++)
		if (iscollectable(s2v(o)))
			setnilvalue(s2v(o));
	for (UpVal *uv = L->openupval; uv; uv = uv->u.open.next)
		e->strong(e, NULL, luaC_ref(uv));
	for (CallInfo *ci = L->base_ci.next; ci; ci = ci->next)
		e->strong(e, NULL, luaC_ref(ci));
}

static void root(struct ebbgc_edges *e, const void *object)
{
	if (object)
		e->strong(e, NULL, luaC_ref(object));
}

static void roots(void *arg, struct ebbgc_edges *e)
{
	global_State *g = arg;

	edge_value(e, &g->l_registry);
	for (int i = 0; i < LUA_NUMTAGS; i++)
		root(e, g->mt[i]);
	root(e, g->memerrmsg);
	e->strong(e, &g->gc.strings, g->gc.strings);
	/* The cache holds strings only between two cycles. */
	for (int i = 0; i < STRCACHE_N; i++)
		for (int j = 0; j < STRCACHE_M; j++)
			g->strcache[i][j] = g->memerrmsg;
	edges_thread(g->mainthread, e);
}

/* --- types ------------------------------------------------------------------------------- */

#define LENGTH(field) .length_offset = (field), .length_width = 8
#define ARRAY(t) .size = ARRAY_HEADER, .element_size = sizeof(t), LENGTH(0)
#define SLOTS(s) .slots = (s), .slot_count = sizeof(s) / sizeof(*(s)), .slot_size = sizeof(*(s))
#define VALUE(at, n, step) \
	{ .kind = EBBGC_SLOT_VALUE_AND_TAG, .offset = (at), .count = (n), .stride = (step), \
	  .tag_offset = offsetof(TValue, tt_), .mask = BIT_ISCOLLECTABLE, \
	  .value = BIT_ISCOLLECTABLE }
#define ELEMENT(at, n) \
	{ .kind = EBBGC_SLOT_TAGGED, .offset = (at), .count = (n), .stride = 8, \
	  .subtract = ARRAY_HEADER }
#define BIT(t, field) (UINT64_C(1) << offsetof(t, field) / 8)

static const struct ebbgc_slots table_slots[] = { ELEMENT(offsetof(Table, array), 2) };
static const struct ebbgc_slots proto_slots[] = { ELEMENT(offsetof(Proto, k), 7) };
static const struct ebbgc_slots upval_slots[] = { VALUE(offsetof(UpVal, u), 1, 16) };
static const struct ebbgc_slots ccl_slots[] = {
	VALUE(offsetof(CClosure, upvalue), EBBGC_COUNT_LENGTH, 16)
};
static const struct ebbgc_slots values_slots[] = { VALUE(ARRAY_HEADER, EBBGC_COUNT_LENGTH, 16) };
static const struct ebbgc_slots nodes_slots[] = {
	VALUE(ARRAY_HEADER, EBBGC_COUNT_LENGTH, sizeof(Node)),
	{ .kind = EBBGC_SLOT_VALUE_AND_TAG, .offset = ARRAY_HEADER + offsetof(Node, u.key_val),
	  .count = EBBGC_COUNT_LENGTH, .stride = sizeof(Node), .tag_offset = KEY_TAG,
	  .mask = BIT_ISCOLLECTABLE, .value = BIT_ISCOLLECTABLE },
};
static const struct ebbgc_run lcl_runs[] = {
	{ offsetof(LClosure, upvals), EBBGC_COUNT_LENGTH, 8 }
};
static const struct ebbgc_run refs_runs[] = { { ARRAY_HEADER, EBBGC_COUNT_LENGTH, 8 } };
static const struct ebbgc_run names_runs[] = { { ARRAY_HEADER, EBBGC_COUNT_LENGTH, 16 } };

static const struct ebbgc_layout layouts[HEAP_TYPES] = {
	/* With the final zero. */
	[HEAP_STRING] = { .name = "string", .flags = EBBGC_LEAF,
			  .size = offsetof(TString, contents) + 1, .element_size = 1,
			  LENGTH(offsetof(TString, u)) },
	[HEAP_UDATA0] = { .name = "userdata", .size = offsetof(Udata0, bindata),
			  .element_size = 1, LENGTH(offsetof(Udata0, bytes)),
			  .bitmap = BIT(Udata0, metatable) },
	[HEAP_UDATA] = { .name = "userdata with values", .size = offsetof(Udata, uv),
			 .element_size = 1, LENGTH(offsetof(Udata, bytes)), .edges = edges_udata },
	[HEAP_TABLE] = { .name = "table", .size = sizeof(Table), SLOTS(table_slots),
			 .bitmap = BIT(Table, metatable) | BIT(Table, inner) },
	[HEAP_LCLOSURE] = { .name = "Lua closure", .size = offsetof(LClosure, upvals),
			    .element_size = 8, .length_offset = offsetof(LClosure, n),
			    .length_width = 4, .bitmap = BIT(LClosure, p), .runs = lcl_runs,
			    .run_count = 1 },
	[HEAP_CCLOSURE] = { .name = "C closure", .size = offsetof(CClosure, upvalue),
			    .element_size = 16, .length_offset = offsetof(CClosure, n),
			    .length_width = 4, SLOTS(ccl_slots) },
	[HEAP_UPVAL] = { .name = "upvalue", .size = sizeof(UpVal), .bitmap = BIT(UpVal, owner),
			 SLOTS(upval_slots) },
	[HEAP_PROTO] = { .name = "prototype", .size = sizeof(Proto), .bitmap = BIT(Proto, source),
			 SLOTS(proto_slots) },
	[HEAP_THREAD] = { .name = "thread", .flags = EBBGC_FIBRE, .size = sizeof(lua_State),
			  .edges = edges_thread, .fibre_offset = offsetof(lua_State, traced) },
	[HEAP_CALLINFO] = { .name = "call", .flags = EBBGC_LEAF, .size = sizeof(CallInfo) },
	[HEAP_BYTES] = { .name = "bytes", .flags = EBBGC_LEAF, ARRAY(lu_byte) },
	[HEAP_WORDS] = { .name = "words", .flags = EBBGC_LEAF, ARRAY(Instruction) },
	[HEAP_LONGS] = { .name = "longs", .flags = EBBGC_LEAF, ARRAY(AbsLineInfo) },
	[HEAP_STACK] = { .name = "stack", .flags = EBBGC_LEAF, ARRAY(StackValue) },
	[HEAP_VALUES] = { .name = "values", ARRAY(TValue), SLOTS(values_slots) },
	[HEAP_REFS] = { .name = "references", ARRAY(void *), .runs = refs_runs, .run_count = 1 },
	[HEAP_NAMES] = { .name = "names", ARRAY(LocVar), .runs = names_runs, .run_count = 1 },
	[HEAP_NODES] = { .name = "nodes", ARRAY(Node), SLOTS(nodes_slots) },
	[HEAP_NODES_K] = { .name = "nodes, weak keys", ARRAY(Node), .edges = edges_nodes_k },
	[HEAP_NODES_V] = { .name = "nodes, weak values", ARRAY(Node), .edges = edges_nodes_v },
	[HEAP_NODES_KV] = { .name = "nodes, weak", ARRAY(Node), .edges = edges_nodes_kv },
	[HEAP_VALUES_V] = { .name = "weak values", ARRAY(TValue), .edges = edges_values_v },
	[HEAP_STRINGS] = { .name = "strings", .flags = EBBGC_WEAK, ARRAY(void *),
			   .runs = refs_runs, .run_count = 1 },
};

/* --- allocation -------------------------------------------------------------------------- */

/*
 * LUAI_GCSTRESS: a cycle begins at each so manieth allocation, for tests, and every fifth of the
 * first thousand is a full one, which ends before the allocation.  Any allocation may be a
 * safepoint, and here every one is.
 */
#if defined(LUAI_GCSTRESS)
static void stress(struct luaC_heap *h)
{
	if (++h->allocations % LUAI_GCSTRESS == 0 && !h->suspended) {
		unsigned long cycles = h->allocations / LUAI_GCSTRESS;

		if (cycles <= 1000 && cycles % 5 == 0)
			ebbgc_collect(h->mutator);
		else
			ebbgc_collect_start(h->mutator);
	}
	ebbgc_poll(h->mutator);
}
#else
#define stress(h) ((void)0)
#endif

static ebbgc_ref_t allocate(lua_State *L, int type, size_t n)
{
	struct luaC_heap *h = &G(L)->gc;
	ebbgc_ref_t r;

	stress(h);
	r = ebbgc_alloc_length_site(h->mutator, &h->length_sites[type], n);
	if (l_unlikely(ebbgc_is_null(r)))
		luaM_error(L);
	return r;
}

GCObject *luaC_new(lua_State *L, int type, int tag)
{
	struct luaC_heap *h = &G(L)->gc;
	GCObject *o;

	stress(h);
	o = ebbgc_ptr(ebbgc_alloc_site(h->mutator, &h->sites[type]));
	if (l_unlikely(!o))
		luaM_error(L);
	o->tt = cast_byte(tag);
	return o;
}

GCObject *luaC_newlen(lua_State *L, int type, int tag, size_t n)
{
	struct luaC_heap *h = &G(L)->gc;
	GCObject *o;

	stress(h);
	o = ebbgc_ptr(ebbgc_alloc_length_site(h->mutator, &h->length_sites[type], n));
	if (l_unlikely(!o))
		luaM_error(L);
	o->tt = cast_byte(tag);
	return o;
}

void *luaC_newarray_(lua_State *L, int type, size_t n)
{
	if (n == 0)
		return NULL;
	if (l_unlikely(n > MAX_SIZE / sizeof(Node)))
		luaM_toobig(L);
	return (char *)ebbgc_ptr(allocate(L, type, n)) + ARRAY_HEADER;
}

StkId luaC_trystack(lua_State *L, size_t n)
{
	struct luaC_heap *h = &G(L)->gc;
	ebbgc_ref_t r;

	stress(h);
	r = ebbgc_alloc_length(h->mutator, h->types[HEAP_STACK], n);
	return ebbgc_is_null(r) ? NULL : cast(StkId, (char *)ebbgc_ptr(r) + ARRAY_HEADER);
}

#define MINSIZEARRAY 4

void *luaC_growarray_(lua_State *L, void *array, int type, int nelems, int *psize, int element,
		      int limit, const char *what)
{
	int size = *psize;
	void *grown;

	if (nelems + 1 <= size)
		return array;
	if (size >= limit / 2) {
		if (l_unlikely(size >= limit))
			luaG_runerror(L, "too many %s (limit is %d)", what, limit);
		size = limit;
	} else {
		size = size * 2 < MINSIZEARRAY ? MINSIZEARRAY : size * 2;
	}
	grown = luaC_newarray_(L, type, size);
	if (array)
		memcpy(grown, array, (size_t)*psize * element);
	*psize = size;
	return grown;
}

void *luaC_shrinkarray_(lua_State *L, void *array, int type, int *psize, int n, int element)
{
	void *exact;

	if (n == *psize)
		return array;
	exact = luaC_newarray_(L, type, n);
	if (exact)
		memcpy(exact, array, (size_t)n * element);
	*psize = n;
	return exact;
}

/* --- barriers and fibres ----------------------------------------------------------------- */

static ebbgc_ref_t ref_of(const TValue *v)
{
	return iscollectable(v) ? luaC_ref(gcvalue(v)) : EBBGC_NULL;
}

static ebbgc_ref_t key_of(const Node *n)
{
	return keyiscollectable(n) ? luaC_ref(gckey(n)) : EBBGC_NULL;
}

void luaC_newvalue_(lua_State *L, const TValue *slot, const TValue *v)
{
	ebbgc_replace(luaC_mutator(L), &slot->value_, ref_of(slot), ref_of(v));
}

void luaC_movenode_(lua_State *L, const Node *to, const Node *from)
{
	luaC_newvalue_(L, &to->i_val, &from->i_val);
	ebbgc_replace(luaC_mutator(L), &to->u.key_val, key_of(to), key_of(from));
	ebbgc_replace(luaC_mutator(L), &from->u.value_, ref_of(&from->i_val), EBBGC_NULL);
}

void luaC_newkey_(lua_State *L, const Node *n, const TValue *key)
{
	ebbgc_replace(luaC_mutator(L), &n->u.key_val, key_of(n), ref_of(key));
}

/* The old key is dead, or reachable by other means. */
void luaC_rekey(Table *inner, Node *n, const TValue *key)
{
	ebbgc_replace(inner->g->gc.mutator, &n->u.key_val, EBBGC_NULL, ref_of(key));
	keyval(n) = valraw(key);
}

static void remember_array(lua_State *L, const void *array)
{
	if (array)
		ebbgc_overwrite(luaC_mutator(L), luaC_arrayref((char *)array), EBBGC_NULL);
}

/* The variable of an open upvalue is on a stack. */
void luaC_remember_(lua_State *L, GCObject *p)
{
	if (p->tt == LUA_VUPVAL && upisopen(gco2upv(p))) {
		if (gco2upv(p)->owner != G(L)->gc.running)
			luaC_touch(L, gco2upv(p)->owner);
		return;
	}
	ebbgc_overwrite(luaC_mutator(L), luaC_ref(p), EBBGC_NULL);
	if (p->tt == LUA_VPROTO) {
		Proto *f = gco2p(p);

		remember_array(L, f->k);
		remember_array(L, f->p);
		remember_array(L, f->upvalues);
		remember_array(L, f->locvars);
	}
}

void luaC_enter(lua_State *L, struct luaC_entered *e)
{
	e->before = G(L)->gc.running;
	ebbgc_fibre_enter(luaC_mutator(L), &e->entered, luaC_ref(L));
	G(L)->gc.running = L;
}

void luaC_leave(lua_State *L, struct luaC_entered *e)
{
	ebbgc_fibre_leave(luaC_mutator(L), &e->entered);
	G(L)->gc.running = e->before;
	G(L)->gc.api.fibre = luaC_ref(L);
}

/* --- the heap ---------------------------------------------------------------------------- */

/* Bytes that this thread has taken for objects to come, up to 8 KiB of each size. */
static uint64_t unused_bytes(const struct luaC_heap *h)
{
	const struct ebbgc_length_site *leaves = &h->length_sites[HEAP_BYTES];
	unsigned int last = leaves->sizes[(leaves->fixed + leaves->most) / 16].kind;
	uint64_t bytes = 0;

	for (unsigned int kind = 0; kind <= last; kind++)
		bytes += h->mutator->supplies[kind].end - h->mutator->supplies[kind].next;
	return bytes;
}

/* Bytes of all objects so far, less those that minor cycles have freed. */
static uint64_t kept_bytes(const struct luaC_heap *h, const struct ebbgc_stats *s)
{
	return s->allocated_bytes - s->reclaimed_bytes - unused_bytes(h);
}

/* World stopped. */
static uint64_t base_of(const struct luaC_heap *h)
{
	struct ebbgc_stats s;

	ebbgc_stats_get(h->heap, &s, sizeof(s));
	return kept_bytes(h, &s) - s.live_bytes;
}

/* Names the object's type: the value may be no object. */
static void check_failed(global_State *g, const struct ebbgc_event *event)
{
	ebbgc_type_t type = ebbgc_type_of(ebbgc_ref((void *)(uintptr_t)event->value));
	const char *name = "unknown";

	for (int i = 0; i < HEAP_TYPES; i++)
		if (g->gc.types[i] == type)
			name = layouts[i].name;
	fprintf(stderr, "lua: object %#llx (%s): %s\n", (unsigned long long)event->value, name,
		event->text);
	abort();
}

/* On the collector's thread. */
static void on_event(void *arg, const struct ebbgc_event *event)
{
	global_State *g = arg;

	if (event->kind == EBBGC_EVENT_FINALIZERS_READY) {
		__atomic_store_n(&g->gc.work, 1, __ATOMIC_RELAXED);
	} else if (event->kind == EBBGC_EVENT_MARK_END) {
		__atomic_store_n(&g->gc.base, base_of(&g->gc), __ATOMIC_RELAXED);
	} else if (event->kind == EBBGC_EVENT_CHECK_FAILED) {
		check_failed(g, event);
	}
}

/* lua_newstate() tells its caller nothing. */
static void explain_heap(int error)
{
	const char *options = getenv("EBBGC_OPTIONS");

	if (error == -EINVAL && options)
		fprintf(stderr, "lua: EBBGC_OPTIONS: \"%s\" is not valid; see ebbgc(3)\n", options);
	else
		fprintf(stderr, "lua: cannot create a heap: %s\n", strerror(-error));
}

int luaC_open(lua_State *L)
{
	struct luaC_heap *h = &G(L)->gc;
	struct ebbgc_options o;
	int r;

	memset(h, 0, sizeof(*h));
	ebbgc_options_init(&o);
	o.features |= EBBGC_PLAIN | EBBGC_NEWEST_FIRST;
#if defined(LUAI_GCSTRESS)
	/* Dead references are cleared beside the program. */
	o.pause_budget_ns = 0;
#endif
	o.event = on_event;
	o.event_arg = G(L);
	r = ebbgc_heap_create(&o, &h->heap);
	if (r) {
		explain_heap(r);
		return 0;
	}
	for (int i = 0; i < HEAP_TYPES; i++) {
		struct ebbgc_layout l = layouts[i];

		l.flags |= EBBGC_ALL_STORES;
		r = ebbgc_type_register(h->heap, &l, &h->types[i]);
		if (!r)
			r = l.length_width ?
			    ebbgc_length_site_init(h->heap, h->types[i], &h->length_sites[i]) :
			    ebbgc_site_init(h->heap, h->types[i], &h->sites[i]);
		if (r) {
			fprintf(stderr, "lua: cannot register type \"%s\": %s\n", l.name,
				strerror(-r));
			goto out;
		}
	}
	if (ebbgc_attach(h->heap, &h->mutator))
		goto out;
	if (ebbgc_roots_call(h->mutator, roots, G(L)))
		goto out;
	ebbgc_fibre_enter(h->mutator, &h->api, luaC_ref(L));
	h->running = L;
	/* Until all of the state is reachable. */
	luaC_suspend(L, 1);
	return 1;
out:
	luaC_close(L);
	return 0;
}

void luaC_close(lua_State *L)
{
	struct luaC_heap *h = &G(L)->gc;

	free(h->hashes);
	if (h->mutator)
		ebbgc_detach(h->mutator);
	ebbgc_heap_destroy(h->heap);
	h->heap = NULL;
}

void luaC_suspend(lua_State *L, int stop)
{
	struct luaC_heap *h = &G(L)->gc;

	if (stop == h->suspended)
		return;
	h->suspended = stop;
	if (stop)
		ebbgc_cycles_suspend(h->mutator);
	else
		ebbgc_cycles_resume(h->mutator);
}

lu_mem luaC_bytes(global_State *g)
{
	struct ebbgc_stats s;

	ebbgc_stats_get(g->gc.heap, &s, sizeof(s));
	return kept_bytes(&g->gc, &s) - __atomic_load_n(&g->gc.base, __ATOMIC_RELAXED) +
	       g->gc.c_bytes;
}

void luaC_fix(lua_State *L, GCObject *o)
{
	if (!ebbgc_handle_new(luaC_mutator(L), luaC_ref(o)))
		luaM_error(L);
}

/* --- finalizers -------------------------------------------------------------------------- */

static void call_gc(lua_State *L, void *ud)
{
	UNUSED(ud);
	luaD_callnoyield(L, L->top - 2, 0);
}

/* Calls __gc; errors become warnings. */
static void finalize(ebbgc_mutator_t *m, ebbgc_ref_t object, void *data)
{
	global_State *g = data;
	lua_State *L = g->gc.finalizing;
	lu_byte hooks = L->allowhook, stop = g->gcstp;
	GCObject *o = ebbgc_ptr(object);
	const TValue *tm;
	TValue v;
	int status;

	UNUSED(m);
	resetbit(o->marked, FINALIZEDBIT);
	setgcovalue(L, &v, o);
	tm = luaT_gettmbyobj(L, &v, TM_GC);
	if (notm(tm))
		return;
	g->gcstp |= GCSTPGC;
	L->allowhook = 0;
	setobj2s(L, L->top++, tm);
	setobj2s(L, L->top++, &v);
	L->ci->callstatus |= CIST_FIN;
	status = luaD_pcall(L, call_gc, NULL, savestack(L, L->top - 2), 0);
	L->ci->callstatus &= ~CIST_FIN;
	L->allowhook = hooks;
	g->gcstp = stop;
	if (l_unlikely(status != LUA_OK)) {
		luaE_warnerror(L, "__gc");
		L->top--;
	}
}

static void finalize_all(lua_State *L)
{
	lua_State *before = G(L)->gc.finalizing;

	G(L)->gc.finalizing = L;
	while (ebbgc_finalizers_run(luaC_mutator(L), 1))
		;
	G(L)->gc.finalizing = before;
}

void luaC_checkfinalizer(lua_State *L, GCObject *o, Table *mt)
{
	global_State *g = G(L);

	if (tofinalize(o) || gfasttm(g, mt, TM_GC) == NULL || (g->gcstp & GCSTPCLS))
		return;
	if (ebbgc_finalizer_add(g->gc.mutator, luaC_ref(o), finalize, g))
		luaM_error(L);
	l_setbit(o->marked, FINALIZEDBIT);
}

void luaC_freeallobjects(lua_State *L)
{
	global_State *g = G(L);

	g->gcstp = GCSTPCLS;	/* no new finalizers */
	ebbgc_finalizers_all(g->gc.mutator);
	finalize_all(L);
}

static void check_modes(lua_State *L);

void luaC_step(lua_State *L)
{
	global_State *g = G(L);

	g->gc.work = 0;
	if (g->gc.modes)
		check_modes(L);
	if (gcrunning(g))
		finalize_all(L);
	else
		g->gc.work = 1;
}

void luaC_fullgc(lua_State *L, int isemergency)
{
	if (G(L)->gc.modes && !isemergency)
		check_modes(L);
	if (!isemergency)
		luaD_shrinkstack(L);
	ebbgc_collect(luaC_mutator(L));
	G(L)->gc.work = 0;
	if (!isemergency)
		finalize_all(L);
}

/* --- strings ----------------------------------------------------------------------------- */

#define STRINGS_MIN 1024

static ebbgc_ref_t *string_slots(const struct luaC_heap *h)
{
	return (ebbgc_ref_t *)((char *)ebbgc_ptr(h->strings) + ARRAY_HEADER);
}

/* 0 is for slots that were never used. */
static unsigned int hash_of(unsigned int h)
{
	return h ? h : 1;
}

TString *luaC_findstring(lua_State *L, const char *str, size_t l, unsigned int hash)
{
	struct luaC_heap *h = &G(L)->gc;
	size_t mask = h->string_slots - 1, i;

	if (!h->string_slots)
		return NULL;
	hash = hash_of(hash);
	for (i = hash & mask; h->hashes[i]; i = (i + 1) & mask) {
		TString *ts;

		if (h->hashes[i] != hash)
			continue;
		ts = ebbgc_ptr(string_slots(h)[i]);
		if (!ts || ts->shrlen != l || memcmp(str, getstr(ts), l))
			continue;
		/* One that is found must survive this cycle; a dead one may have a successor. */
		ts = ebbgc_ptr(ebbgc_load_weak(h->mutator, h->strings, &string_slots(h)[i]));
		if (ts)
			return ts;
	}
	return NULL;
}

static void string_put(struct luaC_heap *h, ebbgc_ref_t ts, unsigned int hash)
{
	size_t mask = h->string_slots - 1, i = hash & mask;

	while (h->hashes[i] && !(h->hashes[i] == hash && ebbgc_is_null(string_slots(h)[i])))
		i = (i + 1) & mask;
	h->string_used += !h->hashes[i];
	h->hashes[i] = hash;
	ebbgc_store(h->mutator, h->strings, &string_slots(h)[i], ts);
}

/* Makes room for as many strings again as live. */
static void strings_grow(lua_State *L)
{
	struct luaC_heap *h = &G(L)->gc, old;
	size_t live = 0, slots = STRINGS_MIN;
	unsigned int *hashes;
	ebbgc_ref_t strings;

	for (size_t i = 0; i < h->string_slots; i++)
		live += !ebbgc_is_null(string_slots(h)[i]);
	while (slots < 4 * live)
		slots *= 2;
	hashes = calloc(slots, sizeof(*hashes));
	if (!hashes)
		luaM_error(L);
	stress(h);
	strings = ebbgc_alloc_length(h->mutator, h->types[HEAP_STRINGS], slots);
	if (ebbgc_is_null(strings)) {
		free(hashes);
		luaM_error(L);
	}
	old = *h;
	h->strings = strings;
	h->hashes = hashes;
	h->string_slots = slots;
	h->string_used = 0;
	for (size_t i = 0; i < old.string_slots; i++) {
		ebbgc_ref_t ts = ebbgc_load_weak(h->mutator, old.strings, &string_slots(&old)[i]);

		if (!ebbgc_is_null(ts))
			string_put(h, ts, old.hashes[i]);
	}
	free(old.hashes);
}

void luaC_addstring(lua_State *L, TString *ts, unsigned int hash)
{
	struct luaC_heap *h = &G(L)->gc;

	if (l_unlikely(2 * h->string_used >= h->string_slots)) {
		ebbgc_ref_t slot = luaC_ref(ts);
		struct ebbgc_frame frame;

		ebbgc_frame_push(h->mutator, &frame, &slot, 1);
		strings_grow(L);
		ebbgc_frame_pop(h->mutator, &frame);
	}
	string_put(h, luaC_ref(ts), hash_of(hash));
}

/* --- weak tables ------------------------------------------------------------------------- */

/* Returns the reference, kept alive, or null if it is dead. */
static GCObject *alive(Table *inner, GCObject *o, enum ebbgc_clear when)
{
	return ebbgc_ptr(ebbgc_weak_read(inner->g->gc.mutator, luaC_ref(o), when));
}

/* A value is weak unless only its key is: then it lives while the key does. */
static int value_alive(Table *inner, const TValue *v)
{
	return !iscollectable(v) ||
	       alive(inner, gcvalue(v), is_string(rawtt(v)) || !(inner->marked & WEAKVALUE) ?
					EBBGC_CLEAR_LAST : EBBGC_CLEAR_FIRST);
}

const TValue *luaC_weakslot(Table *inner, const TValue *slot)
{
	if (!isempty(slot) && !value_alive(inner, slot))
		setempty(cast(TValue *, slot));
	return slot;
}

int luaC_weaknode(Table *inner, Node *n)
{
	if (isempty(gval(n)))
		return 0;
	if (keyiscollectable(n) && !alive(inner, gckey(n), EBBGC_CLEAR_LAST))
		setempty(gval(n));
	return !isempty(luaC_weakslot(inner, gval(n)));
}

void luaC_purge(Table *inner)
{
	unsigned int asize = luaH_realasize(inner);

	for (unsigned int i = 0; i < asize; i++)
		luaC_weakslot(inner, &inner->array[i]);
	if (!isdummy(inner))
		for (int i = 0; i < sizenode(inner); i++)
			luaC_weaknode(inner, gnode(inner, i));
}

/* Reads a metatable without changing its cache of absent fields. */
static int mode_of(global_State *g, Table *mt)
{
	const TValue *mode = mt ? luaH_getshortstr(mt, g->tmname[TM_MODE]) : NULL;
	int bits = 0;

	if (mode && ttisstring(mode)) {
		if (strchr(svalue(mode), 'k'))
			bits |= WEAKKEY;
		if (strchr(svalue(mode), 'v'))
			bits |= WEAKVALUE;
	}
	return bits;
}

static int has_mode(const Table *t)
{
	return t->inner ? t->inner->marked & WEAKBITS : 0;
}

/* Calls luaH_set() in `to` for each entry of `from`. */
static void copy_entries(lua_State *L, Table *to, Table *from)
{
	unsigned int asize = luaH_realasize(from);

	for (unsigned int i = 0; i < asize; i++) {
		if (from->g)
			luaC_weakslot(from, &from->array[i]);
		if (!isempty(&from->array[i]))
			luaH_setint(L, to, i + 1, &from->array[i]);
	}
	for (int i = 0; i < sizenode(from); i++) {
		Node *n = gnode(from, i);
		TValue key;

		if (isempty(gval(n)) || (from->g && !luaC_weaknode(from, n)))
			continue;
		getnodekey(L, &key, n);
		luaH_set(L, to, &key, gval(n));
	}
}

void luaC_checkmode(lua_State *L, Table *t)
{
	global_State *g = G(L);
	int mode = mode_of(g, t->metatable);
	Table *from, *to;

	if (t->metatable)
		t->metatable->flags |= METABIT;
	if (l_likely(mode == has_mode(t)))
		return;
	/* Entries must survive until they are copied: anchor tables on the stack. */
	to = luaH_new(L);
	sethvalue2s(L, L->top, to);
	luaD_inctop(L);
	to->g = g;
	to->marked |= mode;
	from = t->inner ? t->inner : t;
	if (from->g)
		luaC_purge(from);
	luaH_resize(L, to, luaH_realasize(from), allocsizenode(from));
	copy_entries(L, to, from);
	if (mode) {
		luaC_set(L, t->inner, to);
		luaH_clear(L, t);
	} else {
		luaC_set(L, t->inner, NULL);
		to->g = NULL;
		luaH_take(L, t, to);
	}
	L->top--;
}

struct found {
	global_State *g;
	Table **tables;
	ebbgc_handle_t **handles;	/* that keep them */
	size_t count, capacity;
	int failed;
};

/* World stopped; the table may be unreachable. */
static void find_changed(void *arg, ebbgc_ref_t object)
{
	struct found *f = arg;
	Table *t = ebbgc_ptr(object);

	if (ebbgc_type_of(object) != f->g->gc.types[HEAP_TABLE] || t->tt != LUA_VTABLE || t->g ||
	    mode_of(f->g, t->metatable) == has_mode(t))
		return;
	if (f->count == f->capacity) {
		size_t capacity = f->capacity ? 2 * f->capacity : 64;
		Table **tables = realloc(f->tables, capacity * sizeof(*tables));

		if (!tables) {
			f->failed = 1;
			return;
		}
		f->tables = tables;
		f->capacity = capacity;
	}
	f->tables[f->count++] = t;
}

void luaC_metachanged(lua_State *L, const TValue *key)
{
	if (ttisshrstring(key) && eqshrstr(tsvalue(key), G(L)->tmname[TM_MODE])) {
		G(L)->gc.modes = 1;
		G(L)->gc.work = 1;
	}
}

/* Keeps those of the tables that are not dead, before anything is allocated. */
static int keep_found(lua_State *L, struct found *f)
{
	size_t kept = 0;
	int all = 1;

	f->handles = malloc(f->count * sizeof(*f->handles) + 1);
	for (size_t i = 0; f->handles && i < f->count; i++) {
		ebbgc_ref_t t = ebbgc_weak_read(luaC_mutator(L), luaC_ref(f->tables[i]),
						EBBGC_CLEAR_LAST);

		if (ebbgc_is_null(t))
			continue;
		f->handles[kept] = ebbgc_handle_new(luaC_mutator(L), t);
		if (f->handles[kept])
			kept++;
		else
			all = 0;
	}
	f->count = kept;
	return all && f->handles;
}

/* Rare: a metatable got its __mode after tables had got the metatable. */
static void check_modes(lua_State *L)
{
	struct found f = { .g = G(L) };

	G(L)->gc.modes = 0;
	if (ebbgc_heap_walk(luaC_mutator(L), find_changed, &f))
		return;
	f.failed |= !keep_found(L, &f);
	for (size_t i = 0; i < f.count; i++)
		luaC_checkmode(L, ebbgc_ptr(ebbgc_handle_get(f.handles[i])));
	for (size_t i = 0; i < f.count; i++)
		ebbgc_handle_free(luaC_mutator(L), f.handles[i]);
	G(L)->gc.modes = f.failed;
	free(f.tables);
	free(f.handles);
}
