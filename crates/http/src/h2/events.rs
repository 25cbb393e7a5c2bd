//! The effects of the client's frames (RFC 9113, sections 5 and 6).
//!
//! An error of a stream resets it; an error of the connection is returned and ends it. A client can make the server
//! reset a stream as easily as it can reset it itself, and in both cases work for the request has already begun: both
//! have the same price.

use std::rc::Rc;

use host::error_log::LogLevel;
use proto::KnownField;
use proto::h2::hpack::{HpackError, ListLimits};
use proto::h2::{
    ConnectionError, ErrorCode, FlowControlWindow, FrameEvent, HeaderBlock, ResponsePriority, frame,
};

use super::connection::Http2Connection;
use super::connection_link::{ClosedHttp2Stream, Http2StreamEnd};
use super::limits::Http2Limits;
use super::stream::Http2Stream;
use super::stream_task::serve_streams;
use crate::client_budget::{BudgetSpent, SMALL_WINDOW, price};
use crate::http_loop;
use crate::http_site::HttpSite;
use crate::request::ReceivedHead;
use crate::stream_request::{
    StreamHeadFacts, StreamStart, TrailerReader, as_upgrade, list_limits, request_limits,
};

/// How many priorities are kept for streams that have not begun.
const EARLY_PRIORITIES: usize = 16;

/// How many streams may be refused, even where fewer are allowed at once; nginx's bound.
const REFUSED_LEAST: usize = 100;

impl Http2Connection {
    /// Handles one event of the frame reader. Each arm either is useful to the client or spends from its budget.
    pub(super) fn handle_event(&mut self, event: FrameEvent<'_>) -> Result<(), ConnectionError> {
        match event {
            FrameEvent::More => Ok(()),
            FrameEvent::Data {
                stream,
                bytes,
                counted,
                begins,
                end_stream,
            } => {
                if begins {
                    self.debug(format_args!("http2 DATA frame"));
                }
                self.data(stream, bytes, counted, end_stream)
            }
            FrameEvent::Headers {
                stream,
                block,
                end_stream,
                depends_on_itself,
            } => self.headers(stream, &block, end_stream, depends_on_itself),
            FrameEvent::Priority { stream } => {
                self.debug(format_args!("http2 PRIORITY frame sid:{stream}"));
                self.spend(price::FRAME)
            }
            FrameEvent::Reset { stream, code } => self.reset(stream, code),
            FrameEvent::Settings(payload) => self.settings(payload),
            FrameEvent::SettingsAck => {
                self.settings_acknowledged = true;
                self.spend(price::FRAME)
            }
            // The reader has already rejected it: clients cannot push (RFC 9113, section 8.4).
            FrameEvent::PushPromise { .. } => Ok(()),
            FrameEvent::Ping { ack, opaque } => {
                self.debug(format_args!("http2 PING frame"));
                if !ack {
                    self.link
                        .append_frames(|output| frame::write_ping(true, opaque, &mut output.bytes));
                }
                self.spend(price::FRAME)
            }
            FrameEvent::GoAway { code, .. } => {
                self.debug(format_args!("http2 GOAWAY frame, error {}", code.0));
                // The client begins no more streams, but may still want the responses to those it has.
                self.start_draining();
                self.spend(price::FRAME)
            }
            FrameEvent::WindowUpdate { stream, increment } => self.window_update(stream, increment),
            FrameEvent::PriorityUpdate { stream, value } => self.priority_update(stream, value),
            FrameEvent::Unknown { kind, .. } => {
                self.log(
                    LogLevel::Info,
                    format_args!(
                        "client sent frame with unknown type {kind} while processing HTTP/2 connection"
                    ),
                );
                self.spend(price::FRAME)
            }
            FrameEvent::StreamError { stream, code, what } => {
                // On a stream that has not begun this is an error of the connection instead: RST_STREAM of such a stream would
                // be an error of ours. PRIORITY may stand there (RFC 9113, section 6.3), so its fault is the one that counts.
                match what.starts_with("PRIORITY") && self.check_not_idle(stream, what).is_err() {
                    true => return Err(ConnectionError { code, what }),
                    false => self.check_not_idle(stream, what)?,
                }
                self.stream_error(stream, code, what)
            }
        }
    }

    fn spend(&mut self, price: u32) -> Result<(), ConnectionError> {
        self.budget
            .spend(price, rt::now())
            .map_err(|BudgetSpent| ConnectionError::enhance_your_calm("http2 flood detected"))
    }

    // -- content --

    fn data(
        &mut self,
        id: u32,
        bytes: &[u8],
        counted: u32,
        ends: bool,
    ) -> Result<(), ConnectionError> {
        self.check_not_idle(id, "DATA frame for an idle stream")?;
        // First: padding and content for closed streams occupy the connection's window, too (RFC 9113, section 6.9).
        self.count_window(counted)?;
        // Such frames cost the client nine bytes and move nothing forward (CVE-2019-9518).
        if bytes.is_empty() && !ends {
            self.spend(price::EMPTY)?;
        }
        let Some(stream) = self.link.stream(id) else {
            return self.late_data(id, bytes.len() as u64, ends);
        };
        if stream.was_reset() {
            return self.after_reset(id, "DATA frame for closed stream");
        }
        self.of_use += bytes.len() as u64;
        self.content += bytes.len() as u64;
        match stream.receive_content(bytes, counted, ends) {
            Ok(()) => Ok(()),
            Err(ErrorCode::STREAM_CLOSED) => self.stream_error(
                id,
                ErrorCode::STREAM_CLOSED,
                "DATA frame for half-closed stream",
            ),
            Err(code) => self.stream_error(id, code, "more DATA than the window of the stream"),
        }
    }

    /// A frame for a stream that the client itself has reset: STREAM_CLOSED (RFC 9113, section 5.1).
    fn after_reset(&mut self, id: u32, what: &'static str) -> Result<(), ConnectionError> {
        self.link.write_reset(id, ErrorCode::STREAM_CLOSED);
        self.stream_error(id, ErrorCode::STREAM_CLOSED, what)
    }

    /// Content for a stream that is closed. If we closed it, the content may have been under way, and is dropped; but it
    /// must still be of the announced length (RFC 9113, section 8.1.1). After the client's own end it is an error.
    ///
    /// An error here resets the stream once more and leaves its record as it is: later frames get the same answer, each at
    /// the price of a stream.
    fn late_data(&mut self, id: u32, bytes: u64, ends: bool) -> Result<(), ConnectionError> {
        self.debug(format_args!("unknown http2 stream"));
        match self.link.closed_stream(id).map(|closed| closed.how) {
            Some(Http2StreamEnd::ResetByServer) => {
                if self.link.count_late_content(id, bytes, ends) {
                    return self.spend(price::FRAME);
                }
                let what = "body data other than declared";
                self.stream_error(id, ErrorCode::PROTOCOL_ERROR, what)
            }
            Some(Http2StreamEnd::EndedByClient | Http2StreamEnd::ResetByClient) => {
                let what = "DATA frame for closed stream";
                self.stream_error(id, ErrorCode::STREAM_CLOSED, what)
            }
            // The stream ended so long ago that nothing is known of it: RFC 9113, section 5.1, allows ignoring the
            // frame.
            None => self.spend(price::FRAME),
        }
    }

    /// Counts content against the connection's window, and keeps that wide open: the windows of the streams bound what
    /// is buffered.
    fn count_window(&mut self, counted: u32) -> Result<(), ConnectionError> {
        let Some(left) = self.receive_window.checked_sub(counted) else {
            return Err(ConnectionError::flow_control(
                "more DATA than the window of the connection",
            ));
        };
        self.receive_window = left;
        // Rarely, not for every frame: one update for about 1.5 GB.
        if left < FlowControlWindow::MAX / 4 {
            let increment = FlowControlWindow::MAX - left;
            self.link.append_frames(|output| {
                frame::write_window_update(0, increment, &mut output.bytes)
            });
            self.receive_window = FlowControlWindow::MAX;
        }
        Ok(())
    }

    // -- requests --

    fn headers(
        &mut self,
        id: u32,
        block: &HeaderBlock<'_>,
        ends: bool,
        depends_on_itself: bool,
    ) -> Result<(), ConnectionError> {
        self.debug(format_args!(
            "http2 HEADERS frame sid:{id} len:{}",
            block.len()
        ));
        // CONTINUATION frames were needed; see the limit on them.
        if let HeaderBlock::Gathered(_) = block {
            self.spend(price::PIECE)?;
        }
        // Clients use odd identifiers (RFC 9113, section 5.1.1).
        if id.is_multiple_of(2) {
            return Err(ConnectionError::protocol(
                "HEADERS frame with incorrect identifier",
            ));
        }
        if id <= self.last {
            return self.trailers(id, block, ends);
        }
        let site = self.link.http.site();
        if !http_loop::refresh_endpoint(&self.link.client, &site) {
            // No server of the current configuration listens on this address. REFUSED_STREAM says that nothing was
            // done, so the client may repeat the request elsewhere (RFC 9113, section 8.7).
            self.last = id;
            self.skip_block(block)?;
            return self.refuse(id);
        }
        self.limits = Http2Limits {
            // These two were announced in our SETTINGS, and the client acts on them.
            max_streams: self.limits.max_streams,
            preread: self.limits.preread,
            ..Http2Limits::of(&site, &self.link.client)
        };
        // Before anything that may refuse the stream: its identifier is used up either way.
        self.last = id;
        // Its number is above the one in our GOAWAY: the client knows that it was not served, and needs no reset.
        if self.is_draining() {
            self.debug(format_args!("skipping http2 HEADERS frame"));
            self.skip_block(block)?;
            // Not the price of a stream: requests that crossed the GOAWAY must not cost a client its other responses.
            return self.spend(price::FRAME);
        }
        if depends_on_itself {
            self.skip_block(block)?;
            let what = "HEADERS frame with incorrect dependency";
            return self.stream_error(id, ErrorCode::PROTOCOL_ERROR, what);
        }
        if let Some(why) = self.why_refuse(ends) {
            self.log(
                LogLevel::Info,
                format_args!("{why} while processing HTTP/2 connection"),
            );
            self.skip_block(block)?;
            return self.refuse(id);
        }
        self.begin(id, block, ends, &site)
    }

    /// Why a new stream has to be refused now, if it has to.
    fn why_refuse(&mut self, ends: bool) -> Option<String> {
        let most = self.limits.max_streams;
        let open = self.open_streams();
        if open >= most {
            return Some(format!("concurrent streams exceeded {open}"));
        }
        // Streams that end at once never exceed the limit on open ones. As in nginx, one read must not begin more than
        // twice as many.
        self.begun += 1;
        if self.begun as usize > 2 * most {
            return Some("client sent too many streams at once".to_owned());
        }
        // Until it has our SETTINGS the client may send as much as the default window allows, which is more than the
        // buffer that `http2_body_preread_size` grants. nginx refuses such streams, too.
        if !self.settings_acknowledged && !ends && self.limits.preread < FlowControlWindow::DEFAULT
        {
            return Some(
                "client sent stream with data before settings were acknowledged".to_owned(),
            );
        }
        None
    }

    /// How many streams count towards `http2_max_concurrent_streams`. One that was reset is closed (RFC 9113, section 5.1.2), so
    /// a client may replace all of its streams at once, although their tasks end only after this read. No more than that:
    /// tasks that outlive their streams (`proxy_ignore_client_abort`) stay bounded.
    fn open_streams(&self) -> usize {
        let streams = self.link.streams.borrow();
        let most = self.limits.max_streams;
        match streams.len() {
            few if few < most => few,
            many if many >= 2 * most => many,
            _ => streams.iter().filter(|stream| !stream.is_gone()).count(),
        }
    }

    fn refuse(&mut self, id: u32) -> Result<(), ConnectionError> {
        self.refused += 1;
        // A client that respects our SETTINGS is refused in the first round trip at most.
        if self.refused as usize > self.limits.max_streams.max(REFUSED_LEAST) {
            return Err(ConnectionError {
                code: ErrorCode::ENHANCE_YOUR_CALM,
                what: "too many refused streams",
            });
        }
        self.link.write_reset(id, ErrorCode::REFUSED_STREAM);
        self.link.note_closed(ClosedHttp2Stream {
            stream: id,
            how: Http2StreamEnd::ResetByServer,
            content_left: None,
        });
        self.spend(price::STREAM)
    }

    /// Begins a request: decodes its head and starts the task of its stream.
    fn begin(
        &mut self,
        id: u32,
        block: &HeaderBlock<'_>,
        ends: bool,
        site: &Rc<HttpSite>,
    ) -> Result<(), ConnectionError> {
        let mut request = self.link.take_spare_request();
        let head = Rc::get_mut(&mut request.head)
            .expect("a request that has ended is alone with its head");
        // Even a malformed request becomes a stream with a task: as from nginx it gets a response, with its error page.
        let verdict = self.read_head(block, site, head)?;
        let requests = &self.link.client.requests;
        requests.set(requests.get() + 1);
        head.number = requests.get();
        if verdict.is_err() {
            self.spend(price::STREAM)?;
        }
        self.of_use += block.len() as u64;
        let stream = Http2Stream::new(id, &self.link, self.limits.preread, ends);
        stream.priority.set(self.priority_of(id, &request.head));
        let stream = Rc::new(stream);
        let about = StreamHeadFacts::of_reader(&self.requests, !ends);
        // The reader is reused for every head of the connection: nothing of this request may show in the next one.
        self.requests.clear();
        self.link.streams.borrow_mut().push(Rc::clone(&stream));
        self.is_busy();
        // The GOAWAY that this may send still includes the new stream.
        self.check_keepalive();
        let start = StreamStart {
            request,
            verdict,
            about,
        };
        // The task inherits the connection's rank: the requests of an unknown client wait behind those of known ones,
        // too.
        let rank = self.link.rank.get();
        self.link
            .tasks
            .assign_stream("http2 stream", (stream, start), rank, serve_streams);
        Ok(())
    }

    /// Decompresses a request's head. The outer error concerns the connection, whose tables are out of step then; the
    /// inner one only the request.
    fn read_head(
        &mut self,
        block: &[u8],
        site: &HttpSite,
        head: &mut ReceivedHead,
    ) -> Result<Result<(), proto::h2::MalformedRequest>, ConnectionError> {
        let server = self.link.client.first_server();
        let core = &site.server(server).core;
        let limits = request_limits(core);
        let requests = &mut self.requests;
        let decoded = self
            .decoder
            .decode_or_stop(block, list_limits(core), |field| {
                requests.add_field(field, &limits, &mut head.wire);
            })
            .map_err(compression_error)?;
        // The connection ends, as in nginx. Decoding may have stopped in the middle of the block, which leaves the
        // table out of step.
        if decoded.too_large || requests.is_too_large() {
            return Err(ConnectionError::enhance_your_calm("too large header"));
        }
        let size = block.len() as u32;
        let verdict = requests.finish(size, &mut head.wire);
        if verdict.is_ok() && requests.protocol() == Some(b"websocket") {
            as_upgrade(&mut head.wire.fields);
        }
        Ok(verdict)
    }

    /// Begins to drain after the last request that `keepalive_requests`, `keepalive_time` or `keepalive_timeout 0`
    /// allow.
    fn check_keepalive(&mut self) {
        let core = self.core();
        let client = &self.link.client;
        if core.keepalive_timeout.is_zero()
            || client.requests.get() >= core.keepalive_requests as u64
            || !client.is_younger_than(core.keepalive_time)
        {
            self.start_draining();
        }
    }

    /// The priority of a new stream: a PRIORITY_UPDATE frame overrides the request's own field (RFC 9218, section 7).
    fn priority_of(&mut self, id: u32, head: &ReceivedHead) -> Option<ResponsePriority> {
        let early = self.early_priorities.iter().find(|early| early.0 == id);
        let early = early.map(|early| early.1);
        // Skipped identifiers can never begin any more (RFC 9113, section 5.1.1).
        self.early_priorities.retain(|early| early.0 > id);
        let field = head.wire.fields.get_known(KnownField::Priority);
        early.or(field.map(ResponsePriority::parse))
    }

    /// Decompresses a block of a refused request: it may have changed the table that later blocks refer to (RFC 9113,
    /// section 4.3).
    fn skip_block(&mut self, block: &[u8]) -> Result<(), ConnectionError> {
        const NOTHING: ListLimits = ListLimits {
            max_size: 0,
            max_fields: 0,
        };
        self.decoder
            .decode(block, NOTHING, |_| {})
            .map(drop)
            .map_err(compression_error)
    }

    /// Receives trailers: a second header block of a stream, which must end it (RFC 9113, section 8.1).
    fn trailers(
        &mut self,
        id: u32,
        block: &HeaderBlock<'_>,
        ends: bool,
    ) -> Result<(), ConnectionError> {
        let Some(stream) = self.link.stream(id) else {
            self.skip_block(block)?;
            return match self.link.closed_stream(id).map(|closed| closed.how) {
                // They were under way when we reset the stream.
                Some(Http2StreamEnd::ResetByServer) if ends => self.spend(price::FRAME),
                Some(Http2StreamEnd::ResetByServer) => {
                    self.stream_error(id, ErrorCode::PROTOCOL_ERROR, "invalid trailers")
                }
                // Unlike late content this ends the connection: a block of fields on an identifier that is used up begins
                // a second request there (RFC 9113, section 5.1.1). So it does if the stream has been forgotten.
                Some(Http2StreamEnd::EndedByClient | Http2StreamEnd::ResetByClient) => {
                    Err(ConnectionError {
                        code: ErrorCode::STREAM_CLOSED,
                        what: "HEADERS frame for closed stream",
                    })
                }
                None => Err(ConnectionError::protocol(
                    "HEADERS frame with incorrect identifier",
                )),
            };
        };
        let site = self.link.http.site();
        let server = self.link.client.first_server();
        let core = &site.server(server).core;
        let mut trailers = TrailerReader::new();
        let decoded = self
            .decoder
            .decode(block, list_limits(core), |field| trailers.add_field(field))
            .map_err(compression_error)?;
        // Judged only after the block was decompressed, because the table has to follow whatever becomes of the stream.
        if stream.was_reset() {
            return self.after_reset(id, "HEADERS frame for closed stream");
        }
        if stream.has_all_input() {
            let what = "HEADERS frame for half-closed stream";
            return self.stream_error(id, ErrorCode::STREAM_CLOSED, what);
        }
        if !ends || !trailers.is_valid || decoded.too_large {
            return self.stream_error(id, ErrorCode::PROTOCOL_ERROR, "invalid trailers");
        }
        // Before the end of input is signalled, because that wakes the reader, which takes them.
        *stream.trailers.borrow_mut() = trailers.fields;
        stream.end_input();
        Ok(())
    }

    // -- streams and windows --

    fn reset(&mut self, id: u32, code: ErrorCode) -> Result<(), ConnectionError> {
        self.debug(format_args!(
            "http2 RST_STREAM frame, sid:{id} status:{}",
            code.0
        ));
        self.check_not_idle(id, "RST_STREAM frame for an idle stream")?;
        let Some(stream) = self.link.stream(id) else {
            self.debug(format_args!("unknown http2 stream"));
            // From now on nothing may follow, even if we had ended the stream ourselves.
            self.link.reset_closed(id);
            return self.spend(price::FRAME);
        };
        let log = |message: std::fmt::Arguments<'_>| {
            self.log(
                LogLevel::Info,
                format_args!("{message} while processing HTTP/2 connection"),
            );
        };
        match code {
            ErrorCode::CANCEL => log(format_args!("client canceled stream {id}")),
            ErrorCode::INTERNAL_ERROR => log(format_args!(
                "client terminated stream {id} due to internal error"
            )),
            _ => log(format_args!(
                "client terminated stream {id} with status {}",
                code.0
            )),
        }
        // A request that is running notices at its next wait, and its upstream connection is closed (unless
        // `proxy_ignore_client_abort` is on).
        stream.take_reset();
        self.spend(price::STREAM)
    }

    fn settings(&mut self, payload: &[u8]) -> Result<(), ConnectionError> {
        self.debug(format_args!("http2 SETTINGS frame"));
        // Charged first: applying it goes through all streams.
        self.spend(price::SETTINGS)?;
        let link = Rc::clone(&self.link);
        let (result, _) = link.append_frames(|output| {
            let before = output.peer.initial_window_size;
            let table = output.peer.header_table_size;
            // All values are applied before the acknowledgement leaves (RFC 9113, section 6.5.3).
            output.peer.apply(payload)?;
            frame::write_settings_ack(&mut output.bytes);
            if output.peer.header_table_size != table {
                output.encoder.set_peer_limit(output.peer.header_table_size);
            }
            Ok(i64::from(output.peer.initial_window_size) - i64::from(before))
        });
        // RFC 9113, section 6.9.2: a changed initial window shifts the windows of all open streams, which may become
        // negative.
        let change = result?;
        if change == 0 {
            return Ok(());
        }
        // Streams that wait for room are woken at the end of the connection's poll, like after a window update.
        for stream in link.streams.borrow().iter() {
            let mut window = stream.send_window.get();
            if window.adjust_size(change).is_err() {
                return Err(ConnectionError::flow_control(
                    "SETTINGS frame that makes a window too large",
                ));
            }
            stream.send_window.set(window);
        }
        Ok(())
    }

    fn window_update(&mut self, id: u32, increment: u32) -> Result<(), ConnectionError> {
        self.debug(format_args!(
            "http2 WINDOW_UPDATE frame sid:{id} window:{increment}"
        ));
        // Byte by byte a client would make us send as many frames (CVE-2019-9511, "Data Dribble"). One that returns what we
        // sent in small frames (`http2_chunk_size`, short messages) does not.
        if increment < SMALL_WINDOW && !self.link.take_small_update() {
            self.spend(price::SMALL_WINDOW)?;
        }
        if id == 0 {
            let given = self.link.output.borrow_mut().window.replenish(increment);
            return given.map_err(|_| {
                ConnectionError::flow_control("WINDOW_UPDATE frame that makes a window too large")
            });
        }
        self.check_not_idle(id, "WINDOW_UPDATE frame for an idle stream")?;
        let Some(stream) = self.link.stream(id) else {
            return self.late_window_update(id, increment);
        };
        let mut window = stream.send_window.get();
        if window.replenish(increment).is_err() {
            let what = "WINDOW_UPDATE frame that makes a window too large";
            return self.stream_error(id, ErrorCode::FLOW_CONTROL_ERROR, what);
        }
        stream.send_window.set(window);
        Ok(())
    }

    /// A window update for a stream that has ended: of no use, but it can still exceed the maximum, which is an error.
    fn late_window_update(&mut self, id: u32, increment: u32) -> Result<(), ConnectionError> {
        let initial = self.link.output.borrow().peer.initial_window_size;
        let is_ours = self
            .link
            .closed_stream(id)
            .is_some_and(|closed| closed.how == Http2StreamEnd::ResetByServer);
        match FlowControlWindow::new(initial).replenish(increment) {
            Err(_) if is_ours => {
                let what = "WINDOW_UPDATE frame that makes a window too large";
                self.stream_error(id, ErrorCode::FLOW_CONTROL_ERROR, what)
            }
            _ => Ok(()),
        }
    }

    fn priority_update(&mut self, id: u32, value: &[u8]) -> Result<(), ConnectionError> {
        self.spend(price::FRAME)?;
        let priority = ResponsePriority::parse(value);
        if let Some(stream) = self.link.stream(id) {
            stream.priority.set(Some(priority));
        } else if id.is_multiple_of(2) {
            // Even numbers are pushed streams, and we never push: it is idle (RFC 9218, section 7.1).
            return Err(ConnectionError::protocol(
                "PRIORITY_UPDATE frame for a pushed stream that has not begun",
            ));
        } else if id > self.last {
            self.early_priorities.retain(|early| early.0 != id);
            // Beyond the bound the frame is ignored: a priority is only a hint.
            if self.early_priorities.len() < EARLY_PRIORITIES {
                self.early_priorities.push((id, priority));
            }
        }
        Ok(())
    }

    /// A frame for a stream that has not begun is an error of the connection (RFC 9113, section 5.1).
    fn check_not_idle(&self, id: u32, what: &'static str) -> Result<(), ConnectionError> {
        match id > self.last || id.is_multiple_of(2) {
            true => Err(ConnectionError::protocol(what)),
            false => Ok(()),
        }
    }

    /// Resets a stream because of an error of the client (RFC 9113, section 5.4.2).
    fn stream_error(
        &mut self,
        id: u32,
        code: ErrorCode,
        what: &'static str,
    ) -> Result<(), ConnectionError> {
        self.log(
            LogLevel::Info,
            format_args!("client sent {what} while processing HTTP/2 connection, stream {id}"),
        );
        match self.link.stream(id) {
            Some(stream) => {
                stream.reset_stream(code);
                // The handler learns it as if the client had left. Its task closes the stream.
                stream.close_by_client();
            }
            None => self.link.write_reset(id, code),
        }
        self.spend(price::STREAM)
    }
}

fn compression_error(error: HpackError) -> ConnectionError {
    ConnectionError::compression(match error {
        HpackError::Truncated => "header block that ends inside a field",
        HpackError::InvalidIndex => "invalid hpack table index",
        HpackError::InvalidHuffman => "invalid encoded header field",
        HpackError::InvalidTableSize => "invalid table size update",
    })
}
