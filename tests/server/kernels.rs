//! Kernels that lack what the server uses where it can: old ones, and containers whose seccomp profile forbids new calls.
//!
//! A kernel says ENOSYS, a profile often EPERM. The filter is installed by Perl, which every Debian has, and inherited by the
//! server.

use weir_tests::{Signal, Site, http, until};

const ENOSYS: u32 = 38;
const EPERM: u32 = 1;
const EOPNOTSUPP: u32 = 95;

/// Installs the filter, and becomes the command: errno, then numbers of system calls separated by commas, then the command.
/// The program loads the number of the call, compares it with each, and ends with "allow" or, behind it, with the error.
const FILTER: &str = r#"
my ($prctl, $errno, $numbers, @command) = @ARGV;
my @numbers = split /,/, $numbers;
my $filter = pack("SCCL", 0x20, 0, 0, 0);
my $left = @numbers;
$filter .= pack("SCCL", 0x15, $left--, 0, $_) for @numbers;
$filter .= pack("SCCL", 0x06, 0, 0, 0x7fff0000) . pack("SCCL", 0x06, 0, 0, 0x00050000 | $errno);
my $program = pack("Sx6P", length($filter) / 8, $filter);
syscall($prctl + 0, 38, 1, 0, 0, 0) == 0 or die "no_new_privs: $!";
syscall($prctl + 0, 22, 2, $program) == 0 or die "seccomp: $!";
exec { $command[0] } @command or die "$command[0]: $!";
"#;

/// Numbers of system calls: those of this architecture, then those that all have in common.
struct CallNumbers {
    prctl: &'static str,
    statx: &'static str,
    preadv2: &'static str,
    pwritev2: &'static str,
    copy_file_range: &'static str,
    memfd_create: &'static str,
    renameat2: &'static str,
}

const NUMBERS: Option<CallNumbers> = if cfg!(target_arch = "x86_64") {
    Some(CallNumbers {
        prctl: "157",
        statx: "332",
        preadv2: "327",
        pwritev2: "328",
        copy_file_range: "326",
        memfd_create: "319",
        renameat2: "316",
    })
} else if cfg!(target_arch = "aarch64") {
    Some(CallNumbers {
        prctl: "167",
        statx: "291",
        preadv2: "286",
        pwritev2: "287",
        copy_file_range: "285",
        memfd_create: "279",
        renameat2: "276",
    })
} else {
    None
};

/// pidfd_send_signal, io_uring (three), pidfd_open, openat2, pidfd_getfd, epoll_pwait2, landlock (three), futex_waitv,
/// cachestat, fchmodat2: newer than Linux 5.0.
const NEW: &str = "424,425,426,427,434,437,438,441,444,445,446,449,451,452";
/// clone3, close_range, faccessat2: the C library takes only ENOSYS for an answer, and profiles give it that one.
const NEW_OF_THE_LIBRARY: &str = "435,436,439";

/// A site with what touches files, memory and processes; `None` where the numbers are not known.
fn site(errno: u32, calls: &[&str]) -> Option<Site> {
    let numbers = NUMBERS.as_ref()?;
    let (errno, calls) = (errno.to_string(), calls.join(","));
    let site = http(
        "proxy_cache_path cache keys_zone=one:1m;
         server {
             listen 127.0.0.1:%%PORT%%;
             location / { }
             location /listing/ { autoindex on; }
             location /cached/ {
                 proxy_pass http://127.0.0.1:%%PORT1%%/;
                 proxy_cache one;
                 proxy_cache_valid 1h;
                 add_header X-Cache $upstream_cache_status;
             }
             location /pid { return 200 $pid; }
         }
         server { listen 127.0.0.1:%%PORT1%%; location / { } }",
    )
    .main("worker_processes 2;")
    .file("html/small", "small")
    .file("html/large", vec![b'x'; 3_000_000])
    .file("html/listing/one", "1");
    Some(site.launched_by(&["perl", "-e", FILTER, numbers.prctl, &errno, &calls]))
}

/// Starts, serves, stores, reloads, loses a worker, and ends.
fn serves(errno: u32, calls: &[&str]) {
    let Some(site) = site(errno, calls) else {
        println!("skipped: the numbers of this architecture's system calls are not known");
        return;
    };
    let server = site.start();
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid().as_raw_nonzero()));
    assert!(
        status.is_ok_and(|status| status.contains("Seccomp:\t2")),
        "the filter is there"
    );
    let mut client = server.connect();
    for _ in 0..2 {
        assert_eq!(client.get("/small").expect(200).text(), "small");
        assert_eq!(client.get("/large").expect(200).body.len(), 3_000_000);
        assert!(client.get("/listing/").expect(200).text().contains("one"));
        client.get("/nothing").expect(404);
    }
    for target in ["/cached/small", "/cached/large"] {
        let hit =
            until(|| (server.get(target).expect(200).field("X-Cache") == "HIT").then_some(()));
        assert!(hit.is_some(), "{target} is stored");
    }
    let before = server.read("error.log").len();
    server.signal(Signal::HUP);
    let reloaded = until(|| (server.read("error.log").len() > before).then_some(()));
    assert!(reloaded.is_some());
    server.get("/small").expect(200);
    server.stop();
}

#[test]
fn an_old_kernel_is_enough() {
    let Some(own) = NUMBERS.as_ref() else { return };
    let calls = [
        NEW,
        NEW_OF_THE_LIBRARY,
        own.statx,
        own.preadv2,
        own.pwritev2,
        own.copy_file_range,
        own.memfd_create,
        own.renameat2,
    ];
    serves(ENOSYS, &calls);
}

#[test]
fn a_profile_may_forbid_new_calls() {
    let Some(own) = NUMBERS.as_ref() else { return };
    let calls = [
        NEW,
        own.statx,
        own.preadv2,
        own.pwritev2,
        own.copy_file_range,
    ];
    serves(EPERM, &calls);
}

#[test]
fn a_file_system_may_not_know_reads_without_waiting() {
    let Some(own) = NUMBERS.as_ref() else { return };
    serves(EOPNOTSUPP, &[own.preadv2]);
}
