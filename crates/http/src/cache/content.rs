//! The content of a fetch on its way into the store, and what is done when it breaks off before its end.
//!
//! ```text
//! broken ─┬─ strong validator, ranges ──▶ the rest is asked for (Range, If-Range) ─┬─ 206 ──▶ goes on
//!         │                                                                        ├─ 200 ──┐
//!         │                                                                        └─ else ─┤
//!         └─ else ──────────────────────▶ all of it is asked for again, once a fetch ───────┤
//!                       failed ◀── its head is another, or one byte of what came before ◀───┴──▶ goes on
//! ```
//!
//! Followers have had a part by then, so the second response is of use only if it begins with the very same bytes. They
//! are in memory or in the store: each one is compared, none is sent twice. A response that differs in anything is another
//! one: clients that have a part of the first are cut off, and what came of it is not kept.

use std::ops::Range;
use std::sync::Arc;

use bstr::BString;
use bytes::Bytes;
use cache::{Ended, Failure, Follower, Writer};
use host::error_log::Level;
use proto::Known;
use proto::message::{Method, ResponseHead};

use super::ask::Ask;
use super::fetch::Fetch;
use super::head::StoredHead;
use super::ranges::{continues, validator};
use crate::body::{Body, Chunk};

use crate::upstream::{ContentLength, Exchange, RetryReasons};

/// How often a fetch whose content broke off asks for the rest.
const RESUMES: u32 = 3;

/// The fields by which two responses are told to be the same one, beside their status and length.
const SAME: [Known; 5] = [
    Known::Etag,
    Known::LastModified,
    Known::ContentType,
    Known::ContentEncoding,
    Known::ContentRange,
];

/// Content on its way into the store.
struct ArrivingContent<'a> {
    stored: &'a StoredHead,
    /// The fields of the response as it came: what is stored lacks some.
    head: Arc<ResponseHead>,
    /// The length of the whole, if that is known.
    length: Option<u64>,
    /// Where the part ends that is brought, if it is one.
    end: u64,
    /// What the response was asked for with.
    ask: Ask,
    /// What the exchange said of its length.
    framed: ContentLength,
    resumes: u32,
    repeated: bool,
    /// What came before, while it is compared with what comes again.
    comparing: Option<Comparison>,
}

/// How content goes on that broke off.
enum Continuation {
    /// The request's body brings the rest.
    Found,
    /// It does not go on.
    None,
    /// It does not, and what came is not kept: the origin has something else by now.
    Changed,
}

/// What the origin answers when it is asked for the rest.
enum RestAnswer {
    /// The rest: the request's body goes on with it.
    Rest,
    /// No response at all.
    Nothing,
    /// Another response.
    Other(Box<Exchange>),
}

impl Fetch {
    /// Brings the content into the store, up to `end` if it is a part. `length` is that of the whole, `framed` what the
    /// exchange said.
    pub(super) async fn content(
        mut self,
        mut writer: Writer,
        stored: &StoredHead,
        length: Option<u64>,
        end: u64,
    ) {
        let mut content = self.describe(stored, length, end);
        loop {
            let bytes = match Body::next_of(&mut self.request).await {
                // Less than there was before.
                None if content.comparing.is_some() => return writer.fail(Failure::Changed),
                None => break,
                Some(Ok(Chunk::Flush)) => continue,
                Some(Ok(Chunk::Bytes(bytes))) => Ok(bytes),
                Some(Ok(Chunk::File(range))) => {
                    // Only a reader that works ahead of a slow client writes files, and this one has none.
                    let len = usize::try_from(range.length).unwrap_or(0);
                    let pool = rt::pool::default_pool();
                    let read = range.file.read_at(Vec::new(), range.offset, len, &pool);
                    match read.await {
                        Ok(bytes) => Ok(Bytes::from(bytes)),
                        Err(error) => {
                            return writer.fail(Failure::Producer(error.to_string().into()));
                        }
                    }
                }
                // All that it announced is there.
                Some(Err(_)) if writer.is_complete() => break,
                Some(Err(error)) => Err(error),
            };
            let bytes = match bytes {
                Ok(bytes) => bytes,
                Err(error) => {
                    self.publish();
                    match self.find_continuation(&writer, &mut content).await {
                        Continuation::Found => continue,
                        Continuation::None => {
                            return writer.fail(Failure::Producer(error.to_string().into()));
                        }
                        Continuation::Changed => return writer.fail(Failure::Changed),
                    }
                }
            };
            let mut bytes = match content.compare(bytes).await {
                Ok(bytes) => bytes,
                Err(why) => {
                    self.log_changed(&why);
                    return writer.fail(why);
                }
            };
            let most = end.saturating_sub(writer.position());
            bytes.truncate(usize::try_from(most).unwrap_or(usize::MAX));
            if writer.write(bytes).await.is_err() {
                self.request.log(
                    Level::Info,
                    format_args!("no client is waiting for a response that cannot be stored, so upstream connection is closed too"),
                );
                return;
            }
        }
        self.publish();
        writer.finish();
    }

    fn describe<'a>(
        &mut self,
        stored: &'a StoredHead,
        length: Option<u64>,
        end: u64,
    ) -> ArrivingContent<'a> {
        let mut ask = self.request.state::<Ask>().cloned().unwrap_or_default();
        // What was stale is replaced already.
        (ask.etag, ask.last_modified) = (None, None);
        ArrivingContent {
            stored,
            head: Arc::clone(&self.request.upstream.get_or_make().head),
            length,
            end,
            ask,
            framed: self.framed,
            resumes: 0,
            repeated: false,
            comparing: None,
        }
    }

    /// Looks for the rest of content that broke off.
    async fn find_continuation(
        &mut self,
        writer: &Writer,
        content: &mut ArrivingContent<'_>,
    ) -> Continuation {
        content.comparing = None;
        content.resumes += 1;
        let repeats = !content.repeated && self.may_repeat(writer, content);
        if content.resumes <= RESUMES
            && let Some(ask) = content.ask_of_rest(writer.position())
        {
            match self.ask_for_rest(content, writer.position(), ask).await {
                RestAnswer::Rest => return Continuation::Found,
                RestAnswer::Nothing => return Continuation::None,
                // Ranges are ignored there, or it is another response: the head tells.
                RestAnswer::Other(mut exchange) => {
                    let head = Arc::clone(&self.request.upstream.get_or_make().head);
                    if head.status == 200 && repeats && content.is_plain_whole() {
                        content.repeated = true;
                        return self.compare_with(writer, content, exchange, &head);
                    }
                    exchange.finish_without_content(&mut self.request);
                    // It is gone there, or forbidden: that is no matter of ranges.
                    if (400..500).contains(&head.status) && head.status != 416 {
                        return Continuation::None;
                    }
                }
            }
        }
        if !repeats {
            return Continuation::None;
        }
        content.repeated = true;
        self.request.log(
            Level::Warn,
            format_args!(
                "upstream response was interrupted after {} bytes, requesting it again",
                writer.position()
            ),
        );
        self.request.set_state(content.ask.clone());
        let Ok(exchange) = self.exchange().await else {
            return Continuation::None;
        };
        self.publish();
        let head = Arc::clone(&self.request.upstream.get_or_make().head);
        self.compare_with(writer, content, exchange, &head)
    }

    /// Whether the whole response may be asked for once more: it is safe, the rules for another try allow it, and there is
    /// reason to believe that it would be the same.
    fn may_repeat(&self, writer: &Writer, content: &ArrivingContent<'_>) -> bool {
        let settings = &*self.settings;
        let record = self.request.upstream.get();
        let timed_out = record
            .and_then(|record| record.tries.last())
            .is_some_and(|last| last.status == 504);
        let reason = match timed_out {
            true => RetryReasons::TIMEOUT,
            false => RetryReasons::ERROR,
        };
        let limit = settings.next_upstream_timeout.as_millis();
        let took = rt::wall_millis().saturating_sub(writer.began_ms());
        let fields = &content.head.fields;
        let validated = fields.has(Known::Etag) || fields.has(Known::LastModified);
        let kind = fields.get_known(Known::ContentType).unwrap_or_default();
        let is_stream =
            kind.len() >= EVENTS.len() && kind[..EVENTS.len()].eq_ignore_ascii_case(EVENTS);
        matches!(self.request.method, Method::Get | Method::Head)
            && writer.follow_from_start().is_some()
            && settings.next_upstream.permits_all(reason)
            && settings.next_upstream_tries != 1
            && (limit == 0 || u128::from(took) < limit)
            && (validated || writer.position() <= settings.cache.repeat_max)
            && !is_stream
    }

    /// Goes on with a response to the same request, if it is the same one as far as its head tells.
    fn compare_with(
        &mut self,
        writer: &Writer,
        content: &mut ArrivingContent<'_>,
        mut exchange: Box<Exchange>,
        head: &ResponseHead,
    ) -> Continuation {
        let first = &content.head;
        let is_same = head.status == first.status
            && SAME
                .iter()
                .all(|known| head.fields.get_known(*known) == first.fields.get_known(*known))
            && exchange.content_length() == content.framed
            // What may not be stored any more may not be sent on to others either.
            && self.freshness_of(head.status, &head.fields).is_some();
        // What is not stored is not there any more.
        let before = is_same.then(|| writer.follow_from_start()).flatten();
        let Some(before) = before else {
            exchange.finish_without_content(&mut self.request);
            self.publish();
            // A server that fails says nothing of what there is.
            if is_same || head.status >= 500 {
                return Continuation::None;
            }
            self.log_changed(&Failure::Changed);
            return Continuation::Changed;
        };
        content.comparing = Comparison::up_to(before, writer.position());
        self.request.out.body = exchange.into_content(&mut self.request);
        Continuation::Found
    }

    fn log_changed(&self, why: &Failure) {
        self.request.error(format_args!(
            "{why} while comparing an interrupted response with its repetition"
        ));
    }

    /// Asks for the rest of content that broke off. The request's body goes on with it if it comes.
    async fn ask_for_rest(
        &mut self,
        content: &ArrivingContent<'_>,
        position: u64,
        ask: Ask,
    ) -> RestAnswer {
        let length = content.length.unwrap_or(0);
        self.request.log(
            Level::Warn,
            format_args!(
                "upstream response was interrupted at {position} of {length} bytes, requesting the rest"
            ),
        );
        self.request.set_state(ask);
        let Ok(exchange) = self.exchange().await else {
            return RestAnswer::Nothing;
        };
        self.publish();
        let head = Arc::clone(&self.request.upstream.get_or_make().head);
        let part = position..content.end.min(length);
        if !continues(&head, &content.stored.head.fields, part, length) {
            self.request.log(
                Level::Warn,
                format_args!(
                    "upstream did not send the rest of an interrupted response: status {}",
                    head.status
                ),
            );
            return RestAnswer::Other(exchange);
        }
        self.request.out.body = exchange.into_content(&mut self.request);
        RestAnswer::Rest
    }
}

/// The type of a response that has no end to wait for.
const EVENTS: &[u8] = b"text/event-stream";

impl ArrivingContent<'_> {
    /// Whether it is all that a request without `Range` gets.
    fn is_plain_whole(&self) -> bool {
        self.head.status == 200 && self.end == u64::MAX
    }

    /// How to ask for what is missing, if the parts of one version can be told from those of the next.
    fn ask_of_rest(&self, position: u64) -> Option<Ask> {
        let fields = &self.stored.head.fields;
        let ranges = fields.get_known(Known::AcceptRanges);
        let possible = self.stored.head.status == 200
            && self.stored.version(self.length) != 0
            && position > 0
            && self.length.is_some()
            // An origin that sent a part can send parts.
            && (self.end != u64::MAX
                || ranges.is_some_and(|value| value.eq_ignore_ascii_case(b"bytes")));
        let validator: BString = validator(fields).filter(|_| possible)?;
        let range: Range<u64> = position..self.end;
        Some(Ask::for_part(&range, validator))
    }

    /// What of some bytes is new: all, but for what is compared.
    async fn compare(&mut self, bytes: Bytes) -> Result<Bytes, Failure> {
        let Some(comparing) = &mut self.comparing else {
            return Ok(bytes);
        };
        let new = comparing.take(bytes).await?;
        if comparing.is_over() {
            self.comparing = None;
        }
        Ok(new)
    }
}

/// What came before a response broke off, while it comes again.
struct Comparison {
    before: Follower,
    until: u64,
}

impl Comparison {
    fn up_to(before: Follower, until: u64) -> Option<Comparison> {
        (before.position() < until).then_some(Comparison { before, until })
    }

    fn is_over(&self) -> bool {
        self.before.position() >= self.until
    }

    /// Compares bytes with those in their place. Gives what goes beyond them.
    async fn take(&mut self, mut bytes: Bytes) -> Result<Bytes, Failure> {
        while !bytes.is_empty() && !self.is_over() {
            let held = match self.before.next(bytes.len()).await {
                Ok(Some(held)) => held,
                Ok(None) => return Err(Failure::Changed),
                Err(Ended::Failed(why)) => return Err(why),
                Err(Ended::Released | Ended::Instead(_)) => return Err(Failure::ProducerGone),
            };
            if bytes.split_to(held.len()) != held {
                return Err(Failure::Changed);
            }
        }
        Ok(bytes)
    }
}
