/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Paths of ebb's files.  Tests change them with EBB_RUN_DIR. */
#ifndef EBB_PATHS_H
#define EBB_PATHS_H

#define EBB_BPFFS "/sys/fs/bpf"
#define EBB_PINS EBB_BPFFS "/ebb"
#define EBB_CONF "/etc/ebb/ebb.conf"
#define EBB_CONF_DIR "/etc/ebb/ebb.conf.d"
#define EBB_DONOR_PORT 7070

/*
 * Each function returns a path in its own static buffer, valid until the thread calls
 * that function again.
 */
const char *ebb_run_dir(void);                     /* /run/ebb */
const char *ebb_control_socket(void);              /* /run/ebb/control.sock */
const char *ebb_donor_socket(void);                /* /run/ebb/donord.sock */
const char *ebb_device_dir(void);                  /* /run/ebb/devices */
const char *ebb_device_record(const char *name);   /* .../NAME.json */
const char *ebb_device_socket(const char *name);   /* .../NAME.sock */
/*
 * Directory of compiled policies: EBB_POLICY_DIR, else ../lib/ebb/policies or ../policies (build
 * tree) relative to the program, else the directory below the PREFIX of the build.
 */
const char *ebb_policy_dir(void);
/*
 * State that survives a reboot: EBB_STATE_DIR, else /var/lib/ebb; in it the policies
 * that `ebbctl policy load` stored.
 */
const char *ebb_state_dir(void);
const char *ebb_loaded_policy_dir(void);           /* /var/lib/ebb/policies */
/*
 * Path of another program of ebb: in the directory of this one or ../bin, else its name for PATH.
 */
const char *ebb_program(const char *name);

#endif
