/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Events of the journal: name and MESSAGE_ID, which never changes.
 * packaging/systemd/ebb.catalog explains each and its remedy.
 */
#ifndef EBB_LOG_EVENTS_H
#define EBB_LOG_EVENTS_H

#define LOG_EVENTS(E) \
	E(READY, "36d32d2dbca146b5b1bf4d2128a316f0") \
	E(CONFIG_REFUSED, "49c1802b939c4cd09ef1884af46772fd") \
	E(PINS_DROPPED, "2d3ad50f34324abc998e97ee8332d8cd") \
	E(POLICY_CHANGED, "5edddefaa08a43ccba8c3e0f48535291") \
	E(DECLARATION_REFUSED, "53e02037b2f74447a7828c5ec6c8b75d") \
	E(ETCD_LOST, "e403ddd7eed4459b9e169ff4c18df7a6") \
	E(DONORS_FROZEN, "635fd66565f7497cb3f11e90477e4bb8") \
	E(DONOR_LOST, "c8e7827f99a0412b8a3ace0371698494") \
	E(DONOR_AWAY, "a2f3c6c1b6a14e0c9d5a6d0e6f1b7c43") \
	E(DONOR_BACK, "9e8eabd3d4ea439585b9cfa8897e0549") \
	E(DONOR_QUARANTINED, "dd2b6c5efb744f728131e707c0161141") \
	E(BACKUP_FAILED, "64241029cc584e2fa8584e3e340939d1") \
	E(BACKUP_BAD, "fe1b42ae694a4ab48053bec16f4f5223") \
	E(DEVICE_ABORTED, "2b62833f9657444cb2da0b7369496d82") \
	E(SLAB_REVOKED, "78954c2de5da496ebff4b43f7c062886")

enum log_event {
	EVENT_NONE,
#define E(name, id) EVENT_##name,
	LOG_EVENTS(E)
#undef E
	EVENTS
};

#endif
