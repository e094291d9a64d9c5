// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
//! Spaces at a donor that this test starts: EBB_DONORD is the program, or ebb-donord in PATH.
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::mem::forget;
use std::net::TcpListener;
use std::os::raw::{c_int, c_ulong};
use std::os::unix::process::CommandExt;
use std::panic::{catch_unwind, panic_any, AssertUnwindSafe};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{mpsc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ebbdsm::{scope, Box, Ended, Error, Kind, Loan, Options, Parcel, Space, Task, Tasks, View};

const PATIENCE: Duration = Duration::from_secs(60);

extern "C" {
    fn prctl(option: c_int, ...) -> c_int;
}

/// The donor ends with the test's thread, also if that is killed.
const PR_SET_PDEATHSIG: c_int = 1;
const SIGKILL: c_ulong = 9;

/// A donor at a unix socket, where its memory is mapped, and over TCP.
struct Donor {
    child: Child,
    directory: PathBuf,
    local: String,
    tcp: String,
}

impl Donor {
    fn start() -> Donor {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("ebbdsm-live-{}-{number}", std::process::id());
        let directory = env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let tcp = format!("127.0.0.1:{port}");
        let local = format!("unix:{}/donor.sock", directory.display());
        let mut donord = Command::new(env::var_os("EBB_DONORD").unwrap_or("ebb-donord".into()));
        donord.args(["--listen", &local, "--listen", &tcp, "--memory", "64M", "--slab", "16M"]);
        donord.args(["--far", "32M", "--keep", "300ms", "--headroom", "0"]);
        donord.args(["--drain-timeout", "0"]);
        donord.env("EBB_RUN_DIR", &directory);
        let log = fs::File::create(directory.join("log")).unwrap();
        donord.stdout(log.try_clone().unwrap()).stderr(log);
        // SAFETY: a system call alone.
        unsafe {
            donord.pre_exec(|| {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                Ok(())
            })
        };
        let child = donord.spawn().unwrap_or_else(|e| panic!("{donord:?}: {e}; set EBB_DONORD"));
        Donor { child, directory, local, tcp }
    }

    /// Opens a space, as soon as the donor listens.
    fn open(&mut self, at: &str) -> Space {
        let end = Instant::now() + PATIENCE;
        loop {
            match open(at) {
                Ok(space) => return space,
                Err(e) => {
                    let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
                    let exited = self.child.try_wait().unwrap();
                    assert!(exited.is_none() && Instant::now() < end, "{e}\n{log}");
                }
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Donor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn open(at: &str) -> Result<Space, Error> {
    Space::open(&Options {
        donors: vec![at.to_string()],
        pool: "p".to_string(),
        timeout_ms: 20_000,
        ..Options::default()
    })
}

/// Runs @test with a space whose home is mapped, and with one over TCP; another space, and where
/// that is.
fn with_spaces(test: fn(&Space, &Space, &str)) {
    let mut donor = Donor::start();
    let (local, tcp) = (donor.local.clone(), donor.tcp.clone());
    for (at, other) in [(&local, &tcp), (&tcp, &local)] {
        test(&donor.open(at), &donor.open(other), other);
    }
}

fn kind<T, E: Into<Error>>(result: Result<T, E>) -> Option<Kind> {
    result.err().map(|e| e.into().kind())
}

#[test]
fn boxes() {
    with_spaces(|space, _, _| {
        let mut own = Box::new(space, &5u64).unwrap();
        {
            let first = own.borrow().unwrap();
            let second = own.borrow().unwrap();
            assert_eq!((*first, *second), (5, 5));
            assert_eq!(&*first as *const u64 as usize % 16, 0);
        }
        *own.borrow_mut().unwrap() = 6;
        let mut m = own.borrow_mut().unwrap();
        *m += 1;
        m.end().unwrap();
        assert_eq!(own.get().unwrap(), 7);

        let mut rows = Box::new(space, &[1u32, 2, 3][..]).unwrap();
        rows.borrow_mut().unwrap()[1] = 20;
        assert_eq!(*rows.borrow().unwrap(), [1, 20, 3]);
        assert_eq!(rows.len(), 3);
        let zeros = Box::<[u16]>::zeroed_slice(space, 1000).unwrap();
        assert!(zeros.borrow().unwrap().iter().all(|&z| z == 0));
        assert_eq!(Box::<[f64; 4]>::zeroed(space).unwrap().get().unwrap(), [0.0; 4]);
        assert_eq!(kind(Box::<[u8]>::zeroed_slice(space, 2 << 20)), Some(Kind::Invalid));
        assert_eq!(kind(Box::<[u64]>::zeroed_slice(space, usize::MAX)), Some(Kind::Invalid));
        assert_eq!(kind(Box::<[u8]>::new(space, &[])), Some(Kind::Invalid));

        assert_eq!(space.counts().places, 3);
        let moved = own;
        assert_eq!(moved.get().unwrap(), 7);
        drop(rows);
        drop(zeros);
        drop(moved);
        assert_eq!(space.counts().places, 0);
    });
}

#[test]
fn forgotten_borrows() {
    with_spaces(|space, _, _| {
        let mut own = Box::new(space, &1u64).unwrap();
        forget(own.borrow().unwrap());
        assert_eq!(kind(own.borrow_mut()), Some(Kind::Busy));
        assert_eq!(own.get().unwrap(), 1);
        drop(own);
        let mut own = Box::new(space, &2u64).unwrap();
        forget(own.borrow_mut().unwrap());
        assert_eq!(kind(own.borrow()), Some(Kind::Busy));
        assert_eq!(kind(own.give()), Some(Kind::Busy));
    });
}

#[test]
fn options_that_cannot_be() {
    let error = Space::open(&Options::default()).unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert_eq!(error.to_string(), "options: 0 donors; give 1 to 8");
    let pool = Options { pool: "a\0b".into(), ..Options::default() };
    assert!(Space::open(&pool).unwrap_err().to_string().contains("NUL"));
    let error = open("unix:/nonexistent/donor").unwrap_err();
    assert!(error.to_string().contains("/nonexistent/donor"), "{error}");
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn readers() {
    with_spaces(|space, other, at| {
        let mut own = Box::new(space, &[1u64, 2][..]).unwrap();
        let first = own.view();
        assert_eq!(View::<[u64]>::from_bytes(first.to_bytes()), first);
        let seen = other.read(first).unwrap();
        own.borrow_mut().unwrap()[0] = 10;
        let second = own.view();
        assert_ne!(first, second);
        assert_eq!((&*seen, &*other.read(second).unwrap()), (&[1, 2][..], &[10, 2][..]));
        // It is cached there, and not here.
        assert_eq!(*other.read(first).unwrap(), [1, 2]);
        drop(seen);
        drop(own);
        let third = open(at).unwrap();
        assert_eq!(kind(third.read(first)), Some(Kind::Stale));

        // Names within objects.
        let leaf = Box::new(space, &3u64).unwrap();
        let node = Box::new(space, &[leaf.view(), leaf.view()]).unwrap();
        let node = other.read(node.view()).unwrap();
        assert_eq!(*other.read(node[1]).unwrap(), 3);

        // A name that was taken for one of another type.
        let wrong = View::<[u32; 3]>::from_bytes(leaf.view().to_bytes());
        assert_eq!(kind(other.read(wrong)), Some(Kind::Invalid));
        let half = View::<[u32]>::from_bytes(leaf.view().to_bytes());
        assert_eq!(*other.read(half).unwrap(), [3, 0]);
        assert_eq!(kind(other.read(View::<u64>::from_bytes([0; 16]))), Some(Kind::Invalid));
        assert_eq!(kind(other.read(View::<u64>::from_bytes([255; 16]))), Some(Kind::Invalid));
    });
}

#[test]
fn loans() {
    with_spaces(|space, other, _| {
        let mut count = Box::new(space, &1u64).unwrap();
        let mut rows = Box::new(space, &[1u8; 100]).unwrap();
        let (send, receive) = mpsc::channel::<(Loan<u64>, Loan<[u8; 100]>)>();
        let sum = thread::scope(|threads| {
            let task = threads.spawn(move || {
                let (count, rows) = receive.recv().unwrap();
                other.with_loan(count, |c| *c += 1).unwrap();
                other.with_loan(rows, |r| r.iter_mut().map(|x| *x += 1).count()).unwrap()
            });
            scope(|s| {
                let loans = (s.lend(&mut count).unwrap().1, s.lend(&mut rows).unwrap().1);
                send.send(loans).unwrap();
                task.join().unwrap()
            })
        });
        assert_eq!(sum.unwrap(), 100);
        assert_eq!((count.get().unwrap(), rows.get().unwrap()), (2, [2; 100]));

        // A loan that no task borrows is withdrawn.
        let loan = scope(|s| s.lend(&mut count).unwrap().1).unwrap();
        assert_eq!(kind(other.with_loan(loan, |c| *c += 1)), Some(Kind::Stale));

        // One that ends before its scope, and the box is lent again.
        scope(|s| {
            let (lent, loan) = s.lend(&mut count).unwrap();
            other.with_loan(loan, |c| *c += 1).unwrap();
            let (own, ended) = lent.reclaim().unwrap();
            assert_eq!((own.get().unwrap(), ended), (3, Ended::Returned));
            let (_, loan) = s.lend(own).unwrap();
            other.with_loan(loan, |c| *c += 1).unwrap();
        })
        .unwrap();
        assert_eq!(count.get().unwrap(), 4);

        // A borrower of another type changes nothing.
        scope(|s| {
            let loan = Loan::<u32>::from_bytes(s.lend(&mut count).unwrap().1.to_bytes());
            assert_eq!(kind(other.with_loan(loan, |c| *c = 0)), Some(Kind::Invalid));
        })
        .unwrap();
        assert_eq!(count.get().unwrap(), 4);

        // Panics, of a task and of an owner.
        let failed = catch_unwind(AssertUnwindSafe(|| {
            scope(|s| {
                let (_, loan) = s.lend(&mut count).unwrap();
                let _ = other.with_loan(loan, |c| {
                    *c = 5;
                    panic!("a task fails");
                });
            })
        }));
        assert_eq!(*failed.unwrap_err().downcast::<&str>().unwrap(), "a task fails");
        assert_eq!(count.get().unwrap(), 5);

        // Beyond a scope.
        let loan = count.lend_unscoped().unwrap();
        assert_eq!(kind(count.borrow()), Some(Kind::Busy));
        other.with_loan(loan, |c| *c = 6).unwrap();
        assert_eq!(count.reclaim().unwrap(), Ended::Returned);
        assert_eq!(kind(count.reclaim()), Some(Kind::Invalid));
        assert_eq!(count.get().unwrap(), 6);
    });
}

#[test]
fn parcels() {
    with_spaces(|space, other, _| {
        let own = Box::new(space, &7u64).unwrap();
        let (given, parcel) = own.give().unwrap();
        let own = given.withdraw().unwrap();
        let refused = other.accept(parcel).unwrap_err();
        assert_eq!(refused.error.kind(), Kind::Stale);
        let (given, parcel) = own.give().unwrap();
        let again = Parcel::<u64>::from_bytes(parcel.to_bytes());
        let mut got = other.accept(parcel).unwrap();
        assert_eq!(kind(other.accept(again)), Some(Kind::Stale));
        *got.borrow_mut().unwrap() += 1;
        assert_eq!(got.get().unwrap(), 8);
        let mut refused = given.withdraw().unwrap_err();
        let end = Instant::now() + PATIENCE;
        while refused.error.kind() == Kind::Busy && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
            refused = refused.kept.withdraw().unwrap_err();
        }
        assert_eq!(refused.error.kind(), Kind::Stale);
        assert_eq!((space.counts().places, other.counts().places), (0, 1));

        // Forgotten by its giver, and accepted as another type.
        let (_, parcel) = got.give().unwrap();
        let parcel = Parcel::<[u32; 3]>::from_bytes(parcel.to_bytes());
        assert_eq!(kind(space.accept(parcel)), Some(Kind::Invalid));
        let end = Instant::now() + PATIENCE;
        while other.counts().places != 0 && Instant::now() < end {
            other.settle().unwrap();
        }
        assert_eq!((space.counts().places, other.counts().places), (0, 0));
    });
}

#[test]
fn threads() {
    with_spaces(|space, other, _| {
        let own = Box::new(space, &[9u64; 100]).unwrap();
        thread::scope(|s| {
            for reader in [space, other, space, other] {
                let own = &own;
                s.spawn(move || {
                    for _ in 0..200 {
                        let borrowed = own.borrow().unwrap();
                        let seen = reader.read(own.view()).unwrap();
                        assert_eq!(*borrowed, *seen);
                    }
                });
            }
        });
        drop(own);
        assert_eq!(space.counts().places, 0);
    });
}

/// The other process of a_task_dies() and a_worker_dies().
#[test]
fn child() {
    let at = match env::var("EBBDSM_LIVE_AT") {
        Ok(at) => at,
        Err(_) => return,
    };
    if env::var_os("EBBDSM_LIVE_WORKS").is_some() {
        let space = open(&at).unwrap();
        space.register(tasks().waiting(4)).unwrap();
        println!("works");
        loop {
            space.work(None).unwrap();
        }
    }
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let bytes: Vec<u8> = line.split_whitespace().map(|b| b.parse().unwrap()).collect();
    let loan = Loan::<u64>::from_bytes(bytes.try_into().unwrap());
    let space = open(&at).unwrap();
    let _ = space.with_loan(loan, |c| {
        *c = 100;
        println!("borrowed");
        std::io::stdin().read_line(&mut line).unwrap();
    });
}

#[test]
fn a_task_dies() {
    let mut donor = Donor::start();
    let at = donor.local.clone();
    let space = donor.open(&at);
    let mut count = Box::new(&space, &1u64).unwrap();
    let tcp = donor.tcp.clone();
    for (turn, at) in [&at, &tcp, &at, &tcp].into_iter().enumerate() {
        let exe: OsString = env::current_exe().unwrap().into();
        let mut task = Command::new(exe)
            .args(["child", "--exact", "--nocapture"])
            .env("EBBDSM_LIVE_AT", at)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let ended = scope(|s| {
            let (lent, loan) = s.lend(&mut count).unwrap();
            let bytes: Vec<String> = loan.to_bytes().iter().map(|b| b.to_string()).collect();
            writeln!(task.stdin.as_mut().unwrap(), "{}", bytes.join(" ")).unwrap();
            let output = BufReader::new(task.stdout.as_mut().unwrap());
            assert!(output.lines().any(|l| l.unwrap().ends_with("borrowed")));
            let refused = lent.reclaim().unwrap_err();
            assert_eq!(refused.error.kind(), Kind::Busy);
            task.kill().unwrap();
            task.wait().unwrap();
            if turn >= 2 {
                let (own, ended) = refused.kept.wait().unwrap();
                assert_eq!((own.get().unwrap(), ended), (1, Ended::Died));
            }
        });
        assert_eq!(kind(ended), (turn < 2).then_some(Kind::OwnerDead));
        assert_eq!(count.get().unwrap(), 1);
    }
}

/// A loan is waited for as long as its own donor is there.
#[test]
fn another_donor_exits() {
    for replicas in 0..2 {
        let (mut kept, mut lost) = (Donor::start(), Donor::start());
        let donors = vec![kept.local.clone(), lost.tcp.clone()];
        // Both listen then.
        drop((kept.open(&donors[0]), lost.open(&donors[1])));
        let options = Options {
            donors,
            pool: "p".to_string(),
            timeout_ms: 20_000,
            resume_ms: 100,
            replicas,
            ..Options::default()
        };
        let (space, other) = (Space::open(&options).unwrap(), Space::open(&options).unwrap());
        let mut count = Box::new(&space, &1u64).unwrap();
        for turn in 0..2 {
            let (send, borrowed) = mpsc::channel();
            let ended = thread::scope(|threads| {
                scope(|s| {
                    let (lent, loan) = s.lend(&mut count).unwrap();
                    let (space, other) = (&space, &other);
                    threads.spawn(move || {
                        let change = |c: &mut u64| {
                            send.send(()).unwrap();
                            let end = Instant::now() + PATIENCE;
                            while space.settle().is_ok() && Instant::now() < end {
                                thread::sleep(Duration::from_millis(10));
                            }
                            thread::sleep(Duration::from_millis(300));
                            *c += 1;
                        };
                        other.with_loan(loan, change).unwrap();
                    });
                    borrowed.recv().unwrap();
                    let _ = lost.child.kill();
                    lost.child.wait().unwrap();
                    if turn == 0 {
                        assert_eq!(lent.wait().unwrap().1, Ended::Returned);
                    }
                })
            });
            assert_eq!(kind(ended), None);
            assert_eq!(count.get().unwrap(), 2 + turn);
        }
    }
}

/// Multiplies its rows; returns their sum.
struct Scale;

impl Task for Scale {
    type Args = u64;
    type Own = [u64];
    type Output = u64;

    fn run<'s>(_: &'s Space, factor: &u64, rows: &mut Box<'s, [u64]>) -> u64 {
        let mut rows = rows.borrow_mut().unwrap();
        rows.iter_mut().for_each(|row| *row *= factor);
        rows.iter().sum()
    }
}

/// Replaces its box by a larger value, without arguments and results.
struct Replace;

impl Task for Replace {
    type Args = ();
    type Own = u64;
    type Output = ();

    fn run<'s>(space: &'s Space, _: &(), own: &mut Box<'s, u64>) {
        *own = Box::new(space, &(own.get().unwrap() + 1)).unwrap();
    }
}

/// Replaces its rows by the first ones.
struct Shorten;

impl Task for Shorten {
    type Args = u32;
    type Own = [u64];
    type Output = ();

    fn run<'s>(space: &'s Space, length: &u32, rows: &mut Box<'s, [u64]>) {
        let first = Box::new(space, &rows.borrow().unwrap()[..*length as usize]).unwrap();
        *rows = first;
    }
}

struct Panics;

impl Task for Panics {
    type Args = ();
    type Own = u64;
    type Output = ();

    fn run<'s>(_: &'s Space, _: &(), own: &mut Box<'s, u64>) {
        *own.borrow_mut().unwrap() = 20;
        panic!("a task fails");
    }
}

/// What a panic carries that panics when it is dropped, as often as it says.
struct Again(u32);

impl Drop for Again {
    fn drop(&mut self) {
        if self.0 > 0 {
            panic_any(Again(self.0 - 1));
        }
    }
}

/// Panics, and its panics do.
struct PanicsAgain;

impl Task for PanicsAgain {
    type Args = u32;
    type Own = u64;
    type Output = ();

    fn run<'s>(_: &'s Space, times: &u32, own: &mut Box<'s, u64>) {
        *own.borrow_mut().unwrap() = 30;
        panic_any(Again(*times));
    }
}

/// Of this process, and not that of its tasks.
static ELSEWHERE: Mutex<Option<&'static Space>> = Mutex::new(None);

/// Puts a box of another space in place of its own one.
struct Misplaces;

impl Task for Misplaces {
    type Args = ();
    type Own = u64;
    type Output = ();

    fn run<'s>(_: &'s Space, _: &(), own: &mut Box<'s, u64>) {
        let elsewhere = ELSEWHERE.lock().unwrap().unwrap();
        *own = Box::new(elsewhere, &1).unwrap();
    }
}

struct Exits;

impl Task for Exits {
    type Args = ();
    type Own = u64;
    type Output = ();

    fn run<'s>(_: &'s Space, _: &(), _: &mut Box<'s, u64>) {
        std::process::abort();
    }
}

/// Replaces its box by a larger one, and ends when the donor is full.
struct Grow;

const LARGE: usize = (1 << 20) - 32;
static HAS_GROWN: AtomicBool = AtomicBool::new(false);
static IS_FULL: AtomicBool = AtomicBool::new(false);

impl Task for Grow {
    type Args = ();
    type Own = [u8];
    type Output = ();

    fn run<'s>(space: &'s Space, _: &(), own: &mut Box<'s, [u8]>) {
        *own = Box::zeroed_slice(space, LARGE).unwrap();
        HAS_GROWN.store(true, Ordering::Relaxed);
        while !IS_FULL.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn tasks() -> Tasks {
    Tasks::new()
        .with::<Grow>()
        .with::<Scale>()
        .with::<Replace>()
        .with::<Shorten>()
        .with::<Panics>()
        .with::<PanicsAgain>()
        .with::<Misplaces>()
        .with::<Exits>()
}

struct Unknown;

impl Task for Unknown {
    type Args = ();
    type Own = u64;
    type Output = ();

    fn run<'s>(_: &'s Space, _: &(), _: &mut Box<'s, u64>) {}
}

struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn spawned_tasks() {
    with_spaces(|space, other, _| {
        let mut rows: Vec<_> =
            (1..5u64).map(|i| Box::new(space, &vec![i; 1000][..]).unwrap()).collect();
        let mut own = Box::new(space, &1u64).unwrap();
        let refused = scope(|s| kind(s.spawn::<Replace>(&mut own, &())));
        assert_eq!(refused.unwrap(), Some(Kind::Invalid));
        space.register(tasks()).unwrap();
        let refused = scope(|s| kind(s.spawn::<Replace>(&mut own, &())));
        assert_eq!(refused.unwrap(), Some(Kind::NoProcess));
        assert_eq!(own.get().unwrap(), 1);
        other.register(tasks().waiting(8)).unwrap();
        assert!(other.register(tasks()).is_err());
        assert!(!other.work(Some(Duration::ZERO)).unwrap());
        let ended = AtomicBool::new(false);
        thread::scope(|threads| {
            // Also if an assertion fails.
            let _end = SetAtEnd(&ended);
            threads.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    other.work(Some(Duration::from_millis(20))).unwrap();
                }
            });
            // What is known of processes is up to a second old.
            let end = Instant::now() + PATIENCE;
            while scope(|s| kind(s.spawn::<Replace>(&mut own, &()))).unwrap().is_some() {
                assert!(Instant::now() < end);
                thread::sleep(Duration::from_millis(50));
            }
            assert_eq!(own.get().unwrap(), 2);
            let sum: u64 = scope(|s| {
                let spawned: Vec<_> =
                    rows.iter_mut().map(|rows| s.spawn::<Scale>(rows, &10).unwrap()).collect();
                let mut sum = 0;
                for task in spawned.into_iter().skip(1) {
                    let (own, part) = task.join().unwrap();
                    assert_eq!(own.borrow().unwrap().iter().sum::<u64>(), part);
                    sum += part;
                }
                sum
            })
            .unwrap();
            assert_eq!(sum, 10 * (2 + 3 + 4) * 1000);
            assert_eq!(rows[0].borrow().unwrap()[999], 10);
            scope(|s| s.spawn::<Shorten>(&mut rows[0], &3).map(|_| ())).unwrap().unwrap();
            assert_eq!((rows[0].len(), &rows[0].borrow().unwrap()[..]), (3, &[10, 10, 10][..]));
            let mut joined = scope(|s| {
                let refused = s.spawn::<Panics>(&mut own, &()).unwrap().join().unwrap_err();
                (refused.error.kind(), refused.kept.get().unwrap())
            });
            assert_eq!(joined.unwrap(), (Kind::Panicked, 20));
            joined = scope(|s| {
                let _ = s.spawn::<Panics>(&mut own, &()).unwrap();
                (Kind::Other, 0)
            });
            assert_eq!(kind(joined), Some(Kind::Panicked));
            for times in 1..4 {
                joined = scope(|s| {
                    let task = s.spawn::<PanicsAgain>(&mut own, &times).unwrap();
                    let refused = task.join().unwrap_err();
                    (refused.error.kind(), refused.kept.get().unwrap())
                });
                assert_eq!(joined.unwrap(), (Kind::Panicked, 30));
            }
            let unknown = scope(|s| s.spawn::<Unknown>(&mut own, &()).unwrap_err().to_string());
            assert!(unknown.unwrap().contains("Unknown: not registered"));
            assert_eq!(own.get().unwrap(), 30);
        });
        drop(own);
        drop(rows);
        let end = Instant::now() + PATIENCE;
        while space.counts().places + other.counts().places != 0 && Instant::now() < end {
            space.settle().unwrap();
            other.settle().unwrap();
        }
        assert_eq!((space.counts().places, other.counts().places), (0, 0));
    });
}

/// A task's box is of the space that the task runs in.
#[test]
fn a_box_of_another_space() {
    let mut donor = Donor::start();
    let at = donor.local.clone();
    let (space, worker) = (donor.open(&at), donor.open(&at));
    let elsewhere: &Space = std::boxed::Box::leak(std::boxed::Box::new(donor.open(&at)));
    *ELSEWHERE.lock().unwrap() = Some(elsewhere);
    space.register(tasks()).unwrap();
    worker.register(tasks().waiting(1)).unwrap();
    let mut own = Box::new(&space, &1u64).unwrap();
    thread::scope(|threads| {
        threads.spawn(|| assert!(worker.work(Some(PATIENCE)).unwrap()));
        let refused = scope(|s| {
            let refused = s.spawn::<Misplaces>(&mut own, &()).unwrap().join().unwrap_err();
            (refused.error.kind(), kind(refused.kept.get()))
        });
        assert_eq!(refused.unwrap(), (Kind::Invalid, Some(Kind::Stale)));
    });
    assert_eq!(elsewhere.counts().places, 0);
}

/// A join waits for memory for the box.
#[test]
fn a_full_donor() {
    with_spaces(|space, other, _| {
        let mut own = Box::new(space, &[1u8][..]).unwrap();
        let mut others = Vec::new();
        let ended = AtomicBool::new(false);
        HAS_GROWN.store(false, Ordering::Relaxed);
        IS_FULL.store(false, Ordering::Relaxed);
        other.register(tasks().waiting(1)).unwrap();
        space.register(tasks()).unwrap();
        thread::scope(|threads| {
            let _end = (SetAtEnd(&ended), SetAtEnd(&IS_FULL));
            threads.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    other.work(Some(Duration::from_millis(20))).unwrap();
                }
            });
            scope(|s| {
                let task = s.spawn::<Grow>(&mut own, &()).unwrap();
                let end = Instant::now() + PATIENCE;
                while !HAS_GROWN.load(Ordering::Relaxed) && Instant::now() < end {
                    thread::sleep(Duration::from_millis(1));
                }
                let error = loop {
                    match Box::<[u8]>::zeroed_slice(space, LARGE) {
                        Ok(large) => others.push(large),
                        Err(error) => break error,
                    }
                };
                assert_eq!(error.kind(), Kind::NoSpace);
                IS_FULL.store(true, Ordering::Relaxed);
                let others = &mut others;
                threads.spawn(move || {
                    thread::sleep(Duration::from_millis(300));
                    others.clear();
                });
                assert_eq!(task.join().unwrap().0.len(), LARGE);
            })
            .unwrap();
        });
        drop(own);
    });
}

#[test]
fn a_worker_dies() {
    let mut donor = Donor::start();
    let at = donor.local.clone();
    let space = donor.open(&at);
    space.register(tasks()).unwrap();
    let mut own = Box::new(&space, &1u64).unwrap();
    let mut worker = Command::new(env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture"])
        .envs([("EBBDSM_LIVE_AT", &at), ("EBBDSM_LIVE_WORKS", &at)])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = BufReader::new(worker.stdout.as_mut().unwrap());
    assert!(output.lines().any(|l| l.unwrap().ends_with("works")));
    assert_eq!(kind(scope(|s| s.spawn::<Exits>(&mut own, &()).map(|_| ()))), Some(Kind::OwnerDead));
    assert_eq!(kind(own.get()), Some(Kind::Stale));
    assert!(!worker.wait().unwrap().success());
}
