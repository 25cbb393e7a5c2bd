//! The system calls that a worker makes, and the names of those that it does not.

/// A call: its name and its number on this machine.
pub(super) type SystemCall = (&'static str, libc::c_long);

/// Names and numbers of calls; the only way to write each name once.
macro_rules! calls {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name)),*] };
}

/// Let through whatever their arguments are.
///
/// Sockets of their own have `socket`, threads `clone`, memory `mmap` and `mprotect`, which are looked at in
/// [`super::filter`]. What is done with names of files is the business of Landlock; what that does not look at changes
/// modes and times of files that the worker's user owns, no more.
pub(super) const ALLOWED: &[SystemCall] = calls!(
    // What every request needs.
    SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev SYS_preadv2 SYS_pwritev2
    SYS_recvfrom SYS_recvmsg SYS_recvmmsg SYS_sendto SYS_sendmsg SYS_sendmmsg SYS_sendfile SYS_splice SYS_tee
    SYS_accept SYS_accept4 SYS_close SYS_shutdown SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_futex
    SYS_connect SYS_bind SYS_getsockname SYS_getpeername SYS_getsockopt SYS_setsockopt SYS_socketpair
    SYS_epoll_create1 SYS_eventfd2 SYS_pipe2 SYS_ppoll SYS_pselect6 SYS_signalfd4 SYS_memfd_create
    SYS_timerfd_create SYS_timerfd_settime SYS_timerfd_gettime
    // Files.
    SYS_openat SYS_openat2 SYS_newfstatat SYS_fstat SYS_statx SYS_statfs SYS_fstatfs SYS_faccessat SYS_faccessat2
    SYS_readlinkat SYS_getdents64 SYS_lseek SYS_mkdirat SYS_unlinkat SYS_renameat SYS_renameat2 SYS_linkat
    SYS_fchmod SYS_fchmodat SYS_fchown SYS_fchownat SYS_utimensat SYS_truncate SYS_ftruncate SYS_fallocate SYS_fadvise64
    SYS_readahead SYS_fsync SYS_fdatasync SYS_sync_file_range SYS_copy_file_range SYS_flock SYS_getcwd SYS_umask
    SYS_fcntl SYS_dup SYS_dup3 SYS_close_range
    // Memory.
    SYS_munmap SYS_mremap SYS_madvise SYS_mincore SYS_mlock SYS_mlock2 SYS_munlock SYS_msync SYS_brk SYS_membarrier
    // Threads, signals to them, time.
    SYS_exit SYS_exit_group SYS_set_robust_list SYS_get_robust_list SYS_rseq SYS_set_tid_address SYS_gettid
    SYS_getpid SYS_getppid SYS_sched_yield SYS_sched_getaffinity SYS_sched_setaffinity SYS_sched_getparam
    SYS_sched_getscheduler SYS_sigaltstack SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_rt_sigpending
    SYS_rt_sigtimedwait SYS_rt_sigsuspend SYS_restart_syscall SYS_nanosleep SYS_clock_nanosleep SYS_clock_gettime
    SYS_clock_getres SYS_gettimeofday SYS_times SYS_getrusage SYS_setitimer SYS_getitimer SYS_timer_create
    SYS_timer_settime SYS_timer_gettime SYS_timer_getoverrun SYS_timer_delete
    // What a process asks about itself and the machine.
    SYS_getrandom SYS_uname SYS_sysinfo SYS_getcpu SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_getgroups
    SYS_getpgid SYS_getsid SYS_capget SYS_getrlimit
);

/// The older forms, which newer machines do not have.
#[cfg(target_arch = "x86_64")]
pub(super) const ALLOWED_HERE: &[SystemCall] = calls!(
    SYS_open SYS_stat SYS_lstat SYS_access SYS_readlink SYS_mkdir SYS_rmdir SYS_unlink SYS_rename SYS_link SYS_chmod
    SYS_getdents SYS_epoll_create SYS_epoll_wait SYS_eventfd SYS_pipe SYS_poll SYS_select SYS_dup2 SYS_time
    SYS_utimes SYS_utime SYS_futimesat SYS_getpgrp SYS_alarm
);
#[cfg(not(target_arch = "x86_64"))]
pub(super) const ALLOWED_HERE: &[SystemCall] = &[];

/// Let through besides where programs may be run: what starts them, and what they need.
pub(super) const OF_PROGRAMS: &[SystemCall] = calls!(
    SYS_clone SYS_execve SYS_execveat SYS_wait4 SYS_waitid SYS_kill SYS_tgkill SYS_setpgid SYS_setsid SYS_prctl SYS_ioctl
    SYS_mmap SYS_mprotect SYS_chdir SYS_fchdir SYS_symlinkat SYS_prlimit64 SYS_setrlimit SYS_getpriority SYS_getxattr SYS_lgetxattr SYS_fgetxattr
);

#[cfg(target_arch = "x86_64")]
pub(super) const OF_PROGRAMS_HERE: &[SystemCall] =
    calls!(SYS_fork SYS_vfork SYS_arch_prctl SYS_symlink);
#[cfg(not(target_arch = "x86_64"))]
pub(super) const OF_PROGRAMS_HERE: &[SystemCall] = &[];

/// Calls that are denied, or looked at; their names are for the log.
const OTHERS: &[SystemCall] = calls!(
    SYS_socket SYS_clone SYS_clone3 SYS_mmap SYS_mprotect SYS_prctl SYS_ioctl SYS_prlimit64 SYS_tgkill
    SYS_execve SYS_execveat SYS_listen SYS_kill SYS_tkill SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev
    SYS_setuid SYS_setgid SYS_setreuid SYS_setregid SYS_setresuid SYS_setresgid SYS_setgroups SYS_setfsuid SYS_setfsgid
    SYS_capset SYS_chroot SYS_pivot_root SYS_mount SYS_umount2 SYS_unshare SYS_setns SYS_reboot SYS_swapon SYS_swapoff
    SYS_init_module SYS_finit_module SYS_delete_module SYS_kexec_load SYS_bpf SYS_perf_event_open SYS_userfaultfd
    SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register SYS_keyctl SYS_add_key SYS_request_key SYS_personality
    SYS_open_by_handle_at SYS_name_to_handle_at SYS_memfd_secret SYS_pkey_mprotect SYS_symlinkat SYS_mknodat SYS_chdir
    SYS_fchdir SYS_setsid SYS_setpgid SYS_setpriority SYS_setrlimit SYS_acct SYS_settimeofday SYS_clock_settime
    SYS_adjtimex SYS_sethostname SYS_setdomainname SYS_syslog SYS_quotactl SYS_fanotify_init SYS_inotify_init1
    SYS_pidfd_open SYS_pidfd_getfd SYS_pidfd_send_signal SYS_rt_sigqueueinfo SYS_rt_tgsigqueueinfo SYS_shmget SYS_shmat
    SYS_semget SYS_msgget SYS_mq_open SYS_seccomp SYS_landlock_create_ruleset SYS_landlock_add_rule
    SYS_landlock_restrict_self SYS_setxattr SYS_fsetxattr SYS_lsetxattr SYS_vmsplice SYS_wait4 SYS_waitid
    SYS_getpriority SYS_getxattr SYS_lgetxattr SYS_fgetxattr SYS_ioprio_set SYS_sched_setscheduler
);

#[cfg(target_arch = "x86_64")]
const OTHERS_HERE: &[SystemCall] = calls!(SYS_fork SYS_vfork SYS_arch_prctl SYS_symlink SYS_iopl SYS_ioperm SYS_modify_ldt SYS_mknod);
#[cfg(not(target_arch = "x86_64"))]
const OTHERS_HERE: &[SystemCall] = &[];

/// The name of a system call, if it is one that a worker makes or that is worth a name.
pub fn name(number: libc::c_long) -> Option<&'static str> {
    let all = [OTHERS, OTHERS_HERE, ALLOWED, ALLOWED_HERE];
    let mut all = all.iter().flat_map(|list| list.iter());
    let (name, _) = all.find(|(_, known)| *known == number)?;
    Some(name.trim_start_matches("SYS_"))
}
