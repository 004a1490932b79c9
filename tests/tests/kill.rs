//! Processes that share one table and are killed in mid-decision: the table
//! stays usable, what was admitted stays admitted, and a slot is lost at most.
//!
//! A child is a fork of this test's process, so that it runs from the first
//! instruction in the shared mapping, and is killed with SIGKILL wherever it
//! happens to be; or it is run one instruction at a time, and what it would
//! leave is looked at after each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate_core::key::Seed;
use tollgate_core::table::{Config, Header, Line, Table};
use tollgate_core::{Algorithm, Limit, Nanos};

const SECOND: Nanos = 1_000_000_000;
const NOW: Nanos = 1_000 * SECOND;

/// Memory that this process and its children share.
struct Shared {
    start: *mut libc::c_void,
    len: usize,
    config: Config,
}

// SAFETY: all that the mapping holds is atomics, and `start` does not change.
unsafe impl Sync for Shared {}

/// Counters of the test itself, beside the table.
#[repr(C)]
struct Tally {
    /// Admissions of the keys that everybody asks for.
    admitted: [AtomicU64; 16],
    /// Decisions made.
    decisions: AtomicU64,
    /// Children that are ready.
    ready: AtomicU64,
    go: AtomicU64,
}

const TALLY: usize = 4096;

impl Shared {
    fn new(config: Config) -> Shared {
        let len = TALLY + config.size().unwrap();
        // SAFETY: a new anonymous mapping of `len` bytes; nothing is replaced.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        let shared = Shared { start, len, config };
        let (header, lines) = shared.parts();
        Table::init(header, lines, config, Seed([8, 9]), true).unwrap();
        shared
    }

    fn parts(&self) -> (&Header, &[Line]) {
        let lines = self.config.lines().unwrap();
        // SAFETY: the mapping is page-aligned, zeroed, lives as long as `self`
        // and is long enough by `Config::size`; both types are atomics.
        unsafe {
            let header = self.start.cast::<u8>().add(TALLY).cast::<Header>();
            (&*header, std::slice::from_raw_parts(header.add(1).cast::<Line>(), lines))
        }
    }

    fn tally(&self) -> &Tally {
        // SAFETY: the first page of the mapping, zeroed; all fields are atomics.
        unsafe { &*self.start.cast::<Tally>() }
    }

    fn table(&self) -> Table<'_> {
        let (header, lines) = self.parts();
        Table::attach(header, lines, Some(self.config)).unwrap()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, to which no reference outlives `self`.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

/// A forked process, killed and reaped when it is dropped.
struct Child(libc::pid_t);

impl Child {
    /// Runs `body` in a process of its own, which then ends.
    fn run(body: impl FnOnce()) -> Child {
        // SAFETY: the child makes only atomic accesses to shared memory, no
        // allocation, no lock, no I/O, and ends with _exit.
        match unsafe { libc::fork() } {
            -1 => panic!("fork: {}", std::io::Error::last_os_error()),
            0 => {
                body();
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(0) }
            }
            pid => Child(pid),
        }
    }

    fn kill(&self) {
        // SAFETY: a child of ours that was not reaped yet.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }

    fn wait(self) {
        drop(self);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: as in `kill`; reaps it, whether it ended or was killed.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}

/// Pseudo-random numbers without state that a fork could share.
fn mixed(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

const KILLS: u64 = 400;

/// Kills one process after the other in a hot loop of decisions over a tiny
/// table, while another goes on; then counts what the table lost.
///
/// All go by the machine's one clock, sixteen times as fast. With clocks of
/// their own, minutes apart, they would turn the difference into tokens spent:
/// the keys are asked under two rates, and what a bucket owes is carried from
/// one to the other, a second of `7/s` becoming seven hours of `1/h`.
#[test]
fn law_7_a_killed_process_costs_no_extra_grant_and_at_most_one_slot() {
    let shared = Shared::new(Config { capacity: 16, rows: 4, row_entries: 4 });
    let limits = ["1/h burst 5", "fixed_window 3/s", "sliding_window 4/s", "7/s", "sliding_log 2/s"]
        .map(|text| text.parse::<Limit>().unwrap());
    let held: Limit = "concurrency 2/s".parse().unwrap();
    let began = Instant::now();
    let hot_loop = |seed: u64| {
        let table = shared.table();
        for turn in 0u64.. {
            let random = mixed(seed << 32 | turn);
            // Sixty-four keys for sixteen slots: most decisions claim or evict.
            let key = [(random >> 8) as u8 & 63];
            let now = NOW + began.elapsed().as_nanos() as u64 * 16 + (random >> 40);
            match random % 6 {
                5 => {
                    let (_, hold) = table.acquire(&key, &held, 1, now);
                    table.release(&hold);
                }
                kind => {
                    let _ = table.check(&key, &limits[kind as usize], 1, now);
                }
            }
            shared.tally().decisions.fetch_add(1, Ordering::Relaxed);
        }
    };
    let survivor = Child::run(|| hot_loop(0));
    for kill in 1..=KILLS {
        let before = shared.tally().decisions.load(Ordering::Relaxed);
        let child = Child::run(|| hot_loop(kill));
        std::thread::sleep(Duration::from_micros(500 + mixed(kill) % 4_000));
        child.kill();
        child.wait();
        // The survivor goes on.
        let deadline = Instant::now() + Duration::from_secs(10);
        while shared.tally().decisions.load(Ordering::Relaxed) == before {
            assert!(Instant::now() < deadline, "nobody decides any more after kill {kill}");
            std::thread::yield_now();
        }
    }
    survivor.kill();
    survivor.wait();

    // Long after, all are idle: as many keys fit as the table has slots, less
    // those that a killed process has left marked, and these only until they
    // are old enough to be taken.
    let table = shared.table();
    let later = NOW + 10_000_000 * SECOND;
    let year: Limit = "1/365d".parse().unwrap();
    let before = table.stats();
    for key in 0..16u64 {
        assert!(table.check(&key.to_le_bytes(), &year, 1, later).allowed);
    }
    let lost = table.stats().evictions - before.evictions;
    assert_eq!(lost, 0, "no slot is lost once its mark is old");
    assert_eq!(table.live(later), 16);
    for key in 0..16u64 {
        assert!(!table.check(&key.to_le_bytes(), &year, 1, later).allowed, "key {key} was forgotten");
    }
    for key in 0..2u64 {
        let log: Limit = "sliding_log 2/s".parse().unwrap();
        let admitted = (0..4).filter(|_| table.check(&key.to_le_bytes(), &log, 1, later).allowed).count();
        assert_eq!(admitted, 2);
        let taken = (0..4).filter(|_| table.acquire(&key.to_le_bytes(), &held, 1, later).0.allowed).count();
        assert_eq!(taken, 2);
    }
    println!("{KILLS} kills, {} decisions", shared.tally().decisions.load(Ordering::Relaxed));
}

/// Slots that stay marked while the clock stands still: at most one a kill.
#[test]
fn law_7_slots_lost_while_the_clock_stands() {
    let shared = Shared::new(Config { capacity: 4096, rows: 0, row_entries: 0 });
    let limit: Limit = "1/365d".parse().unwrap();
    let mut next = 0u64;
    let tally = shared.tally();
    for kill in 0..KILLS {
        // A child brings new keys one after the other, so each decision claims.
        let child = Child::run(|| {
            let table = shared.table();
            for key in next.. {
                if table.check(&key.to_le_bytes(), &limit, 1, NOW).allowed {
                    tally.decisions.fetch_add(1, Ordering::Relaxed);
                }
                tally.admitted[0].store(key, Ordering::Relaxed);
                if key - next > 6 {
                    loop {
                        std::hint::spin_loop();
                    }
                }
            }
        });
        std::thread::sleep(Duration::from_micros(200 + mixed(kill) % 600));
        child.kill();
        child.wait();
        next += 8;
    }
    let stats = shared.table().stats();
    let live = shared.table().live(NOW);
    let lost = stats.used - live;
    println!("{KILLS} kills, {} slots used, {live} live, {lost} lost", stats.used);
    assert!(lost <= KILLS);
    assert_eq!(stats.evictions, 0);
}

/// Processes admit together exactly what one would, however many of them are
/// killed: a charge is made or it is not.
#[test]
fn law_7_kills_never_add_to_what_is_admitted() {
    for text in
        ["1000/h", "fixed_window 1000/d", "7/h burst 1000", "sliding_window 1000/d", "sliding_log 1000/d"]
    {
        let limit: Limit = text.parse().unwrap();
        let shared = Shared::new(Config { capacity: 64, rows: 4, row_entries: 1000 });
        let tally = shared.tally();
        let (mut kills, deadline) = (0u64, Instant::now() + Duration::from_secs(20));
        while tally.admitted[0].load(Ordering::Relaxed) < 900 && Instant::now() < deadline {
            let spend = || {
                let table = shared.table();
                loop {
                    if table.check(b"key", &limit, 1, NOW).allowed {
                        tally.admitted[0].fetch_add(1, Ordering::Relaxed);
                    }
                    for _ in 0..20_000 {
                        std::hint::spin_loop(); // long enough to be killed before all is spent
                    }
                }
            };
            let children = [Child::run(spend), Child::run(spend)];
            std::thread::sleep(Duration::from_micros(mixed(kills) % 3_000));
            for child in children {
                child.kill();
                child.wait();
                kills += 1;
            }
        }
        let table = shared.table();
        let rest = (0..2_000).filter(|_| table.check(b"key", &limit, 1, NOW).allowed).count() as u64;
        let told = tally.admitted[0].load(Ordering::Relaxed) + rest;
        // Who was killed between being admitted and telling it is not counted.
        println!("{text}: {kills} kills, {told} told of 1000");
        assert!(told <= 1_000, "{text}: {told}");
        assert!(told + kills >= 1_000, "{text}: {told} after {kills} kills");
    }
}

/// Threads of several processes, one key, a limit of 10: exactly 10.
#[test]
fn law_1_threads_of_several_processes_are_admitted_exactly_the_limit() {
    const PROCESSES: u64 = 4;
    for algorithm in Algorithm::ALL {
        let limit = Limit::new(algorithm, 10, 3_600 * SECOND).unwrap();
        for round in 0..5u64 {
            let shared = Shared::new(Config { capacity: 64, rows: 4, row_entries: 16 });
            let tally = shared.tally();
            let children: Vec<_> = (0..PROCESSES)
                .map(|_| {
                    Child::run(|| {
                        tally.ready.fetch_add(1, Ordering::SeqCst);
                        while tally.go.load(Ordering::SeqCst) == 0 {
                            std::hint::spin_loop();
                        }
                        let ask = || {
                            let table = shared.table();
                            for _ in 0..100 {
                                let allowed = if algorithm == Algorithm::Concurrency {
                                    table.acquire(b"key", &limit, 1, NOW).0.allowed
                                } else {
                                    table.check(b"key", &limit, 1, NOW).allowed
                                };
                                if allowed {
                                    tally.admitted[0].fetch_add(1, Ordering::SeqCst);
                                }
                            }
                        };
                        std::thread::scope(|scope| {
                            scope.spawn(ask);
                            scope.spawn(ask);
                        });
                    })
                })
                .collect();
            while tally.ready.load(Ordering::SeqCst) < PROCESSES {
                std::thread::yield_now();
            }
            tally.go.store(1, Ordering::SeqCst);
            children.into_iter().for_each(Child::wait);
            assert_eq!(tally.admitted[0].load(Ordering::SeqCst), 10, "{algorithm:?}, round {round}");
        }
    }
}

/// A process that is killed between two instructions leaves the memory as it is
/// between them: so one is run an instruction at a time, and each memory that
/// it makes is judged. (Arm's exclusive loads and stores never succeed in
/// single steps, hence one processor's.)
#[cfg(target_arch = "x86_64")]
mod every_instruction {
    use super::*;
    use tollgate_core::table::Hold;

    const CONFIG: Config = Config { capacity: 4, rows: 2, row_entries: 3 };
    const BURST: u64 = 3;
    /// One for each way through the table.
    const LIMITS: [&str; 4] = ["1/h burst 3", "sliding_window 3/h", "sliding_log 3/h", "concurrency 3/h"];

    const DAY: Nanos = 86_400 * SECOND;
    const NOW: Nanos = 10 * DAY;

    /// All of a table's memory at one moment.
    type Image = Vec<u8>;

    fn image(shared: &Shared) -> Image {
        let len = shared.len - TALLY;
        let mut image = Image::with_capacity(len);
        // SAFETY: `len` bytes of the mapping, written by nobody meanwhile: who
        // could is stopped. The copy is as long as its room.
        unsafe {
            let table = shared.start.cast::<u8>().add(TALLY);
            std::ptr::copy_nonoverlapping(table, image.as_mut_ptr(), len);
            image.set_len(len);
        }
        image
    }

    fn restored(image: &Image) -> Shared {
        let shared = Shared::new(CONFIG);
        assert_eq!(image.len(), shared.len - TALLY);
        // SAFETY: as in `image`; the mapping is this thread's alone.
        unsafe {
            let table = shared.start.cast::<u8>().add(TALLY);
            std::ptr::copy_nonoverlapping(image.as_ptr(), table, image.len());
        }
        shared
    }

    /// Runs `body` in a process, one instruction at a time. Every memory that a
    /// kill could leave, in order, the first and the last included.
    fn stepped(shared: &Shared, body: impl FnOnce(&Table<'_>)) -> Vec<Image> {
        let table = shared.table();
        let child = Child::run(|| {
            // SAFETY: system calls on this process alone; it stops until it is stepped.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0 {
                    libc::_exit(1);
                }
                libc::raise(libc::SIGSTOP);
            }
            body(&table);
        });
        let mut images = vec![image(shared)];
        let mut signal = libc::SIGSTOP;
        loop {
            let mut status = 0;
            // SAFETY: a child of this thread, that it traces.
            assert_eq!(unsafe { libc::waitpid(child.0, &raw mut status, 0) }, child.0);
            if libc::WIFEXITED(status) {
                assert_eq!(libc::WEXITSTATUS(status), 0, "it was not traced");
                std::mem::forget(child); // reaped
                return images;
            }
            assert!(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == signal, "status {status:#x}");
            signal = libc::SIGTRAP;
            let now = image(shared);
            if images.last() != Some(&now) {
                images.push(now);
            }
            // SAFETY: as above; it is stopped.
            assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, child.0, 0, 0) }, 0);
        }
    }

    fn ask(table: &Table<'_>, key: &[u8], limit: &Limit, now: Nanos) -> (bool, Hold) {
        if limit.algorithm() == Algorithm::Concurrency {
            let (decision, hold) = table.acquire(key, limit, 1, now);
            return (decision.allowed, hold);
        }
        (table.check(key, limit, 1, now).allowed, Hold::default())
    }

    fn give_back(table: &Table<'_>, key: &[u8], limit: &Limit, hold: &Hold) {
        if limit.algorithm() == Algorithm::Concurrency {
            table.release(hold);
        } else {
            table.refund(key, limit, 1, NOW);
        }
    }

    /// Units that are left to the key.
    fn rest(image: &Image, limit: &Limit) -> u64 {
        let shared = restored(image);
        (0..2 * BURST).filter(|_| ask(&shared.table(), b"key", limit, NOW).0).count() as u64
    }

    /// Slots that neither hold a live bucket nor may be had.
    fn slots_lost(image: &Image, now: Nanos) -> u64 {
        let shared = restored(image);
        let (table, year) = (shared.table(), "1/365d".parse().unwrap());
        let (live, evictions) = (table.live(now), table.stats().evictions);
        let fit = (0u64..).take_while(|new| {
            assert!(table.check(&new.to_le_bytes(), &year, 1, now).allowed);
            table.stats().evictions == evictions
        });
        CONFIG.capacity - live - fit.count() as u64
    }

    /// Rows that other keys do not find idle, of so many that they bring.
    fn rows_lost(image: &Image, keys: u64, now: Nanos) -> u64 {
        let shared = restored(image);
        let (table, log) = (shared.table(), "sliding_log 1/h".parse().unwrap());
        let evictions = table.stats().row_evictions;
        for new in 0..keys {
            assert!(table.check(&new.to_le_bytes(), &log, 1, now).allowed);
        }
        for new in 0..keys {
            assert!(!table.check(&new.to_le_bytes(), &log, 1, now).allowed, "row {new} was forgotten");
        }
        table.stats().row_evictions - evictions
    }

    /// What must be true of memory that so many killed processes have left.
    fn judge(image: &Image, dead: u64, what: &str) {
        assert!(slots_lost(image, NOW) <= dead, "{what}: at most one slot a kill");
        assert_eq!(slots_lost(image, NOW + SECOND + 1), 0, "{what}: no slot is lost once its mark is old");
        // An owner that was killed before its first use of a row leaves one
        // that is not idle ever; the next key in need of a row takes it.
        assert!(rows_lost(image, CONFIG.rows, NOW + 2 * DAY) <= dead, "{what}: at most one row a kill");
    }

    /// What the table holds before: nothing; idle buckets; live ones.
    fn tables() -> [(&'static str, Shared); 3] {
        ["empty", "idle", "full"].map(|state| {
            let shared = Shared::new(CONFIG);
            let table = shared.table();
            let (at, keys) = match state {
                "empty" => (NOW, 0),
                "idle" => (NOW - 5 * DAY, CONFIG.capacity),
                _ => (NOW, CONFIG.capacity),
            };
            let bucket = "1/d".parse().unwrap();
            let log = "sliding_log 1/d".parse().unwrap();
            for other in 100..100 + keys {
                assert!(table.check(&[other as u8], &bucket, 1, at).allowed);
                assert!(table.check(&[other as u8], &log, 1, at).allowed);
            }
            (state, shared)
        })
    }

    /// One who is killed in a decision, and one who is killed in the same
    /// decision over what the first has left.
    #[test]
    fn law_7_a_process_killed_at_any_instruction_of_a_decision() {
        for text in LIMITS {
            let limit: Limit = text.parse().unwrap();
            let asked = |shared: &Shared| {
                stepped(shared, |table| {
                    ask(table, b"key", &limit, NOW);
                })
            };
            for (state, shared) in tables() {
                let images = asked(&shared);
                let left: Vec<u64> = images.iter().map(|image| rest(image, &limit)).collect();
                println!("{text}, {state} table: {left:?}");
                assert!(
                    left.is_sorted_by(|before, after| before >= after),
                    "{text}, {state} table: {left:?}"
                );
                assert_eq!((left[0], left[left.len() - 1]), (BURST, BURST - 1), "{text}, {state} table");
                for (image, left) in images.iter().zip(left) {
                    judge(image, 1, &format!("{text}, {state} table"));
                    if state != "empty" {
                        continue;
                    }
                    for second in asked(&restored(image)) {
                        judge(&second, 2, &format!("{text}, after another"));
                        let still = rest(&second, &limit);
                        assert!(
                            still == left || still == left - 1,
                            "{text}, after another: {still} of {left}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn law_7_a_process_killed_at_any_instruction_as_it_gives_back() {
        for text in LIMITS {
            let limit: Limit = text.parse().unwrap();
            let (_, shared) = &tables()[0];
            let (_, hold) = ask(&shared.table(), b"key", &limit, NOW);
            let images = stepped(shared, |table| give_back(table, b"key", &limit, &hold));
            let left: Vec<u64> = images.iter().map(|image| rest(image, &limit)).collect();
            println!("{text}: {left:?}");
            assert!(left.is_sorted(), "{text}: {left:?}");
            assert_eq!((left[0], left[left.len() - 1]), (BURST - 1, BURST), "{text}");
            images.iter().for_each(|image| judge(image, 0, text));
        }
    }
}
