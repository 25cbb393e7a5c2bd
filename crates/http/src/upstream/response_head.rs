//! Sends the request on a connection, and reads the head of the response.

use std::io;
use std::task::{Context, Poll};

use proto::message::ResponseHead;

use super::exchange::{Exchange, client_left};
use super::exchange_log::{self, ExchangeStage};
use super::interim_response;
use super::protocol::HeadProgress;

use super::retry::TryFailure;
use super::transmit::{SendFailure, TransmitProgress};
use crate::buffers;
use crate::request::Request;

/// The interim responses of a try, which are limited.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InterimCount {
    pub(super) responses: u32,
    pub(super) bytes: u64,
}

impl Exchange {
    /// Sends the request, and reads until the head is complete. Returns how many bytes of the input belong to it.
    pub(super) fn poll_head(
        &mut self,
        request: &mut Request,
        input: &mut Vec<u8>,
        head: &mut ResponseHead,
        context: &mut Context<'_>,
    ) -> Poll<Result<usize, TryFailure>> {
        // Checked on every wake-up: nothing is being written to the client, so nothing else would notice that it is
        // gone.
        if self.watch_client && request.stream.poll_left(context).is_ready() {
            return Poll::Ready(Err(client_left(request)));
        }
        loop {
            // Sending and receiving alternate, since a server may answer, or refuse, before it has read the whole body
            // (RFC 9112, section 9.5).
            if self.transmit.has_work(&*self.protocol)
                && let Err(failure) = self.poll_send(request, context)
            {
                return Poll::Ready(Err(failure));
            }
            match self.poll_receive(request, input, context) {
                Poll::Pending => break,
                Poll::Ready(Err(failure)) => return Poll::Ready(Err(failure)),
                Poll::Ready(Ok(())) => {}
            }
            match self.read_head(request, input, head) {
                Ok(None) => {}
                Ok(Some(used)) => return Poll::Ready(Ok(used)),
                Err(failure) => return Poll::Ready(Err(failure)),
            }
        }
        // However long the server, or the client, is silent, it costs no buffer.
        if input.is_empty() {
            buffers::give_buffer(std::mem::take(input));
        }
        if self.timer.poll_expired(context).is_ready() {
            let doing = match self.transmit.is_over() {
                true => ExchangeStage::ReadingHeader,
                false => ExchangeStage::SendingRequest,
            };
            return Poll::Ready(Err(TryFailure::TimedOut(doing)));
        }
        Poll::Pending
    }

    /// Sends as much as possible, and sets the timer for what is being waited for.
    fn poll_send(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Result<(), TryFailure> {
        let Some(link) = &self.current.link else {
            return Ok(());
        };
        match self.transmit.poll(
            request,
            &link.connection.stream,
            &mut *self.protocol,
            context,
        ) {
            Ok(TransmitProgress::Done) => self.timer.set(self.timeouts.read),
            Ok(TransmitProgress::PeerBusy { moved: true }) => self.timer.set(self.timeouts.send),
            Ok(TransmitProgress::PeerBusy { moved: false }) => {}
            // The client's silence has a timer of its own, and the upstream is not to blame for it.
            Ok(TransmitProgress::Waiting) => self.timer.set(self.timeouts.read),
            Err(SendFailure::Client(none)) => return Err(TryFailure::Final(none)),
            Err(SendFailure::Peer(error)) => {
                // The upstream may have answered before it closed the connection, for example with 413. So its response
                // is read; if there is none, that is logged.
                exchange_log::send_failed(request, &error);
                self.transmit.stop_sending();
                self.timer.set(self.timeouts.read);
            }
        }
        request.upstream.get_or_make().current_try().bytes_sent = self.transmit.sent();
        Ok(())
    }

    /// Appends what the upstream has sent to `input`.
    fn poll_receive(
        &mut self,
        request: &mut Request,
        input: &mut Vec<u8>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), TryFailure>> {
        let Some(link) = &self.current.link else {
            return Poll::Pending;
        };
        let doing = ExchangeStage::ReadingHeader;
        // Where nothing can have come, no buffer is needed to find that out.
        if input.capacity() == 0 && !link.connection.stream.is_known_to_be_empty() {
            *input = buffers::take_buffer();
        }
        // At least one byte is read, so that a full buffer is noticed as one, and not as the end of the connection.
        let room = self.head_room().saturating_sub(input.len());
        let result = match link
            .connection
            .stream
            .poll_read_into(context, input, room.max(1))
        {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(result) => result,
        };
        Poll::Ready(match result {
            Ok(0) => {
                exchange_log::log_exchange_failure(
                    request,
                    "upstream prematurely closed connection",
                    doing,
                );
                Err(TryFailure::Broken)
            }
            Ok(n) => {
                request.upstream.get_or_make().current_try().bytes_received += n as u64;
                // While the request is being sent, `…_send_timeout` counts, whatever the upstream sends.
                if self.transmit.is_over() {
                    self.timer.set(self.timeouts.read);
                }
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => {
                exchange_log::read_failed(request, &error, doing);
                Err(TryFailure::Broken)
            }
        })
    }

    /// The maximum size of a response head, in bytes.
    fn head_room(&self) -> usize {
        usize::try_from(self.settings.buffer_size)
            .unwrap_or(usize::MAX)
            .max(self.protocol.least_buffer())
    }

    /// Reads the head from the input. `None` if more input is needed.
    fn read_head(
        &mut self,
        request: &mut Request,
        input: &mut Vec<u8>,
        head: &mut ResponseHead,
    ) -> Result<Option<usize>, TryFailure> {
        let doing = ExchangeStage::ReadingHeader;
        loop {
            match self.protocol.read_head(request, input, head) {
                Ok(HeadProgress::Complete(_))
                    // An unexpected 101 must not turn the client's connection into a tunnel, through which it could
                    // send requests past this server's rules.
                    if head.status == 101 && !self.may_switch(request) =>
                {
                    exchange_log::log_exchange_failure(
                        request,
                        "upstream switched protocols without being asked",
                        doing,
                    );
                    return Err(TryFailure::InvalidHeader);
                }
                Ok(HeadProgress::Complete(used)) => {
                    request.head.doing.set(doing.text());
                    return Ok(Some(used));
                }
                // One read may have brought several interim responses.
                Ok(HeadProgress::Interim(used)) => {
                    if head.status != 0 {
                        self.count_interim(request, head, used)?;
                    }
                    head.clear();
                    input.drain(..used);
                }
                Ok(HeadProgress::Partial) if input.len() >= self.head_room() => {
                    exchange_log::log_exchange_failure(request, "upstream sent too big header", doing);
                    return Err(TryFailure::InvalidHeader);
                }
                Ok(HeadProgress::Partial) => return Ok(None),
                Err(fault) => {
                    exchange_log::invalid_response(request, &fault.message, doing);
                    return Err(match fault.is_unseen {
                        true => TryFailure::Unprocessed,
                        false => TryFailure::InvalidHeader,
                    });
                }
            }
        }
    }

    /// Whether a 101 is valid: it was asked for, and the client can receive it. On an HTTP/2 stream there is nothing to
    /// switch from, unless the client asked for it in HTTP/2's own way (RFC 8441).
    fn may_switch(&self, request: &Request) -> bool {
        self.protocol.request_traits().upgrade
            && request.head.wire.fields.has(proto::KnownField::Upgrade)
            && !request.is_subrequest()
    }

    /// Passes an interim response on, unless there have been too many.
    fn count_interim(
        &mut self,
        request: &mut Request,
        head: &ResponseHead,
        length: usize,
    ) -> Result<(), TryFailure> {
        let seen = &mut self.current.interim;
        seen.responses += 1;
        seen.bytes += length as u64;
        if seen.responses > interim_response::MOST {
            let text = "upstream sent too many interim responses";
            exchange_log::log_exchange_failure(request, text, ExchangeStage::ReadingHeader);
            return Err(TryFailure::InvalidHeader);
        }
        interim_response::pass_on(request, &self.settings, head, seen.bytes);
        Ok(())
    }
}
