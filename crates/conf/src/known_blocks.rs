//! Blocks that an earlier reading has understood, so that a reload need not read them again.
//!
//! Only the `server` blocks of `http` are known: a configuration with thousands of lines mostly consists of them. At the
//! beginning of a statement of `http`, the parser compares what follows with the block that came next the last time. If the
//! bytes are the same, the lexer would find the same words and end at the same brace, because it does not look beyond it. So
//! the block is skipped, and a [`BlockContent::Known`](crate::BlockContent::Known) stands in its place. What the block has
//! read besides its own text must be the same as well: included files, patterns, certificates ([`FileUse`]).

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use base::Span;

use crate::file_source::{FileSource, FileUse, PresentFiles};

/// The text of a block, with what identifies it besides.
#[derive(Clone, Debug, Default)]
pub struct BlockSource {
    /// The text of its file.
    text: Arc<[u8]>,
    /// Where the block begins and ends in it.
    range: (u32, u32),
    /// The file. In another file a relative position means something else, and an `include` could lead back to the file.
    path: Arc<[u8]>,
    /// How deep blocks and includes are nested around it.
    depth: usize,
    hash: u64,
    /// What was read while it was parsed, and later while it was applied.
    pub uses: Vec<FileUse>,
}

impl BlockSource {
    pub(crate) fn new(
        text: &Arc<[u8]>,
        span: Span,
        path: Arc<[u8]>,
        depth: usize,
        uses: Vec<FileUse>,
    ) -> BlockSource {
        let mut source = BlockSource {
            text: text.clone(),
            range: (span.start, span.end),
            path,
            depth,
            hash: 0,
            uses,
        };
        let mut hasher = DefaultHasher::new();
        source.bytes().hash(&mut hasher);
        source.hash = hasher.finish();
        source
    }

    /// A copy that shares only the text with it. `paths` has those of earlier copies.
    pub fn copied(&self, paths: &mut HashSet<Arc<[u8]>>) -> BlockSource {
        let known = paths.get(&self.path).cloned();
        let path = known.unwrap_or_else(|| Arc::from(&*self.path));
        paths.insert(Arc::clone(&path));
        BlockSource {
            path,
            ..self.clone()
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.text[self.range.0 as usize..self.range.1 as usize]
    }

    /// Where the block begins in its file.
    pub fn start(&self) -> u32 {
        self.range.0
    }

    /// The same block, found in another text of its file.
    fn moved_to(mut self, text: &Arc<[u8]>, start: u32) -> BlockSource {
        let length = self.range.1 - self.range.0;
        self.text = text.clone();
        self.range = (start, start + length);
        self
    }
}

/// The blocks of the reading before, in their order.
#[derive(Debug, Default)]
pub struct KnownBlocks {
    blocks: Vec<Option<BlockSource>>,
    by_hash: HashMap<u64, Vec<usize>>,
    /// The block that is expected next.
    next: usize,
    files: PresentFiles,
    /// Those that were found again, by number, at their new places.
    pub found: HashMap<usize, BlockSource>,
}

impl KnownBlocks {
    /// These blocks. Their positions are the numbers in [`BlockContent::Known`].
    pub fn new(blocks: Vec<BlockSource>) -> KnownBlocks {
        let mut by_hash: HashMap<u64, Vec<usize>> = HashMap::with_capacity(blocks.len());
        for (number, block) in blocks.iter().enumerate() {
            by_hash.entry(block.hash).or_default().push(number);
        }
        KnownBlocks {
            blocks: blocks.into_iter().map(Some).collect(),
            by_hash,
            next: 0,
            files: PresentFiles::default(),
            found: HashMap::new(),
        }
    }

    /// The block that `text` continues with at `start`, if it is one of the two that are expected there: the one that came
    /// next the last time, or the one after it, if that one is gone. Returns its number and its end.
    pub(crate) fn take_next(
        &mut self,
        text: &Arc<[u8]>,
        start: u32,
        (path, depth): (&[u8], usize),
        files: &mut dyn FileSource,
    ) -> Option<(usize, u32)> {
        let rest = &text[start as usize..];
        let is_here = |block: &BlockSource| {
            block.depth == depth && *block.path == *path && rest.starts_with(block.bytes())
        };
        let number = (self.next..self.next + 2).find(|number| {
            let block = self.blocks.get(*number).and_then(Option::as_ref);
            block.is_some_and(is_here)
        })?;
        self.take(number, text, start, files)
    }

    /// The number of a block that was parsed just now, if it was known, at whatever place.
    pub(crate) fn take_same(
        &mut self,
        parsed: &BlockSource,
        files: &mut dyn FileSource,
    ) -> Option<usize> {
        let same = |number: &&usize| {
            let block = self.blocks[**number].as_ref();
            block.is_some_and(|block| {
                block.depth == parsed.depth
                    && block.path == parsed.path
                    && block.bytes() == parsed.bytes()
            })
        };
        let number = self.by_hash.get(&parsed.hash)?.iter().find(same).copied();
        match number {
            Some(number) => self
                .take(number, &parsed.text, parsed.start(), files)
                .map(|(number, _)| number),
            None => {
                // Most likely changed in its place.
                self.next += 1;
                None
            }
        }
    }

    fn take(
        &mut self,
        number: usize,
        text: &Arc<[u8]>,
        start: u32,
        files: &mut dyn FileSource,
    ) -> Option<(usize, u32)> {
        self.next = number + 1;
        let block = self.blocks[number].take()?;
        let mut uses = block.uses.iter();
        if !uses.all(|used| self.files.is_current(used, files)) {
            return None;
        }
        let moved = block.moved_to(text, start);
        let end = moved.range.1;
        self.found.insert(number, moved);
        Some((number, end))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::file_source::FileSnapshot;
    use crate::outside_hash::hash_outside;
    use crate::tree::{BlockContent, parse_changes, parse_tolerant};

    const PATH: &str = "/c/nginx.conf";

    /// What stands for each `server` of the second text: `Some` number of the first, or `None` if it was parsed.
    fn found(first: &str, second: &str, included: [&str; 2]) -> Vec<Option<usize>> {
        let mut files = FileSnapshot::default();
        files.insert(PATH, first);
        files.insert("/c/x", included[0]);
        let (tree, _) = parse_tolerant(Path::new(PATH), &mut files, None);
        let mut blocks: Vec<_> = tree.blocks.into_iter().collect();
        blocks.sort_by_key(|((_, start), _)| *start);
        let blocks = blocks.into_iter().map(|(_, source)| source).collect();
        let mut known = KnownBlocks::new(blocks);
        files.insert(PATH, second);
        files.insert("/c/x", included[1]);
        let (tree, errors) = parse_changes(Path::new(PATH), &mut files, None, Some(&mut known));
        assert!(errors.is_empty());
        let http = tree.nodes.iter().find(|node| node.name.is("http"));
        let inside = http.expect("there").block.nodes().iter();
        let servers = inside.filter(|node| node.name.is("server"));
        servers
            .map(|node| match node.block {
                BlockContent::Known(number) => Some(number),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn a_block_is_known_by_its_text_wherever_it_has_moved() {
        let same = ["", ""];
        let three = "http { server { a; } server { b \"}\"; } # }\n server { c; } }";
        assert_eq!(found(three, three, same), [Some(0), Some(1), Some(2)]);
        let changed = "http { x y; server { a; } server { b 2; } server { c; } }";
        assert_eq!(found(three, changed, same), [Some(0), None, Some(2)]);
        let swapped = "http { server { c; } server { b \"}\"; } server { a; } }";
        assert_eq!(found(three, swapped, same), [Some(2), Some(1), Some(0)]);
        let fewer = "http { server { b \"}\"; } server { c; } }";
        assert_eq!(found(three, fewer, same), [Some(1), Some(2)]);
        let more = "http { server { n; } server { a; } server { b \"}\"; } server { c; } }";
        assert_eq!(found(three, more, same), [None, Some(0), Some(1), Some(2)]);
        let twice = "http { server { a; } server { a; } }";
        assert_eq!(found(three, twice, same), [Some(0), None]);
    }

    #[test]
    fn only_servers_of_http_are_known_and_a_longer_block_is_another_one() {
        let same = ["", ""];
        let upstream = "http { upstream u { server a; } server { a; } } stream { server { a; } }";
        assert_eq!(found(upstream, upstream, same), [Some(0)]);
        let longer = "http { server { a; b; } }";
        assert_eq!(found("http { server { a; } }", longer, same), [None]);
    }

    #[test]
    fn an_included_file_is_part_of_the_block() {
        let text = "http { server { include x; } server { include x*; } server { a; } }";
        let all = [Some(0), Some(1), Some(2)];
        assert_eq!(found(text, text, ["b;", "b;"]), all);
        assert_eq!(found(text, text, ["b;", "c;"]), [None, None, Some(2)]);
    }

    #[test]
    fn what_stands_outside_of_servers_has_a_hash() {
        let hash = |text: &str| {
            let mut files = FileSnapshot::default();
            files.insert(PATH, text);
            hash_outside(&parse_tolerant(Path::new(PATH), &mut files, None).0.nodes)
        };
        let one = hash("a b; http { c d; server { e; } }");
        assert_eq!(one, hash("a  b;\nhttp { server { f; } c d; }"));
        for other in [
            "a b; http { c e; server { e; } }",
            "a \"b\"; http { c d; }",
            "a b; http { c; d; }",
            "a b; http { c d; server e { } x { server { f; } } }",
            "a b; http { } c d;",
        ] {
            assert_ne!(one, hash(other), "{other}");
        }
    }
}
