/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The donor's control socket, ebb_donor_socket() (/run/ebb/donord.sock), and its thread, which
 * also writes the log and notifies systemd.  lib/control/control.h has the form.  Verbs:
 *
 *	{"verb":"status"}
 *	{"verb":"drain"}              lend nothing more, recall all slabs, stay
 *	{"verb":"drain","end":true}   lend nothing more, recall all slabs, end: as SIGTERM
 *	{"verb":"undrain"}            lend again, unless ending; recalled slabs still return
 *
 * All answer with the status:
 *
 *	"pid", "slab_size"
 *	"machine":   {"memory","available"} bytes, "pressure" percent; if the donor's own
 *		     cgroups have limits, the lowest "limit" and the bytes "left" below all;
 *	             all 0 when /proc could not be read
 *	"headroom":  bytes kept free; 0 = a fixed amount is lent
 *	"rate":      limit of page traffic, bytes a second; 0 = none
 *	"total","free","lent"  bytes: lent or to lend, to lend now, lent
 *	"promised"   bytes reserved by borrowers and not lent yet; "lendable": bytes that are
 *		     neither lent nor promised
 *	"slabs":     {"lent","clean","dirty","coming","going","asked_back","refused","overdue",
 *	             "withdrawn","backed"}
 *	             asked_back: recalled and not released, those refused included; withdrawn: not
 *	             lent until a restart, since an RDMA key cannot be invalidated; backed: lent,
 *	             and their borrowers also have the pages elsewhere
 *	"draining":  bool; "ending": bool, "ends_in": seconds, when ending
 *	"etcd":      "registered", "trying" or "withdrawn"; absent without --etcd
 *	"etcd_error": cause of a failure, if any
 *	"evictions": {"rounds","silent","asked","promised","refused","returned","revoked",
 *	             "revoked_backed"}
 *	             revoked_backed: slabs that were revoked and backed
 *	"listen":    ["127.0.0.1:7070", ...]
 *	"borrowers": [{"name","key","peer","transport","slabs","bytes","quota","reserved",
 *	               "asked_back","refused","overdue","reads","writes","connected"}, ...]
 *	             transport: "tcp", "shm" or "rdma"; quota:
 *	             bytes, 0 = none; reserved: bytes, lent ones included; reads, writes: pages
 *	             through the donor; connected: s
 *	"throttled": [{"name","ms"}, ...]  key or, without keys, address; for how long its requests
 *	             have waited for the rate
 *	"far":       {"limit","used","fences","recovered","freed",
 *	             "requests":{"pool","list","arena","read","write","cas","add","notify","dead"},
 *	             "pools":[{"name","key","bytes","shared","live","away","dead","recovering",
 *	             "extents","extent_bytes"}, ...]}
 *	             absent without --far; limit, used, bytes: of arenas; fences, recovered: members
 *	             since the start; freed: words of their extents; live, away, dead: members;
 *	             dead: to be recovered, when the process that maps the memory has exited;
 *	             recovering: dead ones that are fenced; extents: of members; drain and
 *	             undrain answer with the extents of the last status
 */
#ifndef EBB_DONOR_CONTROL_H
#define EBB_DONOR_CONTROL_H

#include "lib/base/error.h"

struct donor_control;
struct loop;
struct registration;

/*
 * Listens, unless a running donor has the socket already (then it warns and opens none), and starts
 * the thread, which is @l's control thread until donor_control_stop().  Withdraws @registration,
 * which may be NULL, while the donor drains.
 */
int donor_control_start(struct donor_control **out, struct loop *l,
			struct registration *registration, struct error *e);
/* Ends the thread; NULL is fine. */
void donor_control_stop(struct donor_control **c);

#endif
