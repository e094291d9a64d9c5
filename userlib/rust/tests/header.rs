// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! src/sys.rs agrees with ebbdsm.h: sizes, offsets and constants as a C compiler has them, and
//! types of functions, which are declared to that compiler once more.  EBBDSM_INCLUDE is the
//! directory of the header, if it is not ../dsm; CC the compiler.
use std::env;
use std::fs;
use std::mem::size_of;
use std::path::{Path, PathBuf};
use std::process::Command;

use ebbdsm::sys;

fn compile(source: &str, name: &str, options: &[&str]) -> PathBuf {
    let directory = env::temp_dir();
    let out = directory.join(format!("ebbdsm-{name}-{}", std::process::id()));
    let input = out.with_extension("c");
    fs::write(&input, source).unwrap();
    let mut cc = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    let in_tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dsm");
    let include = env::var_os("EBBDSM_INCLUDE").map_or(in_tree, PathBuf::from);
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-redundant-decls"]);
    cc.arg("-I").arg(include).args(options).arg("-o").arg(&out).arg(&input);
    let done = cc.output().unwrap_or_else(|e| panic!("{cc:?}: {e}; install a C compiler"));
    fs::remove_file(&input).unwrap();
    assert!(done.status.success(), "{}\n{source}", String::from_utf8_lossy(&done.stderr));
    out
}

/// Offset of a field, of 1.63, which has no offset_of!().
macro_rules! offset {
    ($type:ident, $field:ident) => {{
        let whole = std::mem::MaybeUninit::<sys::$type>::uninit();
        let start = whole.as_ptr();
        // SAFETY: an address within @whole, which is not read.
        unsafe { std::ptr::addr_of!((*start).$field) as usize - start as usize }
    }};
}

/// Lines of a name and a number, here and in C.
struct Facts(Vec<(String, i64)>, String);

impl Facts {
    fn add(&mut self, here: i64, expression: &str) {
        self.0.push((expression.to_string(), here));
        self.1 += &format!("\tprintf(\"%lld\\n\", (long long)({expression}));\n");
    }
}

macro_rules! fields {
    ($facts:ident, $($type:ident { $($field:ident)* })*) => {
        $(
            let c = concat!("struct ", stringify!($type));
            $facts.add(size_of::<sys::$type>() as i64, &format!("sizeof({c})"));
            $($facts.add(offset!($type, $field) as i64,
                         &format!("offsetof({c}, {})", stringify!($field)));)*
        )*
    };
}

macro_rules! constants {
    ($facts:ident, $($name:ident)*) => { $($facts.add(sys::$name as i64, stringify!($name));)* };
}

#[test]
fn layouts_and_constants() {
    let mut facts = Facts(Vec::new(), String::new());
    fields!(facts,
        ebbdsm_options {
            size donors donor_count home pool key cache timeout_ms resume_ms error replicas
        }
        ebbdsm_box { at stamp }
        ebbdsm_view { at stamp }
        ebbdsm_loan { at stamp }
        ebbdsm_parcel { at stamp }
        ebbdsm_counts {
            size hits misses round_trips requests posted cached places at_twins lost bare
        }
    );
    fields!(facts,
        ebbdsm_call { function args args_size result result_size }
        ebbdsm_functions { size table count waiting build error }
        ebbdsm_task { size function args args_size result_size error }
        ebbdsm_result { size bytes bytes_size status donor member error }
    );
    constants!(facts, EBBDSM_TASK_BOXES EBBDSM_TASKS_WAITING
        ESRCH ENOEXEC EAGAIN ECANCELED ENOTRECOVERABLE);
    constants!(facts, EBBDSM_SIZE_MOST EBBDSM_DONORS
        EIO ECHILD ENOMEM EBUSY EINVAL ENOSPC ENOBUFS ESTALE EOWNERDEAD);
    facts.add(sys::ERROR_BYTES as i64, "sizeof(((struct ebbdsm_options *)0)->error)");
    let program = compile(
        &format!(
            "#include <ebbdsm.h>\n#include <errno.h>\n#include <stddef.h>\n#include <stdio.h>\n\
             int main(void)\n{{\n{}\treturn 0;\n}}\n",
            facts.1
        ),
        "layouts",
        &[],
    );
    let said = Command::new(&program).output().unwrap().stdout;
    fs::remove_file(&program).unwrap();
    let said = String::from_utf8(said).unwrap();
    let there: Vec<i64> = said.lines().map(|l| l.parse().unwrap()).collect();
    assert_eq!(there.len(), facts.0.len());
    for ((name, here), there) in facts.0.iter().zip(there) {
        assert_eq!(*here, there, "{name}");
    }
}

/// Returns the declaration of a type of C that @rust stands for, without a name.
fn c_type(rust: &str) -> String {
    if let Some(of) = rust.strip_prefix("*const ") {
        return format!("{} const *", c_type(of));
    }
    if let Some(of) = rust.strip_prefix("*mut ") {
        return format!("{} *", c_type(of));
    }
    match rust {
        "c_void" => "void".to_string(),
        "c_char" => "char".to_string(),
        "c_int" => "int".to_string(),
        "c_uint" => "unsigned".to_string(),
        "usize" => "size_t".to_string(),
        "u64" => "uint64_t".to_string(),
        _ => format!("struct {rust}"),
    }
}

/// The functions that @sys declares, as declarations of C.
fn declarations(sys: &str) -> Vec<String> {
    let text = sys.split_whitespace().collect::<Vec<_>>().join(" ");
    let declared = text.split("pub fn ").skip(1);
    let c = |line: &str| {
        let (name, rest) = line.split_once('(').unwrap();
        let (arguments, result) = rest.split_once(')').unwrap();
        let arguments = arguments.trim().trim_end_matches(',');
        let result = result.split(';').next().unwrap().trim();
        let result = result.strip_prefix("-> ").map_or("void".to_string(), c_type);
        let types = arguments.split(", ").map(|a| c_type(a.split_once(": ").unwrap().1));
        format!("{result} {name}({});", types.collect::<Vec<_>>().join(", "))
    };
    declared.map(c).collect()
}

#[test]
fn functions() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sys.rs");
    let found = declarations(&fs::read_to_string(path).unwrap());
    assert!(found.len() >= 27, "{found:?}");
    let source = format!("#include <ebbdsm.h>\n{}\n", found.join("\n"));
    fs::remove_file(compile(&source, "functions", &["-c"])).unwrap();
}
