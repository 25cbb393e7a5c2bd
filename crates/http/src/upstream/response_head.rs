//! From a connection to the head of a response: the request goes out, and what comes back is read.

use std::io;
use std::task::{Context, Poll};

use proto::message::ResponseHead;

use super::exchange::{Exchange, client_left};
use super::interim;
use super::log::{self, Doing};
use super::protocol::HeadProgress;

use super::retry::TryFailure;
use super::transmit::{Progress, SendFailure};
use crate::request::Request;

/// Interim responses of a try, which are bounded.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InterimCount {
    pub(super) responses: u32,
    pub(super) bytes: u64,
}

impl Exchange {
    /// Sends, and reads until the head is complete. Gives how many bytes of the input belonged to it.
    pub(super) fn poll_head(
        &mut self,
        request: &mut Request,
        input: &mut Vec<u8>,
        head: &mut ResponseHead,
        context: &mut Context<'_>,
    ) -> Poll<Result<usize, TryFailure>> {
        if self.watch_client && request.stream.poll_left(context).is_ready() {
            return Poll::Ready(Err(client_left(request)));
        }
        loop {
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
        if self.timer.poll_expired(context).is_ready() {
            let doing = match self.transmit.is_done() {
                true => Doing::ReadingHeader,
                false => Doing::SendingRequest,
            };
            return Poll::Ready(Err(TryFailure::TimedOut(doing)));
        }
        Poll::Pending
    }

    /// Sends what can be sent, and sets the timer for what is waited for then.
    fn poll_send(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Result<(), TryFailure> {
        let Some(link) = &self.attempt.link else {
            return Ok(());
        };
        match self.transmit.poll(
            request,
            &link.connection.stream,
            &mut *self.protocol,
            context,
        ) {
            Ok(Progress::Done) => self.timer.set(self.settings.read_timeout),
            Ok(Progress::PeerBusy { moved: true }) => self.timer.set(self.settings.send_timeout),
            Ok(Progress::PeerBusy { moved: false }) => {}
            // The peer is not to blame for the client's silence, which has a timer of its own.
            Ok(Progress::Waiting) => self.timer.set(self.settings.read_timeout),
            Err(SendFailure::Client(none)) => return Err(TryFailure::Final(none)),
            Err(SendFailure::Peer(error)) => {
                // It may have answered before it closed: what it said counts, and if it said nothing that is logged.
                log::send_failed(request, &error);
                self.transmit.abandon();
                self.timer.set(self.settings.read_timeout);
            }
        }
        request.upstream.get_or_make().current().bytes_sent = self.transmit.sent();
        Ok(())
    }

    /// Appends what the peer sent to `input`.
    fn poll_receive(
        &mut self,
        request: &mut Request,
        input: &mut Vec<u8>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), TryFailure>> {
        let Some(link) = &self.attempt.link else {
            return Poll::Pending;
        };
        let doing = Doing::ReadingHeader;
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
                log::failed(request, "upstream prematurely closed connection", doing);
                Err(TryFailure::Broken)
            }
            Ok(n) => {
                request.upstream.get_or_make().current().bytes_received += n as u64;
                if self.transmit.is_done() {
                    self.timer.set(self.settings.read_timeout);
                }
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => {
                log::read_failed(request, &error, doing);
                Err(TryFailure::Broken)
            }
        })
    }

    /// How much input the head may take, in bytes.
    fn head_room(&self) -> usize {
        usize::try_from(self.settings.buffer_size)
            .unwrap_or(usize::MAX)
            .max(self.protocol.least_buffer())
    }

    fn read_head(
        &mut self,
        request: &mut Request,
        input: &mut Vec<u8>,
        head: &mut ResponseHead,
    ) -> Result<Option<usize>, TryFailure> {
        let doing = Doing::ReadingHeader;
        loop {
            match self.protocol.read_head(request, input, head) {
                Ok(HeadProgress::Complete(_))
                    if head.status == 101 && !self.may_switch(request) =>
                {
                    log::failed(
                        request,
                        "upstream switched protocols without being asked",
                        doing,
                    );
                    return Err(TryFailure::InvalidHeader);
                }
                Ok(HeadProgress::Complete(used)) => return Ok(Some(used)),
                Ok(HeadProgress::Interim(used)) => {
                    if head.status != 0 {
                        self.count_interim(request, head, used)?;
                    }
                    head.clear();
                    input.drain(..used);
                }
                Ok(HeadProgress::Partial) if input.len() >= self.head_room() => {
                    log::failed(request, "upstream sent too big header", doing);
                    return Err(TryFailure::InvalidHeader);
                }
                Ok(HeadProgress::Partial) => return Ok(None),
                Err(fault) => {
                    log::invalid_response(request, &fault.message, doing);
                    return Err(match fault.is_unseen {
                        true => TryFailure::Unprocessed,
                        false => TryFailure::InvalidHeader,
                    });
                }
            }
        }
    }

    /// Whether a 101 makes sense: it was asked for by what was sent, and by a client who can have it. On a stream of HTTP/2
    /// there is nothing to switch from, unless the client asked for it in its own way.
    fn may_switch(&self, request: &Request) -> bool {
        self.protocol.asks().upgrade
            && request.head.wire.fields.has(proto::Known::Upgrade)
            && !request.is_subrequest()
    }

    /// Lets an interim response go on, unless there were too many.
    fn count_interim(
        &mut self,
        request: &mut Request,
        head: &ResponseHead,
        length: usize,
    ) -> Result<(), TryFailure> {
        let seen = &mut self.attempt.interim;
        seen.responses += 1;
        seen.bytes += length as u64;
        if seen.responses > interim::MOST {
            let text = "upstream sent too many interim responses";
            log::failed(request, text, Doing::ReadingHeader);
            return Err(TryFailure::InvalidHeader);
        }
        interim::pass_on(request, &self.settings, head, seen.bytes);
        Ok(())
    }
}
