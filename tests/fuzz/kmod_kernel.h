/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel's interfaces that the module's sessions (kmod-swap/lifecycle.c and what it uses) use,
 * for one thread in user space.  tests/fuzz/kmod.c implements those that wait, and those of RDMA.
 */
#ifndef EBB_KMOD_KERNEL_H
#define EBB_KMOD_KERNEL_H

#include <errno.h>
#include <netinet/in.h>
#include <openssl/hmac.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define U32_MAX UINT32_MAX
#define PAGE_SHIFT 12
#define HZ 250
#define MSEC_PER_SEC 1000
#define BIT(n) (1ul << (n))
#define DIV_ROUND_UP(n, d) (((n) + (d)-1) / (d))
#define min(a, b) ({ __auto_type _a = (a); __auto_type _b = (b); _a < _b ? _a : _b; })
#define max(a, b) ({ __auto_type _a = (a); __auto_type _b = (b); _a > _b ? _a : _b; })
#define min_t(type, a, b) ({ type _a = (a), _b = (b); _a < _b ? _a : _b; })
#define clamp_t(type, v, least, most) min_t(type, (v) < (least) ? (least) : (v), most)
#define min3(a, b, c) min((typeof(a))min(a, b), c)
#define static_assert(is, ...) _Static_assert(is, #is)
#define fallthrough __attribute__((fallthrough))
#define likely(x) (x)
#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile typeof(x) *)&(x) = (v))
#define __percpu
#define __rcu
#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))
#define pr_warn(...) ((void)0)
#define pr_info(...) ((void)0)
#define module_param(...)
#define MODULE_PARM_DESC(...)
#define smp_mb() ((void)0)
#define IS_ERR(p) ((uintptr_t)(p) >= (uintptr_t)-4095)
#define PTR_ERR(p) ((long)(p))
#define ERR_PTR(e) ((void *)(long)(e))

extern unsigned long jiffies;
#define msecs_to_jiffies(ms) ((ms) / 4ul)
#define time_after(a, b) ((long)((b) - (a)) < 0)
#define time_before(a, b) time_after(b, a)

/* --- memory; an allocation may fail --- */

#define GFP_KERNEL 0
#define memzero_explicit explicit_bzero
#define struct_size(p, member, n) (sizeof(*(p)) + sizeof(*(p)->member) * (n))
void *kzalloc(size_t size, int flags);
void kfree(void *p);
static inline unsigned int memalloc_noio_save(void)
{
	return 0;
}
#define memalloc_noio_restore(flags) ((void)(flags))
#define memalloc_noreclaim_save memalloc_noio_save
#define memalloc_noreclaim_restore memalloc_noio_restore
void get_random_bytes(void *to, size_t n);
u64 get_random_u64(void);

/* The kernel's takes NULL for no bytes. */
static inline void *kernel_memcpy(void *to, const void *from, size_t n)
{
	return n ? memcpy(to, from, n) : to;
}
#define memcpy kernel_memcpy

/* --- lists --- */

struct list_head {
	struct list_head *next, *prev;
};

static inline void INIT_LIST_HEAD(struct list_head *l)
{
	l->next = l->prev = l;
}

#define LIST_HEAD(l) struct list_head l = { &(l), &(l) }

static inline bool list_empty(const struct list_head *l)
{
	return l->next == l;
}

static inline void list_add_tail(struct list_head *n, struct list_head *l)
{
	n->next = l;
	n->prev = l->prev;
	l->prev->next = n;
	l->prev = n;
}

static inline void list_del_init(struct list_head *n)
{
	n->next->prev = n->prev;
	n->prev->next = n->next;
	INIT_LIST_HEAD(n);
}
#define list_del list_del_init

static inline void list_move_tail(struct list_head *n, struct list_head *l)
{
	list_del(n);
	list_add_tail(n, l);
}

static inline void list_splice(struct list_head *from, struct list_head *to)
{
	while (!list_empty(from))
		list_move_tail(from->next, to);
}

#define list_first_entry_or_null(l, type, member) \
	(list_empty(l) ? NULL : container_of((l)->next, type, member))
#define list_for_each_entry(p, l, member) \
	for ((p) = container_of((l)->next, typeof(*(p)), member); &(p)->member != (l); \
	     (p) = container_of((p)->member.next, typeof(*(p)), member))
#define list_for_each_entry_safe(p, n, l, member) \
	for ((p) = container_of((l)->next, typeof(*(p)), member), \
	     (n) = container_of((p)->member.next, typeof(*(p)), member); &(p)->member != (l); \
	     (p) = (n), (n) = container_of((n)->member.next, typeof(*(p)), member))

/* --- locks; a second lock of the same, and sleeping under a spinlock, are faults --- */

typedef struct {
	bool held;
} spinlock_t;
struct mutex {
	bool held;
};
void world_lock(bool *held, bool spin);
void world_unlock(bool *held, bool spin);
#define spin_lock_init(l) ((l)->held = false)
#define spin_lock_irqsave(l, flags) ((flags) = 0, world_lock(&(l)->held, true))
#define spin_unlock_irqrestore(l, flags) ((void)(flags), world_unlock(&(l)->held, true))
#define mutex_init(l) ((l)->held = false)
#define mutex_lock(l) world_lock(&(l)->held, false)
#define mutex_unlock(l) world_unlock(&(l)->held, false)

typedef struct {
	int v;
} atomic_t;
#define atomic_read(a) ((a)->v)
#define atomic_read_acquire atomic_read
#define atomic_set(a, to) ((a)->v = (to))
#define atomic_set_release atomic_set
#define atomic_add(n, a) ((void)((a)->v += (n)))

static inline bool atomic_try_cmpxchg(atomic_t *a, int *old, int to)
{
	bool same = a->v == *old;

	*old = a->v;
	a->v = same ? to : a->v;
	return same;
}

struct percpu_ref {
	int count;
	void (*release)(struct percpu_ref *ref);
};

static inline int percpu_ref_init(struct percpu_ref *r, void (*release)(struct percpu_ref *ref),
				  int flags, int gfp)
{
	*r = (struct percpu_ref){ 1, release };
	return 0;
}
#define PERCPU_REF_ALLOW_REINIT 0
#define percpu_ref_reinit(r) ((r)->count++)
#define percpu_ref_exit(r) ((void)(r))
#define percpu_ref_tryget_live(r) ((r)->count++ > 0)

static inline void percpu_ref_kill(struct percpu_ref *r)
{
	if (!--r->count)
		r->release(r);
}

/* --- waiting and deferred work --- */

struct completion {
	u32 done;
};
#define init_completion(c) ((c)->done = 0)
#define reinit_completion init_completion
#define complete(c) ((void)(c)->done++)
/* Returns 0 after the time-out. */
unsigned long wait_for_completion_timeout(struct completion *c, unsigned long timeout);
void wait_for_completion(struct completion *c);

struct work_struct {
	void (*run)(struct work_struct *work);
	bool pending;
	struct list_head node;
};
struct delayed_work {
	struct work_struct work;
};
struct workqueue_struct;
#define WQ_MEM_RECLAIM 0
#define WQ_UNBOUND 0
#define INIT_WORK(w, fn) (*(w) = (struct work_struct){ .run = (fn) })
#define INIT_DELAYED_WORK(w, fn) INIT_WORK(&(w)->work, fn)
#define alloc_workqueue(...) ((struct workqueue_struct *)1)
#define destroy_workqueue(q) ((void)(q))
#define queue_work(q, w) world_queue(w)
#define queue_delayed_work(q, w, delay) world_queue(&(w)->work)
#define mod_delayed_work queue_delayed_work
#define cancel_delayed_work_sync(w) cancel_work_sync(&(w)->work)
void world_queue(struct work_struct *work);
void cancel_work_sync(struct work_struct *work);
void flush_work(struct work_struct *work);

/* --- RDMA --- */

enum dma_data_direction { DMA_TO_DEVICE, DMA_FROM_DEVICE };
struct ib_device {
	struct {
		int max_send_sge, max_sge_rd, max_qp_init_rd_atom;
	} attrs;
	int num_comp_vectors;
};
struct ib_pd {
	u32 local_dma_lkey;
};
enum ib_wc_status {
	IB_WC_SUCCESS, IB_WC_RETRY_EXC_ERR, IB_WC_RNR_RETRY_EXC_ERR, IB_WC_RESP_TIMEOUT_ERR,
	IB_WC_WR_FLUSH_ERR, IB_WC_REM_ACCESS_ERR, IB_WC_REM_INV_REQ_ERR, IB_WC_REM_OP_ERR,
	IB_WC_REM_ABORT_ERR, IB_WC_GENERAL_ERR, IB_WC_STATUSES
};
#define ib_wc_status_msg(status) "a work request failed"
struct ib_cqe;
struct ib_wc {
	struct ib_cqe *wr_cqe;
	enum ib_wc_status status;
	u32 byte_len;
};
struct ib_cq {
	void *cq_context;
};
struct ib_cqe {
	void (*done)(struct ib_cq *cq, struct ib_wc *wc);
};
struct ib_qp {
	u32 qp_num;
	struct ib_cq *cq;
};
struct ib_sge {
	u64 addr;
	u32 length, lkey;
};
struct ib_recv_wr {
	struct ib_cqe *wr_cqe;
	struct ib_sge *sg_list;
	int num_sge;
};
struct ib_send_wr {
	struct ib_cqe *wr_cqe;
	struct ib_sge *sg_list;
	int num_sge, opcode, send_flags;
};
struct ib_rdma_wr {
	struct ib_send_wr wr;
};
enum { IB_WR_SEND, IB_WR_RDMA_WRITE, IB_SEND_SIGNALED = 1, IB_QPT_RC = 0, IB_SIGNAL_REQ_WR = 0,
       IB_POLL_SOFTIRQ = 0, RDMA_PS_TCP = 0 };
struct ib_qp_init_attr {
	struct ib_cq *send_cq, *recv_cq;
	int qp_type, sq_sig_type;
	struct {
		u32 max_send_wr, max_recv_wr, max_send_sge, max_recv_sge;
	} cap;
};
enum rdma_cm_event_type {
	RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_ESTABLISHED,
	RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ROUTE_ERROR, RDMA_CM_EVENT_CONNECT_ERROR,
	RDMA_CM_EVENT_UNREACHABLE, RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_DISCONNECTED,
	RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENTS
};
struct rdma_conn_param {
	const void *private_data;
	u8 private_data_len, retry_count, rnr_retry_count, initiator_depth;
	u32 qp_num;
};
struct rdma_cm_event {
	enum rdma_cm_event_type event;
	int status;
	union {
		struct rdma_conn_param conn;
	} param;
};
struct rdma_cm_id {
	void *context;
	int (*handler)(struct rdma_cm_id *id, struct rdma_cm_event *event);
	struct ib_device *device;
	struct ib_qp *qp;
};
struct net;
extern struct net init_net;
#define rdma_protocol_iwarp(ib, port) false
#define rdma_set_ack_timeout(id, timeout) ((void)(timeout))
#define ib_dma_sync_single_for_cpu(...) ((void)0)
#define ib_dma_sync_single_for_device(...) ((void)0)
#define ib_dma_map_single(ib, data, size, direction) ((u64)(uintptr_t)(data))
#define ib_dma_mapping_error(ib, dma) false
#define ib_dma_unmap_single(...) ((void)0)
struct rdma_cm_id *rdma_create_id(struct net *net,
				  int (*handler)(struct rdma_cm_id *, struct rdma_cm_event *),
				  void *context, int ps, int type);
void rdma_destroy_id(struct rdma_cm_id *id);
int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to, int ms);
int rdma_resolve_route(struct rdma_cm_id *id, int ms);
int rdma_create_qp(struct rdma_cm_id *id, struct ib_pd *pd, struct ib_qp_init_attr *attr);
void rdma_destroy_qp(struct rdma_cm_id *id);
int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param);
int rdma_disconnect(struct rdma_cm_id *id);
const void *rdma_consumer_reject_data(struct rdma_cm_id *id, struct rdma_cm_event *event,
				      u8 *length);
struct ib_pd *ib_alloc_pd(struct ib_device *ib, int flags);
void ib_dealloc_pd(struct ib_pd *pd);
struct ib_cq *ib_alloc_cq(struct ib_device *ib, void *context, int entries, int vector, int how);
void ib_free_cq(struct ib_cq *cq);
int ib_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad);
int ib_post_send(struct ib_qp *qp, const struct ib_send_wr *wr, const struct ib_send_wr **bad);
void ib_drain_qp(struct ib_qp *qp);

/* --- the rest --- */

struct kernel_name {
	char nodename[65];
};
#define init_utsname() (&(struct kernel_name){ "fuzz" })

struct request;
struct blk_mq_tag_set {
	int unused;
};
struct compat_bdev {
	void *bdev;
};

struct crypto_shash {
	u8 key[32];
};

static inline struct crypto_shash *crypto_alloc_shash(const char *name, int type, int mask)
{
	struct crypto_shash *tfm = kzalloc(sizeof(*tfm), GFP_KERNEL);

	return tfm ? tfm : ERR_PTR(-ENOMEM);
}

static inline int crypto_shash_setkey(struct crypto_shash *tfm, const u8 *key, u32 length)
{
	memcpy(tfm->key, key, length);
	return 0;
}

static inline int crypto_shash_tfm_digest(struct crypto_shash *tfm, const u8 *text, u32 length,
					  u8 *out)
{
	return HMAC(EVP_sha256(), tfm->key, sizeof(tfm->key), text, length, out, NULL) ? 0 : -EIO;
}
#define crypto_free_shash kfree
#define crypto_memneq memcmp

#endif
