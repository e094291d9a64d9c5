# SPDX-License-Identifier: GPL-2.0-or-later
"""Programs linked with an older libebbgc run on this one; what their inline functions cost."""
import os
import platform
import re
import subprocess

import machine

HEADER = machine.REPO / "userlib" / "gc"
MAP = machine.REPO / "userlib" / "gc" / "libebbgc.map"
SYMBOLS = machine.REPO / "packaging" / "debian" / "libebbgc1.symbols"
LIBRARY = machine.BUILD / "lib"

# With the declarations of 0.1.0, which took no sizes; 152 bytes were its options.
OLD = r"""
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct options { unsigned char bytes[152], behind[64]; };
struct layout {
	const char *name; uint32_t flags; size_t size, element_size;
	uint32_t length_offset, length_width; uint64_t bitmap;
	const void *runs; size_t run_count; void (*trace)(void);
};
typedef struct { uint64_t bits; } ref;

void ebbgc_options_init(struct options *);
int ebbgc_heap_create(const struct options *, void **);
int ebbgc_type_register(void *, const struct layout *, uint32_t *);
int ebbgc_attach(void *, void **);
ref ebbgc_alloc(void *, uint32_t);
ref ebbgc_weak_new(void *, ref);
ref ebbgc_weak_get(void *, ref);
void *ebbgc_handle_new(void *, ref);
int ebbgc_collect(void *);

int main(void)
{
	static const struct layout node = { .name = "node", .size = 16, .bitmap = 1 };
	void *heap, *me;
	struct options o;
	uint32_t type;
	ref weak;

	memset(&o, 0x5a, sizeof(o));
	ebbgc_options_init(&o);
	for (size_t i = 0; i < sizeof(o.behind); i++)
		if (o.behind[i] != 0x5a)
			return 2;
	if (ebbgc_heap_create(&o, &heap) || ebbgc_type_register(heap, &node, &type) ||
	    ebbgc_attach(heap, &me))
		return 3;
	weak = ebbgc_weak_new(me, ebbgc_alloc(me, type));
	if (!ebbgc_handle_new(me, weak) || ebbgc_collect(me) || ebbgc_weak_get(me, weak).bits)
		return 4;
	puts("as before");
	return 0;
}
"""


def versions():
    """Returns {symbol: version} of the linker's map."""
    found = {}
    for node, body in re.findall(r"(EBBGC_[\d.]+) \{(.*?)\}", MAP.read_text(), re.S):
        found.update((name, node) for name in re.findall(r"\t(ebbgc_\w+);", body))
    return found


def test_program_without_symbol_versions_runs(tmp_path):
    names = [n for n, v in versions().items() if v == "EBBGC_0.1"]
    (tmp_path / "stub.c").write_text("".join(f"void {n}(void) {{}}\n" for n in names))
    (tmp_path / "old.c").write_text(OLD)
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libebbgc.so.1", "-o", "libebbgc.so", "stub.c"],
                   cwd=tmp_path, check=True)
    subprocess.run(["cc", "-o", "old", "old.c", "-L.", "-lebbgc"], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "old"], env={**os.environ, "LD_LIBRARY_PATH": str(LIBRARY)},
                          capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "as before\n", "")


def test_every_symbol_has_a_version_and_is_packaged():
    out = subprocess.run(["nm", "-D", "--defined-only", LIBRARY / "libebbgc.so.1"], check=True,
                         capture_output=True, text=True).stdout
    exported = dict(re.findall(r" T (\w+)@@(\S+)", out))
    assert exported == versions()
    packaged = dict(re.findall(r"^ (ebbgc_\w+)@(\S+)", SYMBOLS.read_text(), re.M))
    assert packaged == exported


LOAD = r"""
#include <ebbgc.h>

ebbgc_ref_t load(ebbgc_mutator_t *m, ebbgc_ref_t object, const ebbgc_ref_t *slot)
{
	return ebbgc_load(m, object, slot);
}
"""


def instructions(tmp_path, *flags):
    """Returns those of load() up to its first return."""
    (tmp_path / "load.c").write_text(LOAD)
    text = subprocess.run(["cc", "-O2", "-S", "-fcf-protection=none", f"-I{HEADER}", *flags, "-o", "-", "load.c"],
                          cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    body = text.split("\nload:", 1)[1]
    names = re.findall(r"^\t([a-z]\w*)\b", body, re.M)
    return names[:names.index("ret")]


def test_notes_stamps_and_moved_objects_share_one_test_of_a_load(tmp_path):
    """A heap without any of them pays for one test of the thread's flags."""
    assert platform.machine() == "x86_64"
    assert [name[:3] for name in instructions(tmp_path, "-DEBBGC_NO_NOTES")] == ["mov"]
    names = [name[:4] for name in instructions(tmp_path)]
    assert sorted(names) == ["jne", "movl", "movq", "test"]
