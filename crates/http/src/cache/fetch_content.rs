//! The body of a fetch on its way into the store, and what happens if it breaks off.
//!
//! ```text
//! broken ─┬─ strong validator, ranges ──▶ the rest is requested (Range, If-Range) ─┬─ 206 ──▶ goes on
//!         │                                                                        ├─ 200 ──┐
//!         │                                                                        └─ else ─┤
//!         └─ else ──────────────────────▶ the whole is requested again, once a fetch ───────┤
//!                       failed ◀── its head is another, or one byte of what came before ◀───┴──▶ goes on
//! ```
//!
//! By then, followers have sent a part of the body to their clients. A second response is usable only if it begins with
//! exactly the same bytes. These are in memory or in the store, so each byte is compared, and none is sent twice. If
//! anything differs, it is another response: clients that have a part of the first one are cut off, and nothing of it
//! is kept.

use std::ops::Range;
use std::sync::Arc;

use bstr::BString;
use bytes::Bytes;
use cache::{FillFailure, FillFollower, FillWriter, FollowError};
use host::error_log::LogLevel;
use proto::KnownField;
use proto::message::{Method, ResponseHead};

use super::fetch::CacheFetch;
use super::fetch_fields::FetchFields;
use super::ranges::{is_requested_part, strong_validator};
use super::stored_head::StoredHead;
use crate::response_body::BodyChunk;

use crate::upstream::{ContentLength, Exchange, RetryReasons};

/// How often a fetch whose body breaks off asks for the rest.
const RESUMES: u32 = 3;

/// The fields which, besides status and length, must be equal in two responses to count as the same one.
const SAME: [KnownField; 5] = [
    KnownField::Etag,
    KnownField::LastModified,
    KnownField::ContentType,
    KnownField::ContentEncoding,
    KnownField::ContentRange,
];

/// Fields that say when a response was made: they differ in two responses with the same content.
const TIMES: [&[u8]; 3] = [b"date", b"age", b"expires"];

/// The state of a body on its way into the store.
struct ArrivingContent<'a> {
    stored: &'a StoredHead,
    /// The head as the origin sent it; the stored one lacks some fields.
    head: Arc<ResponseHead>,
    /// The length of the whole, if known.
    length: Option<u64>,
    /// Where the fetched part ends; the maximum for the whole.
    end: u64,
    /// What the fetch asked for.
    ask: FetchFields,
    /// The length that the response announced.
    framed: ContentLength,
    resumes: u32,
    repeated: bool,
    /// It came from a member of the cluster, which may frame it in another way than the origin does.
    was_copy: bool,
    /// What comes is stored, and not only passed on.
    keeps: bool,
    /// The earlier bytes, while a repeated response is being compared with them.
    comparing: Option<RepeatComparison>,
}

/// How a body that broke off continues.
enum ContentResumption {
    /// The request's body has been replaced by one that continues it.
    Found,
    /// It does not. What has arrived is kept as a part of the object.
    None,
    /// It does not, and what has arrived is discarded: the origin has another version.
    Changed,
}

/// What the origin answers to the request for the rest.
enum ResumeResponse {
    /// The rest, which is the request's body from here on.
    Rest,
    /// No response.
    Nothing,
    /// Another response.
    Other(Box<Exchange>),
}

impl CacheFetch {
    /// Writes the body to the store, up to `end` if it is a part. `length` is that of the whole.
    pub(super) async fn store_content(
        mut self,
        mut writer: FillWriter,
        stored: &StoredHead,
        length: Option<u64>,
        end: u64,
    ) {
        let mut content = self.describe(stored, length, end);
        content.keeps = self.members.keeps();
        loop {
            let bytes = match self.next_content().await {
                // The repetition is shorter than what has already been stored.
                None if content.comparing.is_some() => return writer.fail(FillFailure::Changed),
                None => break,
                Some(Ok(BodyChunk::Flush)) => continue,
                Some(Ok(BodyChunk::Bytes(bytes))) => Ok(bytes),
                Some(Ok(BodyChunk::File(range))) => {
                    // Bodies are spooled to files only to relieve the upstream of a slow client, and a fetch has no
                    // client.
                    let len = usize::try_from(range.length).unwrap_or(0);
                    let pool = rt::pool::default_pool();
                    let read = range.file.read_at(Vec::new(), range.offset, len, &pool);
                    match read.await {
                        Ok(bytes) => Ok(Bytes::from(bytes)),
                        Err(error) => {
                            return writer.fail(FillFailure::Producer(error.to_string().into()));
                        }
                    }
                }
                // The connection broke after the last announced byte, which is no loss.
                Some(Err(_)) if writer.is_complete() => break,
                Some(Err(error)) => Err(error),
            };
            let bytes = match bytes {
                Ok(bytes) => bytes,
                Err(error) => {
                    // The first client's log shows the tries up to here, even if the fetch fails for good.
                    self.publish_tries();
                    match self.find_continuation(&writer, &mut content).await {
                        ContentResumption::Found => continue,
                        ContentResumption::None => {
                            return writer.fail(FillFailure::Producer(error.to_string().into()));
                        }
                        ContentResumption::Changed => return writer.fail(FillFailure::Changed),
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
            // A server may send more than the part that was asked for.
            let most = end.saturating_sub(writer.position());
            bytes.truncate(usize::try_from(most).unwrap_or(usize::MAX));
            // By now the key may be asked for often enough.
            if !content.keeps && self.members.keeps() {
                content.keeps = true;
                writer.keep(true);
            }
            // An error means that no client follows any more, and that the response cannot be stored: it was purged, or
            // does not fit.
            if writer.write(bytes).await.is_err() {
                self.request.log(
                    LogLevel::Info,
                    format_args!("no client is waiting for a response that cannot be stored, so upstream connection is closed too"),
                );
                return;
            }
        }
        self.publish_tries();
        writer.finish();
    }

    fn describe<'a>(
        &mut self,
        stored: &'a StoredHead,
        length: Option<u64>,
        end: u64,
    ) -> ArrivingContent<'a> {
        let mut ask = self
            .request
            .state::<FetchFields>()
            .cloned()
            .unwrap_or_default();
        // The head has replaced the stale object already, so a repetition must not be conditional: a 304 would have no
        // body.
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
            was_copy: false,
            keeps: true,
            comparing: None,
        }
    }

    /// Looks for a way to continue a body that broke off.
    async fn find_continuation(
        &mut self,
        writer: &FillWriter,
        content: &mut ArrivingContent<'_>,
    ) -> ContentResumption {
        // A repetition may break off as well. The rest begins where the writer is, beyond everything that had to be
        // compared.
        content.comparing = None;
        content.resumes += 1;
        content.was_copy |= self.members.is_reading();
        let repeats = !content.repeated && self.may_repeat(writer, content);
        // The rest is the cheaper question, and a 206 with a matching validator needs no comparison.
        if content.resumes <= RESUMES
            && let Some(ask) = content.ask_of_rest(writer.position())
        {
            match self.ask_for_rest(content, writer.position(), ask).await {
                ResumeResponse::Rest => return ContentResumption::Found,
                ResumeResponse::Nothing => return ContentResumption::None,
                // The server ignores ranges or has another version. Its head tells which.
                ResumeResponse::Other(mut exchange) => {
                    let head = Arc::clone(&self.request.upstream.get_or_make().head);
                    // A 200 to a range request is what a repetition would bring. Using it saves asking once more.
                    if head.status == 200 && repeats && content.is_plain_whole() {
                        content.repeated = true;
                        return self.compare_with(writer, content, exchange, &head);
                    }
                    exchange.finish_without_content(&mut self.request);
                    // 404, 403 and the like: the resource is gone, and asking for the whole will not bring it back. 416
                    // is about the range.
                    if (400..500).contains(&head.status) && head.status != 416 {
                        return ContentResumption::None;
                    }
                }
            }
        }
        // Without a validator or ranges, the whole is requested again, but only once: the origin would have to send all
        // that came before each time.
        if !repeats {
            return ContentResumption::None;
        }
        content.repeated = true;
        self.request.log(
            LogLevel::Warn,
            format_args!(
                "upstream response was interrupted after {} bytes, requesting it again",
                writer.position()
            ),
        );
        self.request.set_state(content.ask.clone());
        let Ok(exchange) = self.exchange_with_origin().await else {
            return ContentResumption::None;
        };
        self.publish_tries();
        let head = Arc::clone(&self.request.upstream.get_or_make().head);
        self.compare_with(writer, content, exchange, &head)
    }

    /// Whether the whole response may be requested once more: the method is safe, `…_next_upstream` permits another
    /// try, and the response is likely to be the same.
    fn may_repeat(&self, writer: &FillWriter, content: &ArrivingContent<'_>) -> bool {
        let settings = &*self.settings;
        // The reason decides whether `…_next_upstream` covers this failure, and the record of the last try has it.
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
        let validated = fields.has(KnownField::Etag) || fields.has(KnownField::LastModified);
        let kind = fields
            .get_known(KnownField::ContentType)
            .unwrap_or_default();
        let is_stream =
            kind.len() >= EVENTS.len() && kind[..EVENTS.len()].eq_ignore_ascii_case(EVENTS);
        matches!(self.request.method, Method::Get | Method::Head)
            // A purge or a full disk may have removed the first bytes. Then there is nothing to compare with.
            && writer.follow_from_start().is_some()
            // These directives are about the origin, which has not failed if a member of the cluster has.
            && (content.was_copy
                || settings.next_upstream.permits_all(reason) && settings.next_upstream_tries != 1)
            && (limit == 0 || u128::from(took) < limit)
            // Without a validator, equality is only known after all earlier bytes have come again. That is tried up to
            // a size.
            && (validated || writer.position() <= settings.cache.repeat_max)
            // Events are generated as they happen, and are never the same twice.
            && !is_stream
    }

    /// Continues with a repeated response if its head is that of the first one.
    fn compare_with(
        &mut self,
        writer: &FillWriter,
        content: &mut ArrivingContent<'_>,
        mut exchange: Box<Exchange>,
        head: &ResponseHead,
    ) -> ContentResumption {
        let first = &content.head;
        // Without a validator, and before the first byte, nothing else shows that the content belongs to the head that clients have.
        let is_shown = writer.position() > 0
            || first.fields.has(KnownField::Etag)
            || first.fields.has(KnownField::LastModified);
        let is_same = head.status == first.status
            && (is_shown || lasting_fields(head).eq(lasting_fields(first)))
            && SAME
                .iter()
                .all(|known| head.fields.get_known(*known) == first.fields.get_known(*known))
            && (exchange.content_length() == content.framed || content.was_copy)
            // If the origin does not permit storing it any more, it may not be passed on to several clients either.
            && self.freshness_of(head.status, &head.fields).is_some();
        // Without the stored bytes, the repetition cannot be compared.
        let before = is_same.then(|| writer.follow_from_start()).flatten();
        let Some(before) = before else {
            exchange.finish_without_content(&mut self.request);
            self.publish_tries();
            // An error of the server does not mean that the resource has changed, so what has arrived is kept.
            if is_same || head.status >= 500 {
                return ContentResumption::None;
            }
            self.log_changed(&FillFailure::Changed);
            return ContentResumption::Changed;
        };
        content.comparing = RepeatComparison::up_to(before, writer.position());
        self.request.out.body = exchange.into_content(&mut self.request);
        ContentResumption::Found
    }

    fn log_changed(&self, why: &FillFailure) {
        self.request.log_while(
            host::error_log::LogLevel::Error,
            "comparing an interrupted response with its repetition",
            format_args!("{why}"),
        );
    }

    /// Requests the rest of a body that broke off. If it comes, it becomes the request's body.
    async fn ask_for_rest(
        &mut self,
        content: &ArrivingContent<'_>,
        position: u64,
        fields: FetchFields,
    ) -> ResumeResponse {
        let length = content.length.unwrap_or(0);
        self.request.log(
            LogLevel::Warn,
            format_args!(
                "upstream response was interrupted at {position} of {length} bytes, requesting the rest"
            ),
        );
        self.request.set_state(fields);
        let Ok(exchange) = self.exchange_with_origin().await else {
            return ResumeResponse::Nothing;
        };
        self.publish_tries();
        let head = Arc::clone(&self.request.upstream.get_or_make().head);
        let part = position..content.end.min(length);
        if !is_requested_part(&head, &content.stored.head.fields, part, length) {
            self.request.log(
                LogLevel::Warn,
                format_args!(
                    "upstream did not send the rest of an interrupted response: status {}",
                    head.status
                ),
            );
            return ResumeResponse::Other(exchange);
        }
        self.request.out.body = exchange.into_content(&mut self.request);
        ResumeResponse::Rest
    }
}

/// The fields of a head but for [`TIMES`].
fn lasting_fields(head: &ResponseHead) -> impl Iterator<Item = (&[u8], &[u8])> {
    let is_time = |name: &[u8]| TIMES.iter().any(|time| name.eq_ignore_ascii_case(time));
    head.fields.iter().filter(move |(name, _)| !is_time(name))
}

/// The content type of server-sent events, a body without an end.
const EVENTS: &[u8] = b"text/event-stream";

impl ArrivingContent<'_> {
    /// Whether this is the whole body, as a request without `Range` gets it.
    fn is_plain_whole(&self) -> bool {
        self.head.status == 200 && self.end == u64::MAX
    }

    /// The request for the rest, if there is a strong validator that ties it to what has arrived.
    fn ask_of_rest(&self, position: u64) -> Option<FetchFields> {
        let fields = &self.stored.head.fields;
        let ranges = fields.get_known(KnownField::AcceptRanges);
        let possible = self.stored.head.status == 200
            && self.stored.validator_hash(self.length) != 0
            && position > 0
            && self.length.is_some()
            // An origin that sent a part supports ranges, whatever `Accept-Ranges` says.
            && (self.end != u64::MAX
                || ranges.is_some_and(|value| value.eq_ignore_ascii_case(b"bytes")));
        let validator: BString = strong_validator(fields).filter(|_| possible)?;
        let range: Range<u64> = position..self.end;
        Some(FetchFields::for_part(&range, validator))
    }

    /// Removes the bytes that are a repetition; an error if they differ from the first time.
    async fn compare(&mut self, bytes: Bytes) -> Result<Bytes, FillFailure> {
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

/// The bytes that were stored before the body broke off, and a cursor in them.
struct RepeatComparison {
    before: FillFollower,
    until: u64,
}

impl RepeatComparison {
    fn up_to(before: FillFollower, until: u64) -> Option<RepeatComparison> {
        (before.position() < until).then_some(RepeatComparison { before, until })
    }

    fn is_over(&self) -> bool {
        self.before.position() >= self.until
    }

    /// Compares bytes with the earlier ones in the same place, and returns those beyond the earlier ones.
    async fn take(&mut self, mut bytes: Bytes) -> Result<Bytes, FillFailure> {
        while !bytes.is_empty() && !self.is_over() {
            let held = match self.before.next_bytes(bytes.len()).await {
                Ok(Some(held)) => held,
                Ok(None) => return Err(FillFailure::Changed),
                Err(FollowError::Failed(why)) => return Err(why),
                Err(FollowError::Released | FollowError::Message(_)) => {
                    return Err(FillFailure::ProducerGone);
                }
            };
            if bytes.split_to(held.len()) != held {
                return Err(FillFailure::Changed);
            }
        }
        Ok(bytes)
    }
}
