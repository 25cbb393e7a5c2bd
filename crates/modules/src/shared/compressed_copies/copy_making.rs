//! Finds the copy for a response, and makes it if there is none: a small one at once, a larger one by a pool.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::{Buf, Bytes};
use http::Request;
use http::response_body::BodyError;
use rt::pool::PoolHandle;

use super::copy_source::{CopySource, SourceReader};
use super::stored_copy;
use super::{
    CompressedCopies, CompressedCopy, CopiesConf, CopiesMemory, CopyFate, CopyFill, CopyKey,
    CopyUpgrade, FoundCopy, HeldBytes, StartedFill, UPGRADE_CODINGS, count,
};
use crate::shared::compression_rows::{CompressionConf, ResponseCoding};

/// The longest content that is compressed on the loop, in bytes: one step, 2 ms at gzip's level 9.
const ON_LOOP: u64 = 16 * 1024;

/// How much content the pool compresses before other copies get their turn, in bytes. A step of gzip takes 2 to 4 ms.
const STEP: usize = 64 * 1024;

/// How many steps may be queued. There are never more than copies being made.
const STEPS_QUEUED: usize = 1024;

/// The pool for compression, apart from the file pool: it is limited by processors, not by disks. The space in its name
/// keeps it apart from names in `thread_pool`.
const POOL: &str = "compressed copies";

/// A copy for a response.
pub(crate) enum SharedCopy {
    /// Complete.
    Whole(Arc<CompressedCopy>),
    /// Being made.
    Following(Arc<CopyFill>),
}

/// The copy for the response that `request` has; `None` if none may be kept, or if there is no memory for it.
pub(crate) fn find_copy<C: ResponseCoding>(
    request: &mut Request,
    conf: &CompressionConf<C::Own>,
) -> Option<SharedCopy> {
    // Most responses that are compressed on the way have none.
    request.out.identity.as_ref()?;
    let site = std::rc::Rc::clone(&request.site);
    let location = site.location(request.location);
    let rules = location.confs.get::<CopiesConf>();
    if !rules.on {
        return None;
    }
    let copies = site.main_confs.get::<CopiesMemory>().copies()?;
    let source = CopySource::of(&request.out)?;
    let key = CopyKey {
        content: source.version,
        coding: C::NAME,
        level: conf.level,
        variant: C::variant(conf),
    };
    if request.delivery.header_only {
        // A HEAD says the length if it is known; nothing is compressed for it.
        return copies.kept(&key).map(SharedCopy::Whole);
    }
    // From here on the request either has a copy, or a duty: a `StartedFill` that is dropped fails, and is counted.
    match copies.find_or_start(&key, source.length) {
        FoundCopy::Kept(copy) => {
            count(&copies.counters.hits);
            copies.counters.saved.fetch_add(copy.saves, Relaxed);
            let file_pool = http::files::file_pool(request, &location.core.delivery.aio);
            use_again::<C>(copies, &copy, rules.upgrade, (conf, key, source, file_pool));
            Some(SharedCopy::Whole(copy))
        }
        FoundCopy::Filling(fill) => {
            count(&copies.counters.followed);
            Some(SharedCopy::Following(fill))
        }
        FoundCopy::Refused => {
            count(&copies.counters.refused);
            None
        }
        FoundCopy::Started(fill) => match C::start(conf, Some(source.length)) {
            Ok(encoder) => {
                let file_pool = http::files::file_pool(request, &location.core.delivery.aio);
                Some(start(fill, source, encoder, file_pool))
            }
            // The caller tries, and reports it.
            Err(_) => None,
        },
    }
}

/// Makes a copy: at once if it is small, otherwise in a task of its own, which the client follows.
fn start<C: ResponseCoding>(
    fill: StartedFill,
    source: CopySource,
    encoder: C,
    file_pool: PoolHandle,
) -> SharedCopy {
    if source.length <= ON_LOOP
        && !encoder.is_slow()
        && let Some(content) = source.reader.try_whole()
    {
        let following = Arc::clone(fill.fill());
        let length = content.len() as u64;
        return match compress_piece(encoder, content, PieceKind::Last).1 {
            Ok(bytes) => SharedCopy::Whole(complete(fill, &source.reader, bytes, length)),
            // Dropping the fill fails it, and the follower finds that.
            Err(_) => SharedCopy::Following(following),
        };
    }
    let following = Arc::clone(fill.fill());
    rt::spawn_named("compressed copy", make(fill, source, encoder, file_pool));
    SharedCopy::Following(following)
}

fn complete(
    fill: StartedFill,
    reader: &SourceReader,
    bytes: Vec<u8>,
    original: u64,
) -> Arc<CompressedCopy> {
    count(&fill.copies.counters.made);
    let fate = match reader.is_unchanged() {
        true => CopyFate::Kept,
        false => CopyFate::Dropped,
    };
    fill.complete(bytes, original, fate)
}

/// The task that makes a copy. It ends with it, however many clients have left.
async fn make<C: ResponseCoding>(
    fill: StartedFill,
    source: CopySource,
    encoder: C,
    file_pool: PoolHandle,
) {
    let mut source = source;
    if let Some(stored) = &source.stored
        && let Some(bytes) = stored_copy::load(stored, &fill.key, source.length).await
    {
        count(&fill.copies.counters.loaded);
        let copy = fill.complete(bytes, source.length, CopyFate::Kept);
        copy.is_stored.store(true, Relaxed);
        return;
    }
    let publish = |bytes| fill.fill().publish(bytes);
    match compress_all(&mut source.reader, encoder, &file_pool, publish).await {
        Ok(original) => {
            let chunks = fill.fill().chunks();
            // Some megabytes are not copied on a loop.
            let bytes = pool().run(move || chunks.concat()).await;
            complete(fill, &source.reader, bytes, original);
        }
        Err(error) => fill.fill().fail_with(error),
    }
}

/// Compresses a source by the pool, piece by piece, and returns its length. Between two pieces the pool is free for other
/// copies, so that a large one does not keep small ones waiting; reading goes through the file pool, which is the one that
/// may wait for a disk.
async fn compress_all<C: ResponseCoding>(
    reader: &mut SourceReader,
    encoder: C,
    file_pool: &PoolHandle,
    mut publish: impl FnMut(Bytes),
) -> Result<u64, BodyError> {
    let pool = pool();
    let (mut encoder, mut original) = (encoder, 0);
    loop {
        let piece = reader.next(STEP, file_pool).await?;
        original += piece.len() as u64;
        let kind = match piece.is_empty() {
            true => PieceKind::Last,
            false => PieceKind::Inner,
        };
        let step = pool.run(move || compress_piece(encoder, piece, kind));
        let (back, made) = step.await;
        publish(made.map_err(|_| BodyError::Producer)?.into());
        if kind == PieceKind::Last {
            return Ok(original);
        }
        encoder = back;
    }
}

/// Where a piece of content stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PieceKind {
    Inner,
    /// The trailer of the coding follows.
    Last,
}

/// Compresses a piece, and gives the encoder back.
fn compress_piece<C: ResponseCoding>(
    encoder: C,
    piece: Bytes,
    kind: PieceKind,
) -> (C, io::Result<Vec<u8>>) {
    let (mut encoder, mut piece) = (encoder, piece);
    // What packs at all packs to less than half.
    let mut out = Vec::with_capacity(piece.len() / 2 + 512);
    let mut all = || {
        while !piece.is_empty() {
            out.reserve(piece.len() / 2 + 512);
            let used = encoder.push(&piece, &mut out)?;
            piece.advance(used.min(piece.len()));
        }
        if kind == PieceKind::Last {
            loop {
                out.reserve(512);
                if encoder.finish(&mut out)? {
                    break;
                }
            }
        }
        Ok(std::mem::take(&mut out))
    };
    let made = all();
    (encoder, made)
}

/// What the upgrade of a copy needs.
type CopyOrigin<'a, C> = (
    &'a CompressionConf<<C as ResponseCoding>::Own>,
    CopyKey,
    CopySource,
    PoolHandle,
);

/// Counts a use of a copy. Both things that may follow are done once for a copy, in tasks of their own: the response that
/// happened to be the one is not delayed. One that is in use is worth a place in the store, and a better level.
fn use_again<C: ResponseCoding>(
    copies: &Arc<CompressedCopies>,
    copy: &Arc<CompressedCopy>,
    upgrade: Option<CopyUpgrade>,
    (conf, key, source, file_pool): CopyOrigin<'_, C>,
) {
    let uses = copy.uses.fetch_add(1, Relaxed).saturating_add(1);
    // Those compressed at once are compressed again sooner than they are read from a disk.
    if copy.original > ON_LOOP
        && let Some(stored) = &source.stored
        && !copy.is_stored.swap(true, Relaxed)
    {
        let save = stored_copy::save(stored.clone(), key.clone(), Arc::clone(copy));
        let copies = Arc::clone(copies);
        rt::spawn_named("storing a compressed copy", async move {
            if save.await {
                count(&copies.counters.stored);
            }
        });
    }
    let due = upgrade.filter(|upgrade| uses >= upgrade.hits && !copy.is_best.load(Relaxed));
    let Some(upgrade) = due else {
        return;
    };
    let mut levels = UPGRADE_CODINGS.iter().zip(upgrade.levels);
    let level = levels.find_map(|(coding, level)| (coding.as_bytes() == C::NAME).then_some(level));
    let level = level.filter(|level| *level > conf.level);
    let (Some(level), Some(turn)) = (level, UpgradeTurn::take(copies)) else {
        return;
    };
    let Some(held) = copies.reserve_again(source.length) else {
        return;
    };
    let mut better = conf.clone();
    better.level = level;
    if let Ok(encoder) = C::start(&better, Some(source.length)) {
        // Whatever comes of it, this copy is not made a third time.
        copy.is_best.store(true, Relaxed);
        let upgrade = make_better(
            turn,
            (key, Arc::clone(copy)),
            source,
            (encoder, held, file_pool),
        );
        rt::spawn_named("better compressed copy", upgrade);
    }
}

/// The turn of an upgrade.
struct UpgradeTurn(Arc<CompressedCopies>);

impl UpgradeTurn {
    fn take(copies: &Arc<CompressedCopies>) -> Option<UpgradeTurn> {
        let is_free = !copies.is_upgrading.swap(true, Relaxed);
        is_free.then(|| UpgradeTurn(Arc::clone(copies)))
    }
}

impl Drop for UpgradeTurn {
    fn drop(&mut self) {
        self.0.is_upgrading.store(false, Relaxed);
    }
}

/// The task that makes a copy again, at a better level.
async fn make_better<C: ResponseCoding>(
    turn: UpgradeTurn,
    (key, former): (CopyKey, Arc<CompressedCopy>),
    source: CopySource,
    (encoder, held, file_pool): (C, HeldBytes, PoolHandle),
) {
    let (mut reader, mut chunks) = (source.reader, Vec::new());
    let publish = |bytes: Bytes| chunks.push(bytes);
    let Ok(original) = compress_all(&mut reader, encoder, &file_pool, publish).await else {
        return;
    };
    let bytes = pool().run(move || chunks.concat()).await;
    let saves = former.bytes.len().saturating_sub(bytes.len()) as u64;
    if saves == 0 || !reader.is_unchanged() {
        return;
    }
    let mut copy = CompressedCopy::new(bytes, original, held);
    copy.saves = saves;
    copy.is_best.store(true, Relaxed);
    turn.0.replace(&key, &former, copy);
    count(&turn.0.counters.upgraded);
}

/// The pool, created when it is first needed, with a thread per processor.
fn pool() -> PoolHandle {
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    rt::pool::get(POOL).unwrap_or_else(|| rt::pool::register(POOL, processors(), STEPS_QUEUED))
}
