//! The seccomp filter: a program that the kernel runs over the number and the arguments of each system call.
//!
//! Since Linux 5.11 the kernel knows by itself for which numbers the answer is always the same, and does not run the
//! program for those: the calls that a request makes cost nothing more.
//!
//! Crates that make such programs (`seccompiler`) have no action that tells another process, which is what the line in
//! the log is made of, so the few instructions are put together here.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

use super::SandboxRules;
use super::listener::SeccompListener;
use super::system_calls::{ALLOWED, ALLOWED_HERE, OF_PROGRAMS, OF_PROGRAMS_HERE, SystemCall};

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
/// Asks the listener, which says `EPERM` and writes a line.
const ASK: u32 = libc::SECCOMP_RET_USER_NOTIF;

/// Refuses without a word.
const fn refuse(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno.unsigned_abs()
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
/// No filter for others: their numbers were not looked at.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: u32 = 0;

/// Where things are in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;

const fn low_half(argument: u32) -> u32 {
    let first = 16 + 8 * argument;
    if cfg!(target_endian = "little") {
        first
    } else {
        first + 4
    }
}

/// What `ioctl` may do: ask how much is waiting, make a descriptor wait or not, and ask whether it is a terminal.
const REQUESTS: [u32; 5] = [0x5401, 0x5411, 0x541b, 0x5421, 0x5451];

/// What `prctl` may do: name a thread, read its name, name a piece of memory.
const OPTIONS: [u32; 3] = [15, 16, 0x5356_4d41];

/// Puts a program together. Jumps go over one instruction, so that none can be too far.
#[derive(Default)]
struct SeccompProgram(Vec<libc::sock_filter>);

impl SeccompProgram {
    fn push(&mut self, code: u32, k: u32, (yes, no): (u8, u8)) {
        self.0.push(libc::sock_filter {
            code: code as u16,
            jt: yes,
            jf: no,
            k,
        });
    }

    fn load(&mut self, offset: u32) {
        self.push(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, (0, 0));
    }

    fn answer(&mut self, action: u32) {
        self.push(libc::BPF_RET | libc::BPF_K, action, (0, 0));
    }

    /// Answers when the value is this one.
    fn when(&mut self, value: u32, action: u32) {
        self.push(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, (0, 1));
        self.answer(action);
    }

    fn unless(&mut self, value: u32, action: u32) {
        self.push(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, (1, 0));
        self.answer(action);
    }

    fn when_at_least(&mut self, value: u32, action: u32) {
        self.push(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, value, (0, 1));
        self.answer(action);
    }

    fn when_any_bit(&mut self, bits: u32, action: u32) {
        self.push(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, bits, (0, 1));
        self.answer(action);
    }

    /// For one call, a few instructions that end with an answer.
    fn of(&mut self, number: libc::c_long, rest: impl FnOnce(&mut SeccompProgram)) {
        let mut block = SeccompProgram::default();
        rest(&mut block);
        let length = u8::try_from(block.0.len()).expect("the blocks below are short");
        self.push(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            number as u32,
            (0, length),
        );
        self.0.append(&mut block.0);
    }

    fn allow(&mut self, calls: &[SystemCall]) {
        for (_, number) in calls {
            self.when(*number as u32, ALLOW);
        }
    }
}

/// The program. `asks` is what becomes of a call that is not on the list.
fn program(rules: &SandboxRules, asks: u32, process: u32) -> SeccompProgram {
    let mut program = SeccompProgram::default();
    program.load(ARCH);
    program.unless(ARCHITECTURE, refuse(libc::ENOSYS));
    program.load(NUMBER);
    // The numbers of x32, another way into the same kernel.
    program.when_at_least(0x4000_0000, refuse(libc::ENOSYS));
    if !rules.execute.is_empty() {
        program.allow(OF_PROGRAMS);
        program.allow(OF_PROGRAMS_HERE);
    }
    // Its flags are in memory, where a filter cannot look. The C library goes on with `clone`.
    program.when(libc::SYS_clone3 as u32, refuse(libc::ENOSYS));
    // A thread is welcome, a process is not.
    program.of(libc::SYS_clone, |block| {
        block.load(low_half(0));
        block.when_any_bit(libc::CLONE_THREAD as u32, ALLOW);
        block.answer(asks);
    });
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        program.of(call, |block| {
            if !rules.executable_memory {
                block.load(low_half(2));
                block.when_any_bit(libc::PROT_EXEC as u32, asks);
            }
            block.answer(ALLOW);
        });
    }
    program.of(libc::SYS_socket, |block| allow_sockets(block, rules, asks));
    for (call, argument, values) in [
        (libc::SYS_ioctl, 1, &REQUESTS[..]),
        (libc::SYS_prctl, 0, &OPTIONS),
        // Of this process only.
        (libc::SYS_prlimit64, 0, &[0, process]),
        (libc::SYS_tgkill, 0, &[process]),
    ] {
        program.of(call, |block| {
            block.load(low_half(argument));
            values.iter().for_each(|value| block.when(*value, ALLOW));
            block.answer(asks);
        });
    }
    program.allow(ALLOWED);
    program.allow(ALLOWED_HERE);
    program.answer(asks);
    program
}

/// Sockets of the internet, for streams and datagrams, and those of files where a rule says so.
fn allow_sockets(block: &mut SeccompProgram, rules: &SandboxRules, asks: u32) {
    block.load(low_half(0));
    // The C library asks it which families there are when it looks a name up, and does without.
    block.when(libc::AF_NETLINK as u32, refuse(libc::EAFNOSUPPORT));
    if rules.unix_sockets {
        block.when(libc::AF_UNIX as u32, ALLOW);
    }
    block.push(
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::AF_INET as u32,
        (2, 0),
    );
    block.push(
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::AF_INET6 as u32,
        (1, 0),
    );
    block.answer(asks);
    // Streams and datagrams, not raw packets.
    block.load(low_half(1));
    block.push(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0xf, (0, 0));
    block.when(libc::SOCK_STREAM as u32, ALLOW);
    block.when(libc::SOCK_DGRAM as u32, ALLOW);
    block.answer(asks);
}

/// Installs the filter. The inner error says why denied calls cannot be reported; they are denied all the same.
pub(super) fn install(rules: &SandboxRules) -> io::Result<io::Result<SeccompListener>> {
    if ARCHITECTURE == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // Programs that the worker runs have the filter too. Of them there is no line: they try many things.
    if !rules.execute.is_empty() {
        load(&program(rules, refuse(libc::EPERM), std::process::id()), 0)?;
        return Ok(Err(io::ErrorKind::Unsupported.into()));
    }
    let asking = program(rules, ASK, std::process::id());
    match load(&asking, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER) {
        // SAFETY: with this flag the call returns a new descriptor, which nothing else owns.
        // JUSTIFICATION: as in `load`.
        Ok(number) => Ok(Ok(SeccompListener::of(unsafe {
            OwnedFd::from_raw_fd(number)
        }))),
        // An old kernel, or a container whose own filter has a listener: there may be one.
        Err(error) => {
            load(&program(rules, refuse(libc::EPERM), std::process::id()), 0)?;
            Ok(Err(error))
        }
    }
}

fn load(program: &SeccompProgram, flags: libc::c_ulong) -> io::Result<i32> {
    let length = u16::try_from(program.0.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog {
        len: length,
        filter: program.0.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel reads `len` instructions behind `filter`, both of which outlive the call, and checks them.
    // JUSTIFICATION: neither the standard library nor rustix has seccomp.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    match i32::try_from(result) {
        Ok(-1) | Err(_) => Err(io::Error::last_os_error()),
        Ok(number) => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program as the kernel would.
    fn judge(program: &SeccompProgram, number: libc::c_long, arguments: [u64; 3]) -> u32 {
        let word = |offset: u32| match offset {
            NUMBER => number as u32,
            ARCH => ARCHITECTURE,
            offset => arguments[(offset as usize - 16) / 8] as u32,
        };
        let (mut value, mut at) = (0, 0);
        loop {
            let step = program.0[at];
            at += 1;
            let mut jump = |yes: bool| at += usize::from(if yes { step.jt } else { step.jf });
            match u32::from(step.code) {
                0x20 => value = word(step.k),
                0x06 => return step.k,
                0x54 => value &= step.k,
                0x15 => jump(value == step.k),
                0x35 => jump(value >= step.k),
                0x45 => jump(value & step.k != 0),
                code => panic!("{code:#x}"),
            }
        }
    }

    #[test]
    fn the_filter_lets_through_what_serving_needs() {
        let strict = program(&SandboxRules::default(), ASK, 7);
        let wide = SandboxRules {
            unix_sockets: true,
            executable_memory: true,
            ..SandboxRules::default()
        };
        let wide = program(&wide, ASK, 7);
        let (inet, unix, stream) = (libc::AF_INET as u64, libc::AF_UNIX as u64, 1 | 0o4000);
        for (call, arguments, in_strict, in_wide) in [
            (libc::SYS_read, [0; 3], ALLOW, ALLOW),
            (libc::SYS_getrlimit, [0; 3], ALLOW, ALLOW),
            (libc::SYS_execve, [0; 3], ASK, ASK),
            (libc::SYS_listen, [0; 3], ASK, ASK),
            (libc::SYS_socket, [inet, stream, 0], ALLOW, ALLOW),
            (libc::SYS_socket, [inet, 3, 0], ASK, ASK),
            (libc::SYS_socket, [unix, stream, 0], ASK, ALLOW),
            (libc::SYS_socket, [17, 3, 0], ASK, ASK),
            (libc::SYS_mmap, [0, 4096, 3], ALLOW, ALLOW),
            (libc::SYS_mmap, [0, 4096, 7], ASK, ALLOW),
            (libc::SYS_clone, [0x3d_0f00, 0, 0], ALLOW, ALLOW),
            (libc::SYS_clone, [0x4111, 0, 0], ASK, ASK),
            (
                libc::SYS_clone3,
                [0; 3],
                refuse(libc::ENOSYS),
                refuse(libc::ENOSYS),
            ),
            (libc::SYS_tgkill, [7, 0, 0], ALLOW, ALLOW),
            (libc::SYS_tgkill, [8, 0, 0], ASK, ASK),
            (libc::SYS_ioctl, [0, 0x5412, 0], ASK, ASK),
            (
                0x4000_0000,
                [0; 3],
                refuse(libc::ENOSYS),
                refuse(libc::ENOSYS),
            ),
        ] {
            assert_eq!(
                judge(&strict, call, arguments),
                in_strict,
                "{call} {arguments:?}"
            );
            assert_eq!(
                judge(&wide, call, arguments),
                in_wide,
                "{call} {arguments:?}"
            );
        }
    }

    #[test]
    fn programs_may_be_started_where_the_rules_name_some() {
        let rules = SandboxRules {
            execute: vec!["/bin/true".into()],
            ..SandboxRules::default()
        };
        let program = program(&rules, refuse(libc::EPERM), 7);
        assert_eq!(judge(&program, libc::SYS_clone, [0x4111, 0, 0]), ALLOW);
        assert_eq!(judge(&program, libc::SYS_execve, [0; 3]), ALLOW);
        assert_eq!(
            judge(&program, libc::SYS_ptrace, [0; 3]),
            refuse(libc::EPERM)
        );
    }
}
