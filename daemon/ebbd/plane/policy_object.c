// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <gelf.h>
#include <libelf.h>
#include <linux/bpf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "policy_object.h"

#ifndef EM_BPF
#define EM_BPF 247
#endif

#define REBUILD "run \"make -B -f /usr/share/ebb/policy.mk NAME.bpf.o\" beside its source, " \
		"then \"ebbctl policy load NAME.bpf.o\""

static void elf_endp(Elf **elf) { elf_end(*elf); }

/* include/linux/license.h: license_is_gpl_compatible(). */
static bool gpl_compatible(const char *license)
{
	static const char *const known[] = {
		"GPL", "GPL v2", "GPL and additional rights", "Dual BSD/GPL", "Dual MIT/GPL",
		"Dual MPL/GPL",
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (!strcmp(license, known[i]))
			return true;
	return false;
}

/* Accepts [a-z0-9][a-z0-9_-]*, NUL-terminated within @size bytes. */
static bool name_fits(const char *name, size_t size)
{
	size_t n = strnlen(name, size);

	return n && n < size && *name != '_' && *name != '-' &&
	       strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") == n;
}

static int check_info(const char *file, const struct ebb_policy_info *info, struct error *e)
{
	static const char *const ours[] = { "detect", "run", "policy", "slowdown", "placement",
					    "benefit" };

	if (!name_fits(info->name, sizeof(info->name)))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "%s: invalid policy name; use a-z, 0-9, _ and -, at most %zu", file,
				 sizeof(info->name) - 1);
	if (info->params > EBB_PARAMS)
		return fail_exit(e, EXIT_USAGE, E2BIG, "%s: has %u parameters; at most %u fit", file,
				 info->params, EBB_PARAMS);
	for (uint32_t i = 0; i < info->params; i++) {
		const struct ebb_param_info *p = &info->param[i];

		if (!name_fits(p->name, sizeof(p->name)))
			return fail_exit(e, EXIT_USAGE, EINVAL,
					 "%s: parameter %u has no name; see EBB_PARAM in ebb_policy.h", file,
					 i);
		for (size_t k = 0; k < sizeof(ours) / sizeof(ours[0]); k++)
			if (!strcmp(p->name, ours[k]))
				return fail_exit(e, EXIT_USAGE, EINVAL,
						 "%s: parameter '%s': reserved name; choose another",
						 file, p->name);
		if (p->min > p->initial || p->initial > p->max)
			return fail_exit(e, EXIT_USAGE, ERANGE,
					 "%s: parameter '%s': %llu is not between %llu and %llu; correct its EBB_PARAM",
					 file, p->name, (unsigned long long)p->initial,
					 (unsigned long long)p->min, (unsigned long long)p->max);
	}
	return 0;
}

/* Terminates texts of fixed size, which readers expect to have a NUL. */
static void end_texts(struct ebb_policy_info *info)
{
	info->help[sizeof(info->help) - 1] = '\0';
	for (uint32_t i = 0; i < EBB_PARAMS; i++)
		info->param[i].help[sizeof(info->param[i].help) - 1] = '\0';
}

struct sections {
	Elf_Data *info, *license, *program;
	const char *endless;
	bool btf;
};

/*
 * Returns the name of a loop whose iterations the verifier does not walk, or NULL: its instruction
 * count would not bound the time of a fault.
 */
static const char *endless_call(const Elf_Data *code)
{
	static const struct { int32_t helper; const char *name; } calls_back[] = {
		{ BPF_FUNC_loop, "bpf_loop()" },
		{ BPF_FUNC_for_each_map_elem, "bpf_for_each_map_elem()" },
		{ BPF_FUNC_user_ringbuf_drain, "bpf_user_ringbuf_drain()" },
	};
	struct bpf_insn insn;

	for (size_t at = 0; at + sizeof(insn) <= code->d_size; at += sizeof(insn)) {
		memcpy(&insn, (char *)code->d_buf + at, sizeof(insn));
		if (insn.code == (BPF_LD | BPF_IMM | BPF_DW))
			at += sizeof(insn);     /* the upper half of the number */
		/* BPF_JCOND, Linux 6.9 */
		if (insn.code == (BPF_JMP | 0xe0))
			return "may_goto";
		if (insn.code != (BPF_JMP | BPF_CALL) || insn.src_reg)
			continue;
		for (size_t i = 0; i < sizeof(calls_back) / sizeof(calls_back[0]); i++)
			if (insn.imm == calls_back[i].helper)
				return calls_back[i].name;
	}
	return NULL;
}

/* Returns the name of such a loop among the kernel functions it needs. */
static const char *endless_symbol(Elf *elf, const GElf_Shdr *table, Elf_Data *data)
{
	GElf_Sym symbol;

	for (int i = 0; gelf_getsym(data, i, &symbol); i++) {
		const char *name = elf_strptr(elf, table->sh_link, symbol.st_name);

		if (symbol.st_shndx == SHN_UNDEF && name && !strncmp(name, "bpf_iter_", 9))
			return "an iterator";
	}
	return NULL;
}

static void find_sections(Elf *elf, struct sections *s)
{
	Elf_Scn *scn = NULL;
	size_t strings;

	if (elf_getshdrstrndx(elf, &strings))
		return;
	while ((scn = elf_nextscn(elf, scn))) {
		GElf_Shdr header;
		const char *name = gelf_getshdr(scn, &header) ?
				   elf_strptr(elf, strings, header.sh_name) : NULL;
		Elf_Data *data = name ? elf_getdata(scn, NULL) : NULL;

		if (!data)
			continue;
		if (data->d_buf && !s->endless)
			s->endless = header.sh_flags & SHF_EXECINSTR ?
					     endless_call(data) :
				     header.sh_type == SHT_SYMTAB ?
					     endless_symbol(elf, &header, data) :
					     NULL;
		if (!strcmp(name, ".rodata.policy"))
			s->info = data;
		else if (!strcmp(name, "license"))
			s->license = data;
		else if (!strcmp(name, "perf_event"))
			s->program = data;
		else if (!strcmp(name, ".BTF"))
			s->btf = true;
	}
}

int policy_object_check(const char *file, const void *data, size_t size,
			struct ebb_policy_info *info, struct error *e)
{
	_cleanup_(elf_endp) Elf *elf = NULL;
	struct sections s = { 0 };
	struct ebb_policy_info found;
	char license[64] = "";
	GElf_Ehdr header;
	uint32_t abi;

	elf_version(EV_CURRENT);
	elf = size ? elf_memory((char *)data, size) : NULL;
	if (!elf || elf_kind(elf) != ELF_K_ELF || !gelf_getehdr(elf, &header))
		return fail_exit(e, EXIT_USAGE, ENOEXEC,
				 "%s: not an object file; compile the policy, see ebb-policy(7)", file);
	if (header.e_machine != EM_BPF || header.e_type != ET_REL)
		return fail_exit(e, EXIT_USAGE, ENOEXEC,
				 "%s: not an object for BPF; " REBUILD, file);
	find_sections(elf, &s);
	if (!s.info || !s.info->d_buf || s.info->d_size < sizeof(abi))
		return fail_exit(e, EXIT_USAGE, ENOEXEC,
				 "%s: no policy in it (no section .rodata.policy); use EBB_POLICY() of ebb_policy.h",
				 file);
	/* Check the ABI first: another one may have another layout. */
	memcpy(&abi, s.info->d_buf, sizeof(abi));
	if (abi != EBB_ABI || s.info->d_size < sizeof(found))
		return fail_exit(e, EXIT_USAGE, EPROTO,
				 "%s: built for ABI %u, this ebbd has %u; " REBUILD, file, abi, EBB_ABI);
	memcpy(&found, s.info->d_buf, sizeof(found));
	end_texts(&found);
	if (check_info(file, &found, e))
		return -EINVAL;
	if (s.license && s.license->d_buf)
		snprintf(license, sizeof(license), "%.*s", (int)s.license->d_size,
			 (char *)s.license->d_buf);
	if (!gpl_compatible(license))
		return fail_exit(e, EXIT_USAGE, ENOEXEC,
				 "%s: %s%.32s%s; use a GPL-compatible one, such as "
				 "char LICENSE[] SEC(\"license\") = \"GPL\"", file,
				 *license ? "its license is '" : "has no license", license,
				 *license ? "'" : "");
	if (!s.btf)
		return fail_exit(e, EXIT_USAGE, ENOEXEC, "%s: has no BTF; compile it with clang -g", file);
	if (!s.program || !s.program->d_size)
		return fail_exit(e, EXIT_USAGE, ENOEXEC,
				 "%s: has no program; use EBB_POLICY_ENTRY() of ebb_policy.h", file);
	if (s.endless)
		return fail_exit(e, EXIT_REFUSED, E2BIG,
				 "%s: too long: uses %s, a loop without a bound; "
				 "write a loop with a constant bound", file, s.endless);
	*info = found;
	return 0;
}

int policy_object_read(const char *file, struct policy_object *o, struct error *e)
{
	/* O_NONBLOCK: do not wait for a writer of a FIFO. */
	_cleanup_close_ int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	_cleanup_free_ char *data = NULL;
	struct stat st;
	ssize_t n;
	int r;

	if (fd < 0)
		return fail_exit(e, EXIT_USAGE, errno, "%s: %m; pass the file of a compiled policy", file);
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || !st.st_size || st.st_size > POLICY_OBJECT_MAX)
		return fail_exit(e, EXIT_USAGE, ENOEXEC,
				 "%s: not an object file (regular, 1 byte to %u MiB); compile the policy, see ebb-policy(7)",
				 file, POLICY_OBJECT_MAX >> 20);
	data = malloc(st.st_size);
	if (!data)
		return fail(e, ENOMEM, "%s: out of memory", file);
	n = read(fd, data, st.st_size);
	if (n != st.st_size)
		return fail(e, n < 0 ? errno : EIO, "%s: cannot read: %s", file,
			    n < 0 ? strerror(errno) : "it changed meanwhile");
	r = policy_object_check(file, data, st.st_size, &o->info, e);
	if (r)
		return r;
	o->size = st.st_size;
	o->data = TAKE_PTR(data);
	return 0;
}

void policy_object_free(struct policy_object *o)
{
	free(o->data);
	o->data = NULL;
}

const struct ebb_param_info *policy_param(const struct ebb_policy_info *info, const char *name)
{
	for (uint32_t i = 0; i < info->params; i++)
		if (!strcmp(info->param[i].name, name))
			return &info->param[i];
	return NULL;
}

void policy_defaults(const struct ebb_policy_info *info, struct ebb_params *params)
{
	*params = (struct ebb_params){ { 0 } };
	for (uint32_t i = 0; i < info->params; i++)
		params->v[i] = info->param[i].initial;
}
