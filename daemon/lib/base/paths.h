/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Where ebb keeps what it needs.  Tests move the lot with EBB_RUN_DIR. */
#ifndef EBB_PATHS_H
#define EBB_PATHS_H

#define EBB_BPFFS "/sys/fs/bpf"
#define EBB_PINS EBB_BPFFS "/ebb"
#define EBB_CONF "/etc/ebb/ebb.conf"
#define EBB_CONF_DIR "/etc/ebb/ebb.conf.d"
#define EBB_DONOR_PORT 7070

/*
 * All return a path in a static buffer of their own, valid until the next
 * call of the same function by the same thread.
 */
const char *ebb_run_dir(void);                     /* /run/ebb */
const char *ebb_control_socket(void);              /* /run/ebb/control.sock */
const char *ebb_donor_socket(void);                /* /run/ebb/donord.sock */
const char *ebb_device_dir(void);                  /* /run/ebb/devices */
const char *ebb_device_record(const char *name);   /* .../NAME.json */
const char *ebb_device_socket(const char *name);   /* .../NAME.sock */
/*
 * Directory of compiled policies: EBB_POLICY_DIR, else ../policies beside the
 * running program (a build tree), else the installed one.
 */
const char *ebb_policy_dir(void);
/*
 * What outlives a reboot: EBB_STATE_DIR, else /var/lib/ebb; and the policies
 * that `ebbctl policy load` put there.
 */
const char *ebb_state_dir(void);
const char *ebb_loaded_policy_dir(void);           /* /var/lib/ebb/policies */
/* A sibling program (ebbd, ebb-swapd, ...): beside the running one, else by PATH name. */
const char *ebb_program(const char *name);

#endif
