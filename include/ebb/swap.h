/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * How user space drives ebb_swap.ko: the generic netlink family "ebb_swap".
 * All of it, listening too, needs CAP_SYS_ADMIN in the initial user namespace.
 * Attributes are validated strictly, and a refusal's extended acknowledgement names the
 * field.
 */
#ifndef EBB_SWAP_ABI_H
#define EBB_SWAP_ABI_H

#include <linux/types.h>

#define EBB_SWAP_FAMILY "ebb_swap"
/*
 * Version 1 (release 0.1.0): DRAIN also moves the session's slabs, to TARGET or to the backup.
 * A newer module accepts what an older client sends, so a client only asks whether the module
 * is too old.
 */
#define EBB_SWAP_VERSION 2
#define EBB_SWAP_GROUP "events" /* multicast: EVENT */

/* Limits that the commands check. */
#define EBB_SWAP_DEVICES 64
#define EBB_SWAP_QUEUES 16
#define EBB_SWAP_SESSIONS 64
#define EBB_SWAP_PATH 256
#define EBB_SWAP_CLASSES 8  /* of a device; class 0 is the default */
#define EBB_SWAP_CGROUPS 64 /* of a device that have a class */
#define EBB_SWAP_KEY 32
#define EBB_SWAP_KEY_NUMBER 8

enum ebb_swap_command {
	EBB_SWAP_CMD_UNSPEC,
	/*
	 * SIZE KEY KEY_NUMBER [DEVICE SLAB_SIZE BACKUP QUEUES DEPTH DEADLINE POOL COPIES SEAL];
	 * the reply has DEVICE.  SEAL: of class 0.
	 */
	EBB_SWAP_CMD_CREATE,
	/* DEVICE; refused while anyone has it open. */
	EBB_SWAP_CMD_DESTROY,
	/* DEVICE ADDRESS PORT [CLASS]; the reply has SESSION.  Only slabs of CLASS [0] go there. */
	EBB_SWAP_CMD_CONNECT,
	/* DEVICE SESSION [FORCE]; its slabs fall back to their other donors, and the backup. */
	EBB_SWAP_CMD_DISCONNECT,
	/*
	 * DEVICE SLAB SESSION [COPIES]; asks the session's donor for memory, for the
	 * pages of SLAB that are of the session's class.  One that is to have a second donor, and
	 * has a first, gets its second.
	 */
	EBB_SWAP_CMD_MAP,
	/* DEVICE SLAB [SESSION FORCE CLASS]; releases it.  SESSION: which of two donors. */
	EBB_SWAP_CMD_UNMAP,
	/*
	 * DEVICE SLAB [SESSION FROM CLASS]; moves the slab to that donor, or without SESSION to the
	 * backup alone, at once.  Its pages are copied there in the background and then
	 * released; it stays readable and writable.  A slab with two donors leaves FROM
	 * and keeps the other donor.
	 */
	EBB_SWAP_CMD_MIGRATE,
	/*
	 * DEVICE SESSION [TARGET]; nothing more is placed there.  Its slabs stay until each has
	 * MIGRATEd.
	 */
	EBB_SWAP_CMD_DRAIN,
	/* Dump: DEVICE, its settings, COUNTS, and a SESSION_INFO, CLASS_INFO, CGROUP_INFO each. */
	EBB_SWAP_CMD_STATUS,
	/*
	 * Dump of one DEVICE [CLASS]: SLAB_FIRST and SLAB_TABLE, an array of struct
	 * ebb_swap_slab, which tells of the pages of that class [0].
	 */
	EBB_SWAP_CMD_SLABS,
	/* Only sent: DEVICE EVENT SESSION, and what the event says. */
	EBB_SWAP_CMD_EVENT,
	/*
	 * DEVICE CLASS [COPIES SEAL]; makes a class of pages, whose slabs have donors of
	 * their own.  Of one that is there it says where its writes go from now on.
	 */
	EBB_SWAP_CMD_CLASS,
	/*
	 * DEVICE CGROUP [CLASS]; from now on CLASS applies to pages that this cgroup writes, and
	 * those below it without a class of their own; without CLASS, its parent's class
	 * applies again.  Written pages stay where they are until they are overwritten.
	 */
	EBB_SWAP_CMD_ASSIGN,
	EBB_SWAP_CMDS
};

enum ebb_swap_attribute {
	EBB_SWAP_A_UNSPEC,
	EBB_SWAP_A_DEVICE,	 /* u32: N of /dev/ebbN */
	EBB_SWAP_A_SIZE,	 /* u64: bytes, a multiple of SLAB_SIZE */
	EBB_SWAP_A_SLAB_SIZE,	 /* u64: bytes, a power of two, 1 MiB - 1 GiB [64 MiB] */
	/*
	 * String: path of a block device, as large as SIZE.  The caller has it open until the
	 * answer: where the module's open were the first, and loaded a driver that has a generic
	 * netlink family itself (drbd), they would wait for each other.
	 */
	EBB_SWAP_A_BACKUP,
	EBB_SWAP_A_QUEUES,	 /* u32: hardware queues, and QPs per session [CPUs, at most 8] */
	EBB_SWAP_A_DEPTH,	 /* u32: requests a queue [64] */
	EBB_SWAP_A_DEADLINE,	 /* u32: milliseconds until a session is given up [5000] */
	EBB_SWAP_A_ADDRESS,	 /* string: IPv4 or IPv6 address of a donor */
	EBB_SWAP_A_PORT,	 /* u16 */
	EBB_SWAP_A_SESSION,	 /* u32: number within its device */
	EBB_SWAP_A_SLAB,	 /* u32: index in the device */
	/*
	 * u32: enum ebb_swap_copy, where writes of a slab go [DONOR, with a backup that too];
	 * of CREATE and in STATUS that of slabs that were told no other.
	 */
	EBB_SWAP_A_COPIES,
	EBB_SWAP_A_FORCE,	 /* flag: pages that only the donor has may be lost */
	EBB_SWAP_A_COUNTS,	 /* nested: enum ebb_swap_count, u64 each */
	/* nested: SESSION, STATE, REASON, ADDRESS, PORT, DONOR_FREE [DRAINING CLASS] */
	EBB_SWAP_A_SESSION_INFO,
	EBB_SWAP_A_STATE,	 /* u32: enum ebb_swap_session_state */
	EBB_SWAP_A_REASON,	 /* string: why a session ended */
	EBB_SWAP_A_DONOR_FREE,	 /* u64: bytes the donor had to lend when last asked */
	EBB_SWAP_A_SLAB_FIRST,	 /* u32: index of the first element of SLAB_TABLE */
	EBB_SWAP_A_SLAB_TABLE,	 /* binary: struct ebb_swap_slab[] */
	EBB_SWAP_A_PAD,
	EBB_SWAP_A_TARGET,	 /* u32: ignored since version 2 */
	EBB_SWAP_A_EVENT,	 /* u32: enum ebb_swap_event */
	EBB_SWAP_A_POOL,	 /* u64: bytes that writes to the backup may be behind [4 MiB] */
	EBB_SWAP_A_POOL_USED,	 /* u64: bytes that they are */
	EBB_SWAP_A_DRAINING,	 /* flag: no slab is given to the session any more */
	EBB_SWAP_A_CLASS,	 /* u32: 0 to 7 */
	EBB_SWAP_A_CGROUP,	 /* u64: its id, the inode of its directory in cgroup v2 */
	EBB_SWAP_A_CLASS_INFO,	 /* nested: CLASS, COPIES [SEAL]; of each but 0 */
	EBB_SWAP_A_CGROUP_INFO,	 /* nested: CGROUP, CLASS; of each that was told */
	EBB_SWAP_A_SEAL,	 /* flag: pages are encrypted before they leave, for good */
	/*
	 * Binary, EBB_SWAP_KEY bytes: all its donors must have it, and prove that before
	 * any page is sent there.  It lives as long as the device and is never reported.
	 */
	EBB_SWAP_A_KEY,
	EBB_SWAP_A_KEY_NUMBER,	 /* binary, EBB_SWAP_KEY_NUMBER bytes: the fingerprint they know it by */
	EBB_SWAP_A_FROM,	 /* u32: session that a slab leaves */
	EBB_SWAP_ATTRIBUTES
};
#define EBB_SWAP_A_MAX (EBB_SWAP_ATTRIBUTES - 1)

enum ebb_swap_copy {
	EBB_SWAP_DONOR = 1,
	EBB_SWAP_BACKUP = 2,
	EBB_SWAP_SECOND = 4,	 /* another donor, beside DONOR */
};
/* In struct ebb_swap_slab: that donor lacks pages, which are copied to it. */
#define EBB_SWAP_LACKING(copy) ((copy) << 8)

/* Sent to all listeners; events are lost if they arrive faster than they are read. */
enum ebb_swap_event {
	EBB_SWAP_EVENT_UNSPEC,
	EBB_SWAP_EVENT_ENDED,	 /* the session, for REASON: give its slabs other donors */
	/*
	 * The session's donor recalled SLAB, and the module agreed: MIGRATE it.  With a
	 * backup, the module moves it there itself after a second without MIGRATE.
	 */
	EBB_SWAP_EVENT_EVICT,
	EBB_SWAP_EVENT_LEFT,	 /* SLAB has left the session: a migration is complete */
};

enum ebb_swap_session_state {
	EBB_SWAP_CONNECTING,
	EBB_SWAP_LIVE,
	EBB_SWAP_FAILED,  /* over; what is in flight comes back */
	EBB_SWAP_CLOSED,  /* over, and nothing of it is left on the network device */
};

/* Pages unless it says otherwise; since the device was made. */
enum ebb_swap_count {
	EBB_SWAP_C_UNSPEC,
	EBB_SWAP_C_READ_DONOR,
	EBB_SWAP_C_READ_BACKUP,
	EBB_SWAP_C_READ_ZERO,
	EBB_SWAP_C_WRITE_DONOR,    /* at two donors twice */
	EBB_SWAP_C_WRITE_BACKUP,
	EBB_SWAP_C_DISCARDED,
	EBB_SWAP_C_READ_FAILED,    /* requests */
	EBB_SWAP_C_WRITE_FAILED,   /* requests */
	EBB_SWAP_C_REQUESTS,	   /* reads and writes */
	EBB_SWAP_C_MESSAGES,	   /* RDMA work requests of pages */
	EBB_SWAP_C_DOORBELLS,	   /* calls that posted them */
	EBB_SWAP_C_CONFLICTS,	   /* requests that waited for one with the same pages */
	EBB_SWAP_C_DONOR_ERRORS,   /* requests that came back from a session undone */
	EBB_SWAP_C_BACKUP_ERRORS,  /* requests that the backup failed */
	EBB_SWAP_C_DEADLINES,	   /* sessions given up because of one */
	EBB_SWAP_C_COPIED,	   /* by migration and repair */
	EBB_SWAP_C_COPY_ERRORS,	   /* copies of up to 64 pages that failed; tried again */
	EBB_SWAP_C_BEHIND,	   /* written, and acknowledged before the backup had them */
	EBB_SWAP_C_READ_POOL,	   /* of those, read before it had */
	EBB_SWAP_C_POOL_FULL,	   /* requests that waited for the backup instead */
	EBB_SWAP_C_SEAL_BROKEN,	   /* runs that were read, and were not what was written */
	EBB_SWAP_C_AHEAD,	   /* prefetch reads at donors, by their I/O priority */
	EBB_SWAP_C_AHEAD_HELD,	   /* of those, delayed */
	EBB_SWAP_C_OVERTAKES,	   /* other reads that overtook delayed ones */
	EBB_SWAP_COUNTS
};

struct ebb_swap_slab {
	__u32 session;	  /* 0xffffffff: not mapped */
	__u32 copies;	  /* enum ebb_swap_copy, and EBB_SWAP_LACKING() of DONOR and SECOND */
	__u32 remote;	  /* the donor's number of it */
	__u32 generation;
	__u32 written;	  /* pages with content */
	__u32 donor_only; /* of them, with their newest content at donors alone */
	__u32 source;	  /* session it leaves; 0xffffffff: it does not migrate */
	__u32 uncopied;	  /* pages that are to be copied to where the slab is now */
	__u64 reads, writes; /* pages of all classes, since the device was made */
	__u32 asked;	  /* 1: its donor wants it back: MIGRATE it; 2: its second does */
	__u32 second;	  /* session of its second donor; 0xffffffff: it has none */
};

#endif
