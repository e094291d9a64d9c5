// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! Misuses that the compiler finds: each file of `misuse/` names an error, which is that of the
//! file with `--cfg misuse`, alone; and it compiles without the misuse.
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const AT_LEAST: usize = 8;

fn rustc() -> Command {
    let mut c = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    c.args(["--edition", "2021", "--error-format", "short", "--crate-type", "lib"]);
    c
}

fn run(c: &mut Command) -> Output {
    c.output().unwrap_or_else(|e| panic!("{c:?}: {e}; install rustc or set RUSTC"))
}

/// A directory that is removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        let path = env::temp_dir().join(format!("ebbdsm-misuse-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Compiles @source; returns the codes of its errors, and what the compiler has said.
fn errors(source: &Path, out: &Path, misuse: bool) -> (Vec<String>, String) {
    let mut c = rustc();
    // With code: some errors are found when it is made.
    c.args(["--emit", "obj", "-D", "warnings"]).arg("-o").arg(out.join("misuse.o"));
    c.arg("--extern").arg(format!("ebbdsm={}/libebbdsm.rlib", out.display())).arg(source);
    if misuse {
        c.args(["--cfg", "misuse", "-A", "warnings"]);
    }
    let done = run(&mut c);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let codes = said.split("error[").skip(1).filter_map(|s| s.split(']').next());
    let mut codes: Vec<String> = codes.map(str::to_string).collect();
    codes.dedup();
    assert_eq!(done.status.success(), codes.is_empty(), "{}: {said}", source.display());
    (codes, said)
}

#[test]
fn misuses() {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = Directory::new();
    let lib = crate_directory.join("src/lib.rs");
    let built = run(rustc()
        .args(["--crate-name", "ebbdsm", "-o"])
        .arg(out.0.join("libebbdsm.rlib"))
        .arg(lib));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));

    let files = fs::read_dir(crate_directory.join("tests/misuse")).unwrap();
    let mut files: Vec<PathBuf> = files.map(|f| f.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= AT_LEAST);
    let mut wrong = String::new();
    for source in files {
        let text = fs::read_to_string(&source).unwrap();
        let expected = text.lines().find_map(|l| l.strip_prefix("//! ")).unwrap();
        let expected = expected.split(':').next().unwrap();
        let name = source.display();
        let (codes, said) = errors(&source, &out.0, true);
        if codes != [expected] {
            wrong += &format!("{name}: {codes:?}, not {expected}:\n{said}\n");
        }
        let (codes, said) = errors(&source, &out.0, false);
        if !codes.is_empty() {
            wrong += &format!("{name}, without the misuse:\n{said}\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
