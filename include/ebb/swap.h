/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * How user space controls ebb_swap.ko: the generic netlink family "ebb_swap".  All commands, and
 * the multicast group, need CAP_SYS_ADMIN in the initial user namespace.  Attributes are validated
 * strictly; the extended acknowledgement of a refusal names the field.
 */
#ifndef EBB_SWAP_ABI_H
#define EBB_SWAP_ABI_H

#include <linux/types.h>

#define EBB_SWAP_FAMILY "ebb_swap"
/*
 * Version 1 (release 0.1.0): DRAIN also moves the session's slabs, to TARGET or to the backup.
 * Version 2: CONNECT has no KEY.
 * A module accepts what older clients send, so a client checks only for modules that are too old.
 */
#define EBB_SWAP_VERSION 3
#define EBB_SWAP_GROUP "events" /* multicast: EVENT */

/* Limits that the commands check. */
#define EBB_SWAP_DEVICES 64
#define EBB_SWAP_QUEUES 16
#define EBB_SWAP_SESSIONS 64
#define EBB_SWAP_PATH 256
#define EBB_SWAP_CLASSES 8  /* of a device; 0: pages of cgroups without a class */
#define EBB_SWAP_CGROUPS 64 /* of a device: cgroups with a class */
#define EBB_SWAP_KEY 32
#define EBB_SWAP_KEY_NUMBER 8

enum ebb_swap_command {
	EBB_SWAP_CMD_UNSPEC,
	/*
	 * SIZE KEY KEY_NUMBER [DEVICE SLAB_SIZE BACKUP QUEUES DEPTH DEADLINE POOL COPIES SEAL];
	 * the reply has DEVICE.  SEAL applies to class 0.
	 */
	EBB_SWAP_CMD_CREATE,
	/* DEVICE; refused while it is open. */
	EBB_SWAP_CMD_DESTROY,
	/*
	 * DEVICE ADDRESS PORT [CLASS, KEY KEY_NUMBER]; the reply has SESSION, which takes slabs of
	 * CLASS [0] alone.  The donor proves KEY [the device's]; ENOKEY: it does not know KEY.
	 */
	EBB_SWAP_CMD_CONNECT,
	/* DEVICE SESSION [FORCE]; its slabs fall back to their other donors and the backup. */
	EBB_SWAP_CMD_DISCONNECT,
	/*
	 * DEVICE SLAB SESSION [COPIES]; borrows memory from the session's donor for the pages of
	 * SLAB that are of the session's class.  A slab with SECOND in COPIES and one donor gets
	 * its second donor.
	 */
	EBB_SWAP_CMD_MAP,
	/* DEVICE SLAB [SESSION FORCE CLASS]; releases the slab at SESSION, or at its only donor. */
	EBB_SWAP_CMD_UNMAP,
	/*
	 * DEVICE SLAB [SESSION FROM CLASS]; the slab belongs to SESSION, or to the backup alone, at
	 * once.  Its pages are copied there in the background; then the old donor's slab is
	 * released.  Reads and writes continue.  A slab with two donors leaves FROM.
	 */
	EBB_SWAP_CMD_MIGRATE,
	/*
	 * DEVICE SESSION [TARGET]; excludes SESSION from new placements.  Its slabs stay: MIGRATE
	 * them.
	 */
	EBB_SWAP_CMD_DRAIN,
	/* Dump: DEVICE, its settings, COUNTS; SESSION_INFO, CLASS_INFO and CGROUP_INFO for each. */
	EBB_SWAP_CMD_STATUS,
	/*
	 * Dump of one DEVICE [CLASS]: SLAB_FIRST and SLAB_TABLE, an array of struct ebb_swap_slab
	 * for the pages of CLASS [0].
	 */
	EBB_SWAP_CMD_SLABS,
	/* Sent by the module alone: DEVICE EVENT SESSION [SLAB REASON CAUSE]. */
	EBB_SWAP_CMD_EVENT,
	/*
	 * DEVICE CLASS [COPIES SEAL]; creates a class of pages, whose slabs have donors of their
	 * own, or sets where writes of an existing class go from now on.
	 */
	EBB_SWAP_CMD_CLASS,
	/*
	 * DEVICE CGROUP [CLASS]; pages that the cgroup, and its descendants without a class of
	 * their own, write from now on are of CLASS, or of the parent's class.  Pages keep their
	 * class until they are written again.
	 */
	EBB_SWAP_CMD_ASSIGN,
	/* DEVICE SESSION; ends the exclusion of a session with BAD_PAGES. */
	EBB_SWAP_CMD_TRUST,
	EBB_SWAP_CMDS
};

enum ebb_swap_attribute {
	EBB_SWAP_A_UNSPEC,
	EBB_SWAP_A_DEVICE,	 /* u32: N of /dev/ebbN */
	EBB_SWAP_A_SIZE,	 /* u64: bytes, a multiple of SLAB_SIZE */
	EBB_SWAP_A_SLAB_SIZE,	 /* u64: bytes, a power of two, 1 MiB - 1 GiB [64 MiB] */
	/*
	 * String: path of a block device, as large as SIZE.  The caller has it open until the
	 * answer: if the module's open loaded a driver that registers a generic netlink family
	 * (drbd), the two would wait for each other.
	 */
	EBB_SWAP_A_BACKUP,
	EBB_SWAP_A_QUEUES,	 /* u32: hardware queues, and QPs per session [CPUs, at most 8] */
	EBB_SWAP_A_DEPTH,	 /* u32: requests a queue [64] */
	EBB_SWAP_A_DEADLINE,	 /* u32: ms for a call; for a page, else its session ends [5000] */
	EBB_SWAP_A_ADDRESS,	 /* string: IPv4 or IPv6 address of a donor */
	EBB_SWAP_A_PORT,	 /* u16 */
	EBB_SWAP_A_SESSION,	 /* u32: number within its device */
	EBB_SWAP_A_SLAB,	 /* u32: index in the device */
	/*
	 * u32: enum ebb_swap_copy, where writes of a slab go [DONOR, and the backup if there is
	 * one]; in CREATE and STATUS the default of all slabs.
	 */
	EBB_SWAP_A_COPIES,
	EBB_SWAP_A_FORCE,	 /* flag: lose pages that only the donor has */
	EBB_SWAP_A_COUNTS,	 /* nested: enum ebb_swap_count, u64 each */
	/*
	 * nested: SESSION, STATE, REASON, ADDRESS, PORT, DONOR_FREE
	 * [DRAINING CLASS CAUSE BAD_PAGES AWAY]
	 */
	EBB_SWAP_A_SESSION_INFO,
	EBB_SWAP_A_STATE,	 /* u32: enum ebb_swap_session_state */
	EBB_SWAP_A_REASON,	 /* string: why a session ended, or is away */
	EBB_SWAP_A_DONOR_FREE,	 /* u64: bytes that the donor could lend at its last reply */
	EBB_SWAP_A_SLAB_FIRST,	 /* u32: index of the first element of SLAB_TABLE */
	EBB_SWAP_A_SLAB_TABLE,	 /* binary: struct ebb_swap_slab[] */
	EBB_SWAP_A_PAD,
	EBB_SWAP_A_TARGET,	 /* u32: ignored since version 2 */
	EBB_SWAP_A_EVENT,	 /* u32: enum ebb_swap_event */
	EBB_SWAP_A_POOL,	 /* u64: bytes of the write-behind pool [4 MiB] */
	EBB_SWAP_A_POOL_USED,	 /* u64: bytes in that pool */
	EBB_SWAP_A_DRAINING,	 /* flag: the session is excluded from new placements */
	EBB_SWAP_A_CLASS,	 /* u32: 0 to 7 */
	EBB_SWAP_A_CGROUP,	 /* u64: id, the inode of the directory in cgroup v2 */
	EBB_SWAP_A_CLASS_INFO,	 /* nested: CLASS, COPIES [SEAL]; of each class but 0 */
	EBB_SWAP_A_CGROUP_INFO,	 /* nested: CGROUP, CLASS; of each cgroup with a class */
	EBB_SWAP_A_SEAL,	 /* flag: pages are encrypted before they leave; cannot change */
	/*
	 * Binary, EBB_SWAP_KEY bytes: each donor proves to have it before a page goes there.  It
	 * cannot change, and the module never reports it.
	 */
	EBB_SWAP_A_KEY,
	EBB_SWAP_A_KEY_NUMBER,	 /* binary, EBB_SWAP_KEY_NUMBER bytes: fingerprint of the key */
	EBB_SWAP_A_FROM,	 /* u32: session that a slab leaves */
	EBB_SWAP_A_CAUSE,	 /* u32: enum ebb_swap_cause of a session that ended or is away */
	/*
	 * u32: sealed pages that the donor returned other than they were written.  The session is
	 * excluded from new placements until TRUST: MIGRATE its slabs, and do not connect again.
	 */
	EBB_SWAP_A_BAD_PAGES,
	EBB_SWAP_A_AWAY,	 /* u32: ms since the session went away */
	EBB_SWAP_ATTRIBUTES
};
#define EBB_SWAP_A_MAX (EBB_SWAP_ATTRIBUTES - 1)

enum ebb_swap_copy {
	EBB_SWAP_DONOR = 1,
	EBB_SWAP_BACKUP = 2,
	EBB_SWAP_SECOND = 4,	 /* a second donor */
};
/* In struct ebb_swap_slab: the donor lacks pages, which the module copies to it. */
#define EBB_SWAP_LACKING(copy) ((copy) << 8)

/* Events that arrive faster than they are read are lost. */
enum ebb_swap_event {
	EBB_SWAP_EVENT_UNSPEC,
	EBB_SWAP_EVENT_ENDED,	 /* the session ended for REASON: MAP its slabs to other donors */
	/*
	 * The session's donor recalls SLAB, and the module has agreed: MIGRATE it.  With a backup
	 * the slab falls back to it after a second.
	 */
	EBB_SWAP_EVENT_EVICT,
	EBB_SWAP_EVENT_LEFT,	 /* SLAB has left the session: a migration is complete */
	EBB_SWAP_EVENT_BAD_PAGE, /* the session has its first of BAD_PAGES, in SLAB */
	EBB_SWAP_EVENT_AWAY,	 /* the session is away for REASON */
	EBB_SWAP_EVENT_BACK,	 /* the session is live again */
};

enum ebb_swap_session_state {
	EBB_SWAP_CONNECTING,
	EBB_SWAP_LIVE,
	EBB_SWAP_FAILED,  /* ended; requests in flight are being flushed */
	EBB_SWAP_CLOSED,  /* ended; the network device has nothing of it */
	/*
	 * Its donor cannot be reached, but retains it for a grace period: reads that need it wait,
	 * and its slabs stay.  LIVE follows, else FAILED.
	 */
	EBB_SWAP_AWAY,
};

/* Why a session ended, or is away. */
enum ebb_swap_cause {
	EBB_SWAP_CAUSE_NONE,	    /* neither */
	EBB_SWAP_CAUSE_COMMAND,	    /* DISCONNECT or DESTROY */
	EBB_SWAP_CAUSE_UNREACHABLE, /* no acknowledgement, or none within the deadline */
	EBB_SWAP_CAUSE_CLOSED,	    /* by the donor, which may also have revoked a slab */
	EBB_SWAP_CAUSE_LOCAL,	    /* this machine's network device or address */
	EBB_SWAP_CAUSE_PROTOCOL,    /* the donor broke the protocol */
};

/* Pages unless stated otherwise, since the device was created. */
enum ebb_swap_count {
	EBB_SWAP_C_UNSPEC,
	EBB_SWAP_C_READ_DONOR,
	EBB_SWAP_C_READ_BACKUP,
	EBB_SWAP_C_READ_ZERO,
	EBB_SWAP_C_WRITE_DONOR,    /* a page at two donors counts twice */
	EBB_SWAP_C_WRITE_BACKUP,
	EBB_SWAP_C_DISCARDED,
	EBB_SWAP_C_READ_FAILED,    /* requests */
	EBB_SWAP_C_WRITE_FAILED,   /* requests */
	EBB_SWAP_C_REQUESTS,	   /* reads and writes */
	EBB_SWAP_C_MESSAGES,	   /* RDMA work requests of pages */
	EBB_SWAP_C_DOORBELLS,	   /* calls that posted them */
	EBB_SWAP_C_CONFLICTS,	   /* requests that waited for one with the same pages */
	EBB_SWAP_C_DONOR_ERRORS,   /* requests that failed at a donor */
	EBB_SWAP_C_BACKUP_ERRORS,  /* requests that the backup failed */
	EBB_SWAP_C_DEADLINES,	   /* sessions ended, or suspended, by the deadline */
	EBB_SWAP_C_COPIED,	   /* by migration and repair */
	EBB_SWAP_C_COPY_ERRORS,	   /* copies of up to 64 pages that failed and were retried */
	EBB_SWAP_C_BEHIND,	   /* acknowledged before the backup had them */
	EBB_SWAP_C_READ_POOL,	   /* of those, read from the pool */
	EBB_SWAP_C_POOL_FULL,	   /* requests that waited for the backup instead */
	EBB_SWAP_C_SEAL_BROKEN,	   /* that failed authentication */
	EBB_SWAP_C_AHEAD,	   /* requests: prefetch reads at donors, by their I/O priority */
	EBB_SWAP_C_AHEAD_HELD,	   /* of those, held while others read */
	EBB_SWAP_C_OVERTAKES,	   /* requests: demand reads that overtook held prefetch reads */
	EBB_SWAP_C_AWAY_WAITS,	   /* waits of requests for a donor that is away */
	EBB_SWAP_COUNTS
};

struct ebb_swap_slab {
	__u32 session;	  /* 0xffffffff: not mapped */
	__u32 copies;	  /* enum ebb_swap_copy, and EBB_SWAP_LACKING() of DONOR and SECOND */
	__u32 remote;	  /* the donor's number of the slab */
	__u32 generation;
	__u32 written;	  /* pages with content */
	__u32 donor_only; /* of those, with the newest content at donors alone */
	__u32 source;	  /* session that it migrates from; 0xffffffff: none */
	__u32 uncopied;	  /* pages that a migration or repair has yet to copy */
	__u64 reads, writes; /* pages of all classes, since the device was created */
	__u32 recalled;	  /* bits: 1: by its donor, 2: by its second donor: MIGRATE it */
	__u32 second;	  /* session of its second donor; 0xffffffff: none */
};

#endif
