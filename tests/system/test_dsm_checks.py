# SPDX-License-Identifier: GPL-2.0-or-later
"""What GCC's analyzer and clang's thread-safety analysis find by the attributes of ebbdsm.h."""
import subprocess

import pytest

from machine import REPO

pytestmark = pytest.mark.beside

GCC = ["gcc", "-fanalyzer", "-O0"]
CLANG = ["clang", "-Wthread-safety"]

START = """
#include <ebbdsm.h>
int f(ebbdsm_t *dsm, struct ebbdsm_box *box, const struct ebbdsm_view *view, const struct ebbdsm_loan *loan);
int f(ebbdsm_t *dsm, struct ebbdsm_box *box, const struct ebbdsm_view *view, const struct ebbdsm_loan *loan)
{
	(void)dsm; (void)box; (void)view; (void)loan;
	%s
	return 0;
}
"""
BORROW = "const int *p = ebbdsm_borrow(dsm, box); if (!p) return 1; "
MUTABLE = "int *m = ebbdsm_borrow_mut(dsm, box); if (!m) return 1; "
VIEW = "const int *p = ebbdsm_borrow_view(dsm, view, 0); if (!p) return 1; "
LOAN = "int *m = ebbdsm_borrow_loan(dsm, loan, 0); if (!m) return 1; "

RIGHT = [
    BORROW + "int x = *p; ebbdsm_return(dsm, box, p); return x;",
    BORROW + "ebbdsm_return(dsm, box, p);" + MUTABLE + "*m = 1; return ebbdsm_return_mut(dsm, box, m);",
    VIEW + "int x = *p; ebbdsm_return_view(dsm, view, p); return x;",
    LOAN + "*m = 1; return ebbdsm_return_loan(dsm, loan, m);",
]
WRONG = [
    ("not returned", GCC, BORROW + "return *p;", "leak"),
    ("returned twice", GCC, BORROW + "ebbdsm_return(dsm, box, p); ebbdsm_return(dsm, box, p);", "double"),
    ("used after its return", GCC, VIEW + "ebbdsm_return_view(dsm, view, p); return *p;", "use after"),
    ("changed after its return", GCC, LOAN + "ebbdsm_return_loan(dsm, loan, m); *m = 1;", "use after"),
    ("a loan not returned", GCC, LOAN + "*m = 1;", "leak"),
    ("returned as another borrow", GCC, MUTABLE + "ebbdsm_return(dsm, box, m);", "should have been deallocated"),
    ("ignored", GCC, "ebbdsm_borrow(dsm, box);", "unused-result"),
    ("not returned", CLANG, BORROW + "return *p;", "not held on every path"),
    ("not returned on one path", CLANG, MUTABLE + "if (*m) return 1; return ebbdsm_return_mut(dsm, box, m);",
     "not held on every path"),
    ("returned twice", CLANG, BORROW + "ebbdsm_return(dsm, box, p); ebbdsm_return(dsm, box, p);",
     "was not held"),
    ("mutable while shared", CLANG, BORROW + MUTABLE + "ebbdsm_return_mut(dsm, box, m); ebbdsm_return(dsm, box, p);",
     "already held"),
    ("dropped while borrowed", CLANG, BORROW + "ebbdsm_drop(dsm, box); ebbdsm_return(dsm, box, p);",
     "is held"),
]


def compiled(tmp_path, compiler, body):
    (tmp_path / "f.c").write_text(START % body)
    return subprocess.run([*compiler, "-c", "-o", "/dev/null", "-Wall", "-Wextra", "-Werror",
                           f"-I{REPO}/userlib/dsm", tmp_path / "f.c"],
                          capture_output=True, text=True, check=False)


@pytest.mark.parametrize("compiler", [GCC, CLANG], ids=["gcc", "clang"])
def test_right_programs(tmp_path, compiler):
    for body in RIGHT:
        done = compiled(tmp_path, compiler, body)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("what, compiler, body, says", WRONG, ids=[f"{c[0]}: {w}" for w, c, _, _ in WRONG])
def test_misuse_is_found(tmp_path, what, compiler, body, says):
    done = compiled(tmp_path, compiler, body)
    assert done.returncode != 0 and says in done.stderr, done.stderr


@pytest.mark.parametrize("compiler", [GCC, CLANG], ids=["gcc", "clang"])
def test_the_example(compiler):
    for source in (REPO / "userlib/dsm/examples").glob("*.c"):
        done = subprocess.run([*compiler, "-c", "-o", "/dev/null", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror",
                               f"-I{REPO}/userlib/dsm", source], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
