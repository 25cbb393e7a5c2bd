//! Finding the calls in a copied stack, and their names.
//!
//! The unwind tables and symbols are read from the files that the process has mapped, when a sample is
//! there and not before. A file that was replaced meanwhile (an upgrade) would tell wrong names, so the
//! program itself is read through `/proc/self/exe`.

use std::fs::{self, File};
use std::ops::Range;

use object::{Object as _, ObjectSection as _, ObjectSymbol as _, ReadCache};

use super::sample::StackCopy;

/// Frames of a sample at most.
const MAX_FRAMES: usize = 48;
/// Functions of the loop itself: what called them is the same in every sample.
const BOTTOM: &str = "event_loop::Core::poll";
/// Frames that only pass a call on.
const UNINTERESTING: [&str; 4] = [
    "core::ops::function::",
    "<core::panic::unwind_safe::",
    "std::panicking::",
    "__rust_try",
];

/// A mapped file.
struct MappedFile {
    path: String,
    /// Where its beginning is, or would be.
    base: u64,
    /// All its mappings together.
    range: Range<u64>,
}

/// The calls of a stack, innermost first.
pub(super) fn frame_names(stack: &StackCopy) -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let files = mapped_files(&maps);
    let mut unwinder = native::unwinder();
    for file in &files {
        add(&mut unwinder, file);
    }
    let addresses = native::walk(&unwinder, stack);
    let mut frames = Vec::new();
    for name in names(&addresses, &files) {
        if name.contains(BOTTOM) {
            break;
        }
        if !UNINTERESTING.iter().any(|part| name.starts_with(part)) {
            frames.push(name);
        }
        if frames.len() == MAX_FRAMES {
            break;
        }
    }
    frames
}

/// Reads `/proc/self/maps`: files with code in them.
fn mapped_files(maps: &str) -> Vec<MappedFile> {
    let mut files: Vec<MappedFile> = Vec::new();
    for line in maps.lines() {
        let mut words = line.splitn(6, ' ');
        let (Some(range), Some(_), Some(offset)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let Some(path) = words
            .nth(2)
            .map(str::trim)
            .filter(|path| path.starts_with('/'))
        else {
            continue;
        };
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let bounds = range.split_once('-');
        let bounds = bounds.and_then(|(start, end)| Some(number(start)?..number(end)?));
        let (Some(range), Some(offset)) = (bounds, number(offset)) else {
            continue;
        };
        match files.iter_mut().find(|file| file.path == path) {
            Some(file) => file.range.end = file.range.end.max(range.end),
            None => files.push(MappedFile {
                path: path.to_owned(),
                base: range.start.saturating_sub(offset),
                range,
            }),
        }
    }
    files
}

fn open(file: &MappedFile) -> Option<ReadCache<File>> {
    let program = fs::read_link("/proc/self/exe").ok();
    let is_program = program.is_some_and(|program| program.to_string_lossy() == file.path);
    let path = match is_program {
        true => "/proc/self/exe",
        false => &file.path,
    };
    Some(ReadCache::new(File::open(path).ok()?))
}

fn add(unwinder: &mut native::Unwinder, file: &MappedFile) {
    let Some(cache) = open(file) else { return };
    let Ok(elf) = object::File::parse(&cache) else {
        return;
    };
    let section = |name: &str| {
        let section = elf.section_by_name(name)?;
        let start = section.address();
        let range = start..start + section.size();
        Some((range, section.data().ok()?.to_vec()))
    };
    let (text, frame, header) = (
        elf.section_by_name(".text"),
        section(".eh_frame"),
        section(".eh_frame_hdr"),
    );
    let information = framehop::ExplicitModuleSectionInfo {
        base_svma: elf.relative_address_base(),
        text_svma: text.map(|text| text.address()..text.address() + text.size()),
        eh_frame_svma: frame.as_ref().map(|(range, _)| range.clone()),
        eh_frame: frame.map(|(_, data)| data),
        eh_frame_hdr_svma: header.as_ref().map(|(range, _)| range.clone()),
        eh_frame_hdr: header.map(|(_, data)| data),
        ..Default::default()
    };
    let module = framehop::Module::new(
        file.path.clone(),
        file.range.clone(),
        file.base,
        information,
    );
    framehop::Unwinder::add_module(unwinder, module);
}

/// The functions that addresses belong to. A stripped file has none: then the address in the file is
/// given, as a separate symbol file needs it.
fn names(addresses: &[u64], files: &[MappedFile]) -> Vec<String> {
    let mut names: Vec<String> = addresses
        .iter()
        .map(|address| format!("{address:#x}"))
        .collect();
    for file in files {
        // Indexes and addresses in the file's own counting.
        let wanted: Vec<(usize, u64)> = addresses
            .iter()
            .enumerate()
            .filter(|(_, address)| file.range.contains(*address))
            .map(|(index, address)| (index, address - file.base))
            .collect();
        for (index, relative) in &wanted {
            names[*index] = format!("{}+{relative:#x}", file.path);
        }
        if !wanted.is_empty() {
            name_functions(file, &wanted, &mut names);
        }
    }
    names
}

/// Goes through a file's symbols once, and keeps nothing but the names that are wanted.
fn name_functions(file: &MappedFile, wanted: &[(usize, u64)], names: &mut [String]) {
    let Some(cache) = open(file) else { return };
    let Ok(elf) = object::File::parse(&cache) else {
        return;
    };
    let base = elf.relative_address_base();
    for symbol in elf.symbols().chain(elf.dynamic_symbols()) {
        let start = symbol.address().wrapping_sub(base);
        let end = start.wrapping_add(symbol.size());
        let inside = |(_, address): &&(usize, u64)| (start..end).contains(address);
        for (index, _) in wanted.iter().filter(inside) {
            if let Ok(name) = symbol.name() {
                names[*index] = format!("{:#}", rustc_demangle::demangle(name));
            }
        }
    }
}

/// The processor's own unwinder.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod native {
    #[cfg(target_arch = "aarch64")]
    use framehop::aarch64::{
        CacheAarch64 as Cache, UnwindRegsAarch64 as Registers, UnwinderAarch64,
    };
    #[cfg(target_arch = "x86_64")]
    use framehop::x86_64::{CacheX86_64 as Cache, UnwindRegsX86_64 as Registers, UnwinderX86_64};

    use super::{MAX_FRAMES, StackCopy};

    #[cfg(target_arch = "aarch64")]
    pub(super) type Unwinder = UnwinderAarch64<Vec<u8>>;
    #[cfg(target_arch = "x86_64")]
    pub(super) type Unwinder = UnwinderX86_64<Vec<u8>>;

    pub(super) fn unwinder() -> Unwinder {
        Unwinder::new()
    }

    /// The address of each call, as one within the call's instruction.
    pub(super) fn walk(unwinder: &Unwinder, stack: &StackCopy) -> Vec<u64> {
        let mut cache: Cache = Cache::new();
        let mut read = |address| stack.word(address).ok_or(());
        #[cfg(target_arch = "x86_64")]
        let registers = Registers::new(stack.instruction, stack.pointer, stack.frame);
        #[cfg(target_arch = "aarch64")]
        let registers = Registers::new(stack.link, stack.pointer, stack.frame);
        let mut frames = framehop::Unwinder::iter_frames(
            unwinder,
            stack.instruction,
            registers,
            &mut cache,
            &mut read,
        );
        let mut addresses = Vec::new();
        // Frames that only pass a call on are left out later.
        while let Ok(Some(frame)) = frames.next()
            && addresses.len() < MAX_FRAMES * 4
        {
            addresses.push(frame.address_for_lookup());
        }
        addresses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_loop::{EventLoop, LoopOptions};
    use std::time::Duration;

    #[inline(never)]
    fn held_up(time: Duration) {
        std::thread::sleep(time);
    }

    #[test]
    fn a_stuck_loop_tells_where() {
        let event_loop = EventLoop::new(LoopOptions {
            slow_turn: Duration::ZERO,
            ..LoopOptions::default()
        });
        let event_loop = event_loop.expect("an eventfd");
        let handle = event_loop.handle();
        let thread = std::thread::spawn(move || {
            event_loop.run(|| async { held_up(Duration::from_millis(700)) })
        });
        let late = || handle.turn_duration() > Duration::from_millis(20);
        while !late() {
            std::thread::yield_now();
        }
        let frames = super::super::sample(&handle, handle.turn_number());
        let frames = frames.expect("the turn goes on");
        assert!(
            frames.iter().any(|frame| frame.contains("held_up")),
            "{frames:#?}"
        );
        thread.join().expect("it ends").expect("it ran");
    }

    #[test]
    fn mappings_of_a_file_are_one() {
        let maps = "\
55d000000000-55d000010000 r--p 00000000 08:01 1                          /usr/sbin/weir (deleted)
55d000010000-55d000020000 r-xp 00010000 08:01 1                          /usr/sbin/weir (deleted)
7f0000000000-7f0000001000 rw-p 00000000 00:00 0 
7f0000002000-7f0000003000 r-xp 00002000 08:01 2                          /lib/libc.so.6
7ffd00000000-7ffd00001000 r-xp 00000000 00:00 0 [vdso]
";
        let files = mapped_files(maps);
        assert_eq!(files.len(), 2);
        assert_eq!(files[0].path, "/usr/sbin/weir (deleted)");
        assert_eq!(files[0].range, 0x55d0_0000_0000..0x55d0_0002_0000);
        assert_eq!(files[1].base, 0x7f00_0000_0000);
    }
}
